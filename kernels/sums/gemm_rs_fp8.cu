/* GEMM+ReduceScatter of FP8: the kernel of gemm_rs.cu over rows of e4m3, with scales of blocks. */
#include "kernels/sums/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

typedef reduce_on_gpu<reduce_of_fp8<gemm_rs_roles>> gemm_rs_fp8_on_gpu;

GPU_OPERATOR_BY(gemm_rs_fp8, gemm_rs,
                gemm_operator<gemm_rs_fp8_on_gpu, gemm_fp8_kernels<gemm_rs_fp8_on_gpu>>)
