/* GEMM+AllReduce on the host: core/roles/gemm_ar.h compiled by gcc, behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/roles/gemm_ar.h"
#include "core/roles/gemm_ar_shared.h"
#include "sim/exact.h"
#include "sim/ops/gemm_rs.h"

MK_ROLES_OF(gemm_ar, gemm_ar_intra_comm_of_rows(p, cta, 1), gemm_ar_inter_send(p, cta), 0);

static int gemm_ar_publish(const struct mk_plan *plan, const struct gemm_ar_plan *p,
                           struct mk_cta *cta, const struct mk_tile *t, uint32_t first,
                           uint32_t rows, uint32_t parts)
{
    if (p->rs.shared_columns)
        return mk_cta_settle(cta) || gemm_ar_share(p, cta, t, first, rows, parts);
    if (p->rs.shots == 1)
        return sim_gemm_rs_joint(plan, &p->rs, cta, t, first, rows, parts);
    gemm_ar_after(p, cta, t, first, rows, parts,
                  plan->problem.fp8 || plan->problem.deterministic == MK_EVERYWHERE);
    return 0;
}

SIM_TILES_OF(gemm_ar, 0, (gemm_rs_tile(&p->rs, t, tile), 1), gemm_rs_before(&p->rs, cta, tile),
             gemm_ar_publish(plan, p, cta, tile, first, rows, parts),
             sim_gemm_rs_norm(&p->rs, cta));

static void gemm_ar_operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch,
                             struct sim_operands *out)
{
    const struct gemm_rs_plan *p = &gemm_ar_plan_of(plan)->rs;
    sim_gemm_rs_operands(plan, p, t, epoch, out);
    if (out->c_space != MK_SPACE_HEAP && p->shots == 2) /* C is whole */
        out->c += (uint64_t)p->topo.rank * p->shard_rows * p->n * 2;
}

static int gemm_ar_verify(const struct sim_launch *l)
{
    return exact_verify(l, 0, l->plan->problem.m);
}

SIM_OP(gemm_ar, SIM_TILES(gemm_ar), .operands = gemm_ar_operands, .fill = exact_fill,
       .verify = gemm_ar_verify);
