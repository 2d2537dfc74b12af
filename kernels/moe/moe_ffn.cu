/* The MoE feed-forward layer of bf16 on the GPU. */
#define SUMS_STAGED 1
#include "kernels/moe/moe_ffn_wgmma.cuh"

struct moe_ffn_bf16_source : moe_ffn_wgmma_source<moe_ffn_bf16_source> {
    static constexpr bool scaled = false;
    struct moe_ffn_place tile;

    static ENGINE_MEMBER uint32_t thread()
    {
        return threadIdx.x;
    }

    ENGINE_MEMBER void keep(const struct moe_ffn_place &of)
    {
        tile = of;
    }

    ENGINE_MEMBER const struct moe_ffn_place &kept() const
    {
        return tile;
    }

    template <class shape>
    ENGINE_MEMBER bool store_act(float (&)[shape::blocks][shape::sums], uint32_t) const
    {
        return false;
    }
};

struct moe_ffn_kernels {
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

GPU_KERNELS(moe_ffn_bf16)
GPU_KERNELS(moe_ffn_fp8)
GPU_OPERATOR_BY(
    moe_ffn_bf16, moe_ffn,
    ticket_operator<gemm_engine, moe_ffn_on<gemm_engine, moe_ffn_bf16_source>, moe_ffn_kernels>)

static struct gpu_functions moe_ffn_choose(const struct mk_kernel_choice *q)
{
    if (q->fp8)
        return GPU_FUNCTIONS_BY_ENGINE(q, moe_ffn_fp8);
    return GPU_FUNCTIONS_BY_ENGINE(q, moe_ffn_bf16);
}

GPU_OPERATOR_OF(moe_ffn, moe_ffn_choose)
