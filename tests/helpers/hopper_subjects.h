/* What mutants of device code are tried on: the GEMM engine with and without clusters, and each
 * operator in forms that together come to every place of its kernel. For tests, by #include. */
#pragma once

#include <errno.h>

#include "sim/coroutine.h"
#include "sim/emulated.h"
#include "tests/helpers/hopper.h"
#include "tests/helpers/hopper_moe.h"
#include "tests/helpers/hopper_ops.h"

enum { SUBJECTS = 30 };

/* One order of a subject, mutated or not; `sites` is told which places it came to. 0: all right;
 * else `text` says what is not. */
struct hopper_subject_run {
    uint32_t subject;
    uint64_t seed;
    const struct hopper_mutation *mutations;
    uint32_t count;
    void (*sites)(void *context, const struct hopper_site *sites, uint32_t count);
    char text[1024];
};

static inline int hopper_subject_gemm(struct hopper_subject_run *r, int cluster)
{
    const struct hopper_gemm g = {
        cluster ? 300 : 260, 72, 328, cluster, {128, cluster ? 128 : 64, 1 + (uint32_t)cluster}, 2};
    return hopper_gemm_mutated(&g, r->seed, r->mutations, r->count, r->sites, NULL, r->text,
                               sizeof r->text, NULL);
}

static inline int hopper_subject_world(struct hopper_subject_run *r, struct sim_world_config *c)
{
    static struct coroutine_pool *pool; /* of all runs */
    struct sim_world_result result;
    if (!pool && coroutine_pool_create(&pool, 0))
        return -ENOMEM;
    c->pool = pool;
    c->mutations = r->mutations;
    c->mutation_count = r->count;
    c->sites = r->sites;
    c->max_steps = 20000;
    int rc = sim_world_run(c, &result);
    snprintf(r->text, sizeof r->text, "%s", result.sentence);
    return rc;
}

/* Few rows: warpgroups that share K, more than one tile of a block, A's box shorter than a tile. */
static inline int hopper_subject_few_rows(struct hopper_subject_run *r)
{
    const struct hopper_gemm g = {40, 200, 968, 1, {64, 64, 1}, 2};
    return hopper_gemm_mutated(&g, r->seed, r->mutations, r->count, r->sites, NULL, r->text,
                               sizeof r->text, NULL);
}

/* `of`: what chooses form and order of seed 0. */
static inline int hopper_subject_op(struct hopper_subject_run *r, enum mk_op op, uint32_t nodes,
                                    uint32_t gpus, uint64_t columns, uint64_t of)
{
    /* three stages of K, or one: then a producer is ahead by more tiles */
    const uint64_t shape[] = {66, columns, r->seed == 1 ? 64 : 136};
    struct sim_world_config c = hopper_ops_config(op, nodes, gpus, shape, 20 * r->seed + of);
    c.launches = 3;
    return hopper_subject_world(r, &c);
}

/* The same exchange in one shot; with many columns more tiles of a block than the producer keeps.
 * Tiles of 64 rows, whose warpgroups share K, and of 128. */
static inline int hopper_subject_one_shot(struct hopper_subject_run *r, enum mk_op op,
                                          uint64_t columns)
{
    const uint64_t shape[] = {20, columns, 136};
    struct sim_world_config c = hopper_ops_config(op, 1, 2, shape, 20 * r->seed + 3);
    world_tile(&c, r->seed ? 128 : 64, 64, 1);
    c.problem.tuning.shots = 1;
    c.launches = 3;
    return hopper_subject_world(r, &c);
}

/* Engine mma: a block with more tiles of its own than its consumers may be ahead of the warp that
 * pushes them. One stage of K each and a slow pace, so that they would be. */
static inline int hopper_subject_mma_sum(struct hopper_subject_run *r)
{
    const uint64_t shape[] = {64, 1288, 8};
    struct sim_world_config c = hopper_ops_config(MK_OP_GEMM_AR, 1, 2, shape, 20 * r->seed + 3);
    hopper_ops_on_mma(&c);
    c.problem.tuning.split.ctas[MK_COMPUTE] = 1;
    mk_share_blocks(&c.problem.tuning.split, 1);
    c.problem.tuning.pace = r->seed ? 0 : 100000; /* of some seeds not over in time */
    c.launches = 1;
    return hopper_subject_world(r, &c);
}

