/* GEMM+AllReduce on engine mma, of plans whose bits are the same everywhere: the kernel of gemm_ar_mma.cu with sums in a
 * tree (core/cta/sum_tree.h). */
#include "kernels/sums/gemm_reduce_mma.cuh"

typedef reduce_on_mma<reduce_in_tree<gemm_ar_roles>> gemm_ar_tree_on_mma;

GPU_OPERATOR_BY(gemm_ar_tree_mma, gemm_ar, mma_operator<gemm_ar_tree_on_mma>)
