/* What follows the sum of GEMM+ReduceScatter or GEMM+AllReduce where the plan has an epilogue of
 * rows (core/epilogue.h): a residual is added, and rows are normed, on every rank for the rows of
 * its C.
 *
 * Why behind all tiles
 *   A tile has some columns of a row, and the tiles of a row are reduced by several CTAs. Where the
 *   sum is gathered, the owner of a row could norm it first, but then both results, the new
 *   residual and the normed row, would cross NVLink; so C alone is gathered, once, and each rank
 *   norms what it has, from its L2 where it fits. In one shot each rank adds its rows anyway.
 *
 * Whole rows
 *   ended   counts the CTAs of this rank that are through with C: compute CTAs when their last
 *           tile's C is stored and pushed, in two shots those of intra_comm when they have
 *           delivered (or awaited, where peers store in C itself) their last unit. It grows by
 *           gemm_rs_storers each launch and is never reset.
 *   One counter speaks for all rows: tiles are computed column by column of up to ROWS_TOGETHER
 *   rows (core/ops/gemm_rs.c), so rows become whole at about the same time, with the last column,
 *   and a CTA that norms has no tile left by then.
 *
 * Deadlock freedom
 *   Waits for `ended` stand behind everything else that compute does; what they wait for, the last
 *   tiles and deliveries, waits for no norm. All CTAs of a launch are co-resident.
 *
 * Buffer reuse
 *   Where the sum is gathered in two shots, peers store in a C in the heap. A tile of launch e + 1
 *   is pushed when its sum is whole, with this rank's partial of e + 1, which it makes when it has
 *   ended launch e. */
#ifndef MK_ROLES_GEMM_RS_NORM_H
#define MK_ROLES_GEMM_RS_NORM_H

#include "core/roles/gemm_rs.h"

/* CTAs of a rank that store in C, or push from it. */
MK_PURE uint32_t gemm_rs_storers(const struct gemm_rs_plan *p)
{
    return p->split.ctas[MK_COMPUTE] + (p->shots == 2 ? p->split.ctas[MK_INTRA_COMM] : 0);
}

/* compute; in two shots intra_comm: all that this CTA stores in C is stored. */
MK_ROLE void gemm_rs_ended(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    mk_cta_add(cta, mk_local_of(&p->topo, p->topo.rank), p->flag_ended, 1);
}

/* compute, behind gemm_rs_ended: waits until rows are whole, and does its share of them, if it has
 * any. cta->index of cta->count: row by row in turn. 1: the launch is ending. */
MK_ROLE int gemm_rs_norm_rows(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    const uint32_t rows = p->gathers ? p->m : p->shard_rows;
    if (cta->index >= rows) /* nobody polls beside those that have one */
        return 0;
    if (mk_cta_wait(cta, p->flag_ended, cta->epoch * gemm_rs_storers(p), MK_CAUSE_DATA))
        return 1;
    for (uint32_t row = cta->index; row < rows; row += cta->count)
        mk_cta_norm(cta, &p->norm, row);
    return 0;
}

#endif
