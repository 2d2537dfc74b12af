/* Tokens whose ids name logical experts go to a copy of theirs, as the map says, of every MoE operator
 * and on every executor that needs no GPU: with several ranks that hold an expert, with one that none
 * holds, and with a map that is changed between two launches. With copies the busiest rank has fewer
 * rows, and takes less time. */
#include "tests/helpers/ops.h"

#include "core/base/bf16.h"
#include "core/comm/comm.h"
#include "core/comm/comm_parts.h"
#include "core/ops/moe_map.h"
#include "tests/helpers/comm_config.h"
#include "tests/helpers/hopper_moe.h"
#include "tests/helpers/job.h"
#include "tests/helpers/shell.h"
#include "core/plan/plan_fields.h"

static const enum mk_op ops[] = {MK_OP_MOE_DISPATCH, MK_OP_MOE_COMBINE, MK_OP_MOE_DISPATCH_GEMM,
                                 MK_OP_MOE_FFN};
enum { OPS_MAPPED = sizeof ops / sizeof *ops };

static char error[512];

/* ---- the plan ---- */

static const char *planned(enum mk_op op, const char *options, struct mk_plan *p)
{
    struct mk_spec spec = {.op = op, .shape = {64, 64, 8, 4, 2}, .options = options};
    struct mk_problem q;
    for (uint32_t i = op_dimensions(op_of(op)->shape); i < MK_SHAPE; i++)
        spec.shape[i] = 0;
    if (op == MK_OP_MOE_DISPATCH || op == MK_OP_MOE_COMBINE)
        memcpy(spec.shape, (uint64_t[]){64, 64, 4, 2}, 32);
    error[0] = '\0';
    int result = spec_to_problem(&q, &spec, error, sizeof error);
    q.topo = (struct mk_topo){1, 2, 0};
    if (!result)
        result = plan_build(p, &q, 0, 0, error, sizeof error);
    return result ? error : "";
}

CASE(test_plan)
{
    struct mk_plan p;
    for (size_t i = 0; i < OPS_MAPPED; i++) {
        char options[128];
        assert_string_equal(planned(ops[i], "logical=3", &p), "");
        spec_options(&p, options, sizeof options);
        assert_non_null(strstr(options, "logical=3"));
        assert_string_equal(planned(ops[i], options, &p), ""); /* it is what makes it again */
        assert_int_equal(op_logical(&p.problem), 3);
        assert_string_equal(planned(ops[i], "logical=1", &p), "2 experts of a token: 1 to 1");
        assert_string_equal(planned(ops[i], "logical=0", &p),
                            "'logical=0' is not valid; it should look like logical=56, 1 or more");
        assert_non_null(strstr(planned(ops[i], "logical=1048577", &p), "1 to 1048576 experts"));
        assert_string_equal(planned(ops[i], "logical=900", &p), ""); /* some are nowhere */
    }
    struct mk_spec spec = {.op = MK_OP_AG_GEMM, .shape = {64, 64, 64}, .options = "logical=3"};
    struct mk_problem q;
    assert_int_equal(spec_to_problem(&q, &spec, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "ag_gemm has no experts; it is of moe_"));
}

/* ---- in orders that are drawn ---- */

/* By seeds an expert is nowhere, places are dropped, and launches read how many tokens there are. */
CASE(test_orders)
{
    static const uint32_t forms[][2] = {{1, 1}, {1, 2}, {1, 4}, {1, 8}, {2, 1}, {2, 2}, {2, 4}};
    for (size_t i = 0; i < OPS_MAPPED; i++)
        for (size_t form = 0; form < sizeof forms / sizeof *forms; form++)
            for (uint64_t seed = 1; seed <= 12 / OPS_PART + 1; seed++) {
                struct sim_world_config c = ops_config(ops[i], forms[form], ops_shapes[1]);
                const uint32_t world = mk_world(&c.problem.topo);
                c.problem.moe.experts = world * (2 + seed % 3);
                c.problem.moe.k = 1 + seed % 2;
                c.seed = seed;
                c.launches = 4;
                plan_field_set(plan_field_named("logical"), &c.problem,
                               c.problem.moe.experts - (world > 1 ? seed % world : 0));
                plan_field_set(plan_field_named("tokens"), &c.problem, seed >> 1 & 1);
                if (seed % 4 == 3) {
                    plan_field_set(plan_field_named("capacity"), &c.problem, 8 * world);
                    plan_field_set(plan_field_named("overflow"), &c.problem, 1);
                }
                world_right(&c);
            }
}

