/* LIMIT=600 */
/* The MoE operators, whole: their kernels' own device code on emulated GPUs, several ranks, proxies
 * and a network, in orders drawn from seeds. However tokens are routed (evenly, all to one expert,
 * to few, none of one rank's), whatever the shape, and by one thread block that makes tables or by
 * several, each row of each expert, or each token's sum, is right, and nobody reads what nothing
 * says is there. */
#include "core/ops/moe.h"
#include "core/roles/moe_ffn_plan.h"
#include "tests/helpers/hopper_moe.h"
#include "tests/helpers/moe_fp8.h"

static const uint32_t forms[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}};
enum { FORMS = sizeof forms / sizeof *forms };

static void explore(enum mk_op op, enum mk_engine engine, uint64_t first, uint64_t watched,
                    uint64_t unwatched)
{
    struct coroutine_pool *pool;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint32_t form = 0; form < FORMS; form++)
        for (uint64_t i = 0; i < watched + unwatched; i++) {
            struct sim_world_config c =
                hopper_moe_config(op, forms[form][0], forms[form][1], first + i * FORMS + form);
            if (engine == MK_ENGINE_MMA)
                hopper_moe_on_mma(&c);
            /* The watch knows 512 readers of a word, and tables are read by all threads of a block:
             * of one that moves tokens, beside those that compute. */
            c.unwatched =
                i >= watched || forms[form][0] > 1 || (op == MK_OP_MOE_FFN && forms[form][1] > 2);
            if (!c.unwatched) {
                c.problem.tuning.split.ctas[MK_INTRA_COMM] = 1;
                if (op == MK_OP_MOE_FFN) { /* nor are there too many accesses */
                    c.problem.tuning.split.ctas[MK_INTER_REDUCE] = 1;
                    c.problem.moe = (struct mk_moe){20, 72, 40, c.problem.moe.experts, 2};
                    c.problem.moe.k = c.problem.moe.experts > 1 ? 2 : 1;
                }
            }
            c.pool = pool;
            world_right(&c);
        }
    coroutine_pool_destroy(pool);
}

CASE(test_orders)
{
    explore(MK_OP_MOE_DISPATCH_GEMM, MK_ENGINE_WGMMA, 0, 1, 3);
    explore(MK_OP_MOE_DISPATCH_GEMM, MK_ENGINE_MMA, 0, 1, 3);
    explore(MK_OP_MOE_FFN, MK_ENGINE_WGMMA, 0, 1, 4);
    explore(MK_OP_MOE_FFN, MK_ENGINE_MMA, 0, 1, 4);
}

/* Tokens of FP8: blocks of K that are short, and rows that end within a stage; columns of several
 * blocks of B's scales. */
static void fp8_orders(enum mk_engine engine)
{
    static const uint32_t columns[] = {256, 64, 128, 256};
    for (uint32_t form = 0; form < FORMS; form++)
        for (uint64_t i = 0; i < 4; i++) {
            struct sim_world_config c = hopper_moe_config(MK_OP_MOE_DISPATCH_GEMM, forms[form][0],
                                                          forms[form][1], i * FORMS + form);
            c.problem.b_transposed = c.problem.fp8 = 1;
            c.problem.moe.hidden = 16 * (1 + (7 * i + form) % 35);
            c.problem.moe.inner = 8 * (1 + (11 * i + 5 * form) % 40);
            c.problem.tuning.tile_m = 128;
            c.problem.tuning.tile_n = columns[i];
            if (engine == MK_ENGINE_MMA)
                hopper_moe_on_mma(&c);
            c.unwatched = i > 0 || forms[form][0] > 1;
            if (!c.unwatched)
                c.problem.tuning.split.ctas[MK_INTRA_COMM] = 1;
            world_right(&c);
        }
}

CASE(test_fp8_orders)
{
    fp8_orders(MK_ENGINE_WGMMA);
    fp8_orders(MK_ENGINE_MMA);
}

/* The layer of FP8: depths and columns of the activation that end in a short block, several tiles of
 * either product. */
