/* GEMM+ReduceScatter on engine mma, of plans whose bits are the same everywhere: the kernel of gemm_rs_mma.cu with sums in a
 * tree (core/cta/sum_tree.h). */
#include "kernels/sums/gemm_reduce_mma.cuh"

typedef reduce_on_mma<reduce_in_tree<gemm_rs_roles>> gemm_rs_tree_on_mma;

GPU_OPERATOR_BY(gemm_rs_tree_mma, gemm_rs, mma_operator<gemm_rs_tree_on_mma>)
