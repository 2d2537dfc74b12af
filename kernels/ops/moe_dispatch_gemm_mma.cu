/* MoE dispatch+GEMM on engine mma, for every GPU of compute capability 8.0 and up. */
#include "kernels/ops/moe_dispatch_gemm_mma.cuh"

int moe_dispatch_gemm_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    return moe_dispatch_gemm_mma_prepare_by<false>(plan, error, error_size);
}

int moe_dispatch_gemm_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                                 cudaStream_t stream)
{
    return moe_dispatch_gemm_mma_launch_by<false>(plan, launch, stream);
}
