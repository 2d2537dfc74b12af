/* The plan of GEMM+AllReduce and its arithmetic. The schedule, and what lies where and why, is
 * core/roles/gemm_ar.h. */
#pragma once

#include "core/cta/cta.h"
#include "core/roles/gemm_rs_plan.h"

struct gemm_ar_plan {
    struct gemm_rs_plan rs; /* the reduction */
    uint32_t flag_whole;
    uint64_t block_pitch; /* bytes from block to block of the whole sum, bf16, a multiple of 128 */
    uint64_t whole;       /* heap: W blocks, tiles one after the other, row by row */
    /* 1: C lies in the heap of each rank, at c_offset, and the owner of a tile stores it there */
    uint32_t direct;
    uint64_t c_offset;
};
MK_PLAN_OF(gemm_ar);

/* Of any rank: unit `unit` of the block that `owner` has summed is here. */
MK_PURE uint32_t gemm_ar_whole_flag(const struct gemm_ar_plan *p, uint32_t owner, uint32_t unit)
{
    return p->flag_whole + owner * p->rs.units + unit;
}

/* Shared: of any rank, the columns of a tile that `rank` has summed are here. */
MK_PURE uint32_t gemm_ar_shared_flag(const struct gemm_ar_plan *p, uint32_t tile, uint32_t rank)
{
    return p->flag_whole + tile * p->rs.topo.gpus + rank;
}

/* Shared: where row `row` of a tile begins in C, bytes. */
MK_PURE uint64_t gemm_ar_shared_in_c(const struct gemm_ar_plan *p, const struct mk_tile *tile,
                                     uint32_t row)
{
    return ((uint64_t)(tile->row + row) * p->rs.n + tile->col) * 2;
}

/* ... and from row to row of the heap of every rank, where its sum is gathered: in C, or in
 * `whole`, where a tile's rows follow each other. */
MK_PURE uint64_t gemm_ar_shared_pitch(const struct gemm_ar_plan *p, const struct mk_tile *tile)
{
    return (p->direct ? p->rs.n : tile->cols) * 2ull;
}

MK_PURE uint64_t gemm_ar_shared_at(const struct gemm_ar_plan *p, const struct mk_tile *tile,
                                   uint32_t row)
{
    if (p->direct)
        return p->c_offset + gemm_ar_shared_in_c(p, tile, row);
    return p->whole +
           ((uint64_t)tile->id * p->rs.tile_m * p->rs.tile_n + (uint64_t)row * tile->cols) * 2;
}

/* Unit `unit` of `owner`'s block, with the rows that C has of it. */
MK_PURE struct gemm_rs_area gemm_ar_area(const struct gemm_ar_plan *p, uint32_t owner,
                                         uint32_t unit)
{
    struct gemm_rs_area a = gemm_rs_unit(&p->rs, unit);
    a.rows = gemm_rs_rows(&p->rs, owner, &a);
    return a;
}

/* The same as it moves: it lies at the same place of every heap. */
MK_PURE struct mk_chunk gemm_ar_unit(const struct gemm_ar_plan *p, uint32_t owner, uint32_t unit)
{
    struct mk_chunk c;
    struct gemm_rs_area a = gemm_ar_area(p, owner, unit);
    c.id = gemm_rs_unit_id(&p->rs, owner, unit);
    c.space = MK_SPACE_HEAP;
    c.source = c.destination = p->whole + owner * p->block_pitch + a.first * 2;
    c.bytes = gemm_rs_elements(&a) * 2;
    return c;
}

/* What one put takes of this rank's own block: `run`, its first unit `unit`; or the unit alone. */
MK_PURE struct mk_chunk gemm_ar_put(const struct gemm_ar_plan *p, struct gemm_rs_run run,
                                    uint32_t unit)
{
    struct mk_chunk c = gemm_ar_unit(p, p->rs.topo.rank, unit);
    if (p->rs.put_tiles) {
        struct gemm_rs_area end = gemm_rs_run_end(&p->rs, run);
        c.bytes =
            ((uint64_t)(run.tiles - 1) * p->rs.tile_m * p->rs.tile_n + gemm_rs_elements(&end)) * 2;
    }
    return c;
}

/* From the heap to C: one row of a unit. */
MK_PURE struct mk_chunk gemm_ar_delivery(const struct gemm_ar_plan *p, uint32_t owner,
                                         uint32_t unit)
{
    struct mk_chunk c = gemm_ar_unit(p, owner, unit);
    struct gemm_rs_area a = gemm_rs_unit(&p->rs, unit);
    c.destination = (((uint64_t)owner * p->rs.shard_rows + a.row) * p->rs.n +
                     (uint64_t)owner * p->rs.shard_cols + a.col) *
                    2;
    c.bytes = a.cols * 2ull;
    return c;
}

/* Rows [first, first + rows) of a tile of this rank's own block, from C to the block, or to C of
 * another rank: one row of them. */
MK_PURE struct mk_chunk gemm_ar_rows(const struct gemm_ar_plan *p, const struct mk_tile *tile,
                                     uint32_t first)
{
    uint32_t index = tile->id % p->rs.shard_tiles;
    struct mk_chunk c;
    c.id = gemm_rs_unit_id(&p->rs, tile->slab, index * p->rs.pieces);
    c.space = MK_SPACE_ARG2;
    c.source =
        (((uint64_t)tile->slab * p->rs.shard_rows + tile->row + first) * p->rs.n + tile->col) * 2;
    c.destination =
        p->direct ? p->c_offset + c.source
                  : p->whole + tile->slab * p->block_pitch +
                        (gemm_rs_tile_area(&p->rs, index).first + (uint64_t)first * tile->cols) * 2;
    c.bytes = tile->cols * 2ull;
    return c;
}