static void fp8_layer_orders(enum mk_engine engine)
{
    for (uint32_t form = 0; form < FORMS; form++)
        for (uint64_t i = 0; i < 4; i++) {
            struct sim_world_config c =
                hopper_moe_config(MK_OP_MOE_FFN, forms[form][0], forms[form][1], i * FORMS + form);
            c.problem.b_transposed = c.problem.fp8 = 1;
            c.problem.deterministic = i % 2;
            c.problem.moe.hidden = 16 * (2 + (7 * i + form) % 33);
            c.problem.moe.inner = 16 * (1 + (11 * i + 5 * form) % 20);
            c.problem.tuning.tile_m = 128;
            c.problem.tuning.tile_n = 256;
            if (engine == MK_ENGINE_MMA)
                hopper_moe_on_mma(&c);
            c.unwatched = i > 0 || forms[form][0] > 1 || forms[form][1] > 2;
            if (!c.unwatched) {
                c.problem.tuning.split.ctas[MK_INTRA_COMM] = 1;
                c.problem.tuning.split.ctas[MK_INTER_REDUCE] = 1;
                c.problem.moe = (struct mk_moe){20, 80, 48, c.problem.moe.experts,
                                                c.problem.moe.experts > 1 ? 2 : 1};
            }
            world_right(&c);
        }
}

CASE(test_fp8_layer_orders)
{
    fp8_layer_orders(MK_ENGINE_WGMMA);
    fp8_layer_orders(MK_ENGINE_MMA);
}

/* Sums that travel back as e4m3, on both engines and of both types: rows of whole blocks and of short
 * ones, added by a warp each and by several. */
CASE(test_back_orders)
{
    for (uint32_t form = 1; form < FORMS; form++)
        for (uint64_t i = 0; i < 4; i++) {
            struct sim_world_config c =
                hopper_moe_config(MK_OP_MOE_FFN, forms[form][0], forms[form][1], i * FORMS + form);
            if (i == 1) {
                c.problem.b_transposed = c.problem.fp8 = 1;
                c.problem.tuning.tile_m = 128;
                c.problem.tuning.tile_n = 256;
            } else if (i == 2) {
                c.problem.b_transposed = c.problem.fp8 = (int)(form % 2);
                hopper_moe_on_mma(&c);
            }
            c.problem.back_fp8 = 1;
            c.problem.deterministic = 0;
            c.problem.moe.hidden = i == 3 ? 392 : 16 * (4 + 5 * form);
            c.problem.moe.inner = 48;
            c.problem.moe.tokens = i == 3 ? 5 : 24;
            c.unwatched = i > 0 || forms[form][0] > 1 || forms[form][1] > 2;
            if (!c.unwatched) {
                c.problem.tuning.split.ctas[MK_INTRA_COMM] = 1;
                c.problem.tuning.split.ctas[MK_INTER_REDUCE] = 1;
                c.problem.moe = (struct mk_moe){20, 136, 40, c.problem.moe.experts, 2};
            }
            world_right(&c);
        }
}

/* What is no number, rows of zeros, scales far from 1. */
CASE(test_fp8_layer_extremes)
{
    for (uint64_t i = 0; i < 8; i++) { /* on either engine */
        struct sim_world_config c = hopper_moe_config(MK_OP_MOE_FFN, 1, 2, 4 * i);
        struct sim_op op;
        c.problem.b_transposed = c.problem.fp8 = 1;
        c.problem.moe = (struct mk_moe){9, 272, 144, 4, 2};
        c.problem.tuning.tile_m = 128;
        c.problem.tuning.tile_n = 256;
        c.seed = i;
        c.unwatched = 1;
        if (i > 3)
            hopper_moe_on_mma(&c);
        c.op = moe_fp8_op(&op, i % 4 > 1);
        world_right(&c);
    }
}

/* More tokens than a warp has lanes, more experts than a block has warps, ids that name the same
 * expert twice: several runs of tokens a part, and several tiles an expert. */
static void larger(enum mk_op op, enum mk_engine engine)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct sim_world_config c = hopper_moe_config(op, 1, 2, 6 * seed + 1);
        c.problem.moe = (struct mk_moe){300, 32, 8, seed == 1 ? 2 : 64, seed == 1 ? 2 : 8};
        c.problem.tuning.chunk_rows = 0;
        c.launches = 1 + (uint32_t)seed;
        if (engine == MK_ENGINE_MMA)
            hopper_moe_on_mma(&c);
        c.unwatched = 1;
        world_right(&c);
    }
}

/* Ids that find no room in shared memory beside the counts of so many experts; ranks whose runs are
 * more than a block has warps. */
