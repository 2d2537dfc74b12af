/* GEMM+AllReduce of fp16: the kernel of gemm_ar.cu with another type of products. */
#define NORM_ELEMENT MK_FP16
#include "kernels/ops/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp16.cuh"

GEMM_FP16_OPERATOR(gemm_ar, reduce_on_gpu<reduce_of_fp16<gemm_ar_roles>>)
