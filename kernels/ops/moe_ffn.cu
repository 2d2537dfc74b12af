/* The MoE feed-forward layer of bf16 on the GPU. */
#define SUMS_STAGED 1
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

GPU_OPERATOR(moe_ffn_bf16) /* here alone */
GPU_OPERATOR_BY(moe_ffn_bf16, moe_ffn, moe_ffn_operator<moe_ffn_kernels>)

static struct gpu_functions moe_ffn_choose(const struct mk_problem *q)
{
    if (q->fp8)
        return GPU_FUNCTIONS_BY_ENGINE(q, moe_ffn_fp8);
    return GPU_FUNCTIONS_BY_ENGINE(q, moe_ffn_bf16);
}

GPU_OPERATOR_OF(moe_ffn, moe_ffn_choose)
