/* GEMM+AllReduce of FP8: the kernel of gemm_ar.cu over rows of e4m3, with scales of blocks. */
#include "kernels/ops/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

GEMM_FP8_OPERATOR(gemm_ar, reduce_on_gpu<reduce_of_fp8<gemm_ar_roles>>)
