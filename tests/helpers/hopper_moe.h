/* The MoE operators on emulated GPUs under the explorer: cases for tests. */
#pragma once

#include "core/ops/op.h"
#include "sim/ops/exact_moe.h"
#include "tests/helpers/hopper_ops.h"

/* A case: its seed chooses everything but the form of the cluster. */
static inline struct sim_world_config hopper_moe_config(enum mk_op op, uint32_t nodes,
                                                        uint32_t gpus, uint64_t seed)
{
    static const uint64_t unused[3] = {8, 8, 8};
    struct sim_world_config c = hopper_ops_config(op, nodes, gpus, unused, seed);
    struct sim_random r = {sim_mix(seed ^ 0x6d6f65)};
    struct mk_gemm_tile tile;
    uint32_t *ctas = c.problem.tuning.split.ctas, world = nodes * gpus, tiles = 0;
    while (op_gpu_tile(&c.problem, tiles, &tile))
        tiles++;
    op_gpu_tile(&c.problem, (uint32_t)(seed % tiles), &tile);
    uint32_t experts = world * (1 + sim_random_below(&r, 5));
    c.problem.moe = (struct mk_moe){.tokens = 1 + sim_random_below(&r, 70),
                                    .hidden = 8 * (4 + sim_random_below(&r, 17)),
                                    .inner = 8 * (1 + sim_random_below(&r, 36)),
                                    .experts = experts,
                                    .k = 1 + sim_random_below(&r, experts < 5 ? experts : 5)};
    c.problem.tuning = (struct mk_tuning){.tile_m = tile.tile_m,
                                          .tile_n = tile.tile_n,
                                          .cluster = tile.cluster,
                                          .chunk_rows = 8 * (1 + sim_random_below(&r, 4))};
    c.problem.tuning.slices = op == MK_OP_MOE_FFN ? 1 + (uint32_t)(seed >> 3 & 3) : 0;
    ctas[MK_COMPUTE] = 2;
    ctas[MK_INTRA_COMM] = seed & 1 ? 3 : 1;
    ctas[MK_INTER_SEND] = nodes > 1 ? 1 + (seed >> 1 & 1) : 0;
    ctas[MK_INTER_REDUCE] = op == MK_OP_MOE_FFN ? seed >> 2 & 1 ? 3 : 1 : 0;
    c.emulated = c.problem.sms = mk_total_ctas(&c.problem.tuning.split);
    c.launches = 3;
    return c;
}

/* The same case on engine mma, with one of its tiles. */
static inline void hopper_moe_on_mma(struct sim_world_config *c)
{
    struct mk_gemm_tile tile;
    uint32_t tiles = 0;
    c->problem.engine = MK_ENGINE_MMA;
    while (op_gpu_tile(&c->problem, tiles, &tile))
        tiles++;
    op_gpu_tile(&c->problem, (uint32_t)(c->seed % tiles), &tile);
    c->problem.tuning.tile_m = tile.tile_m;
    c->problem.tuning.tile_n = tile.tile_n;
}

/* The same case of an operator that multiplies nothing, with tiles of so many rows. */
static inline void hopper_moe_of_rows(struct sim_world_config *c, uint32_t rows, uint32_t reducers)
{
    uint32_t *ctas = c->problem.tuning.split.ctas;
    c->problem.tuning.tile_m = rows;
    c->problem.tuning.cluster = 1;
    ctas[MK_COMPUTE] = 0;
    ctas[MK_INTER_REDUCE] = reducers;
    c->emulated = c->problem.sms = mk_total_ctas(&c->problem.tuning.split);
}
