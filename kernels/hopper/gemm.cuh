/*
 * The GEMM engine: C = A B for bf16 or fp16 inputs, fp32 accumulation, C as they are, as the compute
 * role of a persistent Hopper kernel.
 *
 * A CTA has three warpgroups. One thread of the first, the producer, loads tiles of A and B with
 * TMA into a ring of stages; the two others, the consumers, multiply them with wgmma, each its half
 * of the rows, and store C with TMA. Two mbarriers a stage keep them in step: `full` (the bytes
 * have landed) and `empty` (all who read the stage are done). The consumers share nothing but the
 * ring, so while one stores its part of C the other keeps the tensor cores busy.
 *
 * A tile of 64 rows is for few rows: nothing but reading B takes time there, and one warpgroup is
 * enough for its products. A stage then holds 128 elements of K, of which each consumer multiplies
 * 64; at the end of a tile the second gives its sums to the first, which stores C. (Where sums are in a
 * tree, the second has the upper half of all K instead, 64 of it from each stage.)
 *
 * With a cluster of two, the CTAs work on the upper and the lower rows of one tile of twice the
 * height: each loads half of their columns of B and the TMA unit delivers it to both. A stage then
 * belongs to both CTAs' consumers before it may be filled again.
 *
 * A cluster of two whose CTAs have 64 rows each splits K: both multiply all 128 rows, each by half of
 * K. Then the second consumer of each gives its sums to the other CTA, whose first consumer adds them
 * to its own of the same rows and stores them, as that of a tile of 64 rows does. A tile of 64 columns
 * reads from shared memory in a product's time all that there is to read, and loads write there too;
 * this one reads three quarters of that, and as many CTAs have something to do.
 *
 * The engine is a template over a tile shape (struct gemm_shape) and a tile source: a struct that
 * says which tiles there are, what has to be waited for and what follows a tile's stores. struct
 * gemm_source is what every source begins with.
 *
 * A and B may be e4m3: then a row of a stage has 128 elements of K, and everything but the products
 * and their sums is the same (gemm_promote.cuh).
 *
 * Every wait ends: TMA loads complete, consumers wait for nothing else, and the source's waits are
 * bounded.
 */
#pragma once

#include <type_traits>

#include "core/cta.h"
#include "kernels/half.cuh"
#include "kernels/hopper/gemm_gather.cuh"
#include "kernels/pipeline.cuh"
#include "kernels/hopper/wgmma.cuh"
#include "kernels/warp_roles.cuh"

/* Where a part of a tile begins in a map of C: column, row, slab. */
struct gemm_place {
    int32_t x, y, z;
};

enum { GEMM_THREADS = 384, GEMM_LAUNCH_REGISTERS = 65536 / GEMM_THREADS / 8 * 8 };

#define GEMM_MEMBER __device__ __forceinline__

/* What A and B are, and what becomes of the sums of e4m3, of which the tensor core keeps 14 bits.
 */
enum gemm_products {
    GEMM_BF16,
    GEMM_FP16,
    GEMM_E4M3_FAST,  /* they stay there; a scale of each row and column at the end */
    GEMM_E4M3_EXACT, /* every 128 of K they are added to fp32 registers; the same scales */
    GEMM_E4M3_BLOCKS /* so, by a scale for 1 x 128 of A and one for 128 x 128 of B */
};

/* Where the scales are that belong to a CTA's part of a tile, from its first row and column on.
 *
 * Of blocks: a + block * a_pitch + row, b + column / 128 * b_pitch + block, with `blocks` of K. a
 * is copied 16 bytes at a time, and a_pitch is a multiple of 4: what is read begins and ends with a
 * whole one. Else: a + row *
 * a_pitch, b + column * b_pitch. rows, columns: that there are from there on, more than 0. */
struct gemm_scales {
    const float *a, *b;
    uint32_t a_pitch, b_pitch, rows, columns, blocks;
};

/* Slabs of rows x K; boxes of a stage of K, and of the CTA's rows of a tile: all, half of them
 * (gemm_source.halves), or those that the last tile has (gemm_operands.a_rest). A box that reaches
 * behind the last row would bring the same, and be slow: with 448 rows in tiles of 256 a launch took
 * 64 us where it takes 50 (one H100). */
struct gemm_a {
    CUtensorMap whole, half, rest;
};

/* The stages as a thread walks them. */
struct gemm_ring {
    uint32_t shared, barriers;
    struct pipeline_position at;
};

/*
 * What a tile source derives from: the calls that it need not have. Those that it must have are
 *
 *   bool next(uint32_t i, struct mk_tile *tile)
 *       The i-th tile of this CTA or, with a cluster, of its cluster; false when there is none. The
 *       producer and every consumer thread call it, for i = 0, 1, ... once each, and get the same:
 *       it is a pure function, or hands on what the producer has got (gemm_tickets.cuh). To
 *       consumers, who multiply nothing meanwhile, it need not say which tile, where `idle`,
 *       `place` and the like do not look (gemm_reduce.cuh). Only at the end of a slab may a tile
 *       have fewer rows than the shape's.
 *
 *   const struct gemm_a *a(const struct mk_tile *tile) const
 *       Where the tile's A lies.
 *
 *   struct gemm_place place(uint32_t i, const struct mk_tile *tile, uint32_t row) const
 *       Where in the map of C the CTA's part of a tile goes; `row`: its first row in the tile.
 *
 * Each thread has its own copy of a source. What a consumer keeps there costs registers beside the
 * accumulators.
 */
struct gemm_source {
    /* Of a thread. A source whose auxiliary warps need more says so; a launch gives 168 to
     * each. */
    static constexpr int producer_registers = 104;
    static constexpr int consumer_registers = 200; /* 128 of which hold accumulators */

    /* Rows of A lie apart, and warps 1 to 3 copy them (gemm_gather.cuh) instead of auxiliary_warp:
     * of those tiles that `gathered` says, where others have an A that follows each other. */
    static constexpr bool gathers = false;
    GEMM_MEMBER bool gathered(const struct mk_tile *) const
    {
        return true;
    }

    /* A tile may have half the shape's rows, or fewer, wherever it is: each CTA of the cluster then
     * has half of its rows, which are its first consumer's, and the second computes nothing. Of such
     * a tile the consumers know `rows`. */
    static constexpr bool halves = false;

    /* A tile's columns of B are two runs, half of them each: the second begins `second` columns
     * behind the first. */
    static constexpr bool two_runs = false;
    GEMM_MEMBER uint32_t second(const struct mk_tile *) const
    {
        return 0;
    }

    /* A plan may have a tile's columns be two runs, of at least 64: uint32_t up() const is then how far
     * behind the first the second begins, else 0. */
    static constexpr bool gates = false;

    /* Sums are those of blocks of K, added in a tree: uint32_t blocks() const, 1, 2, 4 or 8, and uint32_t block_end(uint32_t) const,
     * of a tile's stages the first behind a block (gemm_tree.cuh). asks_lane: gemm_lane there. */
    static constexpr bool tree = false, asks_lane = false;

