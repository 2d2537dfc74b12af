/* GEMM+ReduceScatter: C_r = rows r of the sum over ranks of A_r * B_r, in one launch.
 * kernels/ops/gemm_reduce.cuh is the kernel; this file gives it the schedule of
 * core/roles/gemm_rs.h.
 */
#include "kernels/op.h"

#include "kernels/ops/gemm_reduce.cuh"

GPU_OPERATOR(gemm_rs)
GPU_OPERATOR(gemm_rs_mma) /* of plans for engine mma */

struct gemm_rs_roles {
    typedef struct gemm_rs_plan plan;
    static constexpr bool gathers = false;

    static __host__ GEMM_MEMBER const struct gemm_rs_plan *tiles(const plan *p)
    {
        return p;
    }

    static GEMM_MEMBER void after(const plan *p, struct mk_cta *cta, const struct mk_tile *tile,
                                  uint32_t, uint32_t, uint32_t parts)
    {
        gemm_rs_after(p, cta, tile, parts);
    }

    static GEMM_MEMBER void role(const plan *p, struct mk_cta *cta)
    {
        gemm_rs_inter_send(p, cta);
    }
};

typedef reduce_on_gpu<gemm_rs_roles> gemm_rs_on_gpu;

int gemm_rs_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_rs_mma_prepare(plan, error, error_size);
    return gemm_op_prepare<gemm_rs_on_gpu>(gemm_rs_plan_of(plan), &plan->problem, error,
                                           error_size);
}

int gemm_rs_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_rs_mma_launch(plan, launch, stream);
    return gemm_op_launch<gemm_rs_on_gpu>(gemm_rs_plan_of(plan), plan->problem.b_transposed, launch,
                                          stream);
}
