/* GEMM+AllReduce of FP8 on engine mma, for every GPU of compute capability 8.9 and up: the kernel of
 * gemm_ar_mma.cu over rows of e4m3, with scales of blocks. */
#include "kernels/sums/gemm_reduce_mma.cuh"

#include "kernels/mma/launch_fp8.cuh"

typedef reduce_on_mma<reduce_of_fp8<gemm_ar_roles>> gemm_ar_fp8_on_mma;

GPU_OPERATOR_BY(gemm_ar_fp8_mma, gemm_ar,
                mma_operator<gemm_ar_fp8_on_mma, mma_fp8_kernels<gemm_ar_fp8_on_mma>>)