    /* One sum of the first consumer's and the second's, of shapes of two parts. */
    static GEMM_MEMBER float join(float first, float second)
    {
        return first + second;
    }

    /* Of e4m3: sets of raw sums, of 64 columns, that a consumer has. With two the warpgroup's own products run while it promotes
     * (gemm_promote.cuh); with one there is room beside 128 final sums for what a source adds. */
    template <class shape> static constexpr int raw_sets = 2;

    /* Beside what the engine's warps do at its own mbarriers (gemm_roles): what they do at the
     * source's, each consumer warpgroup too; and roles of auxiliary warps that a launch's plan
     * chooses. */
    static constexpr struct warp_meeting producer_at = {}, gatherer_at = {}, consumer_at[2] = {};
    static constexpr struct warp_role chosen_roles[2] = {};

    /* What blocks without tiles do as warps beside the engine do stands in a kernel once, and the producer is that of kernels of several
     * shapes, of one too. Whether the calling block has tiles: of one that has none all threads call auxiliary_warp, with a
     * producer's registers. */
    static constexpr bool shared_code = false;
    GEMM_MEMBER bool computes() const
    {
        return true;
    }

    /* What follows the engine has other work for all threads of the block: each has the registers
     * of the launch again. */
    static constexpr bool goes_on = false;

    /* Where tiles are those of several products: stages of K, the maps of B and of C, and how many
     * boxes of 64 columns of its sums are stored. */
    GEMM_MEMBER uint32_t stages_of_k(const struct gemm_operands *op, const struct mk_tile *) const;
    GEMM_MEMBER const CUtensorMap *b(const struct gemm_operands *op, const struct mk_tile *) const;
    GEMM_MEMBER const CUtensorMap *c(const struct gemm_operands *op, const struct mk_tile *) const;
    template <class shape> GEMM_MEMBER uint32_t boxes(const struct mk_tile *) const
    {
        return shape::tile_n / 64;
    }

    /* Loads of the first tile's B may begin before `open`, by bool first(struct mk_tile *), which
     * is next(0) and touches no memory, and b_slab; and those of its A, by `a`: `before` waits for
     * nothing. The tile that `first` has filled is what the producer calls next(0) with. */
    static constexpr bool b_ahead = false, a_ahead = false;

    /* The producer thread of each CTA, first and last of all; at close every load has been
     * consumed. */
    GEMM_MEMBER void open()
    {
    }
    GEMM_MEMBER void close()
    {
    }

    /* Of products of e4m3: where the i-th tile's scales lie. row: the CTA's first in the tile.
     * Of blocks, what it says of A is read by bulk copies behind `before`; all else by consumers'
     * ordinary loads, of B's when they will. Where rows lie apart `a` is NULL, and the warps that gather
     * them read of B's. */
    GEMM_MEMBER struct gemm_scales scales(uint32_t, const struct mk_tile *, uint32_t) const
    {
        return {};
    }

    /* A box of B; no CTA but this one has it from this load. */
    GEMM_MEMBER void load_box(uint32_t to, const CUtensorMap *map, uint32_t full, int32_t x,
                              int32_t y, int32_t slab) const
    {
        ptx_tma_load_3d(to, map, full, x, y, slab);
    }

    /* B has a scale for each of its columns: of blocks `scales` says those of A alone, and the finished
     * sums take struct column_scales columns(uint32_t i, const struct mk_tile *) const. */
    static constexpr bool by_columns = false;

    /* Where the tile's B lies in the map of it: 0, or the number of its slab. */
    GEMM_MEMBER int32_t b_slab(const struct mk_tile *) const
    {
        return 0;
    }

    /* Whether all that a consumer warpgroup has of a tile, from row `row` of it on, is outside C:
     * it then computes nothing, and calls begin, publish and after all the same. The same in all its
     * threads. */
    GEMM_MEMBER bool idle(const struct mk_tile *, uint32_t) const
    {
        return false;
    }

    /* The producer thread, when the stage for a slice of the tile's K is free, before its loads of
     * A. It may wait (within bounds) for A to arrive. If that fails, it notes so and returns all
     * the same, at once from then on: the launch ends over whatever the memory holds, and fails as
     * a whole. */
    GEMM_MEMBER void before(uint32_t, const struct mk_tile *, uint32_t)
    {
    }

    /* The producer thread, when the tile's first loads are under way: it may work out what it needs
     * to know of the next tile. It may say anew what the tile is, rather than keep it. */
    GEMM_MEMBER void prefetch_next(uint32_t, struct mk_tile *)
    {
    }

    /* The producer thread, behind a tile's loads: whether stages follow that are added to the tile. It may wait for them. */
    GEMM_MEMBER bool has_addends(uint32_t)
    {
        return false;
    }

    /* The same, then: fills stages with what is added to the tile.
     * All consumers call `add` for it, when the products are whole: each takes all of these stages
     * from the ring, in the same order. rank: in the cluster. */
    template <class shape> GEMM_MEMBER void load_addends(uint32_t, struct gemm_ring *, uint32_t)
    {
    }
    template <class shape>
    GEMM_MEMBER void add(uint32_t, float (&)[shape::blocks][shape::tile_n / 2], uint32_t, uint32_t,
                         struct gemm_ring *) const
    {
    }

    /* All threads of each consumer warpgroup, before they ask for tile i: a chance to do at once
     * what `publish` would do once its first loads are there, which may wait for it. */
    GEMM_MEMBER void publish_early(uint32_t)
    {
    }

    /* One thread of each consumer warpgroup, when the tile's first loads have landed. */
    GEMM_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
    }

    /* All threads of each consumer warpgroup, when the products of a tile are done: what follows
     * them before they are rounded. */
    template <class shape>
    GEMM_MEMBER void epilogue(const struct mk_tile *,
                              float (&)[shape::blocks][shape::tile_n / 2]) const
    {
    }

    /* All threads of each consumer warpgroup (half 0 and 1: the upper and lower rows of the CTA;
     * rank: the CTA's in its cluster), when the products of a tile are done: what it leaves in the
     * sums is stored. True: it has stored them itself, and the engine does not. */
    template <class shape>
    GEMM_MEMBER bool store_sums(uint32_t, float (&)[shape::blocks][shape::tile_n / 2], uint32_t,
                                uint32_t) const
    {
        return false;
    }

    /* One thread of each, when the tile is stored, or in committed TMA stores. */
    GEMM_MEMBER void after(uint32_t, const struct mk_tile *, uint32_t)
    {
    }

    /* The same thread, some products into the next tile or after the last: the stores have had time
     * to be written, so that whoever announces them to others, who calls ptx_bulk_wait_all first,
     * does not stand still. */
    GEMM_MEMBER void publish(uint32_t, uint32_t) const
    {
    }

    /* All lanes of each warp that the engine leaves free (1 to 3), meanwhile: other work of the
     * block. */
    GEMM_MEMBER void auxiliary_warp(uint32_t)
    {
    }
};

