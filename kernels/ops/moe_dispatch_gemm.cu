/* MoE dispatch+GEMM of bf16 on the GPU. */
#include "kernels/ops/moe_dispatch_gemm.cuh"

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    moe_dispatch_gemm_kernel(const __grid_constant__ struct moe_dispatch_gemm_plan plan,
                             const __grid_constant__ struct gpu_launch launch,
                             const __grid_constant__ struct gemm_operands operands)
{
    PTX_SHARED_DYNAMIC(memory);
    struct moe_dispatch_gemm_source source;
    moe_dispatch_gemm_block<shape>(&plan, &launch, &operands, &source, memory);
}

struct moe_dispatch_gemm_kernels {
    template <class shape> static auto kernel()
    {
        return moe_dispatch_gemm_kernel<shape>;
    }

    template <class function>
    static int dispatch(const struct moe_dispatch_gemm_plan *p, int transposed, function call)
    {
#define MOE_TRY(rows, columns, cluster_, stages, boxes)                                            \
    if (p->dispatch.tile_m == rows && p->tile_n == columns && p->cluster == cluster_)              \
        return transposed ? call(gemm_shape<rows, columns, cluster_, 0, stages, boxes>())          \
                          : call(gemm_shape<rows, columns, cluster_, 1, stages, boxes>());
        MK_GROUPED_TILES(MOE_TRY)
#undef MOE_TRY
        return -EINVAL;
    }
};

int moe_dispatch_gemm_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (plan->problem.fp8 && plan->problem.engine == MK_ENGINE_MMA)
        return moe_dispatch_gemm_fp8_mma_prepare(plan, error, error_size);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return moe_dispatch_gemm_mma_prepare(plan, error, error_size);
    if (plan->problem.fp8)
        return moe_dispatch_gemm_fp8_prepare(plan, error, error_size);
    return moe_dispatch_prepare<moe_dispatch_gemm_kernels>(plan, error, error_size);
}

int moe_dispatch_gemm_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                             cudaStream_t stream)
{
    if (plan->problem.fp8 && plan->problem.engine == MK_ENGINE_MMA)
        return moe_dispatch_gemm_fp8_mma_launch(plan, launch, stream);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return moe_dispatch_gemm_mma_launch(plan, launch, stream);
    if (plan->problem.fp8)
        return moe_dispatch_gemm_fp8_launch(plan, launch, stream);
    return moe_dispatch_launch<moe_dispatch_gemm_kernels>(plan, launch, stream);
}
