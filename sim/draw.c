/* A case of the property test: everything about a run drawn from its seed. */
#include "core/plan/epilogue.h"
#include "core/base/quantize.h"
#include "core/ops/op.h"
#include "core/base/sentence.h"
#include "sim/world.h"
#include "core/plan/plan_fields.h"

#include <stdio.h>
#include <string.h>

static uint32_t draw_below(struct sim_random *r, uint32_t limit)
{
    return sim_random_below(r, limit);
}

/* 1 .. most, the small ones more often. */
static uint32_t draw_some(struct sim_random *r, uint32_t most)
{
    return 1 + draw_below(r, 1 + draw_below(r, most));
}

static int draw_one_in(struct sim_random *r, uint32_t n)
{
    return draw_below(r, n) == 0;
}

static void draw_shape(struct sim_random *r, struct mk_problem *q)
{
    uint32_t world = mk_world(&q->topo), causal = draw_one_in(r, 2);
    q->m = (uint64_t)world * draw_some(r, 72);
    q->n = 8ull * draw_some(r, 26);
    q->k = 8ull * draw_some(r, 34);
    uint32_t kv_heads = draw_some(r, 3);
    q->attention =
        (struct mk_attention){.batch = draw_some(r, 3),
                              .sequence = (uint64_t)world * (1 + causal) * draw_some(r, 24),
                              .heads = (uint64_t)kv_heads * draw_some(r, 3),
                              .kv_heads = kv_heads,
                              .head_dim = draw_one_in(r, 4) ? 128 : 64,
                              .causal = (int)causal};
    uint32_t experts = world * draw_some(r, 4);
    q->moe = (struct mk_moe){.tokens = draw_some(r, 40),
                             .hidden = 8ull * (3 + draw_some(r, 21)),
                             .inner = 8ull * draw_some(r, 12),
                             .experts = experts,
                             .k = draw_some(r, experts < 8 ? experts : 8)};
    op_fit(q);
    q->b_transposed = draw_one_in(r, 2);
    q->deterministic = draw_one_in(r, 2);
    static const uint32_t epilogues[] = {0,
                                         MK_EPILOGUE_BIAS,
                                         MK_EPILOGUE_SILU,
                                         MK_EPILOGUE_BIAS | MK_EPILOGUE_GELU_TANH,
                                         MK_EPILOGUE_SILU | MK_EPILOGUE_GATED,
                                         MK_EPILOGUE_ELEMENTS & ~(uint32_t)MK_EPILOGUE_SILU};
    static const uint32_t quantize = MK_EPILOGUE_ROWS | MK_EPILOGUE_QUANTIZE,
                          of_rows[] = {0, 0, MK_EPILOGUE_RESIDUAL, MK_EPILOGUE_RESIDUAL,
                                       0, 0, MK_EPILOGUE_ROWS,     quantize};
    const uint32_t has = op_of(q->op)->epilogue;
    q->epilogue = has & MK_EPILOGUE_ROWS       ? of_rows[draw_below(r, 8)]
                  : has & MK_EPILOGUE_ELEMENTS ? epilogues[draw_below(r, 6)]
                                               : 0;
    if (q->epilogue & (MK_EPILOGUE_GATED | MK_EPILOGUE_QUANTIZE))
        q->n = mk_round_up(q->n, MK_QUANTIZE_DEPTH); /* of gated columns half are C's */
}

