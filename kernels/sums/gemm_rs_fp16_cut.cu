/* GEMM+ReduceScatter of fp16 whose last tiles are cut along K: the kernel of gemm_rs_cut.cu with
 * another type of products. */
#define NORM_ELEMENT MK_FP16
#include "kernels/sums/gemm_cut.cuh"

typedef reduce_on_gpu<reduce_cut<reduce_of_fp16<gemm_rs_roles>>> gemm_rs_fp16_cut_on_gpu;

GPU_OPERATOR_BY(
    gemm_rs_fp16_cut, gemm_rs,
    gemm_operator<gemm_rs_fp16_cut_on_gpu, gemm_cut_kernels<gemm_rs_fp16_cut_on_gpu, GEMM_FP16>>)
