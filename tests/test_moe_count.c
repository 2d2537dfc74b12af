/* How many tokens a rank has is read by each launch, of a plan that says so ("tokens=launch"): one plan
 * serves every batch, ranks with none among them, and more than it has room for, or fewer than none,
 * end the launch on every rank with a sentence. What lies behind the count names experts, so whoever
 * looks at it is found. */
#include "tests/helpers/ops.h"

#include "tests/helpers/hopper_moe.h"
#include "core/comm/comm_parts.h"
#include "sim/ops/exact_moe.h"
#include "tests/helpers/free_port.h"
#include "tests/helpers/shell.h"
#include "core/plan/plan_fields.h"

static const uint32_t forms[][2] = {{1, 1}, {1, 3}, {2, 2}, {3, 1}};
enum { FORMS = sizeof forms / sizeof *forms };
static const enum mk_op ops[] = {MK_OP_MOE_DISPATCH, MK_OP_MOE_COMBINE, MK_OP_MOE_DISPATCH_GEMM,
                                 MK_OP_MOE_FFN};
enum { COUNTED = sizeof ops / sizeof *ops };

static char error[512];

/* ---- the plan ---- */

static const char *spec_says(enum mk_op op, const char *options, struct mk_problem *q)
{
    struct mk_spec spec = {.op = op, .shape = {64, 64, 8, 4, 2}, .options = options};
    for (uint32_t i = op_dimensions(op_of(op)->shape); i < MK_SHAPE; i++)
        spec.shape[i] = 0;
    error[0] = '\0';
    return spec_to_problem(q, &spec, error, sizeof error) ? error : "";
}

/* It takes one argument more, the last, of FP8 too; without the word, or with "plan", it does not. */
CASE(test_plan)
{
    static const char *const words[] = {"tokens=launch", "tokens=plan", ""};
    struct mk_problem q;
    for (size_t i = 0; i < COUNTED; i++)
        for (int fp8 = 0; fp8 <= (ops[i] != MK_OP_MOE_COMBINE); fp8++)
            for (size_t word = 0; word < 3; word++) {
                char options[64];
                uint64_t bytes[MK_SPACES - 1];
                snprintf(options, sizeof options, "%s%s", words[word], fp8 ? " dtype=fp8" : "");
                assert_string_equal(spec_says(ops[i], options, &q), "");
                uint32_t last = op_arguments(&q) - 1;
                assert_int_equal(op_counted(&q), word == 0);
                assert_int_equal(!strcmp(op_argument(&q, last)->name, "count"), word == 0);
                op_extents(&q, bytes);
                if (word == 0)
                    assert_int_equal(bytes[last], 4);
            }
    assert_non_null(strstr(spec_says(MK_OP_MOE_FFN, "tokens=some", &q),
                           "it should be tokens=plan or tokens=launch"));
    assert_non_null(strstr(spec_says(MK_OP_AG_GEMM, "tokens=launch", &q),
                           "ag_gemm has no tokens; it is of moe_"));
}

/* ---- counts that differ ---- */

/* In orders that are drawn; some ranks have none, or drop what does not fit. */
CASE(test_orders)
{
    uint32_t none = 0, ranks = 0;
    for (size_t i = 0; i < COUNTED; i++)
        for (size_t form = 0; form < FORMS; form++)
            for (uint64_t seed = 1; seed <= 16 / OPS_PART + 1; seed++) {
                struct sim_world_config c = ops_config(ops[i], forms[form], ops_shapes[1]);
                const struct mk_plan plan = {.problem = c.problem};
                c.seed = seed;
                c.launches = 6;
                c.order = seed % 2 ? SIM_ORDER_SRD : SIM_ORDER_RC;
                plan_field_set(plan_field_named("tokens"), &c.problem, 1);
                if (seed % 4 == 3) {
                    plan_field_set(plan_field_named("capacity"), &c.problem,
                                   8 * mk_world(&c.problem.topo));
                    plan_field_set(plan_field_named("overflow"), &c.problem, 1);
                }
                world_right(&c);
                for (uint64_t launch = 1; launch <= c.launches; launch++)
                    for (uint32_t rank = 0; rank < mk_world(&c.problem.topo); rank++, ranks++)
                        none += !exact_moe_count(&plan, seed, launch, rank);
            }
    assert_true(none > ranks / 20);
}

