/* AllGather+GEMM: C = gather(A) * B in one launch. CTAs take roles by their number: the compute
 * role is the GEMM engine over the schedule's tile source, the others run their part of
 * core/roles/ag_gemm.h on one thread. Where the plan says intra_comm_warps, warps that the engine leaves
 * free run that role, so that every SM computes. */
#include "kernels/ops/ag_gemm.cuh"

#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/hopper/gemm_track.cuh"

GPU_KERNELS(ag_gemm_bf16)
GPU_KERNELS(ag_gemm_fp8)
GPU_KERNELS(ag_gemm_columns_fp8) /* B has a scale for each column */
GPU_KERNELS(ag_gemm_fp16)
GPU_OPERATOR_BY(ag_gemm_bf16, ag_gemm, gemm_operator<ag_gemm_on<gemm_engine>>)

static struct gpu_functions ag_gemm_choose(const struct mk_kernel_choice *q)
{
    if (q->b_columns)
        return GPU_FUNCTIONS_BY_ENGINE(q, ag_gemm_columns_fp8);
    if (q->fp8)
        return GPU_FUNCTIONS_BY_ENGINE(q, ag_gemm_fp8);
    if (q->fp16)
        return GPU_FUNCTIONS_BY_ENGINE(q, ag_gemm_fp16);
    return GPU_FUNCTIONS_BY_ENGINE(q, ag_gemm_bf16);
}

GPU_OPERATOR_OF(ag_gemm, ag_gemm_choose)
