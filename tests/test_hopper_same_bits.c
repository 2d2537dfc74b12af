/* LIMIT=600 */
/* GPU kernels of gemm_rs, gemm_ar, ag_gemm, moe_ffn and ring_attention, on emulated GPUs, give a
 * row of C the bits that core/cta/sum_tree.h says, whatever M, the tile, one shot or two or blocks of
 * columns, the roles, and 1, 2, 4 or 8 ranks on one node or two. (The emulation's products are
 * added in the order of K, so what is left is the tree.) */
#include "core/plan/gemm_tiles.h"
#include "sim/emulated.h"
#include "tests/helpers/same_bits_attention.h"
#include "tests/helpers/same_bits_moe.h"

static void draw_plan(struct sim_random *r, struct mk_problem *q)
{
    struct mk_tuning *t = &q->tuning;
    struct mk_gemm_tile tile;
    uint32_t tiles = 0;
    q->exec = MK_EXEC_CUDA;
    q->sms = 4;
    q->engine = q->epilogue || sim_random_below(r, 2) ? MK_ENGINE_WGMMA : MK_ENGINE_MMA;
    q->b_transposed = (int)sim_random_below(r, 2);
    t->shots = same_shots(r, q);
    while (op_gpu_tile(q, tiles, &tile))
        tiles++;
    /* and, in one shot, the tile of few rows, of which either consumer has half of a rank's blocks */
    const int few = t->shots == 1 && q->engine == MK_ENGINE_WGMMA && q->op != MK_OP_AG_GEMM &&
                    mk_world(&q->topo) < MK_SUM_BLOCKS && sim_random_below(r, 2);
    if (few)
        mk_few_rows_tile(0, &tile);
    while (!few && (op_gpu_tile(q, sim_random_below(r, tiles), &tile),
                    t->shots == 1 && tile.tile_n > 128 && q->op != MK_OP_AG_GEMM))
        ;
    t->tile_m = tile.tile_m;
    t->tile_n = tile.tile_n;
    t->cluster = tile.cluster;
    t->split.ctas[MK_COMPUTE] = 2;
    t->split.ctas[MK_INTER_SEND] = q->topo.nodes > 1;
    if (op_needs(q->op, &q->topo, MK_INTRA_COMM)) {
        t->split.ctas[MK_INTRA_COMM] = 1;
        mk_share_blocks(&t->split, sim_random_below(r, 2));
    }
}

static void emulate(struct sim_random *r, struct sim_world_config *c)
{
    c->emulated = 4;
    c->unwatched = sim_random_below(r, 12) > 0; /* races are looked for in the others */
    c->launches = 1 + sim_random_below(r, 4) / 3;
}

static void sums(enum mk_op op)
{
    same_cases(op, 0, op == MK_OP_AG_GEMM ? 12 : 48, draw_plan, emulate);
}

/* The norm of a row, too, on engine wgmma; on engine mma a plan refuses it. A sum of squares that
 * is off by 2^-14 shows, by one unit in its last place it seldom does. */
CASE(test_norms)
{
    const uint32_t norm = MK_EPILOGUE_RESIDUAL | MK_EPILOGUE_RMSNORM;
    same_cases(MK_OP_GEMM_AR, norm, 24, draw_plan, emulate);
    same_cases(MK_OP_GEMM_RS, norm, 8, draw_plan, emulate);
}

CASE(test_sums)
{
    sums(MK_OP_GEMM_RS);
    sums(MK_OP_GEMM_AR);
    sums(MK_OP_AG_GEMM);
}

static void draw_layer_plan(struct sim_random *r, struct sim_world_config *c)
{
    struct mk_problem *q = &c->problem;
    struct mk_tuning *t = &q->tuning;
    struct mk_gemm_tile tile;
    uint32_t tiles = 0;
    q->engine = q->epilogue || sim_random_below(r, 2) ? MK_ENGINE_WGMMA : MK_ENGINE_MMA;
    q->exec = MK_EXEC_CUDA;
    while (op_gpu_tile(q, tiles, &tile))
        tiles++;
    op_gpu_tile(q, sim_random_below(r, tiles), &tile);
    *t = (struct mk_tuning){.tile_m = tile.tile_m, .tile_n = tile.tile_n, .cluster = tile.cluster};
    t->chunk_rows = 8 * (1 + sim_random_below(r, 4));
    t->split.ctas[MK_COMPUTE] = 2;
    t->split.ctas[MK_INTRA_COMM] = sim_random_below(r, 2) ? 3 : 1;
    t->split.ctas[MK_INTER_SEND] = q->topo.nodes > 1;
    t->split.ctas[MK_INTER_REDUCE] = sim_random_below(r, 2) ? 3 : 1;
    c->emulated = q->sms = mk_total_ctas(&t->split);
    c->unwatched = 1; /* test_hopper_moe watches the same accesses */
    c->launches = 1;
}

CASE(test_moe_ffn)
{
    same_token_cases(20, 1, draw_layer_plan);
}

static enum mk_engine attention_engine;

static void draw_attention_plan(struct sim_random *r, struct sim_world_config *c)
{
    struct mk_problem *q = &c->problem;
    struct mk_tuning *t = &q->tuning;
    struct mk_gemm_tile tile;
    uint32_t tiles = 0;
    q->engine = attention_engine;
    q->exec = MK_EXEC_CUDA;
    q->block_shared = sim_random_below(r, 2) ? EMULATED_BLOCK_SHARED : 0; /* for pairs of blocks */
    while (op_gpu_tile(q, tiles, &tile))
        tiles++;
    op_gpu_tile(q, sim_random_below(r, tiles), &tile);
    *t = (struct mk_tuning){.tile_m = tile.tile_m, .tile_n = tile.tile_n, .cluster = tile.cluster};
    t->split.ctas[MK_COMPUTE] = 2;
    t->split.ctas[MK_INTRA_COMM] = q->topo.gpus > 1;
    mk_share_blocks(&t->split, q->topo.gpus > 1 ? sim_random_below(r, 2) : 0);
    t->split.ctas[MK_INTER_SEND] = q->topo.nodes > 1;
    c->emulated = q->sms = mk_total_ctas(&t->split);
    c->unwatched = 1; /* test_hopper_ring_attention watches the same accesses */
}

CASE(test_ring_attention)
{
    for (uint32_t i = 0; i < 2; i++) {
        attention_engine = i ? MK_ENGINE_MMA : MK_ENGINE_WGMMA;
        same_attention_cases(6, 64, 1, 4, 4, draw_attention_plan);
        same_attention_cases(5, 128, 1, 4, 4, draw_attention_plan);
        same_attention_cases(6, 64, 0, 4, 4, draw_attention_plan);
    }
}
