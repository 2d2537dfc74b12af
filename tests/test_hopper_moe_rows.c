/* MoE dispatch and combine, whole: their kernels' own device code on emulated GPUs of both engines,
 * several ranks, proxies and a network, in orders drawn from seeds. However tokens are routed, and
 * by one thread block that makes tables or by several, each row of each expert, or each token's
 * sum, is right, and nobody reads what nothing says is there. */
#include "tests/helpers/hopper_moe.h"

static const uint32_t forms[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {2, 2}};
enum { FORMS = sizeof forms / sizeof *forms };

/* Nothing is multiplied; tiles of rows of any size. */
static struct sim_world_config config_of(enum mk_op op, uint32_t nodes, uint32_t gpus,
                                         uint64_t seed)
{
    static const uint32_t rows[] = {16, 64, 128};
    struct sim_world_config c = hopper_moe_config(op, nodes, gpus, seed);
    c.problem.engine = seed % 3 == 1 ? MK_ENGINE_MMA : MK_ENGINE_WGMMA;
    hopper_moe_of_rows(&c, rows[seed % 3], 1 + seed % 3);
    return c;
}

/* The first of each form is watched, with one block that makes tables and one that takes rows,
 * since the watch knows 512 readers of a word. */
static void explore(enum mk_op op)
{
    struct coroutine_pool *pool;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint32_t form = 0; form < FORMS; form++)
        for (uint64_t i = 0; i < 6; i++) {
            struct sim_world_config c =
                config_of(op, forms[form][0], forms[form][1], i * FORMS + form);
            uint32_t *ctas = c.problem.tuning.split.ctas;
            c.unwatched = i > 0 || forms[form][0] > 1 || forms[form][1] > 2;
            if (!c.unwatched) {
                ctas[MK_INTRA_COMM] = ctas[MK_INTER_REDUCE] = 1;
                c.problem.moe.tokens = 20;
            }
            c.pool = pool;
            world_right(&c);
        }
    coroutine_pool_destroy(pool);
}

CASE(test_orders)
{
    explore(MK_OP_MOE_DISPATCH);
    explore(MK_OP_MOE_COMBINE);
}

/* Records: 16 bytes are the least that rows differ by. */
CASE(test_fp8)
{
    for (uint32_t form = 0; form < FORMS; form++) {
        struct sim_world_config c =
            config_of(MK_OP_MOE_DISPATCH, forms[form][0], forms[form][1], form);
        c.problem.fp8 = 1;
        c.problem.moe.hidden = 16 * (1 + 7 * form);
        c.unwatched = 1;
        world_right(&c);
    }
}

/* More tokens than a warp has lanes, more experts than a block has warps, tiles that are taken in
 * several parts, with more places than one block makes tables of; and few tokens, whose sums warps
 * share. */
CASE(test_larger)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct sim_world_config c =
            config_of(seed % 2 ? MK_OP_MOE_COMBINE : MK_OP_MOE_DISPATCH, 1, 2, 6 * seed + 2);
        c.problem.moe = seed < 2 ? (struct mk_moe){300, 32, 8, seed ? 64 : 8, seed ? 8 : 4}
                                 : (struct mk_moe){1 + seed, 9896, 8, 4, 3};
        c.problem.tuning.chunk_rows = 0;
        c.problem.tuning.split.ctas[MK_INTRA_COMM] = 3;
        c.emulated = c.problem.sms = mk_total_ctas(&c.problem.tuning.split);
        c.launches = 2;
        c.unwatched = 1;
        world_right(&c);
    }
}

/* A rank that stops, or a put that fails: the kernels' waits end, and the sentence says why. */
CASE(test_faults)
{
    for (uint32_t i = 0; i < 8; i++) {
        struct sim_world_config c =
            config_of(i < 4 ? MK_OP_MOE_DISPATCH : MK_OP_MOE_COMBINE, 2, 1, 3 + i);
        c.problem.moe = (struct mk_moe){24, 40, 16, 4, 2};
        c.seed |= EXACT_MOE_EVENLY; /* something is sent */
        c.fault = i % 4 < 2 ? (struct sim_fault){SIM_FAULT_DROP, 1, 20}
                            : (struct sim_fault){SIM_FAULT_FAIL_PUT, 1, 1};
        world_ends_as_promised(&c);
    }
}

/* Of few tokens one block numbers places and several lay tables out: where experts are so many that a
 * block's words lie in memory, each of these has words of its own. */
CASE(test_many_experts_of_few_tokens)
{
    for (uint64_t seed = 0; seed < 6; seed += 3) {
        struct sim_world_config c = config_of(MK_OP_MOE_DISPATCH, 1, 2, seed);
        uint32_t *ctas = c.problem.tuning.split.ctas;
        ctas[MK_INTRA_COMM] = 9;
        ctas[MK_INTER_REDUCE] = 2;
        c.emulated = c.problem.sms = mk_total_ctas(&c.problem.tuning.split);
        c.problem.moe.tokens = 20;
        c.problem.moe.experts = 4000;
        c.problem.moe.k = 4;
        c.launches = 3;
        c.unwatched = 1;
        world_right(&c);
    }
}