/* By the kernels' own code, of both engines. */
CASE(test_kernels)
{
    for (size_t i = 0; i < OPS_MAPPED; i++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            const int rows = ops[i] == MK_OP_MOE_DISPATCH || ops[i] == MK_OP_MOE_COMBINE;
            const uint32_t nodes = 1 + seed % 2, gpus = seed % 3 ? 2 : 1;
            struct sim_world_config c = hopper_moe_config(ops[i], nodes, gpus, seed);
            if (rows)
                hopper_moe_of_rows(&c, 64, 2);
            else if (seed & 4)
                hopper_moe_on_mma(&c);
            c.problem.moe.tokens = 21;
            c.problem.moe.experts = 3 * nodes * gpus;
            c.problem.moe.k = 2;
            c.unwatched = 1;
            plan_field_set(plan_field_named("logical"), &c.problem,
                           c.problem.moe.experts - seed % (nodes * gpus));
            if (seed % 4 == 2) {
                plan_field_set(plan_field_named("capacity"), &c.problem, 8ull * nodes * gpus);
                plan_field_set(plan_field_named("overflow"), &c.problem, 1);
            }
            world_right(&c);
        }
}

/* ---- a map that changes ---- */

enum { TOKENS = 16, HIDDEN = 8, EACH = 4, PLACES = 2 };

/* Which experts a token names: some none, by numbers behind the last and at the end of all. */
static uint32_t named(uint32_t rank, uint32_t launch, uint32_t token, uint32_t place,
                      uint32_t logical)
{
    const uint32_t x = (rank * 5 + launch * 3 + token + place * (1 + token % 3)) % (logical + 2);
    return x < logical ? x : x == logical ? logical : UINT32_MAX;
}

/* Whether a rank's slots have the rows of the tokens that the map sends there, in order. 0: they do;
 * else 1 and the slot. */
static uint32_t wrong(const struct moe_map *map, const struct mk_topo *t, uint32_t launch,
                      const uint16_t *rows, const uint32_t *counts)
{
    for (uint32_t local = 0; local < EACH; local++) {
        uint32_t count = 0;
        for (uint32_t rank = 0; rank < mk_world(t); rank++)
            for (uint32_t i = 0; i < TOKENS * PLACES; i++) {
                const uint32_t id = named(rank, launch, i / PLACES, i % PLACES, map->experts);
                const struct mk_topo of = {t->nodes, t->gpus, rank};
                if (id >= map->experts ||
                    moe_map_slot(map, &of, EACH, id) != t->rank * EACH + local)
                    continue;
                if (mk_bf16_to_float(rows[(uint64_t)(counts[2 * local] + count) * HIDDEN]) !=
                    (float)(rank * TOKENS + i / PLACES))
                    return 1 + local;
                count++;
            }
        if (counts[2 * local + 1] != count)
            return 1 + local;
    }
    return 0;
}

/* The map of launch `launch`, [slots / 2][2]: none is said before launch 1; a copy in each half of the
 * ranks; those of the upper half alone, without expert 0; and each by its number once more. */
static void make_map(int32_t *of, uint32_t launch, uint32_t logical)
{
    for (uint32_t e = 0; e < logical; e++) {
        of[2 * e] = launch % 3 == 2 ? -1 : (int32_t)e;
        of[2 * e + 1] = launch % 3 == 0 ? -1 : (int32_t)(e + logical);
    }
    if (launch % 3 == 2)
        of[1] = -1;
}

struct arguments {
    uint16_t x[TOKENS * HIDDEN];
    uint32_t ids[TOKENS * PLACES] __attribute__((aligned(16)));
    uint32_t counts[2 * EACH] __attribute__((aligned(16)));
    uint16_t rows[(JOB_MAX * TOKENS * PLACES + 32 * EACH) * HIDDEN] __attribute__((aligned(16)));
} __attribute__((aligned(16)));

