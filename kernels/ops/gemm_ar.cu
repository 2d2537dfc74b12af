/* GEMM+AllReduce: C = the sum over ranks of A_r * B_r, on every rank, in one launch.
 * kernels/ops/gemm_reduce.cuh is the kernel; this file gives it the schedule of
 * core/roles/gemm_ar.h.
 */
#include "kernels/ops/gemm_reduce.cuh"

typedef reduce_on_gpu<gemm_ar_roles> gemm_ar_on_gpu;

int gemm_ar_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (plan->problem.fp8 && plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_fp8_mma_prepare(plan, error, error_size);
    if (plan->problem.fp8)
        return gemm_ar_fp8_prepare(plan, error, error_size);
    if (plan->problem.fp16 && plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_fp16_mma_prepare(plan, error, error_size);
    if (plan->problem.fp16)
        return gemm_ar_fp16_prepare(plan, error, error_size);
    if (plan->problem.deterministic == MK_EVERYWHERE)
        return gemm_ar_tree_prepare(plan, error, error_size);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_mma_prepare(plan, error, error_size);
    return gemm_op_prepare<gemm_ar_on_gpu>(gemm_ar_plan_of(plan), &plan->problem, error,
                                           error_size);
}

int gemm_ar_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    if (plan->problem.fp8 && plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_fp8_mma_launch(plan, launch, stream);
    if (plan->problem.fp8)
        return gemm_ar_fp8_launch(plan, launch, stream);
    if (plan->problem.fp16 && plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_fp16_mma_launch(plan, launch, stream);
    if (plan->problem.fp16)
        return gemm_ar_fp16_launch(plan, launch, stream);
    if (plan->problem.deterministic == MK_EVERYWHERE)
        return gemm_ar_tree_launch(plan, launch, stream);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_mma_launch(plan, launch, stream);
    return gemm_op_launch<gemm_ar_on_gpu>(gemm_ar_plan_of(plan), plan->problem.b_transposed, launch,
                                          stream);
}
