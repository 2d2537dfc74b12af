/*
 * The second GEMM engine: C = A B for bf16 or fp16 inputs, fp32 accumulation, C as they are, as the
 * compute role of a persistent kernel on any GPU of compute capability 8.0 and up. It needs mma.sync, ldmatrix,
 * cp.async and mbarriers that count arrivals; no clusters, setmaxnreg or wgmma, and at most 99 KB of
 * shared memory. From 9.0 on one thread's TMA loads stand for cp.async (mma_bulk).
 *
 * The consumers, warps 0 to 7 (or 3), multiply; the lanes of the warp behind them, the producer,
 * copy tiles of A and B to a ring of stages, 16 bytes each; warps behind that one are free for
 * other work of the block. Two mbarriers a stage keep them in step: `full` (the copies of all 32
 * lanes have landed) and `empty` (all consumer warps are done). Nobody waits for copies but who
 * reads them. By TMA the first of these lanes loads whole tiles: 16 bytes a lane pass the pipes that
 * ldmatrix takes, and cost an H100 a tenth of the rate (docs/FIGURES.md).
 *
 * Where a warp has all columns of a tile (warp_columns == 1) its sums lie as wgmma's do: a
 * warpgroup's registers hold what kernels/hopper/gemm.cuh's would. Where warps share rows, each has
 * so many columns (64) of all 16 rows of its blocks, which follow each other, and reads less of
 * shared memory, which is as busy as the tensor cores on an A100 or H100. What sends sums to peers
 * (kernels/fragments.cuh) has 16 columns of 16 rows at a time: it is the same of both.
 *
 * The engine is a template over a tile shape (struct mma_shape) and a tile source, whose calls are
 * those of kernels/hopper/gemm.cuh; struct mma_source is what every source begins with.
 *
 * A and B may be e4m3, of which two lie where one element of bf16 would: a stage then has twice as
 * much of K, and all that is counted in elements below is counted in pairs of them
 * (kernels/mma/gemm_promote.cuh).
 *
 * Every wait ends: copies complete, consumers wait for nothing else, and the source's waits are
 * bounded.
 */
#pragma once

#include <type_traits>

#include <cuda.h>

#include "core/cta.h"
#include "core/gemm_order.h"
#include "kernels/half.cuh"
#include "kernels/mma/quad.cuh"
#include "kernels/mma/ring.cuh"
#include "kernels/warp_roles.cuh"

#define MMA_MEMBER __device__ __forceinline__

/* A matrix of bf16 or fp16 in memory: slabs of rows, each row's elements one after the other. Pitches in
 * bytes, multiples of 16 as the base is. `map` is for TMA loads of tiles (kernels/mma/bulk.cuh). */
struct mma_matrix {
    char *base;
    uint64_t pitch, slab_pitch;
    uint32_t rows, columns; /* of a slab */
    CUtensorMap map;
};

/* Where a tile begins in C: column, row, slab. */
struct mma_place {
    int32_t x, y, z;
};

struct mma_operands;

/*
 * What a tile source derives from: the calls that it need not have. Those that it must have are
 *
 *   bool next(uint32_t i, struct mk_tile *tile)
 *       The i-th tile of this CTA; false when there is none. Lane 0 of the producer and every
 *       consumer thread call it, for i = 0, 1, ... once each, and get the same. Only at the end of
 *       a slab may a tile have fewer rows than the shape's.
 *
 *   const struct mma_matrix *a(const struct mk_tile *tile) const
 *       Where the tile's A lies: slabs of rows x K.
 *
 *   struct mma_place place(uint32_t i, const struct mk_tile *tile, uint32_t row) const
 *       Where in C a tile goes; `row`: 0.
 *
 * Each thread has its own copy of a source.
 */
struct mma_source {
    /* Warps behind the producer, who call `auxiliary_warp`. */
    static constexpr int auxiliary_warps = 0;

    /* As kernels/hopper/gemm.cuh has them, for mma_roles. */
    static constexpr struct warp_meeting producer_at = {}, consumer_at[2] = {};
    static constexpr struct warp_role chosen_roles[2] = {};

    /* Somebody is told by `after`, for which all threads have stored then; and `before` is called,
     * as there is something to wait for. */
    static constexpr bool announces = false, waits = false;

    /* Sums are those of blocks of K, added in a tree: as kernels/hopper/gemm.cuh has it (gemm_tree.cuh). */
    static constexpr bool tree = false;

    /* Rows of A lie anywhere: `const char *row_of_a(const struct mk_tile *, uint32_t row) const` is
     * where row `row` of the tile is, of as many as the tile has. Of `a` the columns count, and that
     * it has the tile's rows; the others' products are zeros. */
    static constexpr bool gathers = false;

