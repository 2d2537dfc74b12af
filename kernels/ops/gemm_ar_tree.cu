/* GEMM+AllReduce of plans whose bits are the same everywhere: the kernel of gemm_ar.cu with sums in a tree
 * (core/sum_tree.h). */
#include "kernels/ops/gemm_reduce.cuh"

typedef reduce_on_gpu<reduce_in_tree<gemm_ar_roles>> gemm_ar_tree_on_gpu;
typedef gemm_tree_kernels<gemm_ar_tree_on_gpu> gemm_ar_tree_kernels;

int gemm_ar_tree_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_tree_mma_prepare(plan, error, error_size);
    return gemm_op_prepare<gemm_ar_tree_on_gpu, gemm_ar_tree_kernels>(
        gemm_ar_plan_of(plan), &plan->problem, error, error_size);
}

int gemm_ar_tree_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                        cudaStream_t stream)
{
    if (plan->problem.engine == MK_ENGINE_MMA)
        return gemm_ar_tree_mma_launch(plan, launch, stream);
    return gemm_op_launch<gemm_ar_tree_on_gpu, gemm_ar_tree_kernels>(
        gemm_ar_plan_of(plan), plan->problem.b_transposed, launch, stream);
}
