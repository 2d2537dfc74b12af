/* A MoE's rank has memory for what may come, and not for ranks times tokens: its plan says how
 * much, as much as there is room for gives right results, and one row or token more ends the launch
 * on every rank with a sentence that names the rank without room, and the count; or, where the user
 * says so, places are dropped by rule. */
#include "tests/helpers/ops.h"

#include "core/comm/comm_parts.h"
#include "core/ops/moe.h"
#include "core/roles/moe_ffn_plan.h"
#include "sim/ops/exact_moe.h"
#include "sim/route.h"
#include "tests/helpers/free_port.h"
#include "tests/helpers/shell.h"
#include "core/plan/plan_fields.h"

static char error[512];

/* Returns why there is no plan; "": there is one. */
static const char *planned(struct mk_plan *p, enum mk_op op, enum mk_exec exec, struct mk_topo topo,
                           struct mk_moe moe, uint64_t capacity)
{
    struct mk_problem q = {.op = op, .exec = exec, .sms = 132, .topo = topo, .moe = moe};
    error[0] = '\0';
    plan_field_set(plan_field_named("capacity"), &q, capacity);
    int result = plan_build(p, &q, 0, 0, error, sizeof error);
    assert_true(!result || result == -EINVAL);
    return result ? error : "";
}

static const struct mk_route *route_of(const struct mk_plan *p)
{
    return &moe_ffn_plan_of(p)->dispatch.route;
}

/* All that can come on up to 8 ranks; else a multiple of the mean, whatever the ranks. */
CASE(test_defaults)
{
    const struct mk_moe eight = {4096, 7168, 2048, 256, 8}, many = {4096, 7168, 2048, 1024, 8},
                        more = {4096, 7168, 2048, 4096, 8};
    const uint64_t mean = 4096 * 8, spread = (uint64_t)ceil(6 * sqrt(4096 * 8));
    struct mk_plan p;
    uint64_t heaps[2];
    assert_string_equal(
        planned(&p, MK_OP_MOE_FFN, MK_EXEC_CUDA, (struct mk_topo){1, 8, 0}, eight, 0), "");
    assert_int_equal(route_of(&p)->capacity, 8 * mean);
    assert_int_equal(route_of(&p)->landed_room, 4096);
    assert_int_equal(op_limit_of(&p.problem), 0);
    assert_string_equal(
        planned(&p, MK_OP_MOE_FFN, MK_EXEC_CUDA, (struct mk_topo){2, 8, 0}, eight, 0), "");
    assert_int_equal(route_of(&p)->capacity, 2 * mean + spread); /* 16 experts of a rank */
    for (uint32_t i = 0; i < 2; i++) {                           /* 2 of a rank; 8 of a rank */
        struct mk_topo topo = {i ? 64 : 16, 8, 0};
        assert_string_equal(planned(&p, MK_OP_MOE_FFN, MK_EXEC_CUDA, topo, i ? more : many, 0), "");
        assert_int_equal(route_of(&p)->capacity, 2 * mean + spread);
        heaps[i] = p.heap_bytes;
    }
    /* four times the ranks: ids alone grow as much, 4 k bytes a token and as many of weights, in
     * two buffers; shares of a node's tokens have more room for chance, the smaller they are */
    uint64_t ids = 2ull * (512 - 128) * 4096 * 8 * 8;
    assert_true(heaps[1] - heaps[0] < ids + heaps[0] / 4);
    /* a plan that is made again of a plan is the same */
    struct mk_plan again;
    assert_int_equal(plan_build(&again, &p.problem, 0, 0, error, sizeof error), 0);
    assert_int_equal(again.heap_bytes, p.heap_bytes);
}

/* The most ranks and experts have a plan; what no number can name has none, nor a word that is no
 * number, nor an operator without experts. */