static void draw_tuning(struct sim_random *r, struct mk_problem *q)
{
    const struct op_descriptor *op = op_of(q->op);
    struct mk_tuning *t = &q->tuning;
    memset(t, 0, sizeof *t);
    t->tile_m = 8 * draw_some(r, 8);
    t->tile_n = (op->tile_n_unit ? op->tile_n_unit : 8) * draw_some(r, 8);
    t->chunk_rows = op->loose_chunks ? 8 * draw_some(r, 4) : t->tile_m * draw_some(r, 3);
    t->pieces = op_pieces(q->op, &q->topo) ? draw_some(r, 5) : 1;
    t->slices = op->knobs & OP_SLICES && q->topo.nodes == 1 ? draw_some(r, 4) : 1;
    t->fanout = q->topo.gpus > 1 ? 1 + draw_below(r, q->topo.gpus - 1) : 1;
    q->a_in_heap = op->a_in_heap ? (int)draw_one_in(r, 2) : 0;
    q->c_in_heap = op->c_in_heap ? (int)draw_one_in(r, 2) : 0;
    for (int role = 0; role < MK_ROLES; role++)
        if (op_needs(q->op, &q->topo, role))
            t->split.ctas[role] = draw_some(r, 4);
}

/* One case in four has a slow peer, one in eight something that no launch survives. */
static void draw_fault(struct sim_random *r, struct sim_world_config *c)
{
    uint32_t world = mk_world(&c->problem.topo), kind = draw_below(r, 24);
    c->fault = (struct sim_fault){SIM_FAULT_NONE, draw_below(r, world), 0};
    if (world == 1) /* no other rank is there to miss it */
        return;
    if (kind < 6) {
        c->fault.kind = SIM_FAULT_SLOW;
        c->fault.number = 1000ull << draw_below(r, 8);
    } else if (kind == 6) {
        c->fault.kind = SIM_FAULT_DROP;
        c->fault.number = draw_below(r, 1u << (4 + draw_below(r, 10)));
    } else if (kind == 7) {
        c->fault.kind = SIM_FAULT_MUTE;
    } else if (kind == 8) {
        c->fault.kind = SIM_FAULT_FAIL_PUT;
        c->fault.number = draw_some(r, 30);
    }
}

uint32_t sim_one_shot(const struct mk_problem *q, uint64_t draw)
{
    if (plan_ragged_scales(q))
        return MK_TWO_SHOT;
    return op_of(q->op)->most_shots > MK_TWO_SHOT && q->engine != MK_ENGINE_MMA && !q->fp8 &&
                   q->deterministic != MK_EVERYWHERE && draw & 1
               ? MK_SHARED_COLUMNS
               : MK_ONE_SHOT;
}

void sim_columns(struct mk_problem *q, uint64_t draw)
{
    struct mk_tuning *t = &q->tuning;
    const uint32_t world = mk_world(&q->topo);
    if (op_of(q->op)->most_shots < MK_COLUMN_BLOCKS || (t->shots && !plan_two_shots(t)) ||
        !(draw & 1))
        return;
    t->shots = MK_COLUMN_BLOCKS;
    q->n = mk_round_up(q->n, q->fp8                               ? 128 * world
                             : q->epilogue & MK_EPILOGUE_QUANTIZE ? MK_QUANTIZE_DEPTH * world
                             : draw & 2                           ? 8 * world
                                                                  : (t->tile_n ? t->tile_n : 64));
}

int sim_slices(const struct mk_problem *q)
{
    const struct op_descriptor *op = op_of(q->op);
    if (!(op->knobs & OP_SLICES) || q->topo.nodes > 1)
        return 0;
    return !op->sums || !(op->knobs & OP_SHOTS) || /* else of K, in two shots */
           (q->tuning.shots != MK_ONE_SHOT && !q->fp8 && q->deterministic != MK_EVERYWHERE);
}

