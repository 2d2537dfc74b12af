/* The MoE feed-forward layer on engine mma, for every GPU of compute capability 8.0 and up. */
#include "kernels/ops/moe_ffn_mma.cuh"

int moe_ffn_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return mma_ticket_prepare<moe_ffn_on_mma<false>>(moe_ffn_plan_of(plan), &plan->problem, error,
                                                     error_size);
}

int moe_ffn_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                       cudaStream_t stream)
{
    return mma_ticket_launch<moe_ffn_on_mma<false>>(moe_ffn_plan_of(plan), &plan->problem, launch,
                                                    stream);
}