CASE(test_refusals)
{
    static const struct mk_moe most = {128, 7168, 2048, 65536, 8};
    const struct mk_topo ranks = {512, 8, 5};
    static const char *const words[][2] = {
        {"capacity=0", "'capacity=0' is not valid; it should look like capacity=4096, 1 or more"},
        {"capacity=-3", "'capacity=-3' is not valid"},
        {"capacity=12x", "'capacity=12x' is not valid"},
        {"capacity=99999999999999999999999", "is not valid"}};
    struct mk_spec spec = {.op = MK_OP_MOE_FFN, .shape = {128, 256, 128, 4, 2}};
    struct mk_problem q;
    struct mk_plan p;
    for (int op = 0; op < MK_OPS; op++)
        if (op_has_limit((enum mk_op)op))
            assert_string_equal(planned(&p, (enum mk_op)op, MK_EXEC_CUDA, ranks, most, 0), "");
    assert_non_null(
        strstr(planned(&p, MK_OP_MOE_FFN, MK_EXEC_CUDA, ranks,
                       (struct mk_moe){1 << 17, 7168, 2048, 65536, 8}, 0),
               "numbers of rows and of tokens, which would be up to 4294967296, have 32 "
               "bits"));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        spec.options = words[i][0];
        assert_int_equal(spec_to_problem(&q, &spec, error, sizeof error), -EINVAL);
        assert_non_null(strstr(error, words[i][1]));
    }
    spec.options = "capacity=300";
    assert_int_equal(spec_to_problem(&q, &spec, error, sizeof error), 0);
    assert_int_equal(op_limit_of(&q), 300);
    spec = (struct mk_spec){.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .options = "capacity=300"};
    assert_int_equal(spec_to_problem(&q, &spec, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "ag_gemm has no capacity; it is of moe_"));
}

/* ---- exactly as much as comes, and one less ---- */

static const uint32_t forms[][2] = {{1, 3}, {2, 2}, {3, 1}};
static const enum mk_op ops[] = {MK_OP_MOE_DISPATCH, MK_OP_MOE_COMBINE, MK_OP_MOE_DISPATCH_GEMM,
                                 MK_OP_MOE_FFN};

/* The rows of a rank's experts in a launch. */
static uint64_t rows_of(const struct sim_world_config *c, uint64_t launch, uint32_t rank)
{
    const struct mk_moe *m = &c->problem.moe;
    const uint32_t world = mk_world(&c->problem.topo), each = (uint32_t)m->experts / world;
    struct mk_plan plan = {.problem = c->problem};
    uint32_t *ids = malloc(m->tokens * m->k * sizeof *ids);
    uint64_t rows = 0;
    for (uint32_t r = 0; r < world; r++) {
        exact_moe_ids(&plan, c->seed, launch, r, ids);
        for (uint64_t i = 0; i < m->tokens * m->k; i++)
            rows += ids[i] < m->experts && ids[i] / each == rank;
    }
    free(ids);
    return rows;
}

static uint64_t most_rows(const struct sim_world_config *c)
{
    uint64_t most = 0;
    for (uint64_t launch = 1; launch <= c->launches; launch++)
        for (uint32_t rank = 0; rank < mk_world(&c->problem.topo); rank++) {
            uint64_t rows = rows_of(c, launch, rank);
            most = rows > most ? rows : most;
        }
    return most;
}

/* Runs with room for `capacity` rows. Returns 0, or 1 where a launch ended for want of it, once
 * what is said is found true. */
static int overflows(struct sim_world_config c, uint64_t capacity)
{
    struct sim_world_result result;
    const struct mk_failure *f = &result.failure;
    char text[300];
    plan_field_set(plan_field_named("capacity"), &c.problem, capacity);
    int rc = sim_world_run(&c, &result);
    if (!rc)
        return 0;
    if (rc != -EIO || f->kind != MK_FAIL_OVERFLOW)
        fail_msg("%s", result.sentence);
    assert_true(f->seen > f->wanted);
    if (strstr(f->what, "rows")) {
        assert_int_equal(f->wanted, capacity);
        assert_int_equal(f->seen, rows_of(&c, f->epoch, f->producer));
    }
    snprintf(text, sizeof text, "rank %u has room for %llu %s, and %llu came in epoch %llu;",
             f->producer, (unsigned long long)f->wanted, f->what, (unsigned long long)f->seen,
             (unsigned long long)f->epoch);
    assert_non_null(strstr(result.sentence, text));
    return 1;
}

