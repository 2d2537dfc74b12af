/* AllGather+GEMM on the host: core/roles/ag_gemm.h compiled by gcc, behind struct sim_op.
 * SIM_OP_NAME lets a test compile the same file over a broken copy of the CTA interface. */
#include "core/cta.h"
#ifdef SIM_OP_BROKEN_CTA
#include SIM_OP_BROKEN_CTA
#endif
#include "core/roles/ag_gemm.h"
#include "sim/op.h"

#ifndef SIM_OP_NAME
#define SIM_OP_NAME sim_op_ag_gemm
#endif

MK_ROLES_OF(ag_gemm, ag_gemm_intra_comm(p, cta, p->blocks > 0),
            ag_gemm_inter_send(p, cta, p->blocks > 0), 0);
SIM_ROLES(ag_gemm);

static int tile(const struct mk_plan *plan, struct mk_cta *cta, uint32_t t, struct mk_tile *out)
{
    ag_gemm_tile(ag_gemm_plan_of(plan), t, out);
    return 1;
}

static int before(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *t,
                  uint32_t slice)
{
    const struct ag_gemm_plan *p = ag_gemm_plan_of(plan);
    return ag_gemm_before(p, cta, p->blocks > 0, t, slice);
}

static void ag_gemm_operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch,
                             struct sim_operands *out)
{
    const struct ag_gemm_plan *p = ag_gemm_plan_of(plan);
    int transposed = plan->problem.b_transposed;
    *out = (struct sim_operands){0}; /* C is stored in bf16, added to nothing */
    out->a_space = (enum mk_space)t->a;
    out->a = (t->a == MK_SPACE_HEAP ? ag_gemm_gathered(p, t->slab, 0, epoch) : 0) +
             t->row * p->row_bytes;
    out->a_pitch = p->k;
    out->b_space = MK_SPACE_ARG1;
    out->b = (transposed ? (uint64_t)t->col * p->k : t->col) * op_factor_bytes(&plan->problem);
    out->b_pitch = transposed ? p->k : p->n;
    out->b_transposed = transposed;
    out->c_space = MK_SPACE_ARG2;
    out->c = (((uint64_t)t->slab * p->shard_rows + t->row) * p->n + t->col) * 2;
    out->c_pitch = p->n;
    out->rows = t->rows;
    out->cols = t->cols;
    out->k = p->k;
    out->fp8 = plan->problem.fp8;
    out->epilogue = p->epilogue;
    out->bias_space = (enum mk_space)p->bias_space;
    out->bias = t->col * 2ull;
    const uint32_t chunk = ag_gemm_chunk_of(p, t->row);
    int own = t->a != MK_SPACE_HEAP;
    out->scales_space = own ? MK_SPACE_ARG3 : MK_SPACE_HEAP;
    out->scales_pitch = own ? p->shard_rows : (uint32_t)(ag_gemm_scales_pitch(p, chunk) / 4);
    out->scales = own ? t->row * 4ull
                      : ag_gemm_scales_at(p, t->slab, chunk, epoch) +
                            (t->row - (uint64_t)chunk * p->chunk_rows) * 4;
}

extern const struct sim_op SIM_OP_NAME;
const struct sim_op SIM_OP_NAME = {
    .run = ag_gemm_role,
    .tile = tile,
    .before = before,
    .operands = ag_gemm_operands,
};
