/* GEMM+ReduceScatter on the host: core/roles/gemm_rs.h compiled by gcc, behind struct sim_op. */
#include "core/cta/cta.h"
#include "core/roles/gemm_rs_cut_add.h"
#include "sim/exact.h"
#include "sim/ops/gemm_rs.h"

MK_ROLES_OF(gemm_rs, 0, gemm_rs_inter_send(p, cta), 0);

static int gemm_rs_publish(const struct mk_plan *plan, const struct gemm_rs_plan *p,
                           struct mk_cta *cta, const struct mk_tile *t, uint32_t first,
                           uint32_t rows, uint32_t parts)
{
    if (p->shots == 1)
        return sim_gemm_rs_joint(plan, p, cta, t, first, rows, parts);
    if (t->stage && plan->problem.exec == MK_EXEC_HOST)
        return gemm_rs_cut(p, cta, t);
    if (t->stage) {
        gemm_rs_cut_announce(p, cta, t, parts);
        return gemm_rs_cut_await(p, cta, t);
    }
    gemm_rs_after(p, cta, t, parts);
    return 0;
}

SIM_TILES_OF(gemm_rs, 0, (gemm_rs_cut_tile(p, t, tile), 1),
             tile->stage ? 0 : gemm_rs_before(p, cta, tile),
             gemm_rs_publish(plan, p, cta, tile, first, rows, parts), sim_gemm_rs_norm(p, cta));

static void gemm_rs_operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch,
                             struct sim_operands *out)
{
    const struct gemm_rs_plan *p = gemm_rs_plan_of(plan);
    const uint64_t bytes = op_factor_bytes(&plan->problem);
    uint32_t from;
    sim_gemm_rs_operands(plan, p, t, epoch, out);
    if (!t->stage)
        return;
    out->k = gemm_rs_slice_k(p, t, &from);
    out->a += from * bytes;
    out->b += (plan->problem.b_transposed ? from : (uint64_t)from * p->n) * bytes;
    out->c = gemm_rs_cut_place(p, t, t->stage - 1);
    out->c_number = MK_FP32;
    out->added[0].count = 0; /* behind all slices */
}

static int gemm_rs_verify(const struct sim_launch *l)
{
    const struct gemm_rs_plan *p = gemm_rs_plan_of(l->plan);
    return exact_verify(l, (uint64_t)p->topo.rank * p->shard_rows, p->shard_rows);
}

SIM_OP(gemm_rs, SIM_TILES(gemm_rs), .operands = gemm_rs_operands, .fill = exact_fill,
       .verify = gemm_rs_verify);
