/* What a tile source of engine mma derives from (kernels/engine/engine.cuh), what a kernel has of matrices,
 * and the tile shapes with the shared memory that each makes of itself. */
#pragma once

#include <type_traits>

#include <cuda.h>

#include "core/cta/gemm_order.h"
#include "kernels/engine/engine.cuh"
#include "kernels/engine/half.cuh"
#include "kernels/mma/quad.cuh"
#include "kernels/mma/ring.cuh"
#include "kernels/engine/warp_roles.cuh"

/* A matrix of bf16 or fp16 in memory: slabs of rows, each row's elements one after the other. Pitches in
 * bytes, multiples of 16 as the base is. `map` is for TMA loads of tiles. */
struct mma_matrix {
    char *base;
    uint64_t pitch, slab_pitch;
    uint32_t rows, columns; /* of a slab */
    CUtensorMap map;
};

/* What a tile source derives from: beside the calls of kernels/engine/engine.cuh those that this engine
 * alone makes. */
struct mma_source : engine_source<struct mma_operands, struct mma_matrix> {
    /* Warps behind the producer, who call `auxiliary_warp`. */
    static constexpr int auxiliary_warps = 0;

    /* As kernels/hopper/gemm.cuh has them, for mma_roles. */
    static constexpr struct warp_meeting producer_at = {}, consumer_at[2] = {};
    static constexpr struct warp_role chosen_roles[2] = {};

    /* Somebody is told by `after`, for which all threads have stored then; and `before` is called,
     * as there is something to wait for. */
    static constexpr bool announces = false, waits = false;

    /* A and B are e4m3, with scales of blocks. */
    static constexpr bool scaled = false;

    /* By TMA, meanwhile: the first thread of the producer's second warp. */
    ENGINE_MEMBER void beside_bulk() const
    {
    }
};

/* A kernel parameter. */
struct mma_operands {
    struct mma_matrix
        b; /* N x K, or K x N as the shape has it, or (ENGINE_B_EITHER) as b_kn says */
    struct mma_matrix c;
    uint32_t stages_of_k, stages_of_slice, b_kn;
    uint32_t bulk;              /* matrices have maps (mma_bulk) */
    struct barrier_watch watch; /* of the producer; its limit is above what a `before` may take */
    uint64_t limit_ns;          /* of consumers, longer */
};

/* One tile shape, and the shared memory that it makes of it. b_kn: enum engine_layout. tile_k:
 * elements of K in a stage, 32 or 64. warps: consumers, 4 or 8, warp_columns of them beside each
 * other. ctas: that an SM should hold at a time. element: of A, B and C, MK_BF16 or MK_FP16. halved:
 * half of a warp's columns are of the tile's first half, and half lie as far into the second. */
template <int tile_m_, int tile_n_, int b_kn_, int tile_k_, int stages_, int warps_ = 8,
          int warp_columns_ = 1, int producers_ = 4, int ctas_ = 1, int element_ = MK_BF16,
          bool halved_ = false>
struct mma_shape {
    static constexpr int tile_m = tile_m_, tile_n = tile_n_, b_kn = b_kn_, tile_k = tile_k_,
                         stages = stages_, warps = warps_, warp_columns = warp_columns_,
                         producers = producers_, ctas = ctas_, element = element_;
    static constexpr bool halved = halved_;
    /* The same shape for a known layout, and for either. */
    template <int layout>
    using laid = mma_shape<tile_m, tile_n, layout, tile_k, stages, warps, warp_columns, producers,
                           ctas, element, halved>;
    using either = laid<ENGINE_B_EITHER>;
    /* A warp's part: `blocks` times 16 rows, and so many columns. Where it has all columns its
     * blocks are 64 rows apart, as in wgmma. */
    static constexpr int columns = tile_n / warp_columns;
    static constexpr int blocks = tile_m / (warps / warp_columns) / 16;
    static constexpr int sums = columns / 2; /* of a lane, in each block */
    static constexpr int cluster = 1;
    static constexpr uint32_t row_bytes = tile_k * 2, k_bytes = row_bytes;
    static constexpr uint32_t a_bytes = tile_m * row_bytes, b_bytes = tile_n * row_bytes;
    static constexpr uint32_t stage_bytes = a_bytes + b_bytes;
    static constexpr uint32_t barriers_offset = stages * stage_bytes;
    static constexpr uint32_t shared_bytes = barriers_offset + stages * 16 + 1024; /* to align */

    /* In the tile: the first row of a block of the warp's, and its first column. */
    static ENGINE_MEMBER uint32_t row(uint32_t warp, uint32_t block)
    {
        return warp_columns == 1 ? warp / 4 * (blocks * 64) + block * 64 + warp % 4 * 16
                                 : (warp / warp_columns * blocks + block) * 16;
    }
    static ENGINE_MEMBER uint32_t column(uint32_t warp)
    {
        return warp % warp_columns * (halved ? columns / 2 : columns);
    }

    /* From there to its j-th 16 columns. */
    static constexpr __host__ __device__ uint32_t right(int j)
    {
        return j * 16 + (halved && j * 32 >= columns ? (tile_n - columns) / 2 : 0);
    }

    static_assert(tile_k == 32 || tile_k == 64, "rows of 64 or 128 bytes");
    static_assert(warps % 4 == 0 && warps / 4 <= NAMED_WARPGROUPS, "each has a barrier");
    static_assert(columns % 64 == 0 && tile_m % 64 == 0, "boxes of B are 64 columns wide");
    static_assert(!halved || tile_n % 128 == 0, "and so are halves");
    static_assert(ctas * (shared_bytes + 1024) <= 100 * 1024, "what an SM of sm_86 has");
};

/* Whether a tile's columns may be two runs: of a shape whose lanes then have the same columns of both. Of
 * FP8, whose B is N x K, a warp has all columns. */
template <class shape, class tile_source>
constexpr bool mma_gates = tile_source::gates && (tile_source::scaled || shape::halved);

/* How far behind a tile's first run the second begins, which may be where the first ends. */
template <class shape, class tile_source>
PTX_FN uint32_t mma_second(const tile_source *source, const struct mk_tile *tile)
{
    if constexpr (mma_gates<shape, tile_source>) {
        const uint32_t up = source->up();
        return up ? up : shape::tile_n / 2;
    }
    return source->second(tile);
}

/* Whether B is K x N. */
template <class shape> PTX_FN bool mma_b_kn(const struct mma_operands *op)
{
    return shape::b_kn == ENGINE_B_EITHER ? op->b_kn : shape::b_kn;
}

/* Whether tiles come by TMA: kernels of GPUs that have it load so all but gathered rows. (The emulated
 * GPU's, which are compiled once, as they are told.) */
template <class shape, class tile_source> PTX_FN bool mma_bulk(const struct mma_operands *op)
{
#ifdef MK_EMULATED
    return shape::row_bytes == 128 && !tile_source::gathers && op->bulk;
#else
    return shape::row_bytes == 128 && !tile_source::gathers && PTX_HOPPER;
#endif
}
