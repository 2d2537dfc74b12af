/* GEMM+AllReduce of FP8 whose B has a scale for each column on engine mma: the kernel of
 * gemm_ar_fp8_mma.cu. */
#include "kernels/sums/gemm_reduce_mma.cuh"

#include "kernels/mma/launch_fp8.cuh"

typedef reduce_on_mma<reduce_by_columns<gemm_ar_roles>> gemm_ar_columns_fp8_on_mma;

GPU_OPERATOR_BY(
    gemm_ar_columns_fp8_mma, gemm_ar,
    mma_operator<gemm_ar_columns_fp8_on_mma, mma_fp8_kernels<gemm_ar_columns_fp8_on_mma>>)
