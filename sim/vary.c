#include "core/ops/op.h"
#include "sim/world.h"
#include "core/plan/plan_fields.h"

/* Of a MoE's experts some are copies. */
static void vary_copies(struct mk_problem *q, uint64_t number)
{
    if (q->moe.experts >= q->moe.k)
        plan_field_set(plan_field_named("logical"), q,
                       q->moe.experts - number % (q->moe.experts - q->moe.k + 1));
}

void sim_world_vary(struct sim_world_config *c)
{
    struct mk_tuning *t = &c->problem.tuning;
    uint64_t seed = c->seed;
    uint32_t gpus = c->problem.topo.gpus, nodes = c->problem.topo.nodes;
    c->order = seed >> 2 & 1 ? SIM_ORDER_SRD : SIM_ORDER_RC;
    const struct op_descriptor *op = op_of(c->problem.op);
    c->problem.a_in_heap = op->a_in_heap ? (int)(seed >> 3 & 1) : 0;
    c->problem.c_in_heap = op->c_in_heap ? (int)(seed >> 3 & 1) : 0;
    t->pieces = op_pieces(c->problem.op, &c->problem.topo) ? 1 + (uint32_t)(seed >> 4) % 3 : 1;
    t->slices = op->knobs & OP_SLICES && nodes == 1 ? 1 + (uint32_t)(seed >> 7) % 3 : 1;
    t->fanout = gpus > 1 ? 1 + (uint32_t)(seed >> 3) % (gpus - 1) : 1;
    t->tile_m = seed >> 5 & 1 ? 16 : 64;
    t->tile_n = 64;
    t->chunk_rows = t->tile_m << (seed >> 6 & 1);
    const uint32_t ctas[MK_ROLES] = {[MK_COMPUTE] = 1 + (uint32_t)(seed >> 2) % 3,
                                     [MK_INTRA_COMM] = 1 + (uint32_t)(seed >> 7) % 2,
                                     [MK_INTER_SEND] = 1 + (uint32_t)(seed >> 3) % 2,
                                     [MK_INTER_REDUCE] = 1 + (uint32_t)(seed >> 3) % 2};
    for (int role = 0; role < MK_ROLES; role++)
        t->split.ctas[role] = op_needs(c->problem.op, &c->problem.topo, role) ? ctas[role] : 0;
    if (op->knobs & OP_SHOTS && nodes == 1 && (t->shots == MK_ONE_SHOT || seed % 3 == 1)) {
        t->shots = sim_one_shot(&c->problem, seed / 3);
        t->chunk_rows = 0; /* of one shot it is the shape's */
    }
    sim_columns(&c->problem, sim_mix(seed) >> 1);
    if (!sim_slices(&c->problem))
        t->slices = 1;
    if (op->sums && c->problem.deterministic != MK_EVERYWHERE)
        c->problem.deterministic = (int)(seed >> 8 & 1);
    plan_field_set(plan_field_named("tokens"), &c->problem, seed >> 9 & 1);
    if (sim_mix(seed) >> 2 & 1)
        plan_field_set(plan_field_named("launch"), &c->problem, 1);
    if (seed >> 10 & 1 && !op_logical(&c->problem) && c->problem.deterministic != MK_EVERYWHERE)
        vary_copies(&c->problem, seed >> 11);
    c->ring_capacity = 1u << (seed >> 4) % 4;
    c->in_flight = seed >> 6 & 1 ? 2 : 0;
    c->fabric_depth = 1 + (uint32_t)(seed >> 2) % 5;
    c->delay_ns = seed >> 3 & 1 ? 500 : 0;
}