CASE(test_exactly)
{
    uint32_t fit = 0, all = 0;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t form = 0; form < 3; form++)
            for (uint64_t seed = 1; seed <= 24 / OPS_PART; seed++, all++) {
                struct sim_world_config c = ops_config(ops[i], forms[form], ops_shapes[1]);
                c.seed = seed;
                uint64_t most = most_rows(&c);
                /* where all are of one rank, there may be no room for their tokens */
                fit += !overflows(c, most);
                assert_true(overflows(c, most - 1));
            }
    assert_true(fit > all / 2);
}

/* ---- lists ---- */

/* All of rank 1's tokens to rank 0, and no others. */
static void fill_one_way(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    uint32_t *ids = l->arguments[1];
    memset(l->arguments[0], 0, m->tokens * m->hidden * 2);
    for (uint64_t i = 0; i < m->tokens; i++)
        ids[i] = l->plan->problem.topo.rank == 1 ? 0 : UINT32_MAX;
}

static int verify_nothing(const struct sim_launch *l)
{
    return 0;
}

/* Tokens that one rank brings, or sends, more than its share of the capacity has room for, though
 * their rows would have some: either end of the link may be the first to say so. */
CASE(test_lists)
{
    struct sim_op op = *sim_op_of(MK_OP_MOE_DISPATCH);
    op.fill = fill_one_way;
    op.verify = verify_nothing;
    for (uint32_t nodes = 1; nodes <= 4; nodes += 3)
        for (uint64_t seed = 1; seed <= 40 / OPS_PART; seed++) {
            const uint32_t form[2] = {nodes, 4 / nodes};
            struct sim_world_config c = ops_config(MK_OP_MOE_DISPATCH, form, ops_shapes[0]);
            struct sim_world_result result;
            c.op = &op;
            c.seed = seed;
            c.problem.moe = (struct mk_moe){64, 64, 0, 4, 1};
            plan_field_set(plan_field_named("capacity"), &c.problem,
                           64); /* a quarter, and six times its root: 40 */
            assert_int_equal(sim_world_run(&c, &result), -EIO);
            assert_int_equal(result.failure.kind, MK_FAIL_OVERFLOW);
            assert_non_null(strstr(
                result.sentence, nodes == 1 ? "rank 0 has room for 40 tokens from one rank of its "
                                              "node, and 64 came in epoch 1"
                                            : "rank 0 has room for 40 tokens from one rank of "
                                              "another node, and 64 came in epoch 1"));
            plan_field_set(plan_field_named("capacity"), &c.problem,
                           224); /* 56 and 45: all of them */
            world_right(&c);
        }
}

/* ---- what is dropped ---- */

/* By hand: 3 ranks of 2 experts, of each rank's tokens the first two places on each rank's. */
CASE(test_rule)
{
    enum { NONE = 6 };
    static const uint32_t ids[][3] = {{0, 1, 5}, {4, 0, 3}, {1, NONE, 5}, {5, 2, UINT32_MAX}},
                          kept[][3] = {{0, 1, 5},
                                       {4, UINT32_MAX, 3},
                                       {UINT32_MAX, NONE, UINT32_MAX},
                                       {UINT32_MAX, 2, UINT32_MAX}};
    struct mk_route r = {
        .topo = {1, 3, 1}, .tokens = 4, .k = 3, .experts = 6, .rank_experts = 2, .quota = 2};
    uint32_t got[4][3];
    assert_int_equal(route_keep(&r, NULL, ids[0], got[0]), 4);
    assert_memory_equal(got, kept, sizeof kept);
    r.quota = 12;
    assert_int_equal(route_keep(&r, NULL, ids[0], got[0]), 0);
    assert_memory_equal(got, ids, sizeof ids);
}

