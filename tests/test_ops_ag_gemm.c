/* AllGather+GEMM is right in every order of its steps and with the fewest bytes, and faults are
 * told. (Its broken variants: test_mutants.c; its plan: test_plan.c.) */
#include "tests/helpers/ops.h"

CASE(test_orders)
{
    assert_true(ops_explore(MK_OP_AG_GEMM, 32) >= 768 / OPS_PART);
}

CASE(test_bytes)
{
    ops_bytes_are_minimal(MK_OP_AG_GEMM, 0);
}

/* ---- FP8 ---- */

/* Nodes and ranks of each; rows of a rank, N, K: blocks of scales that are short, and of one K;
 * numbers of slices and pieces that do not divide the blocks; rows that 4 does not divide. */
static struct sim_world_config fp8_config(uint64_t seed)
{
    static const uint32_t forms[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 2}, {3, 1}};
    static const uint64_t shapes[][3] = {{36, 40, 144},  {64, 200, 272}, {4, 8, 16},
                                         {20, 136, 656}, {70, 24, 1296}, {5, 8, 272}};
    const uint64_t *s = shapes[seed / 4 % 6];
    const uint32_t *of = forms[seed % 7];
    struct sim_world_config c = world_config(of[0], of[1], of[0] * of[1] * s[0], s[1], s[2]);
    c.problem.b_transposed = c.problem.fp8 = 1;
    c.seed = seed * 7919;
    sim_world_vary(&c);
    c.problem.tuning.slices = of[0] > 1 ? 1 : 1 + (uint32_t)(seed / 3 % 4);
    c.problem.tuning.pieces = 1 + (uint32_t)(seed / 5 % 5);
    return c;
}

/* Each row of C comes from its row's bytes and its own scales, of this launch. One shot copies those
 * of whole 16 bytes alone. */
CASE(test_fp8_orders)
{
    for (uint64_t seed = 0; seed < 240 / OPS_PART; seed++)
        for (uint32_t shots = 1; shots <= 2; shots++) {
            struct sim_world_config c = fp8_config(seed);
            struct sim_world_result result;
            c.problem.tuning.shots = shots;
            if (shots == 1 && c.problem.topo.nodes > 1)
                continue;
            if (shots == 1)
                c.problem.tuning.chunk_rows = 0;
            if (shots == 1 && plan_ragged_scales(&c.problem)) {
                assert_int_equal(sim_world_run(&c, &result), -EINVAL);
                assert_non_null(strstr(result.sentence, "4 rows of each of"));
                continue;
            }
            world_right(&c);
        }
}

/* What goes over each link is what `work` says: a byte an element, and four for 128 of them, of whole
 * 16 bytes for rows. */
CASE(test_fp8_bytes)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct ops_bytes bytes = {{0}, {0}};
        struct sim_costs costs = {.context = &bytes, .copy = ops_count_copy, .put = ops_count_put};
        struct sim_world_config c = fp8_config(seed);
        struct sim_world_result result;
        const struct mk_problem *q = &c.problem;
        const uint64_t world = mk_world(&q->topo), rows = q->m / world,
                       of_scales = (rows + 3) / 4 * 16 * ((q->k + 127) / 128),
                       shard = (rows * q->k + of_scales) * c.launches;
        c.costs = &costs;
        assert_int_equal(sim_world_run(&c, &result), 0);
        for (uint32_t rank = 0; rank < world; rank++) {
            assert_int_equal(bytes.nvlink[rank], q->topo.nodes * (q->topo.gpus - 1) * shard);
            assert_int_equal(bytes.network[rank], (q->topo.nodes - 1) * shard);
        }
    }
}

static void expect_mute(const struct sim_world_result *r)
{
    assert_int_equal(r->failure.producer, 3);
    assert_non_null(strstr(r->sentence, "of rank 3's A"));
}

CASE(test_faults)
{
    ops_faults(MK_OP_AG_GEMM, ops_shapes[0], 4, expect_mute);
}
