/* What follows the product of a slice of K of a tile of gemm_rs (core/roles/gemm_rs_cut.h) where
 * sums are in memory: on the host and in the explorer. kernels/sums/gemm_cut.cuh has it for a
 * GPU's registers. */
#pragma once

#include "core/cta/cta_combine.h"
#include "core/cta/cta_outbox.h"
#include "core/roles/gemm_rs_cut.h"

/* Adds a run of a row's share, `elements` from `at` of the tile on: what peers have of it, to
 * their sum; or, with `to` C, the slices and that sum. */
MK_ROLE void gemm_rs_cut_combine(const struct gemm_rs_plan *p, struct mk_cta *cta,
                                 const struct mk_tile *tile, uint64_t at, uint64_t elements,
                                 enum mk_space to, uint64_t destination)
{
    const struct gemm_rs_terms peers = gemm_rs_level(p, tile, 0, cta->epoch);
    const uint32_t last = to == MK_SPACE_HEAP;
    struct mk_combine sum = {.id = gemm_rs_unit_id(p, 0, tile->id * p->pieces),
                             .count = last ? peers.count : p->slices + (peers.count > 0),
                             .elements = elements,
                             .from = last ? p->number : MK_FP32,
                             .to = last ? MK_FP32 : p->element,
                             .tree = MK_COMBINE_IN_TURN,
                             .space = to,
                             .local = tile->c_local,
                             .destination = destination};
    for (uint32_t i = 0; i < sum.count; i++)
        sum.terms[i] =
            (struct mk_term){last ? peers.source + i * p->slab_pitch + at * p->element_bytes
                                  : gemm_rs_cut_place(p, tile, i) + at * 4,
                             1, MK_SPACE_HEAP, 0};
    mk_cta_combine(cta, &sum);
}

/* compute: a slice is stored. 1: the launch is ending. */
MK_ROLE int gemm_rs_cut(const struct gemm_rs_plan *p, struct mk_cta *cta,
                        const struct mk_tile *tile)
{
    uint32_t from, cols = gemm_rs_cut_cols(p, tile, &from);
    gemm_rs_cut_announce(p, cta, tile, MK_TILE_PARTS);
    if (gemm_rs_cut_await(p, cta, tile))
        return 1;
    for (uint32_t pass = p->topo.gpus > 1 ? 0 : 1; pass < 2 && cols; pass++) {
        for (uint32_t row = 0; row < tile->rows; row++) {
            uint64_t at = (uint64_t)row * tile->cols + from,
                     c = ((uint64_t)(tile->row + row) * p->n + tile->col + from) * 2;
            gemm_rs_cut_combine(p, cta, tile, at, cols, pass ? MK_SPACE_ARG2 : MK_SPACE_HEAP,
                                pass ? c : gemm_rs_cut_place(p, tile, p->slices) + at * 4);
        }
        if (!pass && mk_cta_settle(cta))
            return 1;
    }
    return 0;
}
