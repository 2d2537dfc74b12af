/* GEMM+ReduceScatter on engine mma, of plans whose bits are the same everywhere: the kernel of gemm_rs_mma.cu with sums in a
 * tree (core/sum_tree.h). */
#include "kernels/ops/gemm_reduce_mma.cuh"

typedef reduce_on_mma<reduce_in_tree<gemm_rs_roles>, MK_FP24> gemm_rs_tree_on_mma;

int gemm_rs_tree_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return mma_op_prepare<gemm_rs_tree_on_mma>(&plan->problem, error, error_size);
}

int gemm_rs_tree_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                            cudaStream_t stream)
{
    return mma_op_launch<gemm_rs_tree_on_mma>(gemm_rs_plan_of(plan), &plan->problem, launch,
                                              stream);
}