    /* A and B are e4m3, with scales of blocks: struct mma_scales scales(const struct mk_tile *,
     * uint32_t row) const says where those of rows `row` and row + 8 of the tile are. All consumer
     * threads call it, once a tile, behind `begin`. */
    static constexpr bool scaled = false;

    /* B has a scale for each of its columns: of blocks `scales` says those of A alone, and the finished
     * sums take struct column_scales columns(const struct mk_tile *) const. */
    static constexpr bool by_columns = false;

    /* A tile's columns of B are two runs, half of them each: the second begins `second` columns
     * behind the first. */
    static constexpr bool two_runs = false;
    MMA_MEMBER uint32_t second(const struct mk_tile *) const
    {
        return 0;
    }

    /* A plan may have a tile's columns be two runs: uint32_t up() const is then how far behind the
     * first the second begins, else 0. Of shapes that `mma_gates` says. */
    static constexpr bool gates = false;

    /* Where tiles are those of several products: stages of K, B and C. */
    MMA_MEMBER uint32_t stages_of_k(const struct mma_operands *op, const struct mk_tile *) const;
    MMA_MEMBER const struct mma_matrix *b(const struct mma_operands *op,
                                          const struct mk_tile *) const;
    MMA_MEMBER const struct mma_matrix *c(const struct mma_operands *op,
                                          const struct mk_tile *) const;

    /* Every lane of the producer, by its number, first of all; and lane 0, last, when every copy
     * has been consumed. */
    MMA_MEMBER void open(uint32_t)
    {
    }
    MMA_MEMBER void close()
    {
    }

    /* By TMA, meanwhile: the first thread of the producer's second warp. */
    MMA_MEMBER void beside_bulk() const
    {
    }

    /* The slab of the tile's B. */
    MMA_MEMBER int32_t b_slab(const struct mk_tile *) const
    {
        return 0;
    }

    /* Lane 0 of the producer, when the stage for a slice of the tile's K is free, before the copies
     * to it: it may wait (within bounds) for A to arrive, and has acquired what it waited for. */
    MMA_MEMBER void before(uint32_t, const struct mk_tile *, uint32_t)
    {
    }

    /* One thread of each consumer warpgroup, when the tile's first stage has landed. */
    MMA_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
    }

    /* All consumer threads, when the products of a tile are done: what follows them before they are
     * rounded. column: the tile's, that the warp's sums begin with. */
    template <class shape>
    MMA_MEMBER void epilogue(const struct mk_tile *, float (&)[shape::blocks][shape::sums],
                             uint32_t) const
    {
    }

    /* All consumer threads (half 0 and 1: the warpgroup), when the products of a tile are done:
     * what it leaves in the sums is stored. True: it has stored them itself. */
    template <class shape>
    MMA_MEMBER bool store_sums(uint32_t, float (&)[shape::blocks][shape::sums], uint32_t) const
    {
        return false;
    }

    /* One thread of each warpgroup, when it has stored what it has of the tile; of a source that
     * announces, when all its threads have: it may release the tile to others. */
    MMA_MEMBER void after(uint32_t, const struct mk_tile *, uint32_t)
    {
    }

    /* All lanes of each warp behind the producer (from 0), meanwhile. */
    MMA_MEMBER void auxiliary_warp(uint32_t)
    {
    }
};

/* A kernel parameter. */
struct mma_operands {
    struct mma_matrix b; /* N x K, or K x N as the shape has it, or (MMA_B_EITHER) as b_kn says */
    struct mma_matrix c;
    uint32_t stages_of_k, stages_of_slice, b_kn;
    uint32_t bulk;              /* matrices have maps (mma_bulk) */
    struct barrier_watch watch; /* of the producer; its limit is above what a `before` may take */
    uint64_t limit_ns;          /* of consumers, longer */
};

MMA_MEMBER uint32_t mma_source::stages_of_k(const struct mma_operands *op,
                                            const struct mk_tile *) const
{
    return op->stages_of_k;
}

MMA_MEMBER const struct mma_matrix *mma_source::b(const struct mma_operands *op,
                                                  const struct mk_tile *) const
{
    return &op->b;
}

MMA_MEMBER const struct mma_matrix *mma_source::c(const struct mma_operands *op,
                                                  const struct mk_tile *) const
{
    return &op->c;
}

/* How B lies, of a shape, as enum gemm_layout of the other engine. */
enum mma_layout { MMA_B_NK, MMA_B_KN, MMA_B_EITHER };