/* One shot there: by flags or, of fewer bytes, in words. Tiles come by TMA, or by lanes' copies. */
static inline int hopper_subject_mma_one_shot(struct hopper_subject_run *r, enum mk_op op,
                                              uint64_t columns)
{
    const uint64_t shape[] = {20, columns, 136};
    struct sim_world_config c = hopper_ops_config(op, 1, 2, shape, 20 * r->seed + 3);
    hopper_ops_on_mma(&c);
    c.problem.tuning.shots = 1;
    c.problem.block_shared = r->seed & 1 ? 0 : EMULATED_BLOCK_SHARED;
    c.launches = 3;
    return hopper_subject_world(r, &c);
}

/* A residual and a norm behind the sum: both engines, more columns than a warp reads at a time. In
 * two shots what is normed was stored by TMA, and delivered; in one by what exchanges sums. */
static inline int hopper_subject_norm(struct hopper_subject_run *r, int mma)
{
    /* so few that no tile passes an outbox: C is stored by TMA */
    const uint64_t shape[] = {20, r->seed & 1 && !mma ? 136 : 264, 136};
    struct sim_world_config c = hopper_ops_config(MK_OP_GEMM_AR, 1, 2, shape, 20 * r->seed + 4);
    if (mma)
        hopper_ops_on_mma(&c);
    c.problem.epilogue = MK_EPILOGUE_ROWS;
    c.problem.tuning.shots = 2 - (uint32_t)(r->seed & 1);
    if (c.problem.tuning.shots == 1 && !mma) {
        c.problem.tuning.tile_m = 128; /* both warpgroups store */
        c.problem.tuning.tile_n = 64;
        c.problem.tuning.cluster = 1;
    }
    c.launches = 3;
    return hopper_subject_world(r, &c);
}

/* Last tiles cut along K: slices' sums, and who waits for them. */
static inline int hopper_subject_cut(struct hopper_subject_run *r)
{
    const uint64_t shape[] = {264, 72, 192};
    struct sim_world_config c = hopper_ops_config(MK_OP_GEMM_RS, 1, 2, shape, 20 * r->seed + 1);
    c.problem.epilogue = 0;
    world_tile(&c, 256, 256, 2);
    c.problem.tuning.slices = 3;
    c.problem.tuning.split.ctas[MK_COMPUTE] = c.emulated = c.problem.sms = 6;
    c.launches = 2;
    return hopper_subject_world(r, &c);
}

/* Two CTAs that split K; more stages than the ring has, and two tiles of them. */
static inline int hopper_subject_split_k(struct hopper_subject_run *r)
{
    const uint64_t shape[] = {100, 256, 840};
    struct sim_world_config c = hopper_ops_config(MK_OP_GEMM_AR, 1, 2, shape, 20 * r->seed + 3);
    c.problem.deterministic = 0;
    c.problem.tuning = (struct mk_tuning){.split_k = 2, .shots = 1, .split = {{2, 2}, 1}};
    c.emulated = c.problem.sms = 2;
    c.launches = 2;
    return hopper_subject_world(r, &c);
}

/* A residual and norms in registers, in one shot, of a tile for each block; of more rows than they have
 * warps. */
static inline int hopper_subject_norm_inside(struct hopper_subject_run *r)
{
    const uint64_t shape[] = {r->seed & 1 ? 6 : 20, 72, 136};
    struct sim_world_config c = hopper_ops_config(MK_OP_GEMM_AR, 1, 2, shape, 20 * r->seed + 4);
    c.problem.epilogue = MK_EPILOGUE_ROWS;
    world_tile(&c, 64, 64, 1);
    c.problem.tuning.shots = 1;
    c.launches = 3;
    return hopper_subject_world(r, &c);
}

static inline int hopper_subject_attention(struct hopper_subject_run *r)
{
    static const uint64_t none[] = {8, 8, 8};
    struct sim_world_config c = hopper_ops_config(MK_OP_RING_ATTENTION, 1, 2, none, r->seed);
    c.problem.attention = (struct mk_attention){1, 2 * 2 * 33, 2, 1, 64, 1, 0, 0};
    c.problem.tuning = (struct mk_tuning){.split = {.ctas = {2, 1, 0, 0}}, .chunk_rows = 128};
    c.launches = 2;
    c.tracks = r->seed ? 64 : 0;
    return hopper_subject_world(r, &c);
}

/* Tiles that wait for another rank's tokens, several groups of 32 tokens, tiles with an idle half.
 * With one stage of K more tiles of a block than a producer may be ahead of; with three more stages
 * than the ring has. */
