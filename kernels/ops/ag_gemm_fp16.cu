/* AllGather+GEMM of fp16: the kernel of ag_gemm.cu with another type of products. */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/hopper/gemm_launch_fp16.cuh"

GEMM_FP16_OPERATOR(ag_gemm, ag_gemm_on_gpu<false>)
