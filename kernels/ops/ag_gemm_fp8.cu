/* AllGather+GEMM of FP8: the kernel of ag_gemm.cu over rows of e4m3, with scales of blocks. */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

int ag_gemm_fp8_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return gemm_fp8_prepare<ag_gemm_on_gpu<true>>(ag_gemm_plan_of(plan), &plan->problem, error,
                                                  error_size);
}

int ag_gemm_fp8_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                       cudaStream_t stream)
{
    return gemm_fp8_launch<ag_gemm_on_gpu<true>>(ag_gemm_plan_of(plan), launch, stream);
}
