/* The epilogue of rows of GEMM+ReduceScatter and GEMM+AllReduce (core/plan/epilogue.h): a residual is
 * added, and rows are normed, on every rank for the rows of its C.
 *
 * It stands behind all tiles, since a tile has some columns of a row, and several CTAs reduce the
 * tiles of a row. Where the sum is gathered, the owner of a row could norm it first, but then both
 * results, the new residual and the normed row, would cross NVLink. So C alone is gathered, once,
 * and each rank norms its copy, from its L2 where it fits. In one shot each rank adds its rows
 * anyway. (Of few rows a GPU's consumers do it to the sums in their registers:
 * kernels/sums/joint_norm.cuh.)
 *
 * Buffer reuse
 *   Where the sum is gathered in two shots, peers store in a C in the heap. A tile of launch e + 1
 *   is pushed when its sum is complete, which takes this rank's partial sum of e + 1; this rank
 *   makes it after it has ended launch e.
 *
 * Deadlock freedom
 *   The wait for `ended` is the last thing that compute does. The last tiles and deliveries, which
 *   raise the counter, wait for no norm. All CTAs of a launch are co-resident.
 *
 * Flags of a rank
 *   ended   counts the CTAs of this rank that are done with C: compute CTAs when their last tile's
 *           C is stored and pushed; in two shots and of shared tiles also those of intra_comm, when
 *           they have delivered (or awaited, where peers store in C itself) their last unit. It
 *           grows by gemm_rs_storers each launch and is never reset. One counter speaks for all
 *           rows: tiles are computed column by column of up to ROWS_TOGETHER rows
 *           (core/ops/gemm_rs.c), so all rows are complete at about the same time, and a CTA that
 *           norms has no tile left by then. */
#pragma once

#include "core/roles/gemm_rs.h"

/* Whether C has also what intra_comm delivers, or awaits. */
MK_PURE int gemm_rs_others_store(const struct gemm_rs_plan *p)
{
    return p->shots == 2 || p->shared;
}

/* CTAs of a rank that store in C, or push from it. */
MK_PURE uint32_t gemm_rs_storers(const struct gemm_rs_plan *p)
{
    return p->split.ctas[MK_COMPUTE] + (gemm_rs_others_store(p) ? p->split.ctas[MK_INTRA_COMM] : 0);
}

/* compute; where others store, too, intra_comm: all that this CTA stores in C is stored. */
MK_ROLE void gemm_rs_ended(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    mk_cta_made(cta, mk_local_of(&p->topo, p->topo.rank), p->flag_ended);
}

/* compute, behind gemm_rs_ended: waits until all rows are complete, and norms every cta->count-th
 * of them. 1: the launch is ending. */
MK_ROLE int gemm_rs_norm_rows(const struct gemm_rs_plan *p, struct mk_cta *cta)
{
    const uint32_t rows = p->gathers ? p->m : p->shard_rows;
    if (cta->index >= rows) /* a CTA without a row does not poll */
        return 0;
    if (mk_cta_wait(cta, p->flag_ended, cta->epoch * gemm_rs_storers(p), MK_CAUSE_DATA))
        return 1;
    for (uint32_t row = cta->index; row < rows; row += cta->count)
        mk_cta_norm(cta, &p->norm, row);
    return 0;
}
