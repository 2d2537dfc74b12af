/* GEMM+ReduceScatter of fp16: the kernel of gemm_rs.cu with another type of products. */
#define NORM_ELEMENT MK_FP16
#include "kernels/sums/gemm_reduce.cuh"

#include "kernels/hopper/gemm_launch_fp16.cuh"

typedef reduce_on_gpu<reduce_of_fp16<gemm_rs_roles>> gemm_rs_fp16_on_gpu;

GPU_OPERATOR_BY(gemm_rs_fp16, gemm_rs,
                gemm_operator<gemm_rs_fp16_on_gpu, gemm_fp16_kernels<gemm_rs_fp16_on_gpu>>)
