/* AllGather+GEMM of FP8: the kernel of ag_gemm.cu over rows of e4m3, with scales of blocks. */
#define CTA_LANES_AHEAD                                                                            \
    4 /* rows have half the bytes, and warps that push beside a tight shape few registers */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

typedef ag_gemm_on_gpu<true> ag_gemm_fp8_on_gpu;
typedef gemm_fp8_kernels<ag_gemm_fp8_on_gpu> ag_gemm_fp8_kernels;

int ag_gemm_fp8_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return gemm_op_prepare<ag_gemm_fp8_on_gpu, ag_gemm_fp8_kernels>(
        ag_gemm_plan_of(plan), &plan->problem, error, error_size);
}

int ag_gemm_fp8_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                       cudaStream_t stream)
{
    return gemm_op_launch<ag_gemm_fp8_on_gpu, ag_gemm_fp8_kernels>(
        ag_gemm_plan_of(plan), plan->problem.b_transposed, launch, stream);
}
