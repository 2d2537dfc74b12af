/* GEMM+AllReduce of fp16: the kernel of gemm_ar.cu with another type of products. */
#define CTA_LANES_VARY 1
#define NORM_ELEMENT MK_FP16
#include "kernels/sums/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp16.cuh"

typedef reduce_on_gpu<reduce_of_fp16<gemm_ar_roles>> gemm_ar_fp16_on_gpu;

GPU_OPERATOR_BY(gemm_ar_fp16, gemm_ar,
                gemm_operator<gemm_ar_fp16_on_gpu, gemm_fp16_kernels<gemm_ar_fp16_on_gpu>>)
