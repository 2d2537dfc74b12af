/* GEMM+AllReduce: C = the sum over ranks of A_r * B_r, on every rank, in one launch.
 * kernels/sums/gemm_reduce.cuh is the kernel; this file gives it the schedule of
 * core/roles/gemm_ar.h.
 */
#define CTA_LANES_VARY 1
#include "kernels/sums/gemm_reduce.cuh"

GPU_KERNELS(gemm_ar_bf16)
GPU_KERNELS(gemm_ar_tree)
GPU_KERNELS(gemm_ar_fp8)
GPU_KERNELS(gemm_ar_columns_fp8) /* B has a scale for each column */
GPU_KERNELS(gemm_ar_fp16)
GPU_OPERATOR_BY(gemm_ar_bf16, gemm_ar, gemm_operator<reduce_on_gpu<gemm_ar_roles>>)

static struct gpu_functions gemm_ar_choose(const struct mk_kernel_choice *q)
{
    if (q->b_columns)
        return GPU_FUNCTIONS_BY_ENGINE(q, gemm_ar_columns_fp8);
    if (q->fp8)
        return GPU_FUNCTIONS_BY_ENGINE(q, gemm_ar_fp8);
    if (q->fp16)
        return GPU_FUNCTIONS_BY_ENGINE(q, gemm_ar_fp16);
    if (q->deterministic == MK_EVERYWHERE)
        return GPU_FUNCTIONS_BY_ENGINE(q, gemm_ar_tree);
    return GPU_FUNCTIONS_BY_ENGINE(q, gemm_ar_bf16);
}

GPU_OPERATOR_OF(gemm_ar, gemm_ar_choose)
