/* MoE dispatch+GEMM of FP8 on engine mma, for every GPU of compute capability 8.9 and up. */
#include "kernels/ops/moe_dispatch_gemm_mma.cuh"

int moe_dispatch_gemm_fp8_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return mma_ticket_prepare<moe_dispatch_gemm_on_mma<true>>(moe_dispatch_gemm_plan_of(plan),
                                                              &plan->problem, error, error_size);
}

int moe_dispatch_gemm_fp8_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                                     cudaStream_t stream)
{
    return mma_ticket_launch<moe_dispatch_gemm_on_mma<true>>(moe_dispatch_gemm_plan_of(plan),
                                                             &plan->problem, launch, stream);
}
