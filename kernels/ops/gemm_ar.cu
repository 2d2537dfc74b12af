/* GEMM+AllReduce: C = the sum over ranks of A_r * B_r, on every rank, in one launch.
 * kernels/ops/gemm_reduce.cuh is the kernel; this file gives it the schedule of
 * core/roles/gemm_ar.h.
 */
#include "kernels/op.h"

#include "kernels/ops/gemm_reduce.cuh"

#include "core/roles/gemm_ar.h"

GPU_OPERATOR(gemm_ar)

struct gemm_ar_roles {
    typedef struct gemm_ar_plan plan;
    static constexpr bool gathers = true;

    static __host__ GEMM_MEMBER const struct gemm_rs_plan *tiles(const plan *p)
    {
        return &p->rs;
    }

    static GEMM_MEMBER void after(const plan *p, struct mk_cta *cta, const struct mk_tile *tile,
                                  uint32_t first, uint32_t rows, uint32_t parts)
    {
        gemm_ar_after(p, cta, tile, first, rows, parts);
    }

    static GEMM_MEMBER void role(const plan *p, struct mk_cta *cta)
    {
        if (cta->role == MK_INTER_SEND)
            gemm_ar_inter_send(p, cta);
        else
            gemm_ar_intra_comm(p, cta);
    }
};

typedef reduce_on_gpu<gemm_ar_roles> gemm_ar_on_gpu;

int gemm_ar_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return gemm_op_prepare<gemm_ar_on_gpu>(gemm_ar_plan_of(plan), &plan->problem, error,
                                           error_size);
}

int gemm_ar_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    return gemm_op_launch<gemm_ar_on_gpu>(gemm_ar_plan_of(plan), plan->problem.b_transposed, launch,
                                          stream);
}