void sim_world_draw(struct sim_world_config *c)
{
    struct sim_random r = {sim_mix(c->seed ^ 0x6d6b65726e656cull)};
    struct mk_problem *q = &c->problem;
    q->exec = MK_EXEC_HOST;
    uint32_t most = draw_one_in(&r, 4) ? 8 : 4;
    do
        q->topo =
            (struct mk_topo){.nodes = 1 + draw_below(&r, most), .gpus = 1 + draw_below(&r, most)};
    while (mk_world(&q->topo) > 9 || (mk_world(&q->topo) == 1 && !draw_one_in(&r, 3)));
    draw_shape(&r, q);
    draw_tuning(&r, q);
    c->launches = 2 + draw_below(&r, 5);
    c->order = draw_one_in(&r, 2) ? SIM_ORDER_SRD : SIM_ORDER_RC;
    c->ring_capacity = 1u << draw_below(&r, 5);
    c->in_flight = draw_one_in(&r, 2) ? draw_some(&r, 4) : 0;
    c->fabric_depth = draw_some(&r, 8);
    c->delay_ns = draw_one_in(&r, 2) ? 100ull << draw_below(&r, 8) : 0;
    draw_fault(&r, c);
    if (op_of(q->op)->knobs & OP_SHOTS && q->topo.nodes == 1 && draw_one_in(&r, 3)) {
        q->tuning.shots = sim_one_shot(q, c->seed);
        q->tuning.chunk_rows = 0; /* of one shot it is the shape's */
    }
    if (!sim_slices(q))
        q->tuning.slices = 1;
    plan_field_set(plan_field_named("tokens"), q, sim_mix(c->seed) & 1);
    /* Where the ranks share no rows M need not divide by them. (Last of all: what else a seed draws
     * does not depend on the operator.) */
    q->m -= draw_below(&r, mk_world(&q->topo));
    op_fit(q);
    sim_columns(q, sim_mix(c->seed) >> 1);
    if (draw_one_in(&r, 3))
        plan_field_set(plan_field_named("logical"), q,
                       q->moe.experts - draw_below(&r, (uint32_t)(q->moe.experts - q->moe.k) + 1));
}

/* Whether its sentence says something of rank `rank`. */
static int draw_names(const struct mk_failure *f, uint32_t rank)
{
    char text[512], digits[16];
    failure_sentence(f, text, sizeof text);
    size_t length = (size_t)snprintf(digits, sizeof digits, "%u", rank);
    for (const char *c = strstr(text, "rank"); c; c = strstr(c + 1, "rank")) {
        c += strcspn(c, " ") + 1; /* "rank 3", or "ranks 1, 2 and 3" */
        for (; *c >= '0' && *c <= '9'; c += strspn(c, ", and")) {
            size_t n = strspn(c, "0123456789");
            if (n == length && !strncmp(c, digits, n))
                return 1;
            c += n;
        }
    }
    return 0;
}

/* What is wrong with what a failed launch says of its failure; NULL: nothing. */
static const char *draw_failure_fault(const struct sim_world_config *c, const struct mk_failure *f)
{
    uint32_t world = mk_world(&c->problem.topo), faulty = c->fault.rank;
    if (f->kind != MK_FAIL_TIMEOUT && f->kind != MK_FAIL_NETWORK)
        return "failed in a way that neither a lost peer nor a failed put explains";
    if (c->fault.kind == SIM_FAULT_FAIL_PUT && (f->kind != MK_FAIL_NETWORK || f->rank != faulty))
        return "did not name the failed put and its rank";
    if (c->fault.kind == SIM_FAULT_DROP && f->rank == faulty)
        return "was ended by the rank that is gone";
    if (f->op != (uint32_t)c->problem.op || f->rank >= world || f->producer >= world)
        return "does not name the operator, the rank that waited and the rank that it waited for";
    if (c->fault.kind == SIM_FAULT_DROP && !draw_names(f, faulty))
        return "does not name the rank that is gone";
    return NULL;
}

int sim_world_promised(const struct sim_world_config *c, int rc, struct sim_world_result *result)
{
    enum sim_fault_kind kind = c->fault.kind;
    int lethal = kind == SIM_FAULT_DROP || kind == SIM_FAULT_MUTE || kind == SIM_FAULT_FAIL_PUT;
    if (rc != -EIO || !lethal)
        return rc;
    const char *wrong = draw_failure_fault(c, &result->failure);
    if (!wrong)
        return 0;
    char sentence[400];
    snprintf(sentence, sizeof sentence, "%.399s", result->sentence);
    return mk_fail(-EIO, result->sentence, sizeof result->sentence, "%s: \"%s\"", wrong, sentence);
}
