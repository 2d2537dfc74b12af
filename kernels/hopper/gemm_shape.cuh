/* The tile shapes of engine wgmma, and the shared memory that each makes of itself; and what a tile
 * is to a CTA of a shape: its rows, its stages of K. */
#pragma once

#include <type_traits>

#include "kernels/hopper/gemm_source.cuh"

/* What a shape whose stages leave no room for it has among a kernel's variables, which lie before
 * them. */
struct gemm_front {
    uint64_t barriers[8];
    float b_scales[4][2];
};
PTX_SHARED(struct gemm_front, gemm_front_shared, 1);

/* One tile shape, and the shared memory that it makes of it. b_kn: enum engine_layout. c_boxes: of
 * 64 x 64 of C on their way out, for each consumer warpgroup. number: of the sums that a source
 * takes in and gives away itself, enum mk_dtype; C is `element`. products: enum gemm_products; of
 * e4m3, B is N x K. */
template <int tile_m_, int tile_n_, int cluster_, int b_kn_, int stages_, int c_boxes_,
          int number_ = MK_BF16, int products_ = GEMM_BF16>
struct gemm_shape {
    static constexpr int products = products_;
    /* A and B have 16 bits. C is MK_BF16 or MK_FP16, whatever goes from rank to rank. */
    static constexpr bool half = products == GEMM_BF16 || products == GEMM_FP16;
    static constexpr int element = products == GEMM_FP16 ? MK_FP16 : MK_BF16;
    /* of K, in a row of 128 bytes: the widest swizzle */
    static constexpr int tile_k = half ? 64 : 128;
    static constexpr int number = number_;
    static constexpr int tile_m = tile_m_, tile_n = tile_n_, cluster = cluster_, b_kn = b_kn_;
    static constexpr int stages = stages_, c_boxes = c_boxes_;
    /* Each CTA of the cluster multiplies all its rows by half of K. */
    static constexpr bool splits = tile_m == 64 && cluster == 2;
    /* MK_MIDDLE_TILES; of these and MK_SPLIT_TILES an operator has kernels of their own. */
    static constexpr bool middle = tile_n == 192, apart = splits || middle;
    /* The same shape for a known layout, for any that its elements may have (E4m3 has one), and the
     * one that a kernel is built for whose launches may be short: either, where tiles are large or
     * sums are added exactly. Few rows wait for every instruction that is not in the cache yet: with
     * both loops 64 rows took 1 us longer of 35, and 512 took 4 of 74. */
    template <int layout>
    using laid = gemm_shape<tile_m, tile_n, cluster, layout, stages, c_boxes, number, products>;
    using any_layout = laid<half ? (int)ENGINE_B_EITHER : (int)b_kn>;
    static constexpr bool large = tile_n == 256 || (tile_n == 128 && number == MK_FP24);
    using either = laid<half && large ? (int)ENGINE_B_EITHER : (int)b_kn>;
    static constexpr int loaded_rows = splits ? 2 * tile_m : tile_m, /* of A, by a CTA */
        sharers = splits ? 1 : cluster; /* CTAs that fill each other's stages */
    /* The second consumer gives its sums to a first one. */
    static constexpr bool joins = tile_m == 64;
    /* Parts of a stage, tile_k of K each. With two, each consumer warpgroup multiplies one of
     * them, and all rows. */
    static constexpr int parts = joins && !splits ? 2 : 1;
    static constexpr int blocks =
        joins ? 1 : tile_m / 128; /* of 64 rows, times all columns: a consumer warpgroup's */
    static constexpr int stage_k = parts * tile_k;
    static constexpr int sums = tile_n / 2;          /* of a thread, in each block */
    static constexpr uint32_t k_bytes = parts * 128; /* of a row of A */
    static constexpr bool halved = false;

    static constexpr uint32_t a_part_bytes = loaded_rows * 128;
    static constexpr uint32_t b_part_bytes = tile_n * 128;
    static constexpr uint32_t a_bytes = parts * a_part_bytes, b_bytes = parts * b_part_bytes;
    static constexpr uint32_t stage_bytes = a_bytes + b_bytes;
    static constexpr uint32_t box_bytes = 64 * 64 * 2;
    static constexpr uint32_t c_offset = stages * stage_bytes;
    /* Of each stage: A's scales, from the 16 bytes on in which the first lies. */
    static constexpr uint32_t scales_offset = c_offset + 2 * c_boxes * box_bytes;
    /* A consumer thread has sums and raw ones in nearly all of its registers: what can be worked out
     * again is not kept from tile to tile (gemm_again), and its track lies here. */
    static constexpr bool tight = !half && blocks * tile_n > 128;
    /* Without a cluster it is of sources with variables of their own: stages begin at 1024 bytes, and
     * with barriers behind them it would all be 136 bytes more than there are. */
    static constexpr bool fronted = tight && cluster == 1;
    static constexpr uint32_t scales_part_bytes = half ? 0 : tile_m * 4 + (fronted ? 0 : 16);
    static constexpr uint32_t barriers_offset = scales_offset + stages * parts * scales_part_bytes;
    /* Sums of the other CTA have come, and have been taken there. */
    static constexpr uint32_t given_offset = barriers_offset + stages * 16,
                              taken_offset = given_offset + 8;
    static constexpr uint32_t track_offset = given_offset + (splits ? 16 : 0);
    /* With room to align the first stage; kernels of e4m3 say so of their shared memory. */
    static constexpr uint32_t shared_bytes =
        fronted ? barriers_offset : track_offset + (tight ? 8 : 0) + (half ? 1024 : 0);