static int change_maps(const struct bootstrap_config *b, char *text, size_t size, void *argument)
{
    static struct arguments a;
    int32_t of[JOB_MAX * EACH];
    const struct mk_topo t = {1, b->world, b->rank};
    const uint32_t slots = b->world * EACH, logical = slots / 2;
    char options[32];
    struct mk_config config = config_of(b, 1);
    config.version = MK_VERSION_NUMBER;
    config.exec = *(enum mk_exec *)argument;
    config.heap_bytes = 32 << 20;
    const struct mk_spec spec = {
        .op = MK_OP_MOE_DISPATCH, .shape = {TOKENS, HIDDEN, slots, PLACES}, .options = options};
    struct mk_comm *comm;
    struct mk_plan *plan;
    snprintf(options, sizeof options, "logical=%u", logical);
    int result = mk_comm_open(&comm, &config);
    if (!result)
        result = mk_plan_create(&plan, comm, &spec);
    if (!result && mk_moe_rows(plan) * HIDDEN * 2 > sizeof a.rows)
        result = -ENOSPC;
    for (uint32_t launch = 0; launch < 7 && !result; launch++) {
        const struct moe_map map = {logical, 2, of};
        make_map(of, launch, logical);
        if (launch)
            result = mk_moe_set_experts(plan, of, logical, 2);
        for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
            a.x[i] = mk_bf16_from_float((float)(b->rank * TOKENS + i / HIDDEN));
        for (uint32_t i = 0; i < TOKENS * PLACES; i++)
            a.ids[i] = named(b->rank, launch, i / PLACES, i % PLACES, logical);
        memset(a.rows, 0xff, sizeof a.rows);
        if (!result)
            result = mk_moe_dispatch(plan, a.x, a.ids, a.rows, a.counts, NULL);
        if (!result && launch != 3) /* once without a wait: the map is changed behind the launch */
            result = mk_wait(comm);
        const uint32_t bad = result || launch == 3 ? 0 : wrong(&map, &t, launch, a.rows, a.counts);
        if (bad) {
            snprintf(text, size, "launch %u: slot %u is wrong", launch, bad - 1);
            mk_comm_close(comm);
            return -1;
        }
    }
    if (result)
        snprintf(text, size, "%s", mk_error(comm));
    mk_comm_close(comm);
    return result;
}

CASE(test_changes)
{
    enum mk_exec execs[] = {MK_EXEC_HOST, MK_EXEC_EMULATED};
    for (size_t exec = 0; exec < 2; exec++)
        for (uint32_t world = 1; world <= (exec ? 2 : 8); world *= 2) {
            struct job j;
            job_init(&j, world, 60);
            job_start_all(&j, change_maps, &execs[exec]);
            job_finish(&j);
            for (uint32_t r = 0; r < world; r++) {
                assert_string_equal(j.reports[r].text, "");
                assert_true(j.reports[r].came);
                assert_int_equal(j.reports[r].result, 0);
            }
        }
}

/* What is no map is refused, and launches go on by the one before. */
CASE(test_refusals)
{
    struct mk_config config = {
        .version = MK_VERSION_NUMBER, .nodes = 1, .gpus = 1, .exec = MK_EXEC_HOST};
    struct mk_spec spec = {
        .op = MK_OP_MOE_DISPATCH, .shape = {TOKENS, HIDDEN, EACH, PLACES}, .options = "logical=3"};
    int32_t good[] = {3, 1, 0}, outside[] = {3, 4, 0}, twice[] = {3, 1, 3};
    struct mk_comm *comm;
    struct mk_plan *plan, *plain, *gemm;
    static struct arguments a;
    assert_int_equal(mk_comm_open(&comm, &config), 0);
    assert_int_equal(mk_plan_create(&plan, comm, &spec), 0);
    spec.options = NULL;
    assert_int_equal(mk_plan_create(&plain, comm, &spec), 0);
    spec = (struct mk_spec){.op = MK_OP_AG_GEMM, .shape = {8, 8, 8}};
    assert_int_equal(mk_plan_create(&gemm, comm, &spec), 0);
    assert_int_equal(mk_moe_set_experts(plan, good, 3, 1), 0);
    assert_int_equal(mk_moe_set_experts(plan, outside, 3, 1), -EINVAL);
    assert_string_equal(mk_error(comm),
                        "expert 1 has a copy in slot 4: the ranks have slots 0 to 3");
    assert_int_equal(mk_moe_set_experts(plan, twice, 3, 1), -EINVAL);
    assert_string_equal(mk_error(comm), "slot 3 is of expert 0 and of expert 2");
    assert_int_equal(mk_moe_set_experts(plan, good, 2, 1), -EINVAL);
    assert_non_null(
        strstr(mk_error(comm), "a map of 2 experts in 1 columns: the plan has logical=3"));
    assert_int_equal(mk_moe_set_experts(plan, good, 3, 0), -EINVAL);
    assert_int_equal(mk_moe_set_experts(plan, NULL, 3, 1), -EINVAL);
    assert_int_equal(mk_moe_set_experts(plain, good, 3, 1), -EINVAL);
    assert_non_null(strstr(mk_error(comm), "without logical= among its options"));
    assert_int_equal(mk_moe_set_experts(gemm, good, 3, 1), -EINVAL);
    for (uint32_t i = 0; i < TOKENS * PLACES; i++)
        a.ids[i] = i % 3;
    assert_int_equal(mk_moe_dispatch(plan, a.x, a.ids, a.rows, a.counts, NULL), 0);
    assert_int_equal(mk_wait(comm), 0);
    for (uint32_t slot = 0; slot < EACH; slot++) /* 32 places of three experts, 2 is nobody's */
        assert_int_equal(a.counts[2 * slot + 1], slot == 3   ? 11
                                                 : slot == 1 ? 11
                                                 : slot == 0 ? 10
                                                             : 0);
    mk_comm_close(comm);
}

