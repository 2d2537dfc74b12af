/* AllGather+GEMM of FP8 on engine mma, for every GPU of compute capability 8.9 and up. */
#include "kernels/ops/ag_gemm_mma.cuh"

#include "kernels/mma/launch_fp8.cuh"

typedef ag_gemm_on_mma<true> ag_gemm_fp8_on_mma;
typedef mma_fp8_kernels<ag_gemm_fp8_on_mma> ag_gemm_fp8_mma_kernels;

int ag_gemm_fp8_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return mma_op_prepare<ag_gemm_fp8_on_mma, ag_gemm_fp8_mma_kernels>(&plan->problem, error,
                                                                       error_size);
}

int ag_gemm_fp8_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                           cudaStream_t stream)
{
    return mma_op_launch<ag_gemm_fp8_on_mma, ag_gemm_fp8_mma_kernels>(
        ag_gemm_plan_of(plan), &plan->problem, launch, stream);
}