/* A kernel parameter (__grid_constant__): the TMA unit reads the maps there. */
struct gemm_operands {
    CUtensorMap b; /* N x K; box tile_n / cluster x 64. Or K x N; box 64 x 64 */
    CUtensorMap c; /* slabs of rows x columns; box 64 x 64 */
    uint32_t stages_of_k, stages_of_slice;
    uint32_t a_rows; /* of a slab of A. What lies behind them nobody loads, and what is made of it
                      * nobody stores */
    uint32_t a_rest; /* rows of the last tile's last CTA that has any */
    uint32_t b_kn;   /* of a shape of GEMM_B_EITHER: B is K x N, else N x K */
    uint32_t shape;  /* which of a kernel's shapes (gemm_shapes) */
    struct barrier_watch watch; /* its limit is above what a source's `before` may take */
    uint64_t limit_ns; /* of consumers, longer: they have no registers to say where they stand, and
                        * whoever fills and empties their buffers stands still with them */
};

GEMM_MEMBER uint32_t gemm_source::stages_of_k(const struct gemm_operands *op,
                                              const struct mk_tile *) const
{
    return op->stages_of_k;
}

GEMM_MEMBER const CUtensorMap *gemm_source::b(const struct gemm_operands *op,
                                              const struct mk_tile *) const
{
    return &op->b;
}

GEMM_MEMBER const CUtensorMap *gemm_source::c(const struct gemm_operands *op,
                                              const struct mk_tile *) const
{
    return &op->c;
}

/* What a shape whose stages leave no room for it has among a kernel's variables, which lie before
 * them. */
struct gemm_front {
    uint64_t barriers[8];
    float b_scales[4][2];
};
PTX_SHARED(struct gemm_front, gemm_front_shared, 1);

/* How B lies, of a shape: N x K, K x N, or either, as the operands say. The last has both main
 * loops and all else once, where kernels of both layouts would have all twice. */
enum gemm_layout { GEMM_B_NK, GEMM_B_KN, GEMM_B_EITHER };

/* One tile shape, and the shared memory that it makes of it. b_kn: enum gemm_layout. c_boxes: of
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
    using any_layout = laid<half ? (int)GEMM_B_EITHER : (int)b_kn>;
    static constexpr bool large = tile_n == 256 || (tile_n == 128 && number == MK_FP24);
    using either = laid<half && large ? (int)GEMM_B_EITHER : (int)b_kn>;
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
    static constexpr bool tight = products >= GEMM_E4M3_EXACT && blocks * tile_n > 128;
    /* Without a cluster it is of sources with variables of their own: stages begin at 1024 bytes, and
     * with barriers behind them it would all be 136 bytes more than there are. */
    static constexpr bool fronted = tight && cluster == 1;
    static constexpr uint32_t scales_part_bytes =
        products == GEMM_E4M3_BLOCKS ? tile_m * 4 + (fronted ? 0 : 16) : 0;
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
    template <class function> static GEMM_MEMBER void choose(uint32_t, const function &call)
    {
        call(gemm_shape());
    }

    static GEMM_MEMBER uint32_t barriers(uint32_t shared)
    {
        return fronted ? ptx_shared(gemm_front_shared->barriers) : shared + barriers_offset;
    }

    /* Where rows of A lie apart: B's scales of a stage. */
    static GEMM_MEMBER uint32_t b_scales(uint32_t shared, uint32_t stage)
    {
        return fronted ? ptx_shared(gemm_front_shared->b_scales[stage])
                       : shared + scales_offset + stage * scales_part_bytes + tile_m * 4;
    }

    /* The first row of the CTA's that consumer warpgroup `half` has sums of. */
    static GEMM_MEMBER uint32_t first_row(uint32_t half)
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
    template <class function> static GEMM_MEMBER void choose(uint32_t which, const function &call)
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

/* Calls `call` with an object of the shape for the layout that B has. */
template <class shape, class function>
PTX_FN void gemm_as_laid(const struct gemm_operands *op, const function &call)
{
    if constexpr (shape::b_kn != GEMM_B_EITHER)
        call(shape());
    else if (op->b_kn)
        call(typename shape::template laid<GEMM_B_KN>());
    else
        call(typename shape::template laid<GEMM_B_NK>());
}

/* Elements of K: from a stage's first to the next stage's, and from a part's to the second part's. */
template <class shape, class tile_source> struct gemm_steps {
    static constexpr bool halves = tile_source::tree && shape::parts == 2;
    static constexpr int32_t stage = halves ? shape::tile_k : shape::stage_k;
    static GEMM_MEMBER int32_t part(const tile_source *source)
    {
        if constexpr (halves)
            return source->block_end(source->blocks() / 2 - 1) * shape::tile_k;
        return shape::tile_k;
    }
};

/* Loads the elements of a stage of K from `k` on, and of its second part from `step` behind them, of a
 * tile's columns of B (with a cluster: this CTA's share of them, for all). First of all it says what
 * loads will bring to the stage: `more` bytes, too. */
template <class shape, class tile_source>
PTX_FN void gemm_load_b(const struct gemm_operands *op, const tile_source *source, uint32_t stage,
                        uint32_t full, const struct mk_tile *tile, int32_t slab, int32_t k,
                        int32_t step, uint32_t rank, uint32_t more)
{
    constexpr uint16_t everyone = (1 << shape::sharers) - 1;
    constexpr int share = shape::tile_n / shape::sharers,
                  run = tile_source::two_runs || (tile_source::gates && shape::cluster == 1)
                            ? share / 2
                            : share;
    const CUtensorMap *map_b = source->b(op, tile);
    if (shape::splits)
        rank = 0;
    uint32_t b = stage + shape::a_bytes + rank * (shape::b_bytes / shape::sharers);
    int32_t column = tile->col + rank * share,
            second = tile_source::two_runs ? source->second(tile) - run : 0;
    bool both = tile_source::two_runs;
    if constexpr (tile_source::gates && shape::tile_n >= 128)
        if (const uint32_t up = source->up()) { /* a pair's second CTA has that share */
            static_assert(shape::cluster <= 2, "two runs");
            if (shape::cluster == 2)
                column = tile->col + rank * up;
            else
                second = up - run;
            both = shape::cluster == 1;
        }
    ptx_mbar_expect(full, shape::b_bytes + more);
    static_assert(!tile_source::gathers || shape::parts == 1,
                  "who copies A copies all rows of a tile");
    static_assert(!tile_source::two_runs || (shape::cluster == 1 && run % 64 == 0),
                  "boxes of B are 64 wide");
#pragma unroll
    for (int part = 0; part < shape::parts; part++, k += step, b += shape::b_part_bytes) {
        if (shape::b_kn == GEMM_B_KN || (shape::b_kn == GEMM_B_EITHER && op->b_kn)) {
#pragma unroll
            for (int j = 0; j < share / 64; j++) {
                int32_t at = column + j * 64 + (j * 64 >= run ? second : 0);
                if (shape::sharers > 1)
                    ptx_tma_load_3d_cluster(b + j * shape::box_bytes, map_b, full, at, k, slab,
                                            everyone);
                else
                    source->load_box(b + j * shape::box_bytes, map_b, full, at, k, slab);
            }
        } else if (shape::sharers > 1) {
            ptx_tma_load_3d_cluster(b, map_b, full, k, column, slab, everyone);
        } else {
            source->load_box(b, map_b, full, k, column, slab);
            if (both)
                source->load_box(b + shape::b_part_bytes / 2, map_b, full, k, column + run + second,
                                 slab);
        }
    }
}

