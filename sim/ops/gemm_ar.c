/* GEMM+AllReduce on the host: core/roles/gemm_ar.h compiled by gcc, behind struct sim_op. SIM_OP_NAME lets a
 * test compile the same file over a broken copy of the CTA interface. */
#include "core/cta.h"
#ifdef SIM_OP_BROKEN_CTA
#include SIM_OP_BROKEN_CTA
#endif
#include "core/roles/gemm_ar.h"
#include "sim/exact.h"
#include "sim/ops/gemm_rs.h"

#ifndef SIM_OP_NAME
#define SIM_OP_NAME sim_op_gemm_ar
#endif

static int inter_send(const struct mk_plan *plan, struct mk_cta *cta)
{
    return gemm_ar_inter_send(gemm_ar_plan_of(plan), cta);
}

static int intra_comm(const struct mk_plan *plan, struct mk_cta *cta)
{
    return gemm_ar_intra_comm(gemm_ar_plan_of(plan), cta);
}

static void tile(const struct mk_plan *plan, struct mk_cta *cta, uint32_t t, struct mk_tile *out)
{
    gemm_rs_tile(&gemm_ar_plan_of(plan)->rs, t, out);
}

static void after(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *t)
{
    gemm_ar_after(gemm_ar_plan_of(plan), cta, t, 0, t->rows, MK_TILE_PARTS);
}

static void operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch,
                     struct sim_operands *out)
{
    const struct gemm_rs_plan *p = &gemm_ar_plan_of(plan)->rs;
    sim_gemm_rs_operands(p, plan->problem.b_transposed, t, epoch, out);
    if (out->c_space != MK_SPACE_HEAP) /* C is whole */
        out->c += (uint64_t)p->topo.rank * p->shard_rows * p->n * 2;
}

static int before(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *t)
{
    return gemm_rs_before(&gemm_ar_plan_of(plan)->rs, cta, t);
}

static int judge(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                 void *const arguments[MK_SPACES - 1], struct sim_reference *reference, char *text,
                 size_t size)
{
    return exact_judge(plan, seed, launch, 0, plan->problem.m, arguments[2], reference, text, size);
}

extern const struct sim_op SIM_OP_NAME;
const struct sim_op SIM_OP_NAME = {
    .roles = {[MK_INTRA_COMM] = intra_comm, [MK_INTER_SEND] = inter_send},
    .tile = tile,
    .before = before,
    .after = after,
    .operands = operands,
    .fill = exact_fill,
    .judge = judge,
};
