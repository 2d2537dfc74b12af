/* GEMM+AllReduce of few rows whose tiles are shared out: one launch of one shot's tiles
 * (core/roles/gemm_rs.h), in two steps each.
 *
 *   A tile has rows of all ranks, and every rank takes the same tiles in the same order. Of a
 *   tile's columns each rank has some. A rank sends its sums of these to it (compute, as one shot
 *   does), and tells all; who has them adds what all have sent, in rank order, and sends the sum to
 *   all, and tells them.
 *
 * So no tile waits for another: while one is multiplied, the one before it is added and gathered,
 * and behind the last product stand its own two ways alone. One shot sends (gpus - 1) C from each
 * rank, in one step; this form 2 (gpus - 1) / gpus C. Two shots send as little, but their tiles are
 * of one rank's rows, so that a CTA's last tiles are those that everybody waits for.
 *
 * Roles
 *   compute       all of that
 *   intra_comm    waits until all sums of a tile are here. Where C does not lie in the heap it
 *                 takes the tile there.
 *
 * Buffer reuse
 *   Two buffers of parts, by epoch & 1, as in one shot: a rank ends a launch when all sums of all
 *   tiles are here, which takes parts of every rank. The sums have one buffer: those of launch e +
 *   1 are sent when every rank's parts of e + 1 are in them, and a rank that has begun e + 1 has
 *   ended e. A place of the outbox has its tile's own columns until they are added.
 *
 * Deadlock freedom
 *   Each rank tells of its parts of a tile before it waits for others' of that tile, and takes
 *   tiles in the same order; sums are waited for by intra_comm, for which nobody waits.
 *
 * Flags of a rank
 *   partial[tile][local]   as in one shot: counts parts that a rank has stored here
 *   whole[tile][rank]      counts parts of the tile whose columns of `rank` are here, summed */
#pragma once

#include "core/roles/gemm_ar_plan.h"
#include "core/roles/gemm_rs_joint.h"

/* The first `rows` rows from `first` on of a part of a tile, in a slab or the outbox at `at`. */
MK_PURE uint64_t gemm_ar_share_place(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                     uint32_t share, uint32_t first, uint64_t at)
{
    struct gemm_rs_area before = {.rows = first, .cols = tile->cols};
    return at + gemm_rs_bytes(p, &before) + (uint64_t)share * p->share_cols * p->element_bytes;
}

/* Adds what all ranks have of the rows of a part that is this rank's, where the tile is gathered in
 * its heap. */
MK_ROLE void gemm_ar_share_add(const struct gemm_ar_plan *a, struct mk_cta *cta,
                               const struct mk_tile *tile, uint32_t share, uint32_t first,
                               uint32_t rows)
{
    const struct gemm_rs_plan *p = &a->rs;
    /* where rows lie in grains, as on a GPU, those of a part are counted as one run */
    uint32_t together = p->grain_rows > 1 && rows ? rows : 1;
    struct mk_combine sum = {.id = gemm_rs_unit_id(p, 0, tile->id * p->pieces),
                             .count = p->topo.gpus,
                             .elements = (uint64_t)together * gemm_rs_share_cols(p, tile, share),
                             .from = p->number,
                             .to = p->element,
                             .tree = MK_COMBINE_IN_TURN,
                             .space = MK_SPACE_HEAP,
                             .local = p->topo.rank};
    for (uint32_t row = first; row < first + rows; row += together) {
        for (uint32_t i = 0; i < p->topo.gpus; i++) {
            uint64_t at = i == p->topo.rank ? gemm_rs_outbox_place(p, tile)
                                            : gemm_rs_joint_offset(p, tile, cta->epoch) +
                                                  gemm_rs_joint_slab(p, p->topo.rank, i);
            sum.terms[i] =
                (struct mk_term){gemm_ar_share_place(p, tile, share, row, at), 1, MK_SPACE_HEAP, 0};
        }
        sum.destination = gemm_ar_shared_at(a, tile, row) + share * p->share_cols * 2;
        mk_cta_combine(cta, &sum);
    }
}

/* compute: rows [first, first + rows) of the tile are in the outbox, `parts` of MK_TILE_PARTS of
 * it. 1: the launch is ending. */
MK_ROLE int gemm_ar_share(const struct gemm_ar_plan *a, struct mk_cta *cta,
                          const struct mk_tile *tile, uint32_t first, uint32_t rows, uint32_t parts)
{
    const struct gemm_rs_plan *p = &a->rs;
    const uint32_t gpus = p->topo.gpus, rank = p->topo.rank, shares = gemm_rs_shares(p, tile);
    const uint64_t pitch = (uint64_t)tile->cols * p->element_bytes;
    for (uint32_t share = 0; share < shares && rows; share++) {
        uint32_t peer = gemm_rs_sharer(p, tile, share);
        struct mk_chunk c = {.id = gemm_rs_unit_id(p, 0, tile->id * p->pieces),
                             .space = MK_SPACE_HEAP};
        c.source = gemm_ar_share_place(p, tile, share, first, gemm_rs_outbox_place(p, tile));
        c.destination = gemm_ar_share_place(p, tile, share, first,
                                            gemm_rs_joint_offset(p, tile, cta->epoch) +
                                                gemm_rs_joint_slab(p, peer, rank));
        c.bytes = (uint64_t)gemm_rs_share_cols(p, tile, share) * p->element_bytes;
        if (peer != rank)
            mk_cta_copy_rows(cta, peer, &c, rows, pitch, pitch);
    }
    gemm_rs_announce(p, cta, tile, parts);
    if (gemm_rs_await(p, cta, tile))
        return 1;
    for (uint32_t share = 0; share < shares && rows; share++)
        if (gemm_rs_sharer(p, tile, share) == rank)
            gemm_ar_share_add(a, cta, tile, share, first, rows);
    if (mk_cta_settle(cta))
        return 1;
    for (uint32_t step = 1; step < gpus; step++) {
        uint32_t peer = (rank + step) % gpus;
        for (uint32_t share = 0; share < shares && rows; share++) {
            struct mk_chunk c = {.id = gemm_rs_unit_id(p, 0, tile->id * p->pieces),
                                 .space = MK_SPACE_HEAP,
                                 .bytes = gemm_rs_share_cols(p, tile, share) * 2ull};
            c.source = c.destination =
                gemm_ar_shared_at(a, tile, first) + share * p->share_cols * 2;
            if (gemm_rs_sharer(p, tile, share) == rank)
                mk_cta_copy_rows(cta, peer, &c, rows, gemm_ar_shared_pitch(a, tile),
                                 gemm_ar_shared_pitch(a, tile));
        }
    }
    mk_cta_add_each(cta, mk_locals(0, gpus), gemm_ar_shared_flag(a, tile->id, rank), parts);
    return 0;
}
