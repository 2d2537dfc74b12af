/* The same on engine mma (gemm_rs_norm.cu). */
#include "kernels/ops/gemm_reduce_mma.cuh"

int gemm_rs_norm_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return reduce_mma_prepare<gemm_rs_norm_roles>(gemm_rs_plan_of(plan), &plan->problem, error,
                                                  error_size);
}

int gemm_rs_norm_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                            cudaStream_t stream)
{
    return reduce_mma_launch<gemm_rs_norm_roles>(gemm_rs_plan_of(plan), &plan->problem, launch,
                                                 stream);
}