static void tables(enum mk_engine engine)
{
    static const struct {
        uint32_t gpus, parts;
        struct mk_moe moe;
        uint64_t mma; /* experts there, where they are fewer */
    } cases[] = {{1, 1, {9, 8, 8, 2495, 2}, 1180},
                 {2, 2, {40, 8, 8, 4534, 32}, 2200},
                 {5, 2, {70, 8, 8, 5, 3}, 0},
                 {8, 3, {53, 8, 8, 16, 4}, 0},
                 {7, 1, {1, 8, 8, 7, 7}, 0}};
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_world_config c =
            hopper_moe_config(MK_OP_MOE_DISPATCH_GEMM, 1, cases[i].gpus, 6 * i + 2);
        c.problem.moe = cases[i].moe;
        if (engine == MK_ENGINE_MMA) {
            hopper_moe_on_mma(&c);
            if (cases[i].mma)
                c.problem.moe.experts = cases[i].mma;
        }
        c.problem.tuning.split.ctas[MK_INTRA_COMM] = cases[i].parts;
        c.problem.tuning.split.ctas[MK_COMPUTE] = cases[i].parts + 1;
        c.emulated = c.problem.sms = 2 * cases[i].parts + 1;
        c.launches = 2;
        c.unwatched = 1;
        world_right(&c);
    }
}

CASE(test_tables)
{
    tables(MK_ENGINE_WGMMA);
    tables(MK_ENGINE_MMA);
}

CASE(test_larger)
{
    larger(MK_OP_MOE_DISPATCH_GEMM, MK_ENGINE_WGMMA);
    larger(MK_OP_MOE_DISPATCH_GEMM, MK_ENGINE_MMA);
    larger(MK_OP_MOE_FFN, MK_ENGINE_WGMMA);
    larger(MK_OP_MOE_FFN, MK_ENGINE_MMA);
}

/* Rows enough for an expert that a rank's own tokens are computed apart, and more rows of tiles
 * than a group has; blocks for sums leave before all tiles are taken. */
static void groups(enum mk_engine engine)
{
    for (uint64_t seed = 0; seed < 2; seed++) {
        struct sim_world_config c = hopper_moe_config(MK_OP_MOE_FFN, 1, 2, 6 * seed + 1);
        struct mk_plan plan;
        char error[300];
        c.problem.moe = (struct mk_moe){1100, 32, 8, 2 + 2 * seed, 2};
        c.problem.tuning.chunk_rows = 0;
        c.launches = 2;
        c.unwatched = 1;
        c.seed |= EXACT_MOE_EVENLY;
        if (engine == MK_ENGINE_MMA)
            hopper_moe_on_mma(&c);
        assert_int_equal(plan_build(&plan, &c.problem, 0, 0, error, sizeof error), 0);
        const struct mk_route *r = &moe_ffn_plan_of(&plan)->dispatch.route;
        assert_true(r->apart && r->group_rows < 1100 * 2 / c.problem.tuning.tile_m);
        world_right(&c);
    }
}

CASE(test_groups)
{
    groups(MK_ENGINE_WGMMA);
    groups(MK_ENGINE_MMA);
}

/* Fewer tokens than a block has warps, so that several warps have to do with one token's sum. */
static void few_tokens(enum mk_engine engine)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct sim_world_config c =
            hopper_moe_config(MK_OP_MOE_FFN, 1 + seed / 2, 2 - seed / 2, 6 * seed + 1);
        c.problem.moe = (struct mk_moe){1 + 2 * (seed % 2), 1048, 8, 4, 3};
        c.problem.tuning.chunk_rows = 0;
        c.problem.deterministic = seed % 2;
        c.launches = 2;
        c.unwatched = seed > 1;
        if (engine == MK_ENGINE_MMA)
            hopper_moe_on_mma(&c);
        world_right(&c);
    }
}

CASE(test_few_tokens)
{
    few_tokens(MK_ENGINE_WGMMA);
    few_tokens(MK_ENGINE_MMA);
}

/* A rank that stops, or a put that fails: the kernels' waits end, and the sentence says why. */
static void faults(enum mk_op op, enum mk_engine engine)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct sim_world_config c = hopper_moe_config(op, 2, 1, 3 + i);
        c.problem.moe = (struct mk_moe){24, 40, 16, 4, 2};
        c.seed |= EXACT_MOE_EVENLY; /* something is sent */
        if (engine == MK_ENGINE_MMA)
            hopper_moe_on_mma(&c);
        c.fault = i < 2 ? (struct sim_fault){SIM_FAULT_DROP, 1, 20}
                        : (struct sim_fault){SIM_FAULT_FAIL_PUT, 1, 1};
        world_ends_as_promised(&c);
    }
}

CASE(test_faults)
{
    faults(MK_OP_MOE_DISPATCH_GEMM, MK_ENGINE_WGMMA);
    faults(MK_OP_MOE_FFN, MK_ENGINE_WGMMA);
    faults(MK_OP_MOE_FFN, MK_ENGINE_MMA);
}