/* One tile shape, and the shared memory that it makes of it. b_kn: enum mma_layout. tile_k:
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
    using either = laid<MMA_B_EITHER>;
    /* A warp's part: `blocks` times 16 rows, and so many columns. Where it has all columns its
     * blocks are 64 rows apart, as in wgmma. */
    static constexpr int columns = tile_n / warp_columns;
    static constexpr int blocks = tile_m / (warps / warp_columns) / 16;
    static constexpr int sums = columns / 2; /* of a lane, in each block */
    static constexpr uint32_t row_bytes = tile_k * 2;
    static constexpr uint32_t a_bytes = tile_m * row_bytes, b_bytes = tile_n * row_bytes;
    static constexpr uint32_t stage_bytes = a_bytes + b_bytes;
    static constexpr uint32_t barriers_offset = stages * stage_bytes;
    static constexpr uint32_t shared_bytes = barriers_offset + stages * 16 + 1024; /* to align */

    /* In the tile: the first row of a block of the warp's, and its first column. */
    static MMA_MEMBER uint32_t row(uint32_t warp, uint32_t block)
    {
        return warp_columns == 1 ? warp / 4 * (blocks * 64) + block * 64 + warp % 4 * 16
                                 : (warp / warp_columns * blocks + block) * 16;
    }
    static MMA_MEMBER uint32_t column(uint32_t warp)
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
    return shape::b_kn == MMA_B_EITHER ? op->b_kn : shape::b_kn;
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

/* Calls `call` with an object of the shape for the layout that B has. */
template <class shape, class function>
PTX_FN void mma_as_laid(const struct mma_operands *op, const function &call)
{
    if constexpr (shape::b_kn != MMA_B_EITHER)
        call(shape());
    else if (op->b_kn)
        call(typename shape::template laid<MMA_B_KN>());
    else
        call(typename shape::template laid<MMA_B_NK>());
}

/* ---- The producer: a warp ---- */

/* What a lane copies of a matrix to each stage: one piece of 16 bytes of every so many rows. Of B
 * as K x N rows are those of K, and boxes of 64 columns lie one after the other. */
struct mma_copy {
    const char *from; /* its first row's, of the stage that is filled next */
    uint32_t to;      /* in the stage */
    uint32_t row;     /* its first */
    uint32_t element; /* its first along the row */
};

/* The lane copies `count` pieces, of rows that are `step` apart, to rows of `row_bytes`. checked:
 * there are `rows` rows, counted from the lane's first, and zeros stand for the others; `base` is
 * an address for these. */
template <bool checked, int count, int step, uint32_t row_bytes>
PTX_FN void mma_copy_rows(const struct mma_copy *copy, uint32_t stage, uint64_t pitch, int32_t rows,
                          const char *base)
{
    const char *from = copy->from;
    const uint32_t to = stage + copy->to;
#pragma unroll
    for (int j = 0; j < count; j++, from += pitch * step) {
        const uint32_t at = (to ^ mma_swizzle<row_bytes>(j * step % 8)) + j * step * row_bytes;
        const bool inside = !checked || j * step < rows;
        mma_copy_16(at, inside ? from : base, inside ? 16 : 0);
    }
}

/* A lane's place in rows that are as long as a stage's K; `first`: the tile's first row. */
template <uint32_t row_bytes>
PTX_FN struct mma_copy mma_copy_along(const struct mma_matrix *m, uint32_t slab, uint32_t first,
                                      uint32_t thread)
{
    constexpr uint32_t pieces = row_bytes / 16;
    const uint32_t row = thread / pieces, piece = thread % pieces;
    return {m->base + slab * m->slab_pitch + (first + row) * m->pitch + piece * 16,
            row * row_bytes + (piece * 16 ^ mma_swizzle<row_bytes>(row)), row, piece * 8};
}

/* The same in the rows of a B of K x N; `first`: the tile's first column; `second`: of two runs, the
 * source's. */
template <class shape, bool two_runs>
PTX_FN struct mma_copy mma_copy_across(const struct mma_matrix *m, uint32_t slab, uint32_t first,
                                       uint32_t second, uint32_t thread)
{
    constexpr uint32_t boxes = shape::tile_n / 64, run = shape::tile_n / 2;
    const uint32_t piece = thread % 8, box = thread / 8 % boxes, row = thread / 8 / boxes;
    uint32_t column = first + box * 64 + piece * 8;
    if (two_runs && box * 64 + piece * 8 >= run)
        column += second - run;
    return {m->base + slab * m->slab_pitch + row * m->pitch + column * 2,
            box * (shape::tile_k * 128) + row * 128 + (piece * 16 ^ mma_swizzle<128>(row)), row,
            column};
}

/* Copies a stage of K of A, from element `k` on. */
template <class shape, bool checked>
PTX_FN void mma_fill_a(const struct mma_matrix *a, const struct mma_copy *of_a, uint32_t stage,
                       const struct mk_tile *tile, uint32_t k)
{
    constexpr int step =
        shape::producers * 512 / shape::row_bytes; /* rows that are copied at once */
    const bool in_k = k + of_a->element < a->columns;
    mma_copy_rows<checked, shape::tile_m / step, step, shape::row_bytes>(
        of_a, stage, a->pitch, in_k ? (int32_t)(a->rows - tile->row - of_a->row) : 0, a->base);
}