    /* As gemm_shapes has them. */
    template <class shape> static constexpr uint32_t number_of = 0;
    template <class function> static ENGINE_MEMBER void choose(uint32_t, const function &call)
    {
        call(gemm_shape());
    }

    static ENGINE_MEMBER uint32_t barriers(uint32_t shared)
    {
        return fronted ? ptx_shared(gemm_front_shared->barriers) : shared + barriers_offset;
    }

    /* Where rows of A lie apart: B's scales of a stage. */
    static ENGINE_MEMBER uint32_t b_scales(uint32_t shared, uint32_t stage)
    {
        return fronted ? ptx_shared(gemm_front_shared->b_scales[stage])
                       : shared + scales_offset + stage * scales_part_bytes + tile_m * 4;
    }

    /* The first row of the CTA's that consumer warpgroup `half` has sums of. */
    static ENGINE_MEMBER uint32_t first_row(uint32_t half)
    {
        return joins ? 0 : half * blocks * 64;
    }

    static_assert((tile_m % 128 == 0 ||
                   (tile_m == 64 && (cluster == 1 || half) && tile_n * 256 <= c_boxes * 8192)) &&
                      tile_n / cluster % 64 == 0,
                  "boxes of B are 64 wide; sums of 64 rows pass through the second's boxes of C");
    static_assert(half || !b_kn, "e4m3 is multiplied K-major");
    static_assert(!fronted || stages <= 4, "struct gemm_front");
    static_assert(shared_bytes <= 227 * 1024, "what a CTA of Hopper has");
};

/* The shapes of a kernel that has several (X is no shape): what depends on none of them stands in it once. */
template <class x, class first, class... others> struct gemm_shapes {
    static constexpr int number = first::number;
    static constexpr bool middle = false;
    static constexpr int tile_n = first::tile_n < gemm_shapes<x, others...>::tile_n
                                      ? first::tile_n
                                      : gemm_shapes<x, others...>::tile_n; /* the narrowest */
    static constexpr uint32_t shared_bytes =
        first::shared_bytes > gemm_shapes<x, others...>::shared_bytes
            ? first::shared_bytes
            : gemm_shapes<x, others...>::shared_bytes;
    template <class shape>
    static constexpr uint32_t number_of =
        std::is_same<shape, first>::value
            ? 0
            : 1 + gemm_shapes<x, others...>::template number_of<shape>;

    /* Calls `call` with an object of the which-th. */
    template <class function> static ENGINE_MEMBER void choose(uint32_t which, const function &call)
    {
        if (which == 0)
            call(first());
        else
            gemm_shapes<x, others...>::choose(which - 1, call);
    }
};
template <class x, class last> struct gemm_shapes<x, last> : last {
};

/* Rows of the tile that a CTA of its cluster has at most. */
template <class shape, class tile_source> PTX_FN uint32_t gemm_height(const struct mk_tile *tile)
{
    constexpr uint32_t all = shape::tile_m, half = all / 2;
    if constexpr (tile_source::halves && half % 64 == 0)
        return tile->rows <= half * shape::cluster ? half : all;
    return all;
}

/* The same of those that it loads. */
template <class shape, class tile_source>
PTX_FN uint32_t gemm_loaded_height(const struct mk_tile *tile)
{
    return shape::splits ? shape::loaded_rows : gemm_height<shape, tile_source>(tile);
}

/* The first stage of K of a CTA that has half of all. */
template <class shape>
PTX_FN uint32_t gemm_first_stage(const struct gemm_operands *op, uint32_t rank)
{
    return shape::splits ? rank * op->stages_of_k : 0;
}

/* Elements of K: from a stage's first to the next stage's, and from a part's to the second part's. */
template <class shape, class tile_source> struct gemm_steps {
    static constexpr bool halves = tile_source::tree && shape::parts == 2;
    static constexpr int32_t stage = halves ? shape::tile_k : shape::stage_k;
    static ENGINE_MEMBER int32_t part(const tile_source *source)
    {
        if constexpr (halves)
            return source->block_end(source->blocks() / 2 - 1) * shape::tile_k;
        return shape::tile_k;
    }
};
