/* GEMM+AllReduce of plans whose bits are the same everywhere: the kernel of gemm_ar.cu with sums in a tree
 * (core/cta/sum_tree.h). */
#include "kernels/sums/gemm_reduce_tree.cuh"

typedef reduce_tree_on_gpu<gemm_ar_roles> gemm_ar_tree_on_gpu;

GPU_OPERATOR_BY(gemm_ar_tree, gemm_ar,
                gemm_operator<gemm_ar_tree_on_gpu, gemm_tree_kernels<gemm_ar_tree_on_gpu>>)