/* The same of B. second: of two runs, the source's. */
template <class shape, bool checked, bool two_runs>
PTX_FN void mma_fill_b(const struct mma_matrix *b, const struct mma_copy *of_b, uint32_t stage,
                       const struct mk_tile *tile, uint32_t second, uint32_t k,
                       uint32_t columns_of_k)
{
    constexpr uint32_t row_bytes = shape::row_bytes;
    constexpr int step = shape::producers * 512 / row_bytes;
    constexpr int across = shape::producers * 256 / shape::tile_n;    /* of a B of K x N */
    constexpr int run = two_runs ? shape::tile_n / 2 : shape::tile_n; /* columns */
    if constexpr (shape::b_kn)
        mma_copy_rows<checked, shape::tile_k / across, across, 128>(
            of_b, stage + shape::a_bytes, b->pitch,
            of_b->element < b->columns ? (int32_t)(b->rows - k - of_b->row) : 0, b->base);
    else
        mma_copy_rows<checked, run / step, step, row_bytes>(
            of_b, stage + shape::a_bytes, b->pitch,
            k + of_b->element < columns_of_k ? (int32_t)(b->rows - tile->col - of_b->row) : 0,
            b->base);
    if constexpr (two_runs && !shape::b_kn) {
        struct mma_copy other = *of_b;
        other.from += second * b->pitch;
        other.to += run * row_bytes;
        mma_copy_rows<checked, run / step, step, row_bytes>(
            &other, stage + shape::a_bytes, b->pitch,
            k + other.element < columns_of_k ? (int32_t)(b->rows - tile->col - second - other.row)
                                             : 0,
            b->base);
    }
}

/* Where a lane's rows of a gathered A lie, from its piece of the stage on that is filled next. */
template <class shape> struct mma_gathered {
    static constexpr int step = shape::producers * 512 / shape::row_bytes,
                         count = shape::tile_m / step;
    const char *from[count];

    template <class tile_source>
    MMA_MEMBER void find(const tile_source *source, const struct mk_tile *tile,
                         const struct mma_copy *of_a)
    {
#pragma unroll
        for (int j = 0; j < count; j++) {
            const uint32_t row = of_a->row + j * step;
            from[j] = row < tile->rows ? source->row_of_a(tile, row) + of_a->element * 2 : nullptr;
        }
    }

    MMA_MEMBER void fill(const struct mma_matrix *a, const struct mma_copy *of_a, uint32_t stage,
                         uint32_t k) const
    {
        const bool in_k = k + of_a->element < a->columns;
#pragma unroll
        for (int j = 0; j < count; j++) {
            const uint32_t at = stage + (of_a->to ^ mma_swizzle<shape::row_bytes>(j * step % 8)) +
                                j * step * shape::row_bytes;
            const bool inside = in_k && from[j];
            mma_copy_16(at, inside ? from[j] + k * 2 : a->base, inside ? 16 : 0);
        }
    }
};

/* Of a source that does not. */
struct mma_in_order {
};

/* thread: among those of the producer's warps. */
template <class shape, class tile_source>
PTX_FN void mma_produce(const struct mma_operands *op, tile_source *source, uint32_t shared,
                        uint32_t thread)
{
    const uint32_t barriers = shared + shape::barriers_offset;
    constexpr bool two_runs = tile_source::two_runs || mma_gates<shape, tile_source>;
    struct pipeline_position at = {};
    struct mk_tile tile;
    uint32_t i;
    source->open(thread);
    for (i = 0; source->next(i, &tile); i++) {
        const struct mma_matrix *a = source->a(&tile), *b = source->b(op, &tile);
        const uint32_t stages_of_k = source->stages_of_k(op, &tile), slab = source->b_slab(&tile);
        const uint32_t second = two_runs ? mma_second<shape>(source, &tile) : 0,
                       columns = two_runs ? second + shape::tile_n / 2 : shape::tile_n;
        struct mma_copy of_a = mma_copy_along<shape::row_bytes>(a, tile.a_slab, tile.row, thread),
                        of_b;
        const bool kn = mma_b_kn<shape>(op);
        if (kn)
            of_b = mma_copy_across<shape, two_runs>(b, slab, tile.col, second, thread);
        else
            of_b = mma_copy_along<shape::row_bytes>(b, slab, tile.col, thread);
        std::conditional_t<tile_source::gathers, mma_gathered<shape>, mma_in_order> gathered;
        if constexpr (tile_source::gathers)
            gathered.find(source, &tile, &of_a);
        const bool whole = tile.row + shape::tile_m <= a->rows &&
                           tile.col + columns <= (kn ? b->columns : b->rows);
        for (uint32_t k = 0, slice = 0, left = 0; k < stages_of_k; k++, left--) {
            const uint32_t stage = shared + at.stage * shape::stage_bytes,
                           first = k * shape::tile_k;
            ring_wait_empty<shape::stages>(barriers, &at, &op->watch, i, GPU_BARRIER_EMPTY);
            if (tile_source::waits && !left) {
                if (thread == 0)
                    source->before(i, &tile, slice++);
                /* what it has acquired, all copy */
                ptx_bar_sync(named_producers(shape::producers));
                left = op->stages_of_slice;
            }
            const bool checked = !whole || first + shape::tile_k > a->columns;
            if constexpr (tile_source::gathers)
                gathered.fill(a, &of_a, stage, first);
            else if (checked)
                mma_fill_a<shape, true>(a, &of_a, stage, &tile, first);
            else
                mma_fill_a<shape, false>(a, &of_a, stage, &tile, first);
            mma_as_laid<shape>(op, [&](auto laid) {
                if (checked)
                    mma_fill_b<decltype(laid), true, two_runs>(b, &of_b, stage, &tile, second,
                                                               first, a->columns);
                else
                    mma_fill_b<decltype(laid), false, two_runs>(b, &of_b, stage, &tile, second,
                                                                first, a->columns);
            });
            mma_copies_arrive(pipeline_full<shape::stages>(barriers, at.stage));
            of_a.from += shape::row_bytes;
            of_b.from += kn ? shape::tile_k * b->pitch : shape::row_bytes;
            pipeline_step<shape::stages>(&at);
        }
    }
    ring_drain<shape::stages>(barriers, &at, &op->watch, i, GPU_BARRIER_EMPTY);
    if (thread == 0)
        source->close();
}

