/* GEMM+ReduceScatter of FP8 whose B has a scale for each column: the kernel of gemm_rs_fp8.cu. */
#include "kernels/sums/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

typedef reduce_on_gpu<reduce_by_columns<gemm_rs_roles>> gemm_rs_columns_fp8_on_gpu;

GPU_OPERATOR_BY(
    gemm_rs_columns_fp8, gemm_rs,
    gemm_operator<gemm_rs_columns_fp8_on_gpu, gemm_fp8_kernels<gemm_rs_columns_fp8_on_gpu>>)
