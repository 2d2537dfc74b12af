/* GEMM+AllReduce of fp16 on engine mma: the kernel of gemm_ar_mma.cu with another type of products. */
#define NORM_ELEMENT MK_FP16
#include "kernels/sums/gemm_reduce_mma.cuh"

#include "kernels/mma/launch_fp16.cuh"

typedef reduce_on_mma<reduce_of_fp16<gemm_ar_roles>> gemm_ar_fp16_on_mma;

GPU_OPERATOR_BY(gemm_ar_fp16_mma, gemm_ar,
                mma_operator<gemm_ar_fp16_on_mma, mma_fp16_kernels<gemm_ar_fp16_on_mma>>)
