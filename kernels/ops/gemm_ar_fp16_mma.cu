/* GEMM+AllReduce of fp16 on engine mma: the kernel of gemm_ar_mma.cu with another type of products. */
#define NORM_ELEMENT MK_FP16
#include "kernels/ops/gemm_reduce_mma.cuh"

#include "kernels/mma/launch_fp16.cuh"

typedef reduce_of_fp16<gemm_ar_roles> gemm_ar_fp16_roles;

int gemm_ar_fp16_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return reduce_mma_prepare<gemm_ar_fp16_roles, mma_fp16_kernels>(
        gemm_ar_plan_of(plan), &plan->problem, error, error_size);
}

int gemm_ar_fp16_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                            cudaStream_t stream)
{
    return reduce_mma_launch<gemm_ar_fp16_roles, mma_fp16_kernels>(gemm_ar_plan_of(plan),
                                                                   &plan->problem, launch, stream);
}
