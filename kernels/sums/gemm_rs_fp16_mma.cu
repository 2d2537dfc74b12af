/* GEMM+ReduceScatter of fp16 on engine mma: the kernel of gemm_rs_mma.cu with another type of products. */
#define NORM_ELEMENT MK_FP16
#include "kernels/sums/gemm_reduce_mma.cuh"

#include "kernels/mma/launch_fp16.cuh"

typedef reduce_on_mma<reduce_of_fp16<gemm_rs_roles>> gemm_rs_fp16_on_mma;

GPU_OPERATOR_BY(gemm_rs_fp16_mma, gemm_rs,
                mma_operator<gemm_rs_fp16_on_mma, mma_fp16_kernels<gemm_rs_fp16_on_mma>>)
