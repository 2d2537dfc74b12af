/* AllGather+GEMM of FP8: the kernel of ag_gemm.cu over rows of e4m3, with scales of blocks. */
#define CTA_LANES_AHEAD                                                                            \
    4 /* rows have half the bytes, and warps that push beside a tight shape few registers */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"
#include "kernels/hopper/gemm_track.cuh"

GPU_OPERATOR_BY(
    ag_gemm_fp8, ag_gemm,
    gemm_operator<ag_gemm_on<gemm_engine, true>, gemm_fp8_kernels<ag_gemm_on<gemm_engine, true>>>)
