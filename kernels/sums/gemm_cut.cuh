/* GEMM+ReduceScatter whose last tiles are cut in slices of K (core/roles/gemm_rs_cut.h): the
 * rest of kernels/sums/gemm_reduce.cuh for kernels of such plans, which are others than those of
 * whole tiles. In the epilogue of a slice the consumers store their sums in this GPU's memory
 * (L2), as fp32; a sending warp announces them, and waits for the other slices' and for what
 * peers have of the tile. Then a consumer's warp adds, of its own 16 rows, the slice's share of
 * the columns, and stores it in C. */
#pragma once

#include "kernels/sums/gemm_reduce.cuh"

#include "core/plan/gemm_tiles_cut.h"
#include "core/roles/gemm_rs_cut.h"

/* Of such plans. */
template <class roles> struct reduce_cut : roles {
    static constexpr bool cuts = true;

    static REDUCE_MEMBER void tile(const struct gemm_rs_plan *p, uint32_t t, struct mk_tile *tile)
    {
        gemm_rs_cut_tile(p, t, tile);
    }
};

/* Bytes of a run of 16 rows and columns as fp32: 16 of each lane, and its other 16; slices' runs
 * that are under way. */
enum { CUT_RUN = FRAGMENT_ROWS * FRAGMENT_COLUMNS * 4, CUT_AHEAD = 4 };

/* Of turn t: 0, a whole tile; else 1 + the slice's number, but of those that are not the last,
 * 1. (Consumers need no more, and have no division.) */
template <class op, int sums>
ENGINE_MEMBER uint32_t reduce_source<op, sums>::slice_of(uint32_t t) const
{
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    return t < p->cut_from ? 0 : t + p->cut_tiles < p->tiles ? 1 : p->slices;
}

/* Stages of a tile. */
template <class op, int sums>
ENGINE_MEMBER uint32_t reduce_source<op, sums>::cut_stages(const struct gemm_operands *of,
                                                           const struct mk_tile *tile) const
{
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t slice = p->cut_k / GEMM_TILE_K;
    return !tile->stage              ? of->stages_of_k
           : tile->stage < p->slices ? slice
                                     : of->stages_of_k - (p->slices - 1) * slice;
}

/* What the others need to know of a slice. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::describe_slice(struct reduce_work *w)
{
    if (!w->tile.stage)
        return;
    w->kind = REDUCE_CUT;
    w->to = gemm_rs_cut_place(op::tiles(plan), &w->tile, w->tile.stage - 1);
    uint32_t from, columns = gemm_rs_cut_cols(op::tiles(plan), &w->tile, &from);
    w->first = from << 16 | (from + columns);
    passed++;
}

/* A consumer's sums of a slice, and then its share of C. row: of the tile, the warp's first. */
template <class op, int sums>
template <class shape>
ENGINE_MEMBER void reduce_source<op, sums>::cut(uint32_t i,
                                                float (&sum)[shape::blocks][shape::sums],
                                                uint32_t row, uint32_t half) const
{
    const struct reduce_work *w = work(i);
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t lane = threadIdx.x % 32, q = lane % 4, runs = w->runs;
    static_assert(shape::blocks == 1, "16 rows of a warp");
    const uint32_t offset = row / FRAGMENT_ROWS * runs * CUT_RUN + lane * 16;
    char *to = launch->heap + w->to + offset;
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half),
                  mbar_phase_before(mbar_phase_of_ring<GEMM_RS_OUTBOX>(w->number)),
                  operands->limit_ns);
#pragma unroll
    for (int j = 0; j < shape::tile_n / FRAGMENT_COLUMNS; j++)
        if (j < runs && row < w->tile.rows) {
            *(uint4 *)(to + j * CUT_RUN) = ptx_copy_4(&sum[0][j * FRAGMENT_SUMS]);
            *(uint4 *)(to + j * CUT_RUN + CUT_RUN / 2) =
                ptx_copy_4(&sum[0][j * FRAGMENT_SUMS + FRAGMENT_SUMS / 2]);
        }
    ptx_bar_sync(named_warpgroup(half));
    if (threadIdx.x % 128 == 0)
        ptx_mbar_arrive(barrier(reduce_shared->there, w->number, half));
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half),
                  mbar_phase_of_ring<GEMM_RS_OUTBOX>(w->number), operands->limit_ns);
    if (row >= w->tile.rows)
        return;
    const uint32_t apart = p->tile_m * p->tile_n * 4, slices = p->slices, peers = w->terms[0].count;
    const char *from = launch->heap + gemm_rs_cut_place(p, &w->tile, 0) + offset,
               *theirs = launch->heap + w->terms[0].source + fragment_offset<sums>(row, runs);
    const uint32_t at = row + q % 2 * 8 + lane / 4;
    char *c = (char *)launch->arguments[MK_SPACE_ARG2] +
              ((uint64_t)(w->tile.row + at) * p->n + w->tile.col + q / 2 * 8) * 2;
