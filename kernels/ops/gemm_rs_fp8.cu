/* GEMM+ReduceScatter of FP8: the kernel of gemm_rs.cu over rows of e4m3, with scales of blocks. */
#include "kernels/ops/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp8.cuh"

GEMM_FP8_OPERATOR(gemm_rs, reduce_on_gpu<reduce_of_fp8<gemm_rs_roles>>)
