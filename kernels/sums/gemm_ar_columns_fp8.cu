/* GEMM+AllReduce of FP8 whose B has a scale for each column: the kernel of gemm_ar_fp8.cu. */
#include "kernels/sums/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

typedef reduce_on_gpu<reduce_by_columns<gemm_ar_roles>> gemm_ar_columns_fp8_on_gpu;

GPU_OPERATOR_BY(
    gemm_ar_columns_fp8, gemm_ar,
    gemm_operator<gemm_ar_columns_fp8_on_gpu, gemm_fp8_kernels<gemm_ar_columns_fp8_on_gpu>>)
