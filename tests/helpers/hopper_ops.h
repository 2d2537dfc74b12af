/* Operators' kernels on emulated GPUs under the explorer: configurations for tests. */
#pragma once

#include "core/plan/epilogue.h"
#include "core/plan/gemm_tiles.h"
#include "core/ops/op.h"
#include "core/roles/gemm_ar_plan.h"
#include "core/roles/gemm_rs_plan.h"
#include "tests/helpers/world.h"

/* CTAs that push: a block of their own (of ag_gemm it copies by TMA), or co-resident with compute
 * as one auxiliary warp or, of gemm_ar, two. */
static inline void hopper_intra_comm(enum mk_op op, uint64_t seed, struct mk_role_split *s)
{
    s->ctas[MK_INTRA_COMM] = 1;
    mk_share_blocks(s, op == MK_OP_AG_GEMM ? !(seed & 1) : (uint32_t[]){1, 0, 2}[seed % 3]);
}

/* A case: its seed chooses the order, the layout of B, the numbers of partial sums, the tile shape
 * and, of gemm_ar, whether C lies in the heap. */
static inline struct sim_world_config hopper_ops_config(enum mk_op op, uint32_t nodes,
                                                        uint32_t gpus, const uint64_t shape[3],
                                                        uint64_t seed)
{
    struct sim_world_config c =
        world_config(nodes, gpus, nodes * gpus * shape[0], shape[1], shape[2]);
    static const uint32_t epilogues[] = {0, MK_EPILOGUE_BIAS | MK_EPILOGUE_SILU, MK_EPILOGUE_BIAS,
                                         MK_EPILOGUE_GELU_TANH};
    uint32_t *ctas = c.problem.tuning.split.ctas;
    struct mk_gemm_tile tile;
    uint32_t tiles = 0;
    while (mk_gemm_tile(tiles, &tile))
        tiles++;
    mk_gemm_tile((uint32_t)(seed % tiles), &tile);
    c.problem.op = op;
    c.problem.exec = MK_EXEC_CUDA;
    c.problem.b_transposed = (int)(seed / tiles & 1);
    c.problem.deterministic = (int)(seed / tiles >> 1 & 1);
    c.problem.c_in_heap = op == MK_OP_GEMM_AR && (seed / tiles >> 2 & 1);
    world_tile(&c, tile.tile_m, tile.tile_n, tile.cluster);
    c.problem.epilogue = op_of(op)->epilogue & MK_EPILOGUE_BIAS      ? epilogues[seed % 4]
                         : !(op_of(op)->epilogue & MK_EPILOGUE_ROWS) ? 0
                         : seed % 5 == 4                             ? MK_EPILOGUE_ROWS
                         : seed % 10 == 0                            ? MK_EPILOGUE_RESIDUAL
                                                                     : 0;
    c.problem.tuning.shots = 2;
    ctas[MK_COMPUTE] = 2;
    ctas[MK_INTER_SEND] = nodes > 1;
    if (op == MK_OP_AG_GEMM ? gpus > 1 : op == MK_OP_GEMM_AR && nodes * gpus > 1)
        hopper_intra_comm(op, seed, &c.problem.tuning.split);
    c.emulated = c.problem.sms = 4;
    c.seed = seed;
    c.order = seed >> 1 & 1 ? SIM_ORDER_SRD : SIM_ORDER_RC;
    c.launches = 3;
    return c;
}

/* The same case on engine mma: its tiles, and as many pushing warps as it leaves free. */
static inline void hopper_ops_on_mma(struct sim_world_config *c)
{
    struct mk_role_split *split = &c->problem.tuning.split;
    struct mk_gemm_tile tile;
    uint32_t tiles = 0;
    while (mk_mma_tile(tiles, &tile))
        tiles++;
    mk_mma_tile((uint32_t)(c->seed % tiles), &tile);
    c->problem.engine = MK_ENGINE_MMA;
    world_tile(c, tile.tile_m, tile.tile_n, tile.cluster);
    if (split->intra_comm_warps && c->seed % 3 == 0)
        mk_share_blocks(split, MK_MMA_AUXILIARY_WARPS);
    if (c->problem.op == MK_OP_GEMM_AR && split->intra_comm_warps > 1)
        mk_share_blocks(split, 1); /* the other warp pushes own tiles */
}

/* Whether such a plan's sums pass an outbox in one shot (struct gemm_rs_plan). */
static inline int hopper_passes(const struct sim_world_config *c)
{
    struct mk_plan p;
    char error[256];
    if (plan_build(&p, &c->problem, 0, 0, error, sizeof error))
        return 0;
    return (p.problem.op == MK_OP_GEMM_RS && gemm_rs_plan_of(&p)->via_outbox) ||
           (p.problem.op == MK_OP_GEMM_AR && gemm_ar_plan_of(&p)->rs.via_outbox);
}

/* Slices of K that such a plan's last tiles are cut in; 0: it is refused. */
static inline uint32_t hopper_slices(const struct sim_world_config *c)
{
    struct mk_plan p;
    char error[256];
    return plan_build(&p, &c->problem, 0, 0, error, sizeof error) ? 0 : gemm_rs_plan_of(&p)->slices;
}
