#include "sim/world.h"

void sim_world_vary(struct sim_world_config *c)
{
    struct mk_tuning *t = &c->problem.tuning;
    uint64_t seed = c->seed;
    uint32_t gpus = c->problem.topo.gpus, nodes = c->problem.topo.nodes;
    c->order = seed >> 2 & 1 ? SIM_ORDER_SRD : SIM_ORDER_RC;
    int ffn = c->problem.op == MK_OP_MOE_FFN, moe = c->problem.op == MK_OP_MOE_DISPATCH_GEMM || ffn;
    int attends = c->problem.op == MK_OP_RING_ATTENTION || moe; /* not a GEMM of one A */
    c->problem.a_in_heap = attends ? 0 : (int)(seed >> 3 & 1);
    t->pieces = attends ? 1 : 1 + (uint32_t)(seed >> 4) % 3;
    t->slices = c->problem.op == MK_OP_AG_GEMM && nodes == 1 ? 1 + (uint32_t)(seed >> 7) % 3 : 1;
    t->width = gpus > 1 ? 1 + (uint32_t)(seed >> 3) % (gpus - 1) : 1;
    t->tile_m = seed >> 5 & 1 ? 16 : 64;
    t->tile_n = 64;
    t->chunk_rows = t->tile_m << (seed >> 6 & 1);
    int reduces = c->problem.op == MK_OP_GEMM_RS || c->problem.op == MK_OP_GEMM_AR;
    t->split.ctas[MK_COMPUTE] = 1 + (uint32_t)(seed >> 2) % 3;
    t->split.ctas[MK_INTRA_COMM] =
        moe || (gpus > 1 && c->problem.op != MK_OP_GEMM_RS) ? 1 + (uint32_t)(seed >> 7) % 2 : 0;
    t->split.ctas[MK_INTER_SEND] = nodes > 1 && !reduces ? 1 + (uint32_t)(seed >> 3) % 2 : 0;
    t->split.ctas[MK_INTER_REDUCE] = reduces || ffn ? 1 + (uint32_t)(seed >> 3) % 2 : 0;
    if (reduces || ffn)
        c->problem.deterministic = (int)(seed >> 8 & 1);
    c->ring_capacity = 1u << (seed >> 4) % 4;
    c->in_flight = seed >> 6 & 1 ? 2 : 0;
    c->fabric_depth = 1 + (uint32_t)(seed >> 2) % 5;
    c->delay_ns = seed >> 3 & 1 ? 500 : 0;
}
