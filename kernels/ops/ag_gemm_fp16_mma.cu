/* AllGather+GEMM of fp16 on engine mma: the kernel of ag_gemm_mma.cu with another type of products. */
#include "kernels/ops/ag_gemm_mma.cuh"

#include "kernels/mma/launch_fp16.cuh"

typedef ag_gemm_on_mma<false> ag_gemm_fp16_on_mma;
typedef mma_fp16_kernels<ag_gemm_fp16_on_mma> ag_gemm_fp16_mma_kernels;

int ag_gemm_fp16_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return mma_op_prepare<ag_gemm_fp16_on_mma, ag_gemm_fp16_mma_kernels>(&plan->problem, error,
                                                                         error_size);
}

int ag_gemm_fp16_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                            cudaStream_t stream)
{
    return mma_op_launch<ag_gemm_fp16_on_mma, ag_gemm_fp16_mma_kernels>(
        ag_gemm_plan_of(plan), &plan->problem, launch, stream);
}
