/* One shot of GEMM+ReduceScatter and GEMM+AllReduce (core/roles/gemm_rs.h): what follows a tile's
 * product where the sums pass the CTA's outbox.
 *
 *   outbox     the CTA's own sums of the tile, as they are sent
 *   exchange   copies the rows that a peer ends with to the peer, tells it, and waits for its own
 *              rows of all peers
 *   add        adds those to its own, in rank order or in a tree, and stores C
 *
 * Bytes moved: of each tile the rows that a peer ends with, to that peer.
 *
 * Buffer reuse: a place of the outbox is written again GEMM_RS_OUTBOX tiles later, behind the
 * settle of the tile between, which has waited for the copies out of the place and the sums of it.
 *
 * Deadlock freedom: every rank's CTA `i` takes the same tiles in the same order, and sends its sums
 * of a tile before it waits for those of others.
 *
 * The events engine runs the exchange. kernels/sums/gemm_joint.cuh has both for a GPU's registers.
 */
#pragma once

#include "core/cta/cta_combine.h"
#include "core/cta/cta_outbox.h"
#include "core/roles/gemm_rs.h"

/* The heap offset of the place that a tile has in its CTA's outbox. */
MK_PURE uint64_t gemm_rs_outbox_place(const struct gemm_rs_plan *p, const struct mk_tile *tile)
{
    uint32_t t = gemm_rs_order(p, tile->id); /* to and fro: the way back is the same */
    uint32_t place = t % p->batch * GEMM_RS_OUTBOX + t / p->batch % GEMM_RS_OUTBOX;
    return p->outbox + (uint64_t)place * p->tile_m * p->tile_n * p->element_bytes;
}

/* Rows of a tile that `rank` ends with, of the `rows` from `first` on, in whole grains; *from: the
 * first of them. */
MK_PURE uint32_t gemm_rs_rows_wanted(const struct gemm_rs_plan *p, uint32_t rank,
                                     const struct mk_tile *tile, uint32_t first, uint32_t rows,
                                     uint32_t *from)
{
    uint32_t begin = tile->row + first, end = begin + rows, own = rank * p->shard_rows;
    if (!p->gathers) {
        begin = begin < own ? own : begin;
        end = end > own + p->shard_rows ? own + p->shard_rows : end;
    }
    if (begin >= end)
        return 0;
    *from = (begin - tile->row) / p->grain_rows * p->grain_rows;
    return end - tile->row - *from;
}

/* Rows [first, first + rows) of the tile are in the outbox: they go to all ranks that end with any
 * of them, which are told that `parts` of MK_TILE_PARTS are there; then this rank's own rows of all
 * others have come. 1: the launch is ending. */
MK_ROLE int gemm_rs_exchange(const struct gemm_rs_plan *p, struct mk_cta *cta,
                             const struct mk_tile *tile, uint32_t first, uint32_t rows,
                             uint32_t parts)
{
    uint32_t local = mk_local_of(&p->topo, p->topo.rank), gpus = p->topo.gpus, from;
    for (uint32_t step = 1; step < gpus; step++) {
        uint32_t peer = (local + gpus - step) % gpus,
                 wanted = gemm_rs_rows_wanted(p, peer, tile, first, rows, &from);
        if (!wanted)
            continue;
        struct gemm_rs_area before = {.rows = from, .cols = tile->cols},
                            area = {.rows = wanted, .cols = tile->cols};
        struct mk_chunk c = {.id = gemm_rs_unit_id(p, 0, tile->id * p->pieces),
                             .space = MK_SPACE_HEAP};
        c.source = gemm_rs_outbox_place(p, tile) + gemm_rs_bytes(p, &before);
        c.destination = gemm_rs_joint_offset(p, tile, cta->epoch) +
                        gemm_rs_joint_slab(p, peer, local) + gemm_rs_bytes(p, &before);
        c.bytes = gemm_rs_bytes(p, &area);
        mk_cta_copy(cta, peer, &c);
    }
    gemm_rs_announce(p, cta, tile, parts);
    return gemm_rs_await(p, cta, tile);
}

/* Adds to this rank's sums of its own rows of the tile what has come of them: C. */
MK_ROLE void gemm_rs_add(const struct gemm_rs_plan *p, struct mk_cta *cta,
                         const struct mk_tile *tile)
{
    uint32_t rank = p->topo.rank, gpus = p->topo.gpus, from = 0,
             rows = gemm_rs_rows_wanted(p, rank, tile, 0, tile->rows, &from);
    struct mk_combine sum = {.id = gemm_rs_unit_id(p, 0, tile->id * p->pieces),
                             .count = gpus,
                             .elements = tile->cols,
                             .from = p->number,
                             .to = p->element,
                             .tree = p->blocks ? MK_COMBINE_NODES : MK_COMBINE_IN_TURN,
                             .space = MK_SPACE_ARG2};
    for (uint32_t row = from; row < from + rows; row++) {
        struct gemm_rs_area before = {.rows = row, .cols = tile->cols};
        for (uint32_t i = 0; i < gpus; i++)
            sum.terms[i] = (struct mk_term){(i == rank ? gemm_rs_outbox_place(p, tile)
                                                       : gemm_rs_joint_offset(p, tile, cta->epoch) +
                                                             gemm_rs_joint_slab(p, rank, i)) +
                                                gemm_rs_bytes(p, &before),
                                            1, MK_SPACE_HEAP, 0};
        uint64_t at = tile->row + row - (p->gathers ? 0 : (uint64_t)rank * p->shard_rows);
        sum.destination = (at * p->n + tile->col) * 2;
        mk_cta_combine(cta, &sum);
    }
}

/* compute: the tile's product is whole, and on its way to the outbox. 1: the launch is ending. */
MK_ROLE int gemm_rs_joint(const struct gemm_rs_plan *p, struct mk_cta *cta,
                          const struct mk_tile *tile)
{
    if (mk_cta_settle(cta) || gemm_rs_exchange(p, cta, tile, 0, tile->rows, MK_TILE_PARTS))
        return 1;
    gemm_rs_add(p, cta, tile);
    return 0;
}