/* Rows of the box that brings `left` of A. Of 64 rows, eights: one row by itself took 3 us longer of
 * 36 (gemm_ar 1,8192,4096, two H200s). */
template <class shape> __host__ __device__ constexpr uint32_t gemm_a_box(uint32_t left)
{
    return shape::tile_m == 64 ? (left + 7) / 8 * 8 : left;
}

/* What a stage has of A: the CTA's rows of a tile, by which box. */
struct gemm_a_load {
    const CUtensorMap *map; /* NULL: nothing, others copy it or there are no rows */
    uint32_t bytes;
};

template <class shape, class tile_source>
PTX_FN struct gemm_a_load gemm_a_of(const struct gemm_operands *op, const struct gemm_a *a,
                                    const struct mk_tile *tile, uint32_t rank)
{
    const uint32_t height = gemm_loaded_height<shape, tile_source>(tile),
                   row = tile->row + (shape::splits ? 0 : rank * height);
    const uint32_t left = row < op->a_rows ? op->a_rows - row : 0;
    if (left >= height)
        return {height < shape::loaded_rows ? &a->half : &a->whole,
                height < shape::loaded_rows ? shape::a_bytes / 2 : shape::a_bytes};
    if (op->a_rest < shape::loaded_rows && gemm_a_box<shape>(left) == op->a_rest)
        return {&a->rest, shape::parts * op->a_rest * 128};
    return {left ? &a->whole : nullptr, left ? shape::a_bytes : 0};
}

/* The same of the CTA's rows of A. */
template <class shape, class tile_source>
PTX_FN void gemm_load_a(const struct gemm_a_load *a, uint32_t stage, uint32_t full,
                        const struct mk_tile *tile, int32_t k, int32_t step, uint32_t rank)
{
#pragma unroll
    for (int part = 0; part < shape::parts; part++)
        ptx_tma_load_3d(stage + part * shape::a_part_bytes, a->map, full, k + part * step,
                        tile->row +
                            (shape::splits ? 0 : rank * gemm_height<shape, tile_source>(tile)),
                        tile->a_slab);
}

/* A's scales of stage k of a tile go to its stage of the ring: the bytes of that, or the copies
 * themselves. Of a block behind the last of K, which a stage of two parts may have, those of the
 * last stand for it. */
template <class shape>
PTX_FN const char *gemm_scales_at(const struct gemm_scales *scales, uint32_t block, uint32_t *bytes)
{
    if (shape::parts > 1 && block >= scales->blocks)
        block = scales->blocks - 1;
    uint64_t at = (uint64_t)(scales->a + (uint64_t)block * scales->a_pitch);
    uint32_t rows = scales->rows < shape::tile_m ? scales->rows : shape::tile_m;
    *bytes = ((uint32_t)(at % 16) + rows * 4 + 15) & ~15u;
    return (const char *)(at & ~15ull);
}

template <class shape>
PTX_FN uint32_t gemm_scales_bytes(const struct gemm_scales *scales, uint32_t k)
{
    uint32_t sum = 0, bytes;
#pragma unroll
    for (uint32_t part = 0; part < shape::parts; part++) {
        gemm_scales_at<shape>(scales, k * shape::parts + part, &bytes);
        sum += bytes;
    }
    return sum;
}

template <class shape>
PTX_FN void gemm_load_scales(const struct gemm_scales *scales, uint32_t shared, uint32_t stage,
                             uint32_t full, uint32_t k)
{
    uint32_t bytes;
#pragma unroll
    for (uint32_t part = 0; part < shape::parts; part++) {
        const char *from = gemm_scales_at<shape>(scales, k * shape::parts + part, &bytes);
        ptx_bulk_load(shared + shape::scales_offset +
                          (stage * shape::parts + part) * shape::scales_part_bytes,
                      from, bytes, full);
    }
}

/* The producer: one thread. */
template <class shape, class tile_source>
PTX_FN void gemm_produce(const struct gemm_operands *op, tile_source *source, uint32_t shared,
                         uint32_t rank)
{
    struct gemm_ring ring = {shared, shape::barriers(shared), {}};
    const uint32_t filled =
        op->stages_of_k < shape::stages ? op->stages_of_k - 1 : shape::stages - 1;
    constexpr bool blocks = shape::products == GEMM_E4M3_BLOCKS;
    constexpr int32_t stage_step = gemm_steps<shape, tile_source>::stage;
    const int32_t part_step = gemm_steps<shape, tile_source>::part(source);
    const uint32_t begin = gemm_first_stage<shape>(op, rank);
    struct gemm_scales scales = {};
    struct gemm_a_load a = {};
    struct mk_tile tile;
    uint32_t i, ahead = 0; /* stages that the first tile's B is on its way to */
    bool begins = false;
    if constexpr (tile_source::b_ahead) {
        begins = source->first(&tile);
        if (begins)
            a = gemm_a_of<shape, tile_source>(op, source->a(&tile), &tile, rank);
    }
    ptx_await_launches();
    if (blocks && begins)
        scales = source->scales(0, &tile, rank * gemm_height<shape, tile_source>(&tile));
    if constexpr (tile_source::b_ahead)
        for (; begins && ahead <= filled; ahead++) {
            uint32_t stage = shared + ahead * shape::stage_bytes,
                     full = pipeline_full<shape::stages>(ring.barriers, ahead);
            gemm_load_b<shape>(op, source, stage, full, &tile, source->b_slab(&tile),
                               (begin + ahead) * stage_step, part_step, rank,
                               a.bytes + (blocks ? gemm_scales_bytes<shape>(&scales, ahead) : 0));
            if (blocks && tile_source::a_ahead)
                gemm_load_scales<shape>(&scales, shared, ahead, full, ahead);
            if (tile_source::a_ahead && a.map)
                gemm_load_a<shape, tile_source>(&a, stage, full, &tile,
                                                (begin + ahead) * stage_step, part_step, rank);
        }
    source->open();
    for (i = 0; source->next(i, &tile); i++) {
        const int32_t slab = source->b_slab(&tile);
        const uint32_t stages_of_k = source->stages_of_k(op, &tile);
        /* whoever copies A copies its scales */
        const bool here = !tile_source::gathers || !source->gathered(&tile),
                   scaled = blocks && here;
        a = {};
        if (here)
            a = gemm_a_of<shape, tile_source>(op, source->a(&tile), &tile, rank);
        if (scaled)
            scales = source->scales(i, &tile, rank * gemm_height<shape, tile_source>(&tile));
        for (uint32_t k = 0, slice = 0, left = 0; k < stages_of_k; k++, left--) {
            const bool begun = i == 0 && k < ahead;
            if (!begun)
                pipeline_wait_empty<shape::stages>(ring.barriers, &ring.at, &op->watch, i);
            if (!left) {
                source->before(i, &tile, slice++);
                left = op->stages_of_slice;
            }
            uint32_t stage = shared + ring.at.stage * shape::stage_bytes,
                     full = pipeline_full<shape::stages>(ring.barriers, ring.at.stage);
            if (!begun)
                gemm_load_b<shape>(op, source, stage, full, &tile, slab, (begin + k) * stage_step,
                                   part_step, rank,
                                   a.bytes + (scaled ? gemm_scales_bytes<shape>(&scales, k) : 0));
            if (scaled && !(tile_source::a_ahead && begun))
                gemm_load_scales<shape>(&scales, shared, ring.at.stage, full, k);
            if (a.map && !(tile_source::a_ahead && begun))
                gemm_load_a<shape, tile_source>(&a, stage, full, &tile, (begin + k) * stage_step,
                                                part_step, rank);
            pipeline_step<shape::stages>(&ring.at);
            if (k == filled)
                source->prefetch_next(i, &tile);
        }
        if (source->has_addends(i))
            source->template load_addends<shape>(i, &ring, rank);
    }
    pipeline_drain<shape::stages>(ring.barriers, &ring.at, &op->watch,
                                  i); /* nothing of A is read any more */
    source->close();
}