static inline int hopper_subject_moe(struct hopper_subject_run *r)
{
    struct sim_world_config c = hopper_moe_config(MK_OP_MOE_DISPATCH_GEMM, 1, 2, 5 + 3 * r->seed);
    c.problem.moe = (struct mk_moe){r->seed ? 90 : 210, r->seed ? 136 : 64, 200, 4, 2};
    c.problem.tuning.tile_n = 64;
    c.problem.tuning.split.ctas[MK_INTRA_COMM] = 1; /* the watch knows 512 readers of a word */
    c.emulated = c.problem.sms = 3;
    c.launches = 2;
    c.seed |= EXACT_MOE_EVENLY;
    return hopper_subject_world(r, &c);
}

/* The same on engine mma, by its smaller tiles. */
static inline int hopper_subject_mma_moe(struct hopper_subject_run *r)
{
    struct sim_world_config c = hopper_moe_config(MK_OP_MOE_DISPATCH_GEMM, 1, 2, 5 + 2 * r->seed);
    hopper_moe_on_mma(&c);
    c.problem.moe = (struct mk_moe){r->seed ? 90 : 210, r->seed ? 136 : 64, 200, 4, 2};
    c.problem.tuning.tile_m = c.problem.tuning.tile_n = 64;
    c.problem.tuning.split.ctas[MK_INTRA_COMM] = 1; /* as above */
    c.emulated = c.problem.sms = 3;
    c.launches = 2;
    c.seed |= EXACT_MOE_EVENLY;
    return hopper_subject_world(r, &c);
}

/* Both products: down waits for up, of this block and of others; sums of two ranks, the last chunk
 * of which has fewer parts. Numbers of results by the seed. */
static inline int hopper_subject_moe_ffn(struct hopper_subject_run *r)
{
    struct sim_world_config c = hopper_moe_config(MK_OP_MOE_FFN, 1, 2, 1 + 2 * r->seed);
    c.problem.moe = (struct mk_moe){r->seed ? 40 : 70, r->seed ? 136 : 72, 72, 4, 2};
    c.problem.deterministic = r->seed == 1;
    c.problem.tuning.chunk_rows = 32;
    c.problem.tuning.split = (struct mk_role_split){.ctas = {2, 1, 0, 1}}; /* as above */
    c.emulated = c.problem.sms = 4;
    c.launches = 2;
    c.seed |= EXACT_MOE_EVENLY;
    return hopper_subject_world(r, &c);
}

/* The same on engine mma, by its smaller tiles: gate and up share 64 columns. */
static inline int hopper_subject_mma_moe_ffn(struct hopper_subject_run *r)
{
    struct sim_world_config c = hopper_moe_config(MK_OP_MOE_FFN, 1, 2, 1 + 2 * r->seed);
    hopper_moe_on_mma(&c);
    c.problem.moe = (struct mk_moe){r->seed ? 40 : 70, r->seed ? 136 : 72, 72, 4, 2};
    c.problem.deterministic = r->seed == 1;
    c.problem.tuning.tile_m = c.problem.tuning.tile_n = 64;
    c.problem.tuning.chunk_rows = 32;
    c.problem.tuning.split = (struct mk_role_split){.ctas = {2, 1, 0, 1}}; /* as above */
    c.emulated = c.problem.sms = 4;
    c.launches = 2;
    c.tracks = 64;
    c.seed |= EXACT_MOE_EVENLY;
    return hopper_subject_world(r, &c);
}

/* Products of FP8: several blocks of scales, the last of them short, or one; promotion on either engine. */
static inline int hopper_subject_fp8_gemm(struct hopper_subject_run *r, enum mk_op op, int mma)
{
    const uint64_t shape[] = {68, 136, r->seed == 1 ? 128 : 272};
    struct sim_world_config c = hopper_ops_config(op, 1, 2, shape, 20 * r->seed + 3);
    struct mk_gemm_tile tile;
    c.problem.epilogue = 0;
    c.problem.fp8 = c.problem.b_transposed = 1;
    if (mma) {
        hopper_ops_on_mma(&c);
        c.problem.block_shared = r->seed & 1 ? 0 : EMULATED_BLOCK_SHARED; /* loads by TMA */
    }
    if (op_gpu_tile(&c.problem, (uint32_t)r->seed % 2, &tile)) {
        world_tile(&c, tile.tile_m, tile.tile_n, tile.cluster);
    }
    c.problem.tuning.shots = 2 - (uint32_t)(r->seed & 1);
    c.launches = 3;
    return hopper_subject_world(r, &c);
}