#pragma unroll 1
    for (uint32_t column = w->first >> 16; column < (w->first & 0xffff);
         column += FRAGMENT_COLUMNS) {
        const uint32_t run = column / FRAGMENT_COLUMNS;
        float d[FRAGMENT_SUMS] = {};
#pragma unroll 1
        for (uint32_t slice = 0; slice < slices; slice += CUT_AHEAD) {
            uint4 f[CUT_AHEAD][2] = {};
#pragma unroll
            for (int k = 0; k < CUT_AHEAD; k++)
                if (slice + k < slices) {
                    const char *part = from + (uint64_t)(slice + k) * apart + run * CUT_RUN;
                    f[k][0] = ptx_load_16_l2(part);
                    f[k][1] = ptx_load_16_l2(part + CUT_RUN / 2);
                }
#pragma unroll
            for (int k = 0; k < CUT_AHEAD; k++)
#pragma unroll
                for (int four = 0; four < 2; four++) {
                    d[four * 4] += __uint_as_float(f[k][four].x);
                    d[four * 4 + 1] += __uint_as_float(f[k][four].y);
                    d[four * 4 + 2] += __uint_as_float(f[k][four].z);
                    d[four * 4 + 3] += __uint_as_float(f[k][four].w);
                }
        }
#pragma unroll 1
        for (uint32_t peer = 0; peer < peers; peer++)
            fragment_add<sums>(d, fragment_load<sums>(theirs + peer * p->slab_pitch, run, runs));
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            word[k] = half_pack<op::element>(d[2 * k], d[2 * k + 1]);
        quad_transpose(word, q); /* a lane has eight columns of one row */
        if (at < w->tile.rows && column + q / 2 * 8 < w->tile.cols)
            *(uint4 *)(c + column * 2) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* What follows the consumers' stores of a slice: a warp, one of `senders`. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::cut_tile(struct mk_cta *own, uint32_t i,
                                                     uint32_t sender, uint32_t senders)
{
    const struct reduce_work *w = work(i);
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t number = w->number;
    for (uint32_t half = sender; half < 2; half += senders) {
        barrier_wait(&operands->watch, barrier(reduce_shared->there, number, half),
                     mbar_phase_of_ring<GEMM_RS_OUTBOX>(number), GPU_BARRIER_THERE,
                     number % GEMM_RS_OUTBOX, i);
        gemm_rs_cut_announce(MK_FRESH(p), own, &w->tile, MK_TILE_PARTS / p->cluster / 2);
    }
    gemm_rs_cut_await(MK_FRESH(p), own, &w->tile);
    for (uint32_t half = sender; half < 2; half += senders)
        if (cta_leads(own))
            ptx_mbar_arrive(barrier(reduce_shared->taken, number, half));
}

/* The kernels: of MK_CUT_TILES and products of bf16 or fp16, of which no plan has MK_FP24 parts in
 * such tiles. */
template <class op, int products = GEMM_BF16> struct gemm_cut_kernels : gemm_bf16_kernels<op> {
    template <class shape> using shapes = typename shape::either;

    template <int rows, int columns, int cluster, int stages, int boxes, class function>
    static int shape(const struct engine_form *form, int transposed, function call)
    {
        if constexpr (products == GEMM_BF16)
            return gemm_op_shape<op, rows, columns, cluster, stages, boxes>(form, transposed, call);
        return gemm_shape_as_laid<rows, columns, cluster, stages, boxes, MK_FP16, GEMM_FP16>(
            transposed, call);
    }

    template <class function>
    static int dispatch(const struct engine_form *form, int transposed, function call)
    {
#define GEMM_CUT_TRY(rows, columns, cluster_, stages, boxes)                                       \
    if (form->tile_m == rows * cluster_ && form->tile_n == columns && form->cluster == cluster_)   \
        return shape<rows, columns, cluster_, stages, boxes>(form, transposed, call);
        MK_CUT_TILES(GEMM_CUT_TRY)
#undef GEMM_CUT_TRY
        return -EINVAL;
    }
};
