/* AllGather+GEMM of FP8 whose B has a scale for each column: the kernel of ag_gemm_fp8.cu. */
#define CTA_LANES_AHEAD 4
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"
#include "kernels/hopper/gemm_track.cuh"

typedef ag_gemm_on<gemm_engine, true, true> ag_gemm_columns_fp8_on_gpu;

GPU_OPERATOR_BY(
    ag_gemm_columns_fp8, ag_gemm,
    gemm_operator<ag_gemm_columns_fp8_on_gpu, gemm_fp8_kernels<ag_gemm_columns_fp8_on_gpu>>)