/* The same of a kernel that has several shapes, where only loads are a shape's. All of the first tile's are ahead, and nothing is
 * waited for before those of A. */
template <class shape, class tile_source>
PTX_FN void gemm_produce_stages(const struct gemm_operands *op, const tile_source *source,
                                struct gemm_ring *ring, const struct mk_tile *tile, uint32_t i,
                                uint32_t k, uint32_t end, uint32_t rank)
{
    static_assert(tile_source::b_ahead && tile_source::a_ahead && !tile_source::gathers &&
                      shape::products != GEMM_E4M3_BLOCKS,
                  "gemm_produce has all of it");
    constexpr int32_t stage_step = gemm_steps<shape, tile_source>::stage;
    const int32_t part_step = gemm_steps<shape, tile_source>::part(source);
    const struct gemm_a_load a = gemm_a_of<shape, tile_source>(op, source->a(tile), tile, rank);
    const uint32_t begin = gemm_first_stage<shape>(op, rank);
    for (; k < end; k++) {
        pipeline_wait_empty<shape::stages>(ring->barriers, &ring->at, &op->watch, i);
        uint32_t stage = ring->shared + ring->at.stage * shape::stage_bytes,
                 full = pipeline_full<shape::stages>(ring->barriers, ring->at.stage);
        gemm_load_b<shape>(op, source, stage, full, tile, source->b_slab(tile),
                           (begin + k) * stage_step, part_step, rank, a.bytes);
        if (a.map)
            gemm_load_a<shape, tile_source>(&a, stage, full, tile, (begin + k) * stage_step,
                                            part_step, rank);
        pipeline_step<shape::stages>(&ring->at);
    }
}

template <class shapes, class tile_source>
PTX_FN void gemm_produce_several(const struct gemm_operands *op, tile_source *source,
                                 uint32_t shared, uint32_t rank)
{
    struct gemm_ring ring = {shared, 0, {}};
    struct mk_tile tile;
    uint32_t i, first = 0; /* stages of a tile that the ring has */
    const bool begins = source->first(&tile);
    shapes::choose(op->shape, [&](auto of) {
        typedef decltype(of) shape;
        ring.barriers = shape::barriers(shared);
        first = op->stages_of_k < shape::stages ? op->stages_of_k : shape::stages;
        ptx_await_launches();
        if (begins)
            gemm_produce_stages<shape>(op, source, &ring, &tile, 0, 0, first, rank);
    });
    source->open();
    for (i = 0; source->next(i, &tile); i++) {
#pragma unroll 1
        for (uint32_t k = 0, end = first; k < op->stages_of_k; k = end, end = op->stages_of_k) {
            if (i > 0 || k > 0)
                shapes::choose(op->shape, [&](auto shape) {
                    gemm_produce_stages<decltype(shape)>(op, source, &ring, &tile, i, k, end, rank);
                });
            if (k == 0)
                source->prefetch_next(i, &tile);
        }
        tile = {}; /* not kept */
        if (source->has_addends(i))
            shapes::choose(op->shape, [&](auto shape) {
                source->template load_addends<decltype(shape)>(i, &ring, rank);
            });
    }
    shapes::choose(op->shape, [&](auto shape) {
        pipeline_drain<decltype(shape)::stages>(ring.barriers, &ring.at, &op->watch, i);
    });
    source->close();
}

/* Starts the products of one stage: `blocks` x 64 rows of A with all columns of B. */
template <class shape>
PTX_FN void gemm_multiply_stage(float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t stage,
                                uint32_t half, uint32_t accumulate, uint32_t first_row)
{
    constexpr uint32_t block_bytes = 64 * 128;
    static_assert(shape::b_kn != GEMM_B_EITHER, "gemm_as_laid tells");
    constexpr uint32_t b_step = shape::b_kn ? 16 * 128 : 32;
    uint32_t part = shape::parts == 2 ? half : 0;
    uint64_t a = wgmma_descriptor(stage + part * shape::a_part_bytes + first_row * 128, 0);
    uint64_t b = wgmma_descriptor(stage + shape::a_bytes + part * shape::b_part_bytes,
                                  shape::b_kn ? shape::box_bytes : 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
            const uint64_t a_now = wgmma_advance(a, m * block_bytes + k * 32),
                           b_now = wgmma_advance(b, k * b_step);
            if constexpr (shape::products == GEMM_BF16)
                wgmma_bf16<shape::b_kn>(sum[m], a_now, b_now, k > 0 ? 1 : accumulate);
            else if constexpr (shape::products == GEMM_FP16)
                wgmma_f16<shape::b_kn>(sum[m], a_now, b_now, k > 0 ? 1 : accumulate);
            else
                wgmma_e4m3(sum[m], a_now, b_now, k > 0 ? 1 : accumulate);
        }
    }
    wgmma_commit();
}

/* The same number: of a tight shape, or a tight source, nothing that derives from it is kept from tile to tile. */
template <class shape, bool tight = false> PTX_FN uint32_t gemm_again(uint32_t v)
{
    if constexpr (shape::tight || tight)
        return ptx_opaque(v);
    return v;
}

/* Whether a consumer has most to keep. */
template <class shape, class tile_source>
constexpr bool gemm_tightest = shape::fronted || tile_source::template raw_sets<shape> == 1;

