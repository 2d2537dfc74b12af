/* GEMM+ReduceScatter whose last tiles are cut along K (split-K), in two shots of one node.
 *
 * The last wave of tiles keeps few CTAs (or clusters) busy where tiles are a little more than
 * whole waves. Of its tiles those whose rows are this rank's own are cut in slices of K, as many
 * as keep all busy. A slice is a tile of its own: it has a turn in the order of computation, and
 * no CTA has two.
 *
 *   sums    a slice's sums go to this rank's heap as fp32, so that nothing is rounded that was
 *           not before
 *   meet    its CTA says so, and waits until all slices' are there, and peers' sums of the tile
 *   add     of the tile's columns each slice's CTA adds its share: slices in the order of K,
 *           then peers in rank order. So every run gives the same bits, and no CTA adds while
 *           others wait
 *
 * Bytes moved: over NVLink as many as without. In memory, or L2, each slice's sums once out and
 * once in.
 *
 * Buffer reuse: slices are written and read by this rank alone, and a launch begins when the one
 * before has ended.
 *
 * Deadlock freedom: a slice is its CTA's last tile, and its sums are announced before others'
 * are waited for. All CTAs of a launch are co-resident. Parts of peers are waited for as in
 * core/roles/gemm_rs.h: their turns come before the own tile's, in which no peer waits for this
 * one.
 *
 * Flags of a rank
 *   cut[tile]   counts parts of a cut tile's slices that are there */
#pragma once

#include "core/roles/gemm_rs.h"

/* The turn in gemm_rs's order that comes t-th. A last, short batch of tiles for others stands
 * there a wave before the end, and is pushed while the last wave is multiplied. Where that wave
 * is slices nobody has so long: the batch comes before the own tiles that it would follow. */
MK_PURE uint32_t gemm_rs_cut_turn(const struct gemm_rs_plan *p, uint32_t t)
{
    uint32_t first = p->late_from - p->batch;
    return t < first || t >= p->late_from + p->late ? t
           : t < first + p->late                    ? t + p->batch
                                                    : t - p->late;
}

/* Tile number `t` of this rank in the order of computation: whole, or a slice, whose `stage` is
 * 1 + its number, and c_slab which of the cut tiles it is of. First slices of all cut tiles come
 * first, then second ones. */
MK_PURE void gemm_rs_cut_tile(const struct gemm_rs_plan *p, uint32_t t, struct mk_tile *tile)
{
    uint32_t behind = t < p->cut_from ? 0 : t - p->cut_from;
    if (t < p->cut_from) {
        gemm_rs_tile(p, gemm_rs_cut_turn(p, t), tile);
        return;
    }
    gemm_rs_tile(p, p->cut_from + behind % p->cut_tiles, tile);
    tile->stage = 1 + behind / p->cut_tiles;
    tile->c = MK_SPACE_HEAP;
    tile->c_slab = behind % p->cut_tiles;
}

/* Elements of K of a slice: *from and on. */
MK_PURE uint32_t gemm_rs_slice_k(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                 uint32_t *from)
{
    *from = (tile->stage - 1) * p->cut_k;
    return p->k - *from < p->cut_k ? p->k - *from : p->cut_k;
}

/* The heap offset of slice `slice` of the tile that `tile` is a slice of; behind the last one is
 * room for the sum of what peers have of it, which executors need that add numbers of one kind
 * at a time. */
MK_PURE uint64_t gemm_rs_cut_place(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                   uint32_t slice)
{
    return p->cut + ((uint64_t)tile->c_slab * (p->slices + 1) + slice) * p->tile_m * p->tile_n * 4;
}

/* Columns of the tile that a slice's CTA adds: *from and on, in whole grains. There may be none. */
MK_PURE uint32_t gemm_rs_cut_cols(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                  uint32_t *from)
{
    uint32_t grain = p->grain_cols > 8 ? p->grain_cols : 8,
             grains = (tile->cols + grain - 1) / grain,
             end = tile->stage * grains / p->slices * grain;
    *from = (tile->stage - 1) * grains / p->slices * grain;
    return (end < tile->cols ? end : tile->cols) - *from;
}

/* compute: `parts` of MK_TILE_PARTS of a slice are stored. */
MK_ROLE void gemm_rs_cut_announce(const struct gemm_rs_plan *p, struct mk_cta *cta,
                                  const struct mk_tile *tile, uint32_t parts)
{
    mk_cta_add(cta, tile->c_local, p->flag_cut + tile->c_slab, parts);
}

/* compute, behind that: waits until all that is added to the tile is here. 1: the launch is
 * ending. */
MK_ROLE int gemm_rs_cut_await(const struct gemm_rs_plan *p, struct mk_cta *cta,
                              const struct mk_tile *tile)
{
    return mk_cta_wait(cta, p->flag_cut + tile->c_slab, cta->epoch * MK_TILE_PARTS * p->slices,
                       MK_CAUSE_DATA) ||
           gemm_rs_before(p, cta, tile);
}