/* With room for few, every launch ends, and its results are those of what is kept: a rank is never
 * given more than it has room for. (The explorer's references drop by the same rule.) */
CASE(test_drops)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t form = 0; form < 3; form++)
            for (uint64_t seed = 1; seed <= 24 / OPS_PART; seed++) {
                struct sim_world_config c = ops_config(ops[i], forms[form], ops_shapes[1]);
                uint32_t world = forms[form][0] * forms[form][1];
                c.seed = seed;
                plan_field_set(plan_field_named("capacity"), &c.problem, world * (1 + seed % 7));
                plan_field_set(plan_field_named("overflow"), &c.problem, 1);
                world_right(&c);
            }
    struct mk_plan p;
    struct mk_problem q = {.op = MK_OP_MOE_FFN, .topo = {2, 2, 0}, .moe = {16, 64, 40, 8, 2}};
    plan_field_set(plan_field_named("capacity"), &q, 3);
    plan_field_set(plan_field_named("overflow"), &q, 1);
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "each of 4 ranks has a share of it; the next that works is 4"));
}

/* ---- executors ---- */

/* Every rank's process says it and ends with 3; the kernels' own tables say it too; and so does the
 * simulator, before memory is touched that is not there. */
CASE(test_executors)
{
    char command[1024];
    snprintf(command, sizeof command,
             "for r in 0 1; do (RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 "
             "MASTER_ADDR=127.0.0.1 MASTER_PORT=%d mkernel run moe_ffn --exec host --gpus 2 "
             "--capacity 100 --iters 2 2>&1; echo status $?) & done; wait",
             free_port());
    shell_says(command, 0, "has room for 100 rows of its experts, and ", 2);
    shell_says("mkernel run moe_dispatch --exec host --gpus 3 --capacity 64 --iters 2 2>&1", 3,
               "has room for 64 rows of its experts, and ", 1);
    shell_says(
        "mkernel run moe_dispatch --exec host --gpus 3 --capacity 768 --iters 2 --check 2>&1", 0,
        "all right", 1);
    shell_says("mkernel sim moe_dispatch --explore --exec emulated --nodes 2 --gpus 2 --capacity 4 "
               "--runs 1 2>&1",
               3, "has room for 4 rows of its experts, and ", 1);
    shell_says("mkernel run moe_ffn --exec host --gpus 4 --capacity 200 --overflow drop --iters 2 "
               "--check 2>&1",
               0, "of 1024 places of all ranks' tokens in launch 1, for want of room", 1);
    shell_says("mkernel run moe_ffn --exec host --gpus 2 --overflow some 2>&1", 2, "end|drop", 1);
    shell_says(
        "mkernel sim moe_dispatch --explore --exec emulated --nodes 2 --gpus 2 --capacity 12 "
        "--overflow drop --runs 2 2>&1",
        0, " 0 failed", 1);
    shell_says(
        "mkernel sim moe_ffn --nodes 2 --gpus 8 --moe 128,7168,2048,64,8 --skew 2 --overflow "
        "drop 2>&1",
        0, "efficiency", 1);
    shell_says("mkernel sim moe_ffn --nodes 2 --gpus 8 --moe 128,7168,2048,64,8 --skew 2 2>&1", 3,
               "has room for 4288 rows of its experts, and ", 1);
    shell_says(
        "mkernel sim moe_ffn --nodes 2 --gpus 8 --moe 128,7168,2048,64,8 --skew 2 --capacity "
        "16384 2>&1",
        0, "efficiency", 1);
    shell_says("mkernel sim moe_ffn --nodes 16 --gpus 8 --moe 8192,7168,2048,256,8 --dry-run 2>&1",
               0, "of each rank's heap (capacity 263680)", 1);
}
