/* The MoE feed-forward layer on the host: core/roles/moe_ffn.h compiled by gcc, behind struct
 * sim_op. */
#include "core/cta/cta.h"
#include "core/plan/epilogue.h"
#include "core/base/quantize.h"
#include "core/roles/moe_ffn.h"
#include "sim/ops/exact_moe.h"
#include "sim/ops/exact_moe_ffn.h"
#include "sim/op.h"

MK_ROLES_OF(moe_ffn, moe_intra_comm(&p->dispatch, cta), moe_inter_send(&p->dispatch, cta),
            moe_ffn_inter_reduce(p, cta));
SIM_TILES_OF(moe_ffn, moe_await_routed(&p->dispatch, cta),
             (moe_ffn_tile(p, cta, t, tile), tile->rows > 0),
             moe_ffn_before(p, cta, tile->stage == MOE_FFN_UP, tile->row),
             (moe_ffn_after(p, cta, tile, parts), 0), 0);

static uint32_t units(const struct mk_plan *plan)
{
    return moe_ffn_units(moe_ffn_plan_of(plan));
}

static int sums_here(const struct mk_plan *plan, struct mk_cta *cta, uint32_t unit)
{
    const struct moe_ffn_plan *p = moe_ffn_plan_of(plan);
    struct moe_ffn_job job;
    return moe_ffn_job_here(p, unit, &job) && moe_ffn_add(p, cta, &job);
}

static uint32_t leaves(const struct mk_plan *plan, struct mk_cta *cta)
{
    const struct moe_dispatch_plan *d = &moe_ffn_plan_of(plan)->dispatch;
    return mk_cta_load(cta, d->route.order_head + offsetof(struct mk_route_head, apart));
}

static int sums_away(const struct mk_plan *plan, struct mk_cta *cta)
{
    const struct moe_ffn_plan *p = moe_ffn_plan_of(plan);
    struct moe_ffn_walk at = {0, 0, 0, cta->index};
    struct moe_ffn_job job;
    int ending = moe_await_routed(&p->dispatch, cta);
    while (!ending && moe_ffn_job_away(p, cta, &at, &job))
        ending = moe_ffn_add(p, cta, &job);
    return ending;
}

static void moe_ffn_operands(const struct mk_plan *plan, const struct mk_tile *t, uint64_t epoch,
                             struct sim_operands *out)
{
    const struct moe_ffn_plan *p = moe_ffn_plan_of(plan);
    const int fp8 = plan->problem.fp8, transposed = plan->problem.b_transposed,
              up = t->stage == MOE_FFN_UP;
    const uint64_t each = op_factor_bytes(&plan->problem);
    const uint32_t all_rows = p->dispatch.row_tiles * p->dispatch.tile_m;
    uint64_t k = up ? p->hidden : p->inner, n = up ? 2ull * p->inner : p->hidden;
    out->a_space = up ? MK_SPACE_ARG0 : MK_SPACE_HEAP;
    out->c_space = MK_SPACE_HEAP;
    out->a = up ? 0 : p->acted + t->row * p->act_bytes;
    out->a_list = up ? p->dispatch.route.source + t->row * 4ull : 0;
    out->a_first = p->dispatch.room;
    out->a_rest = p->dispatch.landed;
    out->a_pitch = (uint32_t)(up ? p->dispatch.row_bytes / (fp8 ? 1 : 2) : k);
    out->fp8 = fp8;
    out->scales_space = MK_SPACE_HEAP;
    out->scales = up ? p->hidden : p->act_scales + t->row * 4ull;
    out->scales_pitch = up ? 1 : all_rows;
    out->b_space = up ? MK_SPACE_ARG1 : MK_SPACE_ARG4;
    out->b = (t->slab * k * n + (transposed ? t->col * k : t->col)) * each;
    out->b_pitch = (uint32_t)(transposed ? k : n);
    out->b_transposed = transposed;
    out->epilogue = up ? MK_EPILOGUE_SILU : 0;
    out->gate = up ? (transposed ? p->inner * k : p->inner) * each : 0;
    out->c_local = t->c_local;
    out->c_number = !up ? (enum mk_dtype)p->number : fp8 ? MK_E4M3 : MK_BF16;
    out->code_scales = p->act_scales + (t->col / MK_SCALE_BLOCK * (uint64_t)all_rows + t->row) * 4;
    out->code_pitch = all_rows;
    out->c =
        up ? p->acted + t->row * p->act_bytes + t->col * each
           : p->made + t->row * p->result_bytes + t->col * (p->number == MK_FP32 ? 4ull : 2ull);
    out->c_pitch = up ? p->inner : p->hidden;
    out->rows = t->rows;
    out->cols = t->cols;
    out->k = (uint32_t)k;
}

/* Gate and up have scales of their own. */
static void moe_ffn_factor(const struct mk_problem *q, uint32_t which, uint64_t *k, uint64_t *n)
{
    *k = which ? q->moe.inner : q->moe.hidden;
    *n = which ? q->moe.hidden : q->moe.inner;
}

SIM_OP(moe_ffn, SIM_TILES(moe_ffn), .operands = moe_ffn_operands, .second = MK_SPACE_ARG4,
       .factor = moe_ffn_factor, .units = units, .unit = sums_here, .leaves = leaves,
       .away = sums_away, .leaves_puts = 1, .routes = 1, .start = exact_moe_start,
       .fill = exact_moe_ffn_fill, .verify = exact_moe_ffn_verify);