/* The same by TMA: one thread. What lies outside A and B arrives as zeros. */
template <class shape, class tile_source>
PTX_FN void mma_produce_bulk(const struct mma_operands *op, tile_source *source, uint32_t shared)
{
    static_assert(shape::row_bytes == 128, "rows are swizzled as TMA does 128 bytes");
    constexpr uint32_t run = shape::tile_n / 2;
    const uint32_t barriers = shared + shape::barriers_offset;
    const bool kn = mma_b_kn<shape>(op);
    struct pipeline_position at = {};
    struct mk_tile tile;
    uint32_t i;
    source->open(0);
    for (i = 0; source->next(i, &tile); i++) {
        const CUtensorMap *a = &source->a(&tile)->map, *b = &source->b(op, &tile)->map;
        const uint32_t stages_of_k = source->stages_of_k(op, &tile);
        const int32_t slab = source->b_slab(&tile);
        uint32_t up = 0;
        if constexpr (mma_gates<shape, tile_source>)
            up = source->up();
        for (uint32_t k = 0, slice = 0, left = 0; k < stages_of_k; k++, left--) {
            const uint32_t stage = shared + at.stage * shape::stage_bytes,
                           full = pipeline_full<shape::stages>(barriers, at.stage);
            const int32_t first = k * shape::tile_k;
            ring_wait_empty<shape::stages>(barriers, &at, &op->watch, i, GPU_BARRIER_EMPTY);
            if (tile_source::waits && !left) {
                source->before(i, &tile, slice++);
                ptx_fence_async();
                left = op->stages_of_slice;
            }
            ptx_mbar_expect(full, shape::stage_bytes);
            ptx_tma_load_3d(stage, a, full, first, tile.row, tile.a_slab);
            if (!kn) {
                ptx_tma_load_3d(stage + shape::a_bytes, b, full, first, tile.col, slab);
                if (up)
                    ptx_tma_load_3d(stage + shape::a_bytes + shape::b_bytes / 2, b, full, first,
                                    tile.col + up, slab);
            } else {
#pragma unroll
                for (uint32_t box = 0; box < shape::tile_n / 64; box++)
                    ptx_tma_load_3d(stage + shape::a_bytes + box * (shape::tile_k * 128), b, full,
                                    tile.col + box * 64 + (up && box * 64 >= run ? up - run : 0),
                                    first, slab);
            }
            pipeline_step<shape::stages>(&at);
        }
    }
    ring_drain<shape::stages>(barriers, &at, &op->watch, i, GPU_BARRIER_EMPTY);
    source->close();
}

/* thread: among those of the producer's warps. */
template <class shape, class tile_source>
PTX_FN void mma_produce_as_built(const struct mma_operands *op, tile_source *source,
                                 uint32_t shared, uint32_t thread, bool bulk)
{
    if constexpr (!tile_source::gathers && shape::row_bytes == 128 && PTX_HOPPER) {
        if (bulk) {
            if (thread == 0)
                mma_produce_bulk<shape>(op, source, shared);
            else if (thread == 32)
                source->beside_bulk();
            return;
        }
    }
    mma_produce<shape>(op, source, shared, thread);
}

/* ---- Consumers ---- */

