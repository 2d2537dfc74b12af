/* What follows GEMM+AllReduce's sum where the plan has an epilogue of rows (core/epilogue.h): a
 * residual is added, and rows are normed, on every rank for all of its C.
 *
 * Why behind the gather
 *   A row is whole at no rank before: its tiles of columns are reduced by several CTAs. In two
 *   shots the owner of a row could norm it before it is gathered, but then both results, the new
 *   residual and the normed row, would cross NVLink; so C alone is gathered, once, and each rank
 *   norms what it has, from its L2 where it fits. In one shot each rank adds all rows anyway.
 *
 * Whole rows
 *   ended   counts the CTAs of this rank that are through with C: compute CTAs when their last
 *           tile's C is stored and pushed, in two shots those of intra_comm when they have
 *           delivered (or awaited, where peers store in C itself) their last unit. It grows by
 *           gemm_ar_storers each launch and is never reset.
 *   One counter speaks for all rows: tiles are computed column by column of up to ROWS_TOGETHER
 *   rows (core/ops/gemm_rs.c), so rows become whole at about the same time, with the last column,
 *   and who norms them has no tile left by then.
 *
 * Deadlock freedom
 *   Waits for `ended` stand behind everything else that compute does; what they wait for, the last
 *   tiles and deliveries, waits for no norm. All CTAs of a launch are co-resident.
 *
 * Buffer reuse
 *   Peers store in a C in the heap in two shots. A tile of launch e + 1 is pushed when its sum is
 *   whole, with this rank's partial of e + 1, which it makes when it has ended launch e. */
#ifndef MK_ROLES_GEMM_AR_NORM_H
#define MK_ROLES_GEMM_AR_NORM_H

#include "core/cta_norm.h"
#include "core/roles/gemm_ar.h"

/* CTAs of a rank that store in C, or push from it. */
MK_PURE uint32_t gemm_ar_storers(const struct gemm_ar_plan *p)
{
    return p->rs.split.ctas[MK_COMPUTE] + (p->rs.shots == 2 ? p->rs.split.ctas[MK_INTRA_COMM] : 0);
}

/* compute; in two shots intra_comm: all that this CTA stores in C is stored. */
MK_ROLE void gemm_ar_ended(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    mk_cta_add(cta, mk_local_of(&p->rs.topo, p->rs.topo.rank), p->flag_ended, 1);
}

/* compute, behind gemm_ar_ended: waits until rows are whole, and does its share of them. cta->index
 * of cta->count: row by row in turn. 1: the launch is ending. */
MK_ROLE int gemm_ar_norm_rows(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    if (mk_cta_wait(cta, p->flag_ended, cta->epoch * gemm_ar_storers(p), MK_CAUSE_DATA))
        return 1;
    for (uint32_t row = cta->index; row < p->rs.m; row += cta->count)
        mk_cta_norm(cta, &p->norm, row);
    return 0;
}

/* intra_comm, of a plan with such an epilogue or without. */
MK_ROLE int gemm_ar_intra_comm_of_rows(const struct gemm_ar_plan *p, struct mk_cta *cta)
{
    if (gemm_ar_intra_comm(p, cta))
        return 1;
    if (p->norm.columns && p->rs.shots == 2)
        gemm_ar_ended(p, cta);
    return 0;
}

#endif
