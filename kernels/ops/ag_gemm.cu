/* AllGather+GEMM: C = gather(A) * B in one launch. CTAs take roles by their number: the compute
 * role is the GEMM engine over the schedule's tile source, the others run their part of
 * core/roles/ag_gemm.h on one thread. Where there are one, two or three times as many intra_comm as
 * compute CTAs, warps that the engine leaves free run that role, so that every SM computes. */
#include "kernels/ops/ag_gemm.cuh"

int ag_gemm_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (plan->problem.engine == MK_ENGINE_MMA && plan->problem.fp8)
        return ag_gemm_fp8_mma_prepare(plan, error, error_size);
    if (plan->problem.engine == MK_ENGINE_MMA && plan->problem.fp16)
        return ag_gemm_fp16_mma_prepare(plan, error, error_size);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return ag_gemm_mma_prepare(plan, error, error_size);
    if (plan->problem.fp8)
        return ag_gemm_fp8_prepare(plan, error, error_size);
    if (plan->problem.fp16)
        return ag_gemm_fp16_prepare(plan, error, error_size);
    return gemm_op_prepare<ag_gemm_on_gpu<false>>(ag_gemm_plan_of(plan), &plan->problem, error,
                                                  error_size);
}

int ag_gemm_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    if (plan->problem.engine == MK_ENGINE_MMA && plan->problem.fp8)
        return ag_gemm_fp8_mma_launch(plan, launch, stream);
    if (plan->problem.engine == MK_ENGINE_MMA && plan->problem.fp16)
        return ag_gemm_fp16_mma_launch(plan, launch, stream);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return ag_gemm_mma_launch(plan, launch, stream);
    if (plan->problem.fp8)
        return ag_gemm_fp8_launch(plan, launch, stream);
    if (plan->problem.fp16)
        return ag_gemm_fp16_launch(plan, launch, stream);
    return gemm_op_launch<ag_gemm_on_gpu<false>>(ag_gemm_plan_of(plan), plan->problem.b_transposed,
                                                 launch, stream);
}
