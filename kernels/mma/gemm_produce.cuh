/* The producer of engine mma: the lanes of its warps copy tiles of A and B to the stages of the ring,
 * or one thread loads them by TMA. */
#pragma once

#include "kernels/mma/gemm_shape.cuh"

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
    ENGINE_MEMBER void find(const tile_source *source, const struct mk_tile *tile,
                            const struct mma_copy *of_a)
    {
#pragma unroll
        for (int j = 0; j < count; j++) {
            const uint32_t row = of_a->row + j * step;
            from[j] = row < tile->rows ? source->row_of_a(tile, row) + of_a->element * 2 : nullptr;
        }
    }

    ENGINE_MEMBER void fill(const struct mma_matrix *a, const struct mma_copy *of_a, uint32_t stage,
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
            engine_as_laid<shape>(op, [&](auto laid) {
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