/* Where the rows that a lane names to ldmatrix lie in a stage: of the warp's first 16 of A and of
 * K, and of its first 16 columns of B. From there to the next 16 along a row it is 32 bytes, by
 * exclusive or as rows are swizzled; and as many rows down as there are. */
struct mma_lane {
    uint32_t a, b;
};

template <class shape> PTX_FN struct mma_lane mma_lane_of(uint32_t warp, bool b_kn)
{
    constexpr uint32_t row_bytes = shape::row_bytes;
    const uint32_t lane = threadIdx.x % 32, row = lane % 16, column = lane / 16 * 8 + lane % 8;
    struct mma_lane at;
    at.a = (shape::row(warp, 0) + row) * row_bytes + (lane / 16 * 16 ^ mma_swizzle<row_bytes>(row));
    if (b_kn)
        at.b = shape::a_bytes + shape::column(warp) / 64 * (shape::tile_k * 128) + row * 128 +
               (shape::column(warp) % 64 * 2 + lane / 16 * 16 ^ mma_swizzle<128>(row));
    else
        at.b = shape::a_bytes + (shape::column(warp) + column) * row_bytes +
               (lane / 8 % 2 * 16 ^ mma_swizzle<row_bytes>(column));
    return at;
}

/* A warp's fragments of 16 rows of A and 16 of K; and those of B for 16 of K and 16 columns. at:
 * the lane's place in the stage, of A turned to the 16 of K, and of B as N x K too. */
template <class shape> PTX_FN void mma_load_a(uint32_t (&a)[4], uint32_t at, int block)
{
    constexpr uint32_t apart = (shape::warp_columns == 1 ? 64 : 16) * shape::row_bytes;
    ptx_ldmatrix_x4(at + block * apart, a);
}

template <class shape> PTX_FN void mma_load_b(uint32_t (&b)[4], uint32_t at, int slice, int columns)
{
    static_assert(shape::b_kn != MMA_B_EITHER, "mma_as_laid tells");
    const uint32_t right = shape::right(columns);
    if (shape::b_kn)
        ptx_ldmatrix_x4_transposed(
            (at ^ right % 64 * 2) + right / 64 * (shape::tile_k * 128) + slice * (16 * 128), b);
    else
        ptx_ldmatrix_x4(at + right * shape::row_bytes, b);
}

/* D += A B of what the shape has (kernels/mma/mma.cuh). */
template <int element> PTX_FN void mma_half(float *d, const uint32_t *a, const uint32_t *b)
{
    if constexpr (element == MK_FP16)
        mma_f16(d, a, b);
    else
        mma_bf16(d, a, b);
}

/* A warp's fragments on their way to the tensor cores: all of A for 16 of K, and of B for the next
 * steps of 16 columns. */
template <class shape> struct mma_fragments {
    static constexpr int groups = shape::columns / 16, steps = 2 * groups, /* of 32 of K */
        ahead = shape::blocks > 2 ? 1 : 2, places = 2 * ahead;
    uint32_t a[shape::blocks][4], b[places][4];
    static_assert(steps % places == 0, "places are constants");
};

/* The first fragments of a stage. from: where it then reads. */
template <class shape>
PTX_FN void mma_load_first(struct mma_fragments<shape> *f, const struct mma_lane *lane,
                           struct mma_lane *from, uint32_t stage)
{
    from->a = stage + lane->a;
    from->b = stage + lane->b;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
        mma_load_a<shape>(f->a[m], from->a, m);
#pragma unroll
    for (int j = 0; j < mma_fragments<shape>::ahead; j++)
        mma_load_b<shape>(f->b[j], from->b, 0, j);
}

/*
 * The products of 32 of K, whose first fragments are in registers. Each fragment of B is loaded
 * some steps before its products, and one of A when the last products with the one before it in its
 * registers have begun: so ldmatrix has time while the tensor cores work, and 168 registers are
 * enough. When the last of the stage are loaded (`ends`) it is given back, and those of the next
 * stage follow, unless there are none (not `more`).
 */
