/* GEMM+AllReduce with a residual and a norm behind it: the kernel of gemm_ar.cu, and
 * core/roles/gemm_rs_norm.h. */
#include "kernels/ops/gemm_reduce.cuh"

typedef reduce_on_gpu<gemm_ar_norm_roles> gemm_ar_norm_on_gpu;

int gemm_ar_norm_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_norm_mma_prepare(plan, error, error_size);
    return gemm_op_prepare<gemm_ar_norm_on_gpu>(gemm_ar_plan_of(plan), &plan->problem, error,
                                                error_size);
}

int gemm_ar_norm_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                        cudaStream_t stream)
{
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_norm_mma_launch(plan, launch, stream);
    return gemm_op_launch<gemm_ar_norm_on_gpu>(gemm_ar_plan_of(plan), plan->problem.b_transposed,
                                               launch, stream);
}
