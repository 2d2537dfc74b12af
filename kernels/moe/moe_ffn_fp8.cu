/* The MoE feed-forward layer of FP8: the kernel of moe_ffn.cuh over tokens that are records, codes
 * and then their scales. A tile of up has 128 columns of the activation, a block of scales: codes go
 * where bf16 would, and scales of a block of columns lie one behind the other, row by row, so that
 * one bulk copy brings those of a stage of down. */
#define SUMS_STAGED 1
#include "kernels/moe/moe_ffn_wgmma.cuh"

#include "core/plan/gemm_tiles_fp8.h"
#include "kernels/hopper/gemm_quantize.cuh"

/* Beside sums and raw ones there is no room for a tile's place, of each consumer warp. */
PTX_SHARED(struct moe_ffn_place, moe_ffn_places, 8);

struct moe_ffn_fp8_source : moe_ffn_wgmma_source<moe_ffn_fp8_source> {
    static constexpr bool scaled = true;
    static constexpr int producer_registers = 88, consumer_registers = 208;

    /* Nothing that derives from it is kept from tile to tile. */
    static ENGINE_MEMBER uint32_t thread()
    {
        return ptx_opaque(threadIdx.x);
    }

    ENGINE_MEMBER void keep(const struct moe_ffn_place &of)
    {
        if (threadIdx.x < 128)
            return;
        if (thread() % 32 == 0)
            moe_ffn_places[thread() / 32 - 4] = of;
        __syncwarp();
    }

    ENGINE_MEMBER struct moe_ffn_place kept() const
    {
        return moe_ffn_places[thread() / 32 - 4];
    }

    template <class shape>
    ENGINE_MEMBER bool store_act(float (&sum)[shape::blocks][shape::sums], uint32_t half) const
    {
        static_assert(
            shape::tile_n == 256 && shape::tile_n / 64 % shape::c_boxes == 0 && shape::c_boxes == 2,
            "the second box: the tile before ends with it, and the next begins with the first");
        PTX_SHARED_DYNAMIC_ALIGNED(memory, 1024);
        const struct moe_ffn_plan *p = MK_FRESH(plan);
        const struct moe_ffn_place to = kept();
        const uint32_t box = ptx_opaque((ptx_shared(memory) + 1023) & ~1023u) + shape::c_offset +
                             (half * shape::c_boxes + 1) * shape::box_bytes,
                       first = shape::first_row(half);
        float *scales = (float *)(MK_FRESH(this->launch)->heap + p->act_scales) +
                        (uint64_t)(to.col / 128) * (p->dispatch.row_tiles * p->dispatch.tile_m) +
                        to.row + first;
        const bool leads = thread() % 128 == 0;
        if (leads)
            ptx_bulk_wait_read<0>();
        ptx_bar_sync(named_warpgroup(half));
        gemm_quantize_box(sum[0], box, scales);
        ptx_fence_async_shared();
        ptx_bar_sync(named_warpgroup(half)); /* who tells of them tells of all, of scales too */
        if (leads) {
            ptx_tma_store_3d(&this->operands->c, box, to.col, to.row + first, 0);
            ptx_bulk_commit();
        }
        return true;
    }
};

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    moe_ffn_fp8_kernel(const __grid_constant__ struct moe_ffn_plan plan,
                       const __grid_constant__ struct gpu_launch launch,
                       const __grid_constant__ struct gemm_operands operands,
                       const __grid_constant__ struct moe_ffn_views<gemm_engine> views)
{
    PTX_SHARED_DYNAMIC_ALIGNED(memory, 1024);
    struct moe_ffn_fp8_source source;
    moe_ffn_block<gemm_engine, shape>(&plan, &launch, &operands, &views, &source, memory);
}

struct moe_ffn_fp8_on : moe_ffn_on<gemm_engine, moe_ffn_fp8_source> {
    template <class shape> static auto kernel()
    {
        return moe_ffn_fp8_kernel<shape>;
    }
};

struct moe_ffn_fp8_kernels {
    template <class function> static int dispatch(const struct moe_ffn_plan *p, int, function call)
    {
#define MOE_TRY(rows, columns, cluster_, stages, boxes)                                            \
    if (p->dispatch.tile_m == rows && p->tile_n == columns)                                        \
        return call(gemm_shape<rows, columns, cluster_, 0, stages, boxes, MK_BF16, GEMM_E4M3>());
        MK_FP8_GATED_TILES(MOE_TRY)
#undef MOE_TRY
        return -EINVAL;
    }
};

GPU_OPERATOR_BY(moe_ffn_fp8, moe_ffn,
                ticket_operator<gemm_engine, moe_ffn_fp8_on, moe_ffn_fp8_kernels>)
