/* The MoE feed-forward layer on engine wgmma: what its tile sources have beside those of
 * kernels/moe/moe_ffn.cuh. Down's A comes by TMA. A tile is told of while the next
 * one is loaded. */
#pragma once

#include "kernels/moe/moe_ffn.cuh"

#include "kernels/sums/gemm_tickets.cuh"

/* What a consumer warpgroup has stored and not told of yet: how many, in the units of a flag. Its
 * registers are taken. */
struct moe_ffn_stored {
    uint32_t count, flag;
};
PTX_SHARED(struct moe_ffn_stored, moe_ffn_untold, 2);
PTX_SHARED(struct tile_track, moe_ffn_track, 1); /* the first consumer's alone */

/* `derived` has uint32_t thread(), the calling thread's number, too. */
template <class derived> struct moe_ffn_wgmma_source : moe_ffn_tiles<gemm_engine, derived> {
    static constexpr bool goes_on = true;

    typedef moe_ffn_tiles<gemm_engine, derived> tiles;
    using tiles::at;
    using tiles::dispatch;
    using tiles::launch;
    using tiles::plan;

    template <class shape>
    ENGINE_MEMBER void begin_block(const struct gpu_launch *l, const struct gemm_operands *op,
                                   uint32_t across)
    {
        if (threadIdx.x == 0)
            moe_ffn_untold[0].count = moe_ffn_untold[1].count = 0;
        tiles::template begin_block<shape>(l, op, across);
    }

    ENGINE_MEMBER void open_track()
    {
        if (threadIdx.x == 128)
            tile_track_open(moe_ffn_track, launch);
    }

    ENGINE_MEMBER void close_track()
    {
        if (threadIdx.x == 128)
            tile_track_close(moe_ffn_track, launch);
    }

    /* Tokens, results, tables and code, which are read again, stay in L2 beside weights that are
     * not. */
    ENGINE_MEMBER void load_box(uint32_t to, const CUtensorMap *map, uint32_t full, int32_t x,
                                int32_t y, int32_t slab) const
    {
        if (dispatch->b_once)
            ptx_tma_load_3d_once(to, map, full, x, y, slab);
        else
            ptx_tma_load_3d(to, map, full, x, y, slab);
    }

    ENGINE_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        tiles::describe_pass(e, tile, 0);
    }

    ENGINE_MEMBER const struct gemm_a *a(const struct mk_tile *) const
    {
        return &tiles::views->acted;
    }

    template <class shape> ENGINE_MEMBER uint32_t boxes(const struct mk_tile *) const
    {
        return shape::tile_n / (at().stage == MOE_FFN_UP ? 128 : 64);
    }

    template <class shape>
    ENGINE_MEMBER void store_wide(const float (&sum)[shape::sums], uint32_t half) const
    {
        const uint32_t thread = gemm_again<shape>(threadIdx.x) % 128, lane = thread % 32;
        tiles::template store_rows<shape::tile_n>(
            sum, shape::first_row(half) + thread / 32 * 16 + lane / 4, lane);
        ptx_bar_sync(named_warpgroup(half)); /* who tells of them tells of all */
    }

    /* Down of a group may come right behind its up, and wait for what this block has stored: so it
     * is told of while the next tile is loaded, but before that where the next one is not known. */
    ENGINE_MEMBER void tell() const
    {
        struct moe_ffn_stored *untold = &moe_ffn_untold[derived::thread() / 128 - 1];
        if (!untold->count)
            return;
        ptx_bulk_wait_all();
        ptx_add_release_here(cta_flag(launch->heap, untold->flag), untold->count);
        untold->count = 0;
    }

    ENGINE_MEMBER void publish_early(uint32_t i) const
    {
        if (derived::thread() % 128 == 0 &&
            !ptx_mbar_test(ptx_shared(&gemm_ticket_shared->given[i % GEMM_TICKETS]),
                           mbar_phase_of_ring<GEMM_TICKETS>(i)))
            tell();
        __syncwarp();
    }

    ENGINE_MEMBER void publish(uint32_t, uint32_t) const
    {
        tell();
    }

    ENGINE_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (derived::thread() == 128)
            tile_track_start(moe_ffn_track);
    }

    ENGINE_MEMBER void after(uint32_t, const struct mk_tile *, uint32_t half)
    {
        const struct moe_ffn_place of = at();
        if (threadIdx.x == 128)
            tile_track_note(moe_ffn_track, launch, tiles::tile_id(of));
        moe_ffn_untold[half] = {of.rows * (MK_TILE_PARTS / 2), tiles::flag_of(of)};
    }
};
