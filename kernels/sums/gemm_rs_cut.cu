/* GEMM+ReduceScatter of plans whose last tiles are cut along K (core/roles/gemm_rs_cut.h): the
 * kernel of gemm_rs.cu with slices, apart from it, so that plans of whole tiles have nothing of
 * them. */
#include "kernels/sums/gemm_cut.cuh"

typedef reduce_on_gpu<reduce_cut<gemm_rs_roles>> gemm_rs_cut_on_gpu;

GPU_OPERATOR_BY(gemm_rs_cut, gemm_rs,
                gemm_operator<gemm_rs_cut_on_gpu, gemm_cut_kernels<gemm_rs_cut_on_gpu>>)
