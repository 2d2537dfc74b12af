/* GEMM+ReduceScatter: C_r = rows r of the sum over ranks of A_r * B_r, in one launch.
 * kernels/ops/gemm_reduce.cuh is the kernel; this file gives it the schedule of
 * core/roles/gemm_rs.h.
 */
#include "kernels/ops/gemm_reduce.cuh"

typedef reduce_on_gpu<gemm_rs_roles> gemm_rs_on_gpu;

int gemm_rs_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (plan->problem.fp8 && plan->problem.engine == MK_ENGINE_MMA)
        return gemm_rs_fp8_mma_prepare(plan, error, error_size);
    if (plan->problem.fp8)
        return gemm_rs_fp8_prepare(plan, error, error_size);
    if (plan->problem.fp16 && plan->problem.engine == MK_ENGINE_MMA)
        return gemm_rs_fp16_mma_prepare(plan, error, error_size);
    if (plan->problem.fp16)
        return gemm_rs_fp16_prepare(plan, error, error_size);
    if (plan->problem.deterministic == MK_EVERYWHERE)
        return gemm_rs_tree_prepare(plan, error, error_size);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_rs_mma_prepare(plan, error, error_size);
    return gemm_op_prepare<gemm_rs_on_gpu>(gemm_rs_plan_of(plan), &plan->problem, error,
                                           error_size);
}

int gemm_rs_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    if (plan->problem.fp8 && plan->problem.engine == MK_ENGINE_MMA)
        return gemm_rs_fp8_mma_launch(plan, launch, stream);
    if (plan->problem.fp8)
        return gemm_rs_fp8_launch(plan, launch, stream);
    if (plan->problem.fp16 && plan->problem.engine == MK_ENGINE_MMA)
        return gemm_rs_fp16_mma_launch(plan, launch, stream);
    if (plan->problem.fp16)
        return gemm_rs_fp16_launch(plan, launch, stream);
    if (plan->problem.deterministic == MK_EVERYWHERE)
        return gemm_rs_tree_launch(plan, launch, stream);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_rs_mma_launch(plan, launch, stream);
    return gemm_op_launch<gemm_rs_on_gpu>(gemm_rs_plan_of(plan), plan->problem.b_transposed, launch,
                                          stream);
}
