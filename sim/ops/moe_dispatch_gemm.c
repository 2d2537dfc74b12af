/* MoE dispatch+GEMM on the host: core/roles/moe_dispatch_gemm.h compiled by gcc, behind struct
 * sim_op. */
#include "core/cta.h"
#include "core/roles/moe_dispatch_gemm.h"
#include "sim/ops/exact_moe.h"
#include "sim/op.h"

MK_ROLES_OF(moe_dispatch_gemm, moe_intra_comm(&p->dispatch, cta), moe_inter_send(&p->dispatch, cta),
            0);
SIM_ROLES(moe_dispatch_gemm);

static int moe_dispatch_gemm_open_tiles(const struct mk_plan *plan, struct mk_cta *cta)
{
    return moe_await_routed(&moe_dispatch_gemm_plan_of(plan)->dispatch, cta);
}

static int moe_dispatch_gemm_tile(const struct mk_plan *plan, struct mk_cta *cta, uint32_t t,
                                  struct mk_tile *out)
{
    moe_tile(moe_dispatch_gemm_plan_of(plan), cta, t, out);
    return out->rows > 0;
}

static int moe_dispatch_gemm_before(const struct mk_plan *plan, struct mk_cta *cta,
                                    const struct mk_tile *t, uint32_t slice)
{
    return moe_before(moe_dispatch_gemm_plan_of(plan), cta, t);
}

static void moe_dispatch_gemm_operands(const struct mk_plan *plan, const struct mk_tile *t,
                                       uint64_t epoch, struct sim_operands *out)
{
    const struct moe_dispatch_gemm_plan *p = moe_dispatch_gemm_plan_of(plan);
    int transposed = plan->problem.b_transposed;
    out->a_space = MK_SPACE_ARG0;
    out->a = 0;
    out->a_list = p->dispatch.route.source + t->row * 4ull;
    out->a_first = p->dispatch.room;
    out->a_rest = p->dispatch.landed;
    out->a_pitch = plan->problem.fp8 ? (uint32_t)p->dispatch.row_bytes : p->hidden;
    out->b_space = MK_SPACE_ARG1;
    out->b = ((uint64_t)t->slab * p->hidden * p->inner +
              (transposed ? (uint64_t)t->col * p->hidden : t->col)) *
             op_factor_bytes(&plan->problem);
    out->b_pitch = transposed ? p->hidden : p->inner;
    out->b_transposed = transposed;
    out->c_space = MK_SPACE_ARG3;
    out->c_local = 0;
    out->c = ((uint64_t)t->row * p->inner + t->col) * 2;
    out->c_pitch = p->inner;
    out->c_number = MK_BF16;
    out->rows = t->rows;
    out->cols = t->cols;
    out->k = p->hidden;
    out->fp8 = plan->problem.fp8;
    out->scales = p->hidden;
    out->scales_pitch = 1;
}

const struct sim_op sim_op_moe_dispatch_gemm = {
    .run = moe_dispatch_gemm_role,
    .open = moe_dispatch_gemm_open_tiles,
    .tile = moe_dispatch_gemm_tile,
    .before = moe_dispatch_gemm_before,
    .operands = moe_dispatch_gemm_operands,
    .routes = 1,
    .start = exact_moe_start,
    .fill = exact_moe_fill,
    .verify = exact_moe_verify,
};
