/* AllGather+GEMM of FP8: the kernel of ag_gemm.cu over rows of e4m3, with scales of blocks. */
#define CTA_LANES_AHEAD                                                                            \
    4 /* rows have half the bytes, and warps that push beside a tight shape few registers */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

GEMM_FP8_OPERATOR(ag_gemm, ag_gemm_on_gpu<true>)
