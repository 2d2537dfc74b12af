/* MoE dispatch+GEMM of FP8: the kernel of moe_dispatch_gemm.cu over tokens that are records, codes
 * and then their scales. Both are copied from there to the stages of the GEMM engine. */
#include "kernels/moe/moe_dispatch_gemm.cuh"

#include "core/plan/gemm_tiles_fp8.h"
#include "kernels/hopper/gemm_promote.cuh"
#include "kernels/sums/gemm_tickets.cuh"

/* What consumers of a tight shape have no register for: where the tile of each warp begins, and the
 * first's track. */
struct moe_tight_place {
    uint32_t row, col;
};
PTX_SHARED(struct moe_tight_place, moe_tight_places, 8);
PTX_SHARED(struct tile_track, moe_tight_track, 1);

template <class derived, class shape> struct moe_tight_source : moe_taking<gemm_engine, derived> {
    typedef moe_taking<gemm_engine, derived> taking;
    static constexpr int producer_registers = 88, consumer_registers = 208;

    /* Nothing that derives from it is kept from tile to tile. */
    static ENGINE_MEMBER struct moe_tight_place *own()
    {
        return &moe_tight_places[ptx_opaque(threadIdx.x) / 32 - 4];
    }

    ENGINE_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        taking::describe(e, tile);
        if (threadIdx.x < 128)
            return;
        if (threadIdx.x % 32 == 0)
            *own() = {tile->row, tile->col};
        __syncwarp();
    }

    ENGINE_MEMBER struct engine_place place(uint32_t, const struct mk_tile *, uint32_t row) const
    {
        return {(int32_t)own()->col, (int32_t)(own()->row + row), 0};
    }

    ENGINE_MEMBER void open_track()
    {
        if (threadIdx.x == 128)
            tile_track_open(moe_tight_track, this->launch);
    }

    ENGINE_MEMBER void close_track()
    {
        if (threadIdx.x == 128)
            tile_track_close(moe_tight_track, this->launch);
    }

    ENGINE_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (threadIdx.x == 128)
            tile_track_start(moe_tight_track);
    }

    ENGINE_MEMBER void after(uint32_t, const struct mk_tile *, uint32_t)
    {
        if (threadIdx.x == 128)
            tile_track_note(moe_tight_track, MK_FRESH(this->launch),
                            own()->row / shape::tile_m * this->columns +
                                own()->col / shape::tile_n);
    }
};

template <class shape> struct moe_fp8_taking_by {
    template <class derived>
    using source = std::conditional_t<shape::tight, moe_tight_source<derived, shape>,
                                      moe_taking<gemm_engine, derived>>;
};

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    moe_dispatch_gemm_fp8_kernel(const __grid_constant__ struct moe_dispatch_gemm_plan plan,
                                 const __grid_constant__ struct gpu_launch launch,
                                 const __grid_constant__ struct gemm_operands operands,
                                 const __grid_constant__ gemm_engine::rows_view rows)
{
    PTX_SHARED_DYNAMIC_ALIGNED(memory, 1024);
    moe_dispatch_gemm_source<gemm_engine, true, moe_fp8_taking_by<shape>::template source> source;
    moe_dispatch_gemm_block<gemm_engine, shape>(&plan, &launch, &operands, &rows, &source, memory);
}

struct moe_dispatch_gemm_fp8_on : moe_dispatch_gemm_on<gemm_engine, true> {
    template <class shape> static auto kernel()
    {
        return moe_dispatch_gemm_fp8_kernel<shape>;
    }
};

struct moe_dispatch_gemm_fp8_kernels {
    template <class function>
    static int dispatch(const struct moe_dispatch_gemm_plan *p, int, function call)
    {
#define MOE_TRY(rows, columns, cluster_, stages, boxes)                                            \
    if (p->dispatch.tile_m == rows && p->tile_n == columns && p->cluster == cluster_)              \
        return call(gemm_shape<rows, columns, cluster_, 0, stages, boxes, MK_BF16, GEMM_E4M3>());
        MK_FP8_GROUPED_TILES(MOE_TRY)
#undef MOE_TRY
        return -EINVAL;
    }
};

GPU_OPERATOR_BY(
    moe_dispatch_gemm_fp8, moe_dispatch_gemm,
    ticket_operator<gemm_engine, moe_dispatch_gemm_fp8_on, moe_dispatch_gemm_fp8_kernels>)