/* Tokens of FP8 with their scales behind them, gathered. */
static inline int hopper_subject_fp8_moe(struct hopper_subject_run *r)
{
    struct sim_world_config c = hopper_moe_config(MK_OP_MOE_DISPATCH_GEMM, 1, 2, 5 + 3 * r->seed);
    c.problem.fp8 = c.problem.b_transposed = 1;
    c.problem.moe = (struct mk_moe){r->seed ? 40 : 90, r->seed ? 272 : 144, 72, 4, 2};
    c.problem.tuning.tile_m = 128;
    c.problem.tuning.tile_n = r->seed ? 256 : 64;
    c.problem.tuning.split.ctas[MK_INTRA_COMM] = 1; /* as above */
    c.emulated = c.problem.sms = 3;
    c.launches = 2;
    c.seed |= EXACT_MOE_EVENLY;
    return hopper_subject_world(r, &c);
}

/* The layer of FP8: scales of the activation between the products, sums that come back as e4m3. */
static inline int hopper_subject_fp8_layer(struct hopper_subject_run *r, int mma)
{
    struct sim_world_config c = hopper_moe_config(MK_OP_MOE_FFN, 1, 2, 1 + 2 * r->seed);
    c.problem.fp8 = c.problem.b_transposed = c.problem.back_fp8 = 1;
    if (mma)
        hopper_moe_on_mma(&c);
    c.problem.moe = (struct mk_moe){r->seed ? 24 : 40, r->seed ? 144 : 272, 80, 4, 2};
    c.problem.tuning.tile_m = mma ? 64 : 128;
    c.problem.tuning.tile_n = 256;
    c.problem.tuning.chunk_rows = 32;
    c.problem.tuning.split = (struct mk_role_split){.ctas = {2, 1, 0, 1}}; /* as above */
    c.emulated = c.problem.sms = 4;
    c.launches = 2;
    c.tracks = mma ? 64 : 0;
    c.seed |= EXACT_MOE_EVENLY;
    return hopper_subject_world(r, &c);
}

static inline int hopper_subject_run(struct hopper_subject_run *r)
{
    switch (r->subject) {
    case 0:
        return hopper_subject_gemm(r, 0);
    case 1:
        return hopper_subject_gemm(r, 1);
    case 2: /* intra_comm copies by TMA */
        return hopper_subject_op(r, MK_OP_AG_GEMM, 1, 2, 72, 13);
    case 3: /* and by the lanes of an auxiliary warp */
        return hopper_subject_op(r, MK_OP_AG_GEMM, 1, 2, 72, 2);
    case 4: /* more tiles of a CTA than its outbox holds */
        return hopper_subject_op(r, MK_OP_GEMM_RS, 1, 2, 640, 3);
    case 5:
        return hopper_subject_op(r, MK_OP_GEMM_AR, 1, 2, 640, 3);
    case 6:
        return hopper_subject_op(r, MK_OP_GEMM_AR, 2, 1, 72, 3);
    case 7:
        return hopper_subject_op(r, MK_OP_AG_GEMM, 2, 1, 72, 2);
    case 8:
        return hopper_subject_moe(r);
    case 9:
        return hopper_subject_few_rows(r);
    case 10: /* tiles pass the outbox of their block */
        return hopper_subject_one_shot(r, MK_OP_GEMM_AR, 1288);
    case 11: /* in words that need no flags */
        return hopper_subject_one_shot(r, MK_OP_GEMM_RS, 200);
    case 12:
        return hopper_subject_attention(r);
    case 13:
        return hopper_subject_moe_ffn(r);
    case 14:
        return hopper_subject_mma_sum(r);
    case 15:
        return hopper_subject_mma_one_shot(r, MK_OP_GEMM_AR, 520);
    case 16:
        return hopper_subject_mma_one_shot(r, MK_OP_GEMM_RS, 200);
    case 17:
        return hopper_subject_norm(r, 0);
    case 18:
        return hopper_subject_norm(r, 1);
    case 19:
        return hopper_subject_mma_moe(r);
    case 20:
        return hopper_subject_mma_moe_ffn(r);
    case 21:
        return hopper_subject_fp8_gemm(r, MK_OP_GEMM_AR, 0);
    case 22:
        return hopper_subject_fp8_gemm(r, MK_OP_GEMM_RS, 1);
    case 23:
        return hopper_subject_fp8_moe(r);
    case 24:
        return hopper_subject_fp8_layer(r, 0);
    case 25:
        return hopper_subject_fp8_layer(r, 1);
    case 26:
        return hopper_subject_cut(r);
    case 27:
        return hopper_subject_norm_inside(r);
    case 28:
        return hopper_subject_split_k(r);
    default: /* consumers read scales that came before the launch */
        return hopper_subject_fp8_gemm(r, MK_OP_AG_GEMM, 0);
    }
}

/* The search ran out of its budget: nothing is known. */
static inline int hopper_subject_incomplete(const struct hopper_subject_run *r)
{
    return strstr(r->text, "incomplete: ") != NULL;
}
