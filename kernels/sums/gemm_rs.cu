/* GEMM+ReduceScatter: C_r = rows r of the sum over ranks of A_r * B_r, in one launch.
 * kernels/sums/gemm_reduce.cuh is the kernel; this file gives it the schedule of
 * core/roles/gemm_rs.h.
 */
#include "kernels/sums/gemm_reduce.cuh"

GPU_KERNELS(gemm_rs_bf16)
GPU_KERNELS(gemm_rs_tree)
GPU_KERNELS(gemm_rs_fp8)
GPU_KERNELS(gemm_rs_columns_fp8) /* B has a scale for each column */
GPU_KERNELS(gemm_rs_fp16)
GPU_OPERATOR(gemm_rs_cut) /* of plans whose last tiles are cut along K */
GPU_OPERATOR(gemm_rs_fp16_cut)
GPU_OPERATOR_BY(gemm_rs_bf16, gemm_rs, gemm_operator<reduce_on_gpu<gemm_rs_roles>>)

static struct gpu_functions gemm_rs_choose(const struct mk_kernel_choice *q)
{
    if (q->b_columns)
        return GPU_FUNCTIONS_BY_ENGINE(q, gemm_rs_columns_fp8);
    if (q->fp8)
        return GPU_FUNCTIONS_BY_ENGINE(q, gemm_rs_fp8);
    if (q->fp16 && q->slices > 1)
        return gpu_functions GPU_FUNCTIONS(gemm_rs_fp16_cut);
    if (q->fp16)
        return GPU_FUNCTIONS_BY_ENGINE(q, gemm_rs_fp16);
    if (q->deterministic == MK_EVERYWHERE)
        return GPU_FUNCTIONS_BY_ENGINE(q, gemm_rs_tree);
    if (q->slices > 1)
        return gpu_functions GPU_FUNCTIONS(gemm_rs_cut);
    return GPU_FUNCTIONS_BY_ENGINE(q, gemm_rs_bf16);
}

GPU_OPERATOR_OF(gemm_rs, gemm_rs_choose)
