/* The MoE feed-forward layer of bf16 on the GPU. */
#include "kernels/ops/moe_ffn.cuh"

struct moe_ffn_bf16_source : moe_ffn_source<moe_ffn_bf16_source> {
    static constexpr uint32_t tile_k = GEMM_TILE_K;
    struct moe_ffn_place tile;

    static GEMM_MEMBER uint32_t thread()
    {
        return threadIdx.x;
    }

    GEMM_MEMBER void keep(const struct moe_ffn_place &of)
    {
        tile = of;
    }

    GEMM_MEMBER const struct moe_ffn_place &kept() const
    {
        return tile;
    }

    template <class shape> GEMM_MEMBER bool store_act(float (&)[shape::tile_n / 2], uint32_t) const
    {
        return false;
    }
};

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    moe_ffn_kernel(const __grid_constant__ struct moe_ffn_plan plan,
                   const __grid_constant__ struct gpu_launch launch,
                   const __grid_constant__ struct gemm_operands operands,
                   const __grid_constant__ struct moe_ffn_maps maps)
{
    PTX_SHARED_DYNAMIC(memory);
    struct moe_ffn_bf16_source source;
    moe_ffn_block<shape>(&plan, &launch, &operands, &maps, &source, memory);
}

struct moe_ffn_kernels {
    template <class shape> static auto kernel()
    {
        return moe_ffn_kernel<shape>;
    }

    template <class function>
    static int dispatch(const struct moe_ffn_plan *p, int transposed, function call)
    {
#define MOE_TRY(rows, columns, cluster_, stages, boxes)                                            \
    if (p->dispatch.tile_m == rows && p->tile_n == columns)                                        \
        return transposed ? call(gemm_shape<rows, columns, cluster_, 0, stages, boxes>())          \
                          : call(gemm_shape<rows, columns, cluster_, 1, stages, boxes>());
        MK_GATED_TILES(MOE_TRY)
#undef MOE_TRY
        return -EINVAL;
    }
};

int moe_ffn_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (plan->problem.fp8 && plan->problem.engine == MK_ENGINE_MMA)
        return moe_ffn_fp8_mma_prepare(plan, error, error_size);
    if (plan->problem.fp8)
        return moe_ffn_fp8_prepare(plan, error, error_size);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return moe_ffn_mma_prepare(plan, error, error_size);
    return moe_ffn_prepare_by<moe_ffn_kernels>(plan, error, error_size);
}

int moe_ffn_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    if (plan->problem.fp8 && plan->problem.engine == MK_ENGINE_MMA)
        return moe_ffn_fp8_mma_launch(plan, launch, stream);
    if (plan->problem.fp8)
        return moe_ffn_fp8_launch(plan, launch, stream);
    if (plan->problem.engine == MK_ENGINE_MMA)
        return moe_ffn_mma_launch(plan, launch, stream);
    return moe_ffn_launch_by<moe_ffn_kernels>(plan, launch, stream);
}
