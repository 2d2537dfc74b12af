/* The MoE feed-forward layer on engine mma: what its tile source has beside those of
 * kernels/moe/moe_ffn.cuh. The producer's lanes copy each row of A from where its token lies (up)
 * or where up has stored it (down); all consumer threads of a warpgroup have stored a tile before
 * one of them tells of it, so there is nothing to tell late.
 *
 * Of bf16, and of FP8, whose rows count as bf16 of half as many elements. 128 columns of the
 * activation share a scale, and so 256 of a tile, of which a lane has room for 64: a tile's
 * columns are multiplied in four passes, over all of K each. What a thread makes of the
 * activation in a pass, eight columns of two rows, it keeps; behind the last a row's 128 lie in
 * four lanes, which quantise them as the other engine's do (kernels/engine/quantize.cuh). */
#pragma once

#define SUMS_EACH_TERMS 2
#include "kernels/moe/moe_ffn.cuh"

#include "kernels/sums/mma_tickets.cuh"
#include "kernels/engine/quantize.cuh"

/* Of FP8: what a thread keeps of a row's activation and of that 8 further on, and the tile whose
 * passes these are. Of bf16 nothing. */
template <bool scaled> struct moe_ffn_mma_kept {
};
template <> struct moe_ffn_mma_kept<true> {
    struct mk_tile_entry entry;
    float acted[64];
};

template <bool scaled_>
struct moe_ffn_mma_source : moe_ffn_tiles<mma_engine, moe_ffn_mma_source<scaled_>> {
    static constexpr bool announces = true, scaled = scaled_;
    static constexpr uint32_t passes = scaled ? MK_MMA_FP8_PASSES : 1;

    typedef moe_ffn_tiles<mma_engine, moe_ffn_mma_source> tiles;
    using tiles::dispatch;
    using tiles::launch;
    using tiles::plan;
    using tiles::views;

    uint32_t halves; /* warpgroups that multiply */
    uint32_t pass;   /* of its passes */
    struct moe_ffn_place to;
    struct moe_ffn_mma_kept<scaled> made;

    template <class shape>
    ENGINE_MEMBER void begin_block(const struct gpu_launch *l, const struct mma_operands *op,
                                   uint32_t across)
    {
        halves = shape::warps / 4;
        tiles::template begin_block<shape>(l, op, across);
    }

    ENGINE_MEMBER void keep(const struct moe_ffn_place &of)
    {
        to = of;
    }

    ENGINE_MEMBER const struct moe_ffn_place &kept() const
    {
        return to;
    }

    ENGINE_MEMBER bool next(uint32_t i, struct mk_tile *tile)
    {
        pass = i % passes;
        if constexpr (scaled)
            if (pass) {
                describe(&made.entry, tile);
                return true;
            }
        return tiles::next(i / passes, tile);
    }

    ENGINE_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        if constexpr (scaled)
            made.entry = *e;
        tiles::describe_pass(e, tile, pass);
    }

    ENGINE_MEMBER const char *row_of_a(const struct mk_tile *tile, uint32_t i) const
    {
        const struct mma_matrix *acted = &views->acted;
        return tile->stage == MOE_FFN_UP ? tiles::row_of_a(tile, i)
                                         : acted->base + (tile->row + i) * acted->pitch;
    }

    ENGINE_MEMBER const struct mma_matrix *a(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? &views->x : &views->acted;
    }

    template <class shape>
    ENGINE_MEMBER void store_wide(const float (&sum)[shape::sums], uint32_t) const
    {
        const uint32_t lane = threadIdx.x % 32;
        tiles::template store_rows<shape::tile_n>(sum, shape::row(threadIdx.x / 32, 0) + lane / 4,
                                                  lane);
    }

    /* What a pass has made of the activation; behind the last, codes and scales. Words of 4
     * codes of 16 columns are of lane l at 8 (l % 2) + 4 (l / 2). */
    template <class shape> ENGINE_MEMBER void keep_act(const float (&sum)[shape::sums])
    {
        constexpr int count = shape::sums / 2;
        static_assert(count * passes == 64, "a block of two rows");
#pragma unroll
        for (uint32_t of = 0; of < passes; of++)
#pragma unroll
            for (int j = 0; j < count; j++)
                if (pass == of)
                    made.acted[of * count + j] = sum[j];
        if (pass + 1 < passes)
            return;
        const uint32_t lane = threadIdx.x % 4,
                       at = shape::row(threadIdx.x / 32, 0) + threadIdx.x % 32 / 4,
                       first = to.col / 128 * 128;
        float *scales = (float *)(launch->heap + plan->act_scales) +
                        (uint64_t)(first / 128) * (dispatch->row_tiles * dispatch->tile_m) + to.row;
#pragma unroll
        for (int low = 0; low < 4; low += 2) {
            const uint32_t r = at + low * 4;
            char *const codes =
                views->acted.base + (uint64_t)(to.row + r) * views->acted.pitch + first;
            uint32_t words[8];
            const float amax = quantize_quad(made.acted, low, lane % 2,
                                             [&](int j, uint32_t word) { words[j] = word; });
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                uint32_t v[4] = {words[j], words[j + 1], words[j + 2], words[j + 3]};
                mma_exchange(v);
                if (r < to.rows && first + (j + lane) * 16 < plan->inner)
                    *(uint4 *)(codes + (j + lane) * 16) = make_uint4(v[0], v[2], v[1], v[3]);
            }
            if (r < to.rows && lane == 0)
                scales[r] = quantize_scale(amax);
        }
    }

    template <class shape>
    ENGINE_MEMBER bool store_act(float (&sum)[shape::blocks][shape::sums], uint32_t)
    {
        static_assert(shape::warp_columns == 1, "all columns, of 16 rows");
        if constexpr (scaled) {
            keep_act<shape>(sum[0]);
        } else {
            const struct engine_place place = {(int32_t)to.col, (int32_t)to.row, 0};
            mma_store<shape, shape::columns / 2>(&views->acted, &place, views->acted.columns, sum,
                                                 threadIdx.x / 32);
        }
        return true;
    }

    ENGINE_MEMBER void begin(uint32_t i, const struct mk_tile *tile)
    {
        if (!pass)
            mma_op_source::begin(i, tile);
    }

    ENGINE_MEMBER void after(uint32_t, const struct mk_tile *, uint32_t)
    {
        if (pass + 1 < passes)
            return;
        ptx_add_release_here(cta_flag(launch->heap, tiles::flag_of(to)),
                             to.rows * (MK_TILE_PARTS / halves));
        if (tiles::tracks())
            tile_track_note(mma_track, launch, tiles::tile_id(to));
    }
};

/* Its kernels, of whole rows. */
template <bool scaled>
using moe_ffn_mma_operator =
    ticket_operator<mma_engine, moe_ffn_on<mma_engine, moe_ffn_mma_source<scaled>>,
                    mma_ticket_kernels<true, scaled, moe_ffn_mma_source<scaled>::passes>>;