/* A consumer's half, likewise of such a source. */
template <class shape, class tile_source> PTX_FN uint32_t gemm_half(uint32_t half)
{
    return gemm_tightest<shape, tile_source> ? ptx_opaque(threadIdx.x) / 128 - 1 : half;
}

/* And the CTA's rank in its cluster. */
template <class shape, class tile_source> PTX_FN uint32_t gemm_rank(uint32_t rank)
{
    if constexpr (gemm_tightest<shape, tile_source> && shape::cluster > 1)
        return ptx_opaque(ptx_cluster_rank());
    return rank;
}

/* A warpgroup's 64 x 64 sums to a box in shared memory. 128-byte swizzle: the 16-byte piece p of
 * row r lies at piece p ^ (r % 8). */
template <class shape, bool tight> PTX_FN void gemm_fill_box(uint32_t box, const float *sum)
{
    uint32_t thread = gemm_again<shape, tight>(threadIdx.x) % 128, lane = thread % 32;
    uint32_t row = thread / 32 * 16 + lane % 16; /* whose address this lane gives to stmatrix */
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *d = sum + j * 8;
        uint32_t piece = (j * 2 + lane / 16) ^ (row % 8);
        ptx_stmatrix_x4(box + row * 128 + piece * 16, half_pack<shape::element>(d[0], d[1]),
                        half_pack<shape::element>(d[2], d[3]),
                        half_pack<shape::element>(d[4], d[5]),
                        half_pack<shape::element>(d[6], d[7]));
    }
}

/*
 * Stores the warpgroup's half of the tile, a box at a time: registers to shared memory, then a TMA
 * store, which drops what lies outside C. columns: of boxes. `boxes` counts those used so far. A
 * box is written again when the store that read it last is through.
 */
template <class shape, bool tight>
PTX_FN void gemm_store(const CUtensorMap *map_c, uint32_t columns,
                       const float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t shared,
                       uint32_t half, const struct gemm_place *place, uint32_t *boxes)
{
    uint32_t thread = threadIdx.x % 128;
    int32_t row0 = place->y + shape::first_row(half);
    shared = gemm_again<shape, tight>(shared);
    uint32_t ring = shared + shape::c_offset + half * shape::c_boxes * shape::box_bytes;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++) {
#pragma unroll
        for (int n = 0; n < shape::tile_n / 64; n++) {
            if (n >= columns)
                break;
            /* its tiles take all boxes in turn, and end with the last */
            constexpr bool all = shape::tile_n / 64 % shape::c_boxes == 0;
            static_assert(!shape::fronted || all, "as often");
            uint32_t box = ring + (shape::fronted || (tight && all) ? n : (*boxes)++) %
                                      shape::c_boxes * shape::box_bytes;
            if (thread == 0)
                ptx_bulk_wait_read<shape::c_boxes - 1>();
            ptx_bar_sync(named_warpgroup(half));
            gemm_fill_box<shape, tight>(box, &sum[m][n * 32]);
            ptx_fence_async_shared();
            ptx_bar_sync(named_warpgroup(half));
            if (thread == 0) {
                ptx_tma_store_3d(map_c, box, place->x + n * 64, row0 + m * 64, place->z);
                ptx_bulk_commit();
            }
        }
    }
}

/* A consumer warpgroup goes past a tile of which it has nothing to compute: each stage is given
 * back as it comes. */
template <class shape, class tile_source>
PTX_FN void gemm_pass(const struct gemm_operands *op, tile_source *source, uint32_t barriers,
                      struct pipeline_position *at, const struct mk_tile *tile, uint32_t i,
                      uint32_t half)
{
    const uint32_t stages_of_k = source->stages_of_k(op, tile);
    for (uint32_t k = 0; k < stages_of_k; k++) {
        pipeline_wait_full<shape::stages>(barriers, at, op->limit_ns);
        if (k == 0 && threadIdx.x % 128 == 0) {
            source->begin(i, tile);
            if (i > 0)
                source->publish(i - 1, half);
        }
        __syncwarp(); /* no lane still waits for a phase that another one lets go */
        pipeline_release<shape::stages, shape::sharers>(barriers, at->stage, threadIdx.x % 32);
        pipeline_step<shape::stages>(at);
    }
    if (threadIdx.x % 128 == 0)
        source->after(i, tile, half);
}

/* Where each consumer has multiplied its part of K: the second gives its sums to the first, thread
 * by thread, and is told by the first's next call that they have been taken. i: tiles before. */
template <class shape, class tile_source>
PTX_FN void gemm_join(float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t shared,
                      uint32_t half, uint32_t i)
{
    uint32_t at =
        shared + shape::c_offset + shape::c_boxes * shape::box_bytes + threadIdx.x % 128 * 16;
    if (i > 0 && half == 0)
        ptx_bar_arrive(named_sums_taken());
    if (i > 0 && half == 1)
        ptx_bar_sync(named_sums_taken());
    if (half == 0)
        ptx_bar_sync(named_sums_given());
#pragma unroll
    for (int j = 0; j < shape::tile_n / 8; j++) {
        float *d = &sum[0][j * 4];
        if (half == 0) {
            uint4 v = ptx_load_shared_4(at + j * 2048);
            d[0] = tile_source::join(d[0], __uint_as_float(v.x));
            d[1] = tile_source::join(d[1], __uint_as_float(v.y));
            d[2] = tile_source::join(d[2], __uint_as_float(v.z));
            d[3] = tile_source::join(d[3], __uint_as_float(v.w));
        } else {
            ptx_store_shared_4(at + j * 2048, ptx_copy_4(d));
        }
    }
    if (half == 1)
        ptx_bar_arrive(named_sums_given());
}

/* Where each CTA of the cluster has multiplied half of K: its second consumer gives its sums to the
 * other CTA's first, thread by thread, which has the same rows; by stores that complete bytes of a
 * barrier there, so that no fence is needed. i: tiles before. */
template <class shape>
PTX_FN void gemm_give(float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t shared,
                      uint32_t half, uint32_t rank, uint32_t i, uint64_t limit_ns)
{
    const uint32_t at = shared + shape::c_offset + shape::c_boxes * shape::box_bytes +
                        threadIdx.x % 128 * 16,
                   given = shared + shape::given_offset, taken = shared + shape::taken_offset;
    if (half == 0) {
        if (threadIdx.x % 128 == 0)
            ptx_mbar_expect(given, shape::tile_n * 256);
        if (i > 0 && threadIdx.x % 32 == 0) /* its lanes have read what came before */
            ptx_mbar_arrive_at_release(taken, 1 - rank);
        ptx_mbar_wait(given, mbar_phase_of(i), limit_ns);
    } else if (i > 0) {
        ptx_mbar_wait(taken, mbar_phase_before(mbar_phase_of(i)), limit_ns);
    }
#pragma unroll
    for (int j = 0; j < shape::tile_n / 8; j++) {
        float *d = &sum[0][j * 4];
        if (half == 0) {
            uint4 v = ptx_load_shared_4(at + j * 2048);
            d[0] += __uint_as_float(v.x);
            d[1] += __uint_as_float(v.y);
            d[2] += __uint_as_float(v.z);
            d[3] += __uint_as_float(v.w);
        } else {
            ptx_store_async_4(at + j * 2048, given, 1 - rank, ptx_copy_4(d));
        }
    }
    if (half == 0)
        __syncwarp();
}

