/* GEMM+AllReduce of FP8: the kernel of gemm_ar.cu over rows of e4m3, with scales of blocks. */
#include "kernels/sums/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

typedef reduce_on_gpu<reduce_of_fp8<gemm_ar_roles>> gemm_ar_fp8_on_gpu;

GPU_OPERATOR_BY(gemm_ar_fp8, gemm_ar,
                gemm_operator<gemm_ar_fp8_on_gpu, gemm_fp8_kernels<gemm_ar_fp8_on_gpu>>)