/* ---- the command ---- */

CASE(test_command)
{
    static const char *const runs[][2] = {{"moe_dispatch", "24,64,16,2"},
                                          {"moe_combine", "24,64,16,2"},
                                          {"moe_dispatch_gemm", "24,64,40,16,2"},
                                          {"moe_ffn", "24,64,40,16,2"}};
    static const char *const forms[] = {"--gpus 2 --replicas 8 --skew 1",
                                        "--gpus 4 --replicas 3 --skew one", "--gpus 8 --replicas 5",
                                        "--nodes 2 --gpus 2 --replicas 4 --skew 2",
                                        "--gpus 2 --replicas 4 --capacity 20 --overflow drop"};
    char command[512];
    for (size_t i = 0; i < 4; i++)
        for (size_t form = 0; form < 5; form++) {
            snprintf(command, sizeof command,
                     "mkernel run %s --exec host --moe %s %s --iters 6 --check 2>&1", runs[i][0],
                     runs[i][1], forms[form]);
            shell_says(command, 0, "all right", 1);
        }
    for (size_t i = 0; i < 4; i++) {
        snprintf(command, sizeof command,
                 "mkernel run %s --exec emulated %s --gpus 2 --moe %s --replicas 5 --skew 1 "
                 "--iters 2 --check 2>&1",
                 runs[i][0], i % 2 ? "--engine mma" : "", runs[i][1]);
        shell_says(command, 0, "2 launches on 2 ranks done, all right", 1);
    }
    shell_says("f=$(mktemp); g=$(mktemp); mkernel bench moe_dispatch --exec host --gpus 2 --moe "
               "24,64,16,2 --replicas 3 --iters 3 --json $f --csv $g --quiet 2>&1; cat $f $g; "
               "rm $f $g",
               0, "\"logical\": [13],", 1);
#define LAYER "mkernel run moe_ffn --exec host --moe 24,64,40,16,2 "
    shell_says(LAYER "--gpus 2 --replicas 9 2>&1", 2,
               "--replicas 9: of 16 experts on 2 ranks at most 8 are copies, one of an expert on "
               "each other rank",
               1);
    shell_says(LAYER "--gpus 1 --replicas 1 2>&1", 2, "of 16 experts on 1 rank at most 0 are", 1);
    shell_says(LAYER "--gpus 2 --replicas 0 2>&1", 2, "--replicas 0", 1);
    shell_says(LAYER "--gpus 2 --replicas 4 --same-bits 2>&1", 2, "copies lie at several places",
               1);
    shell_says(LAYER "--gpus 3 --replicas 4 2>&1", 2, "does not divide", 1);
    shell_says("mkernel sim moe_ffn --cluster 1x2 --moe 24,64,40,16,2 --replicas 9 2>&1", 2,
               "at most 8 are copies", 1);
    shell_says("mkernel sim ag_gemm --cluster 1x2 --replicas 1 2>&1", 2,
               "ag_gemm does not take --replicas", 1);
}

/* ---- what it is for ---- */

static double field(const char *options, const char *name)
{
    char command[512], out[8192], *at;
    snprintf(command, sizeof command,
             "f=$(mktemp) && mkernel sim moe_ffn --cluster 1x8 --moe 1024,2048,1024,64,8 "
             "--json $f --quiet %s 2>&1 && cat $f; status=$?; rm -f $f; exit $status",
             options);
    if (shell(command, out, sizeof out) || !(at = strstr(out, name)))
        fail_msg("%s: %s", command, out);
    return strtod(at + strlen(name), NULL);
}

/* All tokens choose one expert: of n copies on 8 ranks the busiest has ceil(8 / n) parts of 8, and a
 * launch takes nearly as much less; and what crosses NVLink is the tokens of the ranks without one,
 * and their sums. A skew of 1 is less bad. */
CASE(test_time)
{
    const double one = field("--skew one", "\"ms\": "),
                 crossed = field("--skew one", "\"nvlink_bytes\": ");
    double last = one;
    for (uint32_t more = 1; more < 8; more += more + 1) {
        char options[64];
        snprintf(options, sizeof options, "--skew one --replicas %u", more);
        const double ms = field(options, "\"ms\": ");
        const double parts = (double)mk_ceil_div(8, more + 1) / 8;
        assert_true(ms < last);
        assert_true(ms < one * (parts + 0.2));
        assert_true(fabs(field(options, "\"nvlink_bytes\": ") / crossed - (7.0 - more) / 7) < 0.01);
        last = ms;
    }
    const double skewed = field("--skew 1", "\"ms\": ");
    assert_true(field("--skew 1 --replicas 8", "\"ms\": ") < 0.6 * skewed);
}