/* The last tiles may have fewer rows than a product, or none: whatever lies in their stages behind
 * these is multiplied, and stored by nobody. */
template <class shape> PTX_FN void gemm_leave_rest(const struct gemm_operands *op, uint32_t shared)
{
    if (op->a_rest < shape::loaded_rows || op->a_rows % (shape::tile_m * shape::cluster))
        for (uint32_t stage = 0; stage < shape::stages; stage++)
            ptx_shared_left(shared + stage * shape::stage_bytes, shape::a_bytes);
}

/* Multiplies all of a tile's K: the sums are whole when it returns, and its stages given back. */
template <class shape, class tile_source>
PTX_FN void gemm_multiply(const struct gemm_operands *op, tile_source *source,
                          struct gemm_ring *ring, float (&sum)[shape::blocks][shape::tile_n / 2],
                          const struct mk_tile *tile, uint32_t i, uint32_t half, uint32_t first_row)
{
    const uint32_t stages_of_k = source->stages_of_k(op, tile),
                   later = stages_of_k > 2 ? 2 : stages_of_k - 1, lane = threadIdx.x % 32;
    uint32_t previous = 0;
    for (uint32_t k = 0; k < stages_of_k; k++) {
        pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, op->limit_ns);
        if (k == 0 && threadIdx.x % 128 == 0)
            source->begin(i, tile);
        if (i > 0 && k == later && threadIdx.x % 128 == 0)
            source->publish(i - 1, half);
        gemm_multiply_stage<shape>(sum, ring->shared + ring->at.stage * shape::stage_bytes, half,
                                   k > 0, first_row);
        /* One stage's products stay under way while the one before is given back. */
        wgmma_wait<1>();
        if (k > 0)
            pipeline_release<shape::stages, shape::sharers>(ring->barriers, previous, lane);
        previous = ring->at.stage;
        pipeline_step<shape::stages>(&ring->at);
    }
    wgmma_wait<0>();
    pipeline_release<shape::stages, shape::sharers>(ring->barriers, previous, lane);
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
        wgmma_settle(sum[m]);
}

/* The same by the loop for the layout that B has. Of two loops that begin with what the last tile
 * has left, ptxas lets no product run beside the next (C7515), hence the zeros. */
template <class shape, class tile_source>
PTX_FN void
gemm_multiply_laid(const struct gemm_operands *op, tile_source *source, struct gemm_ring *ring,
                   float (&sum)[shape::blocks][shape::tile_n / 2], const struct mk_tile *tile,
                   uint32_t i, uint32_t half, uint32_t first_row)
{
    if constexpr (shape::b_kn == GEMM_B_EITHER) {
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
#pragma unroll
            for (int j = 0; j < shape::tile_n / 2; j++)
                sum[m][j] = 0;
    }
    gemm_as_laid<shape>(op, [&](auto laid) {
        gemm_multiply<decltype(laid)>(op, source, ring, sum, tile, i, half, first_row);
    });
}

/* kernels/hopper/gemm_tree.cuh has it, which kernels of such sources include. */
template <class shape, class tile_source>
PTX_FN void gemm_sum_blocks(const struct gemm_operands *op, tile_source *source,
                            struct gemm_ring *ring, float (&sum)[shape::blocks][shape::tile_n / 2],
                            const struct mk_tile *tile, uint32_t i, uint32_t half);

/* kernels/hopper/gemm_promote.cuh has them, which kernels of e4m3 include. */
template <class shape, class tile_source>
PTX_FN void gemm_promote(const struct gemm_operands *op, tile_source *source,
                         struct gemm_ring *ring, float (&sum)[shape::blocks][shape::tile_n / 2],
                         const struct mk_tile *tile, uint32_t i, uint32_t half, uint32_t rank);
template <class shape, class tile_source>
PTX_FN void gemm_scale(const tile_source *source, float (&sum)[shape::blocks][shape::tile_n / 2],
                       const struct mk_tile *tile, uint32_t half, uint32_t rank);

/* A consumer warpgroup. */
template <class shape, class tile_source>
PTX_FN void gemm_consume(const struct gemm_operands *op, tile_source *source, uint32_t shared,
                         uint32_t half, uint32_t rank)
{
    float sum[shape::blocks][shape::tile_n / 2];
    struct gemm_ring ring = {shared, shape::barriers(shared), {}};
    struct mk_tile tile;
    uint32_t boxes = 0, i;
    const auto own_half = [&] { return gemm_half<shape, tile_source>(half); };
    const auto own_rank = [&] { return gemm_rank<shape, tile_source>(rank); };
    if (!shape::half)
        ptx_await_launches(); /* scales are read by consumers, too */
    for (i = 0; source->publish_early(i), source->next(i, &tile); i++) {
        const uint32_t height = gemm_height<shape, tile_source>(&tile);
        if ((tile_source::halves && shape::first_row(own_half()) >= height) ||
            source->idle(&tile, rank * height + shape::first_row(own_half()))) {
            gemm_pass<shape>(op, source, ring.barriers, &ring.at, &tile, i, own_half());
            continue;
        }
        if constexpr (tile_source::tree)
            gemm_as_laid<shape>(op, [&](auto laid) {
                gemm_sum_blocks<decltype(laid)>(op, source, &ring, sum, &tile, i, half);
            });
        else if constexpr (shape::half || shape::products == GEMM_E4M3_FAST)
            gemm_multiply_laid<shape>(op, source, &ring, sum, &tile, i, half,
                                      shape::splits ? 64 * (half ^ rank) : shape::first_row(half));
        else
            gemm_promote<shape>(op, source, &ring, sum, &tile, i, own_half(), own_rank());
        if constexpr (shape::splits)
            gemm_give<shape>(sum, shared, half, rank, i, op->limit_ns);
        else if (shape::joins)
            gemm_join<shape, tile_source>(sum, shared, half, i);
        if constexpr (shape::products == GEMM_E4M3_FAST || shape::products == GEMM_E4M3_EXACT)
            gemm_scale<shape>(source, sum, &tile, i, half, rank);
        source->template add<shape>(i, sum, own_half(), own_rank(), &ring);
        source->template epilogue<shape>(&tile, sum);
        if ((!shape::joins || half == 0) &&
            !source->template store_sums<shape>(i, sum, own_half(), own_rank())) {
            struct gemm_place place =
                source->place(i, &tile, own_rank() * gemm_height<shape, tile_source>(&tile));
            gemm_store<shape, tile_source::tree || gemm_tightest<shape, tile_source>>(
                source->c(op, &tile), source->template boxes<shape>(&tile), sum, shared, own_half(),
                &place, &boxes);
        }
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
            wgmma_settle(sum[m]); /* what a source has made of them stays here */
        if (threadIdx.x % 128 == 0)
            source->after(i, &tile, own_half());
    }
    if (threadIdx.x % 128 == 0) {
        ptx_bulk_wait_read<0>(); /* who announces stores waits for them */
        if (i > 0)
            source->publish(i - 1, own_half());
    }
}