/* 200 launches of one plan. */
CASE(test_many)
{
    for (size_t i = 0; i < COUNTED; i++) {
        struct sim_world_config c = ops_config(ops[i], forms[1], ops_shapes[3]);
        c.seed = 5 + i;
        c.launches = 200 / OPS_PART;
        plan_field_set(plan_field_named("tokens"), &c.problem, 1);
        world_right(&c);
    }
}

/* By the kernels' own code. */
CASE(test_kernels)
{
    for (size_t i = 0; i < COUNTED; i++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            const int rows = ops[i] == MK_OP_MOE_DISPATCH || ops[i] == MK_OP_MOE_COMBINE;
            struct sim_world_config c = hopper_moe_config(ops[i], 1 + seed % 2, 2 - seed % 2, seed);
            if (rows)
                hopper_moe_of_rows(&c, 64, 2);
            c.problem.moe.tokens = 21;
            c.launches = 5;
            c.unwatched = 1;
            plan_field_set(plan_field_named("tokens"), &c.problem, 1);
            world_right(&c);
        }
}

/* ---- counts that nobody has room for ---- */

static const struct sim_op *spoilt;
static uint32_t spoilt_count;

/* The last rank's, in the third launch. */
static void fill_too_many(const struct sim_launch *l)
{
    spoilt->fill(l);
    if (l->launch == 3 && l->plan->problem.topo.rank + 1 == mk_world(&l->plan->problem.topo))
        *(uint32_t *)l->arguments[op_arguments(&l->plan->problem) - 1] = spoilt_count;
}

CASE(test_too_many)
{
    for (size_t i = 0; i < COUNTED; i++)
        for (size_t form = 0; form < FORMS; form++)
            for (int below = 0; below < 2; below++) {
                struct sim_world_config c = ops_config(ops[i], forms[form], ops_shapes[1]);
                struct sim_world_result result;
                struct sim_op op = *sim_op_of(ops[i]);
                char text[160];
                const int tokens = (int)c.problem.moe.tokens, said = below ? -2 : tokens + 1;
                spoilt = sim_op_of(ops[i]);
                spoilt_count = (uint32_t)said;
                op.fill = fill_too_many;
                c.op = &op;
                c.launches = 4;
                c.seed = 1 + i + form;
                plan_field_set(plan_field_named("tokens"), &c.problem, 1);
                assert_int_equal(sim_world_run(&c, &result), -EIO);
                assert_int_equal(result.failure.kind, MK_FAIL_OVERFLOW);
                snprintf(text, sizeof text,
                         "rank %u has %d tokens by its count in epoch 3, and its plan has room for "
                         "0 to %d;",
                         mk_world(&c.problem.topo) - 1, said, tokens);
                if (!strstr(result.sentence, text))
                    fail_msg("%s", result.sentence);
            }
}

/* ---- the command ---- */

CASE(test_command)
{
    char command[1024];
    shell_says("mkernel run moe_ffn --exec host --gpus 2 --moe 24,64,40,8,2 --tokens-now random "
               "--iters 200 --burst 20 --check 2>&1",
               0, "200 launches on 2 ranks done, all right", 1);
    shell_says("mkernel run moe_dispatch --exec emulated --gpus 2 --moe 24,64,8,2 --tokens-now "
               "0,24,7,1,0 --iters 5 --check 2>&1",
               0, "5 launches on 2 ranks done, all right", 1);
    shell_says("mkernel run moe_ffn --exec host --moe 24,64,40,8,2 --tokens-now 3,25 2>&1", 2,
               "numbers from 0 to 24, or random", 1);
    shell_says("mkernel run moe_ffn --exec host --moe 24,64,40,8,2 --tokens-now -1 2>&1", 2,
               "numbers from 0 to 24, or random", 1);
    shell_says("mkernel bench moe_ffn --exec host --tokens-now 3 2>&1", 2, "is for run", 1);
    shell_says("mkernel run ag_gemm --exec host --tokens-now 3 2>&1", 2,
               "ag_gemm does not take --tokens-now", 1);
    /* every rank's process says it, and ends with 3 */
    snprintf(
        command, sizeof command,
        "for r in 0 1 2; do (RANK=$r LOCAL_RANK=$r WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 "
        "MASTER_ADDR=127.0.0.1 MASTER_PORT=%d MKERNEL_TEST_TOKENS=1,25 mkernel run "
        "moe_dispatch --exec host --gpus 3 --moe 24,64,9,2 --tokens-now random --iters 2 2>&1; "
        "echo status $?) & done; wait",
        free_port());
    shell_says(command, 0, "rank 1 has 25 tokens by its count in epoch 1", 3);
}
