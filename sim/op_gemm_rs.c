/* GEMM+ReduceScatter on the host: core/roles/gemm_rs.h compiled by gcc, behind struct sim_op. SIM_OP_NAME lets a test
 * compile the same file over a broken copy of the CTA interface. */
#include "core/cta.h"
#ifdef SIM_OP_BROKEN_CTA
#include SIM_OP_BROKEN_CTA
#endif
#include "core/roles/gemm_rs.h"
#include "sim/exact.h"
#include "sim/op.h"

#ifndef SIM_OP_NAME
#define SIM_OP_NAME sim_op_gemm_rs
#endif

static int inter_reduce(const struct mk_plan *plan, struct mk_cta *cta)
{
    return gemm_rs_inter_reduce(&plan->u.gemm_rs, cta);
}

static void tile(const struct mk_plan *plan, uint32_t t, struct mk_tile *out)
{
    gemm_rs_tile(&plan->u.gemm_rs, t, out);
}

static void after(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *t)
{
    gemm_rs_after(&plan->u.gemm_rs, cta, t, MK_TILE_PARTS);
}

static void operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch, struct sim_operands *out)
{
    const struct gemm_rs_plan *p = &plan->u.gemm_rs;
    int transposed = plan->problem.b_transposed;
    out->a_space = MK_SPACE_ARG0;
    out->a = ((uint64_t)t->a_slab * p->shard_rows + t->row) * p->k * 2;
    out->a_pitch = p->k;
    out->b_space = MK_SPACE_ARG1;
    out->b = (transposed ? (uint64_t)t->col * p->k : t->col) * 2;
    out->b_pitch = transposed ? p->k : p->n;
    out->b_transposed = transposed;
    out->c_space = MK_SPACE_HEAP;
    out->c_local = t->c_local;
    out->c = gemm_rs_tile_offset(p, t, epoch);
    out->c_pitch = p->n;
    out->c_number = (enum mk_number)p->number;
    out->c_add = (int)p->add;
    out->rows = t->rows;
    out->cols = t->cols;
    out->k = p->k;
}

static void extents(const struct mk_plan *plan, uint64_t *a, uint64_t *b, uint64_t *c)
{
    const struct gemm_rs_plan *p = &plan->u.gemm_rs;
    *a = (uint64_t)p->m * p->k;
    *b = (uint64_t)p->k * p->n;
    *c = (uint64_t)p->shard_rows * p->n;
}

static int judge(const struct mk_plan *plan, uint64_t seed, uint64_t launch, const uint16_t *c,
                 struct sim_reference *reference, char *text, size_t size)
{
    const struct gemm_rs_plan *p = &plan->u.gemm_rs;
    return exact_judge(plan, seed, launch, (uint64_t)p->topo.rank * p->shard_rows, p->shard_rows, c, reference, text, size);
}

extern const struct sim_op SIM_OP_NAME;
const struct sim_op SIM_OP_NAME = {
    .roles = {[MK_INTER_REDUCE] = inter_reduce},
    .tile = tile,
    .after = after,
    .operands = operands,
    .extents = extents,
    .fill = exact_fill,
    .judge = judge,
};