/* Which warp does what, where it waits and at what it arrives. Of a cluster each consumer warp arrives
 * at EMPTY of all CTAs that fill its stages, and at TAKEN of the other CTA; and so do the other's
 * here. splits: the shape's. */
template <bool splits, class tile_source> struct gemm_roles {
    static constexpr uint32_t few = tile_source::producer_registers,
                              many = tile_source::consumer_registers, full = MBAR_SET(MBAR_FULL),
                              empty = MBAR_SET(MBAR_EMPTY),
                              given = splits ? MBAR_SET(MBAR_GIVEN) : 0,
                              taken = splits ? MBAR_SET(MBAR_TAKEN) : 0;
    static constexpr bool gathers = tile_source::gathers;

    /* role, first warp, warps, registers, {waits for, one thread arrives at, one of each warp} */
    static constexpr struct warp_table table = {{
        {ENGINE_PRODUCER, 0, 1, few, warp_also({empty, full}, tile_source::producer_at)},
        {ENGINE_GATHERER, 1, gathers ? GEMM_GATHER_WARPS : 0, few,
         warp_also({empty, 0, full}, tile_source::gatherer_at)},
        {ENGINE_FREE, 1, gathers ? 0 : 3, few},
        {ENGINE_CONSUMER, 4, 4, many,
         warp_also({full | given, given, empty | taken}, tile_source::consumer_at[0])},
        {ENGINE_CONSUMER, 8, 4, many,
         warp_also({full | taken, 0, empty}, tile_source::consumer_at[1])},
        tile_source::chosen_roles[0],
        tile_source::chosen_roles[1],
    }};
    /* Threads before those that assist, and warpgroups before those that multiply. (Constants to compare with:
     * of a role that a function returns the compiler does not know which threads have it, and
     * leaves in it what a source's calls do in others.) */
    static constexpr uint32_t producers = 32 * table.end_of(ENGINE_PRODUCER),
                              multiply = table.first_of(ENGINE_CONSUMER) / 4;
    static_assert(table.covers(GEMM_THREADS / 32) && table.meets(),
                  "each warp has a role, and who waits is waited for");
    static_assert(table.shares(GEMM_LAUNCH_REGISTERS),
                  "more than there are: setmaxnreg.inc would wait for ever");
    static_assert(!tile_source::goes_on ||
                      (few < GEMM_LAUNCH_REGISTERS && many > GEMM_LAUNCH_REGISTERS),
                  "each takes what the other gives");
};

/* A warp that gathers, or that the engine leaves free. */
template <class shape, class tile_source>
PTX_FN void gemm_assist(const struct gemm_operands *op, tile_source *source, uint32_t shared)
{
    if constexpr (tile_source::gathers)
        gemm_gather<shape>(op, source, shared);
    else
        source->auxiliary_warp(threadIdx.x / 32);
}

/*
 * Runs the CTA's tiles, of a gemm_shape or the one of gemm_shapes. All GEMM_THREADS threads call, once, with shape::shared_bytes of dynamic
 * shared memory at the same address in all CTAs of the cluster; the kernel has
 * __launch_bounds__(GEMM_THREADS, 1). Returns when all stores have read shared memory; that they
 * are written is the kernel's end to say, or a source's `publish`.
 */
template <class shapes, class tile_source>
PTX_FN void gemm_compute(const struct gemm_operands *op, tile_source *source, uint8_t *memory)
{
    const bool computes = source->computes();
    uint32_t shared = (ptx_shared(memory) + 1023) & ~1023u;
    uint32_t rank = 0;
    shapes::choose(op->shape, [&](auto of) {
        typedef decltype(of) shape;
        if (shape::cluster > 1)
            rank = ptx_cluster_rank();
        if (computes && threadIdx.x == 0) {
            ptx_tensormap_prefetch(&op->b);
            ptx_tensormap_prefetch(&op->c);
            gemm_leave_rest<shape>(op, shared);
            typedef gemm_roles<shape::splits, tile_source> roles;
            if constexpr (shape::splits) {
                ptx_mbar_init(shared + shape::given_offset, warp_arrivals<roles, MBAR_GIVEN>());
                ptx_mbar_init(shared + shape::taken_offset, warp_arrivals<roles, MBAR_TAKEN>());
            }
            pipeline_init<shape::stages>(shape::barriers(shared),
                                         warp_arrivals<roles, MBAR_EMPTY>() * shape::sharers,
                                         warp_arrivals<roles, MBAR_FULL>());
        }
        if (shape::cluster == 1)
            __syncthreads();
        else if (computes)
            ptx_cluster_sync();
    });

    /* The shuffle tells the compiler that it is the same in all lanes. */
    uint32_t warpgroup = computes ? __shfl_sync(0xffffffff, threadIdx.x / 128, 0) : 0;
    /* Registers are shared out by warpgroups: all warps of one take or give back together. */
    typedef gemm_roles<false, tile_source> roles;
    if (warpgroup < roles::multiply) {
        if (tile_source::producer_registers < GEMM_LAUNCH_REGISTERS)
            ptx_registers_dec<tile_source::producer_registers>();

        if constexpr (tile_source::shared_code) {
            if (computes && threadIdx.x < roles::producers) {
                if (ptx_elect())
                    gemm_produce_several<shapes>(op, source, shared, rank);
            } else {
                gemm_assist<shapes>(op, source, shared);
            }
        } else if (threadIdx.x < roles::producers && ptx_elect()) {
            gemm_produce<shapes>(op, source, shared, rank);
        } else if (threadIdx.x >= roles::producers) {
            gemm_assist<shapes>(op, source, shared);
        }
        __syncwarp();
        if (tile_source::goes_on && computes) {
            __syncthreads(); /* consumers have taken theirs, and given them back */
            ptx_registers_inc<GEMM_LAUNCH_REGISTERS>();
        }
    } else {
        if (tile_source::consumer_registers > GEMM_LAUNCH_REGISTERS)
            ptx_registers_inc<tile_source::consumer_registers>();
        shapes::choose(op->shape, [&](auto shape) {
            gemm_consume<decltype(shape)>(op, source, shared, warpgroup - 1, rank);
        });
        if (tile_source::goes_on) {
            __syncwarp();
            ptx_registers_dec<GEMM_LAUNCH_REGISTERS>();
            __syncthreads();
        }
    }
    /* A CTA's shared memory must outlive what its neighbour still sends there. */
    shapes::choose(op->shape, [&](auto shape) {
        if (decltype(shape)::cluster > 1 && computes)
            ptx_cluster_sync();
    });
}
