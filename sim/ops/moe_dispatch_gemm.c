/* MoE dispatch+GEMM on the host: core/roles/moe_dispatch_gemm.h compiled by gcc, behind struct
 * sim_op. */
#include "core/cta/cta.h"
#include "core/roles/moe_dispatch_gemm.h"
#include "sim/ops/exact_moe.h"
#include "sim/op.h"

MK_ROLES_OF(moe_dispatch_gemm, moe_intra_comm(&p->dispatch, cta), moe_inter_send(&p->dispatch, cta),
            0);
SIM_TILES_OF(moe_dispatch_gemm, moe_await_routed(&p->dispatch, cta),
             (moe_tile(p, cta, t, tile), tile->rows > 0), moe_before(p, cta, tile), 0, 0);

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

SIM_OP(moe_dispatch_gemm, SIM_TILES(moe_dispatch_gemm), .operands = moe_dispatch_gemm_operands,
       .routes = 1, .start = exact_moe_start, .fill = exact_moe_fill, .verify = exact_moe_verify);
