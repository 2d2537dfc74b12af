/* GEMM+AllReduce on the host: core/roles/gemm_ar.h compiled by gcc, behind struct sim_op.
 * SIM_OP_NAME lets a test compile the same file over a broken copy of the CTA interface. */
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

static int inter_reduce(const struct mk_plan *plan, struct mk_cta *cta)
{
    return gemm_ar_inter_reduce(gemm_ar_plan_of(plan), cta);
}

static int intra_comm(const struct mk_plan *plan, struct mk_cta *cta)
{
    return gemm_ar_intra_comm(gemm_ar_plan_of(plan), cta);
}

static void gemm_ar_tile(const struct mk_plan *plan, struct mk_cta *cta, uint32_t t,
                         struct mk_tile *out)
{
    gemm_rs_tile(&gemm_ar_plan_of(plan)->rs, t, out);
}

static void gemm_ar_after(const struct mk_plan *plan, struct mk_cta *cta, const struct mk_tile *t)
{
    gemm_rs_after(&gemm_ar_plan_of(plan)->rs, cta, t, MK_TILE_PARTS);
}

static void gemm_ar_after_parts(const struct mk_plan *plan, struct mk_cta *cta,
                                const struct mk_tile *t, uint32_t parts)
{
    gemm_rs_after(&gemm_ar_plan_of(plan)->rs, cta, t, parts);
}

static void gemm_ar_operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch,
                             struct sim_operands *out)
{
    sim_gemm_rs_operands(&gemm_ar_plan_of(plan)->rs, plan->problem.b_transposed, t, epoch, out);
}

static int gemm_ar_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                          void *const arguments[MK_SPACES - 1], struct sim_reference *reference,
                          char *text, size_t size)
{
    return exact_verify(plan, seed, launch, 0, plan->problem.m, arguments[2], reference, text,
                        size);
}

extern const struct sim_op SIM_OP_NAME;
const struct sim_op SIM_OP_NAME = {
    .roles = {[MK_INTRA_COMM] = intra_comm, [MK_INTER_REDUCE] = inter_reduce},
    .tile = gemm_ar_tile,
    .after = gemm_ar_after,
    .operands = gemm_ar_operands,
    .outbox = GEMM_RS_OUTBOX,
    .after_parts = gemm_ar_after_parts,
    .fill = exact_fill,
    .verify = gemm_ar_verify,
};