template <class shape>
PTX_FN void mma_multiply_32(float (&sum)[shape::blocks][shape::sums],
                            struct mma_fragments<shape> *f, uint32_t shared,
                            const struct mma_lane *lane, struct mma_lane *from,
                            struct pipeline_position *at, bool ends, bool more, uint64_t limit_ns)
{
    constexpr int groups = mma_fragments<shape>::groups, steps = mma_fragments<shape>::steps,
                  ahead = mma_fragments<shape>::ahead, places = mma_fragments<shape>::places;
    const uint32_t barriers = shared + shape::barriers_offset;
#pragma unroll
    for (int t = 0; t < steps; t++) {
        const int soon = t + ahead;
        if (soon == steps && ends) {
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                ptx_mbar_arrive(pipeline_empty<shape::stages>(barriers, at->stage));
            pipeline_step<shape::stages>(at);
            from->b = shared + at->stage * shape::stage_bytes + lane->b;
            if (more)
                ring_wait_full<shape::stages>(barriers, at, limit_ns);
        } else if (soon == steps) {
            if (shape::b_kn)
                from->b += 32 * 128;
            else
                mma_turn<96>(&from->b);
        } else if (!shape::b_kn && soon == groups) {
            mma_turn<32>(&from->b);
        }
        if (soon < steps || more)
            mma_load_b<shape>(f->b[soon % places], from->b, soon % steps / groups, soon % groups);
        if (t + 1 == groups)
            mma_turn<32>(&from->a);
        else if (t + 1 == steps && ends)
            from->a = shared + at->stage * shape::stage_bytes + lane->a;
        else if (t + 1 == steps)
            mma_turn<96>(&from->a);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
#pragma unroll
            for (int n = 0; n < 2; n++)
                mma_half<shape::element>(&sum[m][(t % groups * 2 + n) * 4], f->a[m],
                                         &f->b[t % places][n * 2]);
            if (t + 1 == groups || (t + 1 == steps && more))
                mma_load_a<shape>(f->a[m], from->a, m);
        }
    }
}

/* The products of a tile. landed: is called when its first stage is here. */
template <class shape, class first>
PTX_FN void mma_multiply(float (&sum)[shape::blocks][shape::sums], uint32_t shared,
                         const struct mma_lane *lane, struct pipeline_position *at,
                         uint32_t stages_of_k, uint64_t limit_ns, const first &landed)
{
    constexpr uint32_t parts = shape::tile_k / 32;
    struct mma_fragments<shape> f;
    struct mma_lane from;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int j = 0; j < shape::sums; j++)
            sum[m][j] = 0;
    ring_wait_full<shape::stages>(shared + shape::barriers_offset, at, limit_ns);
    landed();
    mma_load_first<shape>(&f, lane, &from, shared + at->stage * shape::stage_bytes);
#pragma unroll 1
    for (uint32_t left = stages_of_k * parts; left; left--)
        mma_multiply_32<shape>(sum, &f, shared, lane, &from, at, left % parts == 1 % parts,
                               left > 1, limit_ns);
}

/* The same of a source that is scaled: kernels/mma/gemm_promote.cuh. */
template <class shape, class tile_source, class first>
PTX_FN void mma_promote(float (&sum)[shape::blocks][shape::sums], uint32_t shared,
                        const struct mma_lane *lane, struct pipeline_position *at,
                        const tile_source *source, const struct mk_tile *tile, uint32_t stages_of_k,
                        uint64_t limit_ns, const first &landed);

/* A lane stores 16 bytes of its rows at a time: the lanes of a quad exchange what they have of four
 * times 8 columns, so each has 8 of its own. What lies outside C is dropped, and what does from its
 * column `end` on. columns: the first so many of the warp's. */
template <class shape, int columns = shape::columns>
PTX_FN void mma_store(const struct mma_matrix *c, const struct mma_place *place, uint32_t end,
                      const float (&sum)[shape::blocks][shape::sums], uint32_t warp)
{
    const uint32_t lane = threadIdx.x % 32, row = place->y + shape::row(warp, 0) + lane / 4,
                   column = place->x + shape::column(warp) + lane % 4 * 8;
    char *const first = c->base + place->z * c->slab_pitch + row * c->pitch + column * 2;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t down = shape::row(0, m) + half * 8;
            char *const to = first + down * c->pitch;
#pragma unroll
            for (int j = 0; j < columns / 32; j++) {
                uint32_t v[4];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const float *d = &sum[m][(j * 4 + n) * 4 + half * 2];
                    v[n] = half_pack<shape::element>(d[0], d[1]);
                }
                mma_exchange(v);
                if (row + down < c->rows && column + shape::right(j * 2) < end)
                    *(uint4 *)(to + shape::right(j * 2) * 2) = make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
}

/* kernels/mma/gemm_tree.cuh has it, which kernels of such sources include. */
template <class shape, class tile_source, class first>
PTX_FN void mma_sum_blocks(float (&sum)[shape::blocks][shape::sums], const tile_source *source,
                           uint32_t shared, const struct mma_lane *lane,
                           struct pipeline_position *at, uint32_t stages_of_k, uint64_t limit_ns,
                           const first &landed);

