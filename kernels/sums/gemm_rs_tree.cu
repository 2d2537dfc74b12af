/* GEMM+ReduceScatter of plans whose bits are the same everywhere: the kernel of gemm_rs.cu with sums in a tree
 * (core/cta/sum_tree.h). */
#include "kernels/sums/gemm_reduce_tree.cuh"

typedef reduce_tree_on_gpu<gemm_rs_roles> gemm_rs_tree_on_gpu;

GPU_OPERATOR_BY(gemm_rs_tree, gemm_rs,
                gemm_operator<gemm_rs_tree_on_gpu, gemm_tree_kernels<gemm_rs_tree_on_gpu>>)