template <class shape, class tile_source>
PTX_FN void mma_consume(const struct mma_operands *op, tile_source *source, uint32_t shared,
                        uint32_t warp)
{
    float sum[shape::blocks][shape::sums];
    const struct mma_lane lane = mma_lane_of<shape>(warp, mma_b_kn<shape>(op));
    const uint32_t half = warp / 4;
    struct pipeline_position at = {};
    struct mk_tile tile;
    for (uint32_t i = 0; source->next(i, &tile); i++) {
        const uint32_t stages_of_k = source->stages_of_k(op, &tile);
        const auto landed = [&] {
            if (threadIdx.x % 128 == 0)
                source->begin(i, &tile);
        };
        if constexpr (tile_source::scaled)
            mma_promote<shape>(sum, shared, &lane, &at, source, &tile, stages_of_k, op->limit_ns,
                               landed);
        else
            mma_as_laid<shape>(op, [&](auto laid) {
                typedef decltype(laid) as_laid;
                if constexpr (tile_source::tree)
                    mma_sum_blocks<as_laid>(sum, source, shared, &lane, &at, stages_of_k,
                                            op->limit_ns, landed);
                else
                    mma_multiply<as_laid>(sum, shared, &lane, &at, stages_of_k, op->limit_ns,
                                          landed);
            });
        source->template epilogue<shape>(&tile, sum, shape::column(threadIdx.x / 32));
        if (!source->template store_sums<shape>(i, sum, half)) {
            const struct mma_place place = source->place(i, &tile, 0);
            const struct mma_matrix *c = source->c(op, &tile);
            uint32_t end = c->columns;
            if constexpr (mma_gates<shape, tile_source>)
                if (source->up()) { /* what was let through has been multiplied by */
                    const uint32_t half = place.x + shape::tile_n / 2;
                    end = end < half ? end : half;
                }
            mma_store<shape>(c, &place, end, sum, threadIdx.x / 32);
        }
        if (tile_source::announces)
            ptx_bar_sync(named_warpgroup(half));
        if (threadIdx.x % 128 == 0)
            source->after(i, &tile, half);
    }
}

/* Which warp does what, where it waits and at what it arrives. bulk: tiles come by TMA. */
template <class shape, class tile_source, bool bulk> struct mma_roles {
    static constexpr uint32_t consumers = shape::warps, producers = shape::producers,
                              free = tile_source::auxiliary_warps, full = MBAR_SET(MBAR_FULL),
                              empty = MBAR_SET(MBAR_EMPTY);

    /* role, first warp, warps, {waits for, one thread arrives at, one of each warp, each lane} */
    static constexpr struct warp_table table = {{
        {ENGINE_CONSUMER, 0, 4, 0, warp_also({full, 0, empty}, tile_source::consumer_at[0])},
        {ENGINE_CONSUMER, 4, consumers - 4, 0,
         warp_also({full, 0, empty}, tile_source::consumer_at[1])},
        {ENGINE_PRODUCER, consumers, producers, 0,
         warp_also({empty, bulk ? full : 0, 0, bulk ? 0 : full}, tile_source::producer_at)},
        {ENGINE_FREE, consumers + producers, free},
        tile_source::chosen_roles[0],
        tile_source::chosen_roles[1],
    }};
    static_assert(table.covers(consumers + producers + free) && (table.meets() || consumers == 4),
                  "each warp has a role, and who waits is waited for");
};

template <class shape, class tile_source>
constexpr uint32_t mma_threads = (shape::warps + shape::producers + tile_source::auxiliary_warps) *
                                 32;

/*
 * Runs the CTA's tiles. All mma_threads<shape, tile_source> threads call, once, with
 * shape::shared_bytes of dynamic shared memory; the kernel has __launch_bounds__ of them and
 * shape::ctas. Returns when all stores have been issued.
 */
template <class shape, class tile_source>
PTX_FN void mma_compute(const struct mma_operands *op, tile_source *source, uint8_t *memory)
{
    const uint32_t shared = (ptx_shared(memory) + 1023) & ~1023u, producer = shape::warps * 32;
    const bool bulk = mma_bulk<shape, tile_source>(op);
    if (threadIdx.x == 0) {
        ring_init<shape::stages>(
            shared + shape::barriers_offset,
            bulk ? warp_arrivals<mma_roles<shape, tile_source, true>, MBAR_FULL>()
                 : warp_arrivals<mma_roles<shape, tile_source, false>, MBAR_FULL>(),
            warp_arrivals<mma_roles<shape, tile_source, false>, MBAR_EMPTY>());
        if (bulk)
            ptx_mbar_init_fence();
    }
    __syncthreads();
    /* The shuffle tells the compiler that it is the same in all lanes. */
    const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
    typedef mma_roles<shape, tile_source, false> roles;
    constexpr uint32_t consumers = roles::table.end_of(ENGINE_CONSUMER),
                       producers = roles::table.end_of(ENGINE_PRODUCER);
    if (warp < consumers)
        mma_consume<shape>(op, source, shared, warp);
    else if (warp < producers)
        mma_produce_as_built<shape>(op, source, shared, threadIdx.x - producer, bulk);
    else /* ENGINE_FREE */
        source->auxiliary_warp(warp - producers);
}
