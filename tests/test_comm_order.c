/* Ranks that make different calls once their plans exist all get one sentence about it within a
 * second, of every operator, on the host and on emulated GPUs, on one node and between two; ranks
 * that are late, or ahead, get none. */
/* WAITS */
#define OWN_MAIN
#include "tests/helpers/test.h"
#include "core/base/clock.h"
#include "core/comm/comm.h"
#include "core/ops/op.h"
#include "tests/helpers/ranks.h"

#define TIMEOUT_NS 30000000000ull
#define TOLD_S 10.0 /* 0.4 where nothing else runs; a busy machine adds what it likes */

/* What is asked of the ranks' processes. */
static uint32_t asked_op(void)
{
    return (uint32_t)atoi(getenv("ORDER_OP"));
}

static struct mk_comm *open_comm(const struct ranks_identity *id)
{
    struct mk_config config = {.version = MK_VERSION_NUMBER,
                               .exec = (enum mk_exec)atoi(getenv("ORDER_EXEC")),
                               .rank = id->rank,
                               .nodes = id->nodes,
                               .gpus = id->gpus,
                               .port = id->port,
                               .listen_fd = id->listen_fd,
                               .heap_bytes = 128 << 20,
                               .timeout_ns = TIMEOUT_NS,
                               .tuning = "none",
                               .nic = "soft"};
    struct mk_comm *comm = NULL;
    snprintf(config.token, sizeof config.token, "%s", id->token);
    REQUIRE(mk_comm_open(&comm, &config) == 0);
    return comm;
}

/* A plan with its arguments, all zeros. */
struct call {
    struct mk_plan *plan;
    void *arguments[MK_SPACES - 1];
};

static struct call call_make(const struct ranks_identity *id, struct mk_comm *comm, uint32_t op,
                             uint64_t times, const char *options)
{
    struct mk_spec spec = {.op = op, .options = options};
    struct call c;
    memset(&c, 0, sizeof c);
    op_of((enum mk_op)op)->choose_shape(OP_SIZE_EXPLORE, id->nodes * id->gpus, spec.shape);
    spec.shape[0] *= times;
    REQUIRE(mk_plan_create(&c.plan, comm, &spec) == 0);
    for (uint32_t i = 0; i < mk_plan_arguments(c.plan); i++) {
        uint64_t bytes = mk_round_up(mk_plan_argument_bytes(c.plan, i), 64);
        c.arguments[i] = aligned_alloc(64, bytes ? bytes : 64);
        memset(c.arguments[i], 0, bytes);
    }
    return c;
}

static int call_launch(const struct call *c)
{
    return mk_launch(c->plan, (void *const *)c->arguments, mk_plan_arguments(c->plan), NULL);
}

static void call_run(const struct ranks_identity *id, struct mk_comm *comm, const struct call *c)
{
    REQUIRE(call_launch(c) == 0);
    REQUIRE(mk_wait(comm) == 0);
}

/* All ranks have failed with this sentence, and in time since `began`. */
static void is_told(const struct ranks_identity *id, struct mk_comm *comm, int result,
                    uint64_t began, const char *a, const char *b)
{
    double seconds = (double)(mk_now_ns() - began) / 1e9;
    REQUIRE(result == -EIO);
    REQUIRE(strstr(mk_error(comm), a) && strstr(mk_error(comm), b));
    REQUIRE(strstr(mk_error(comm), "all ranks must make the same calls in the same order"));
    REQUIRE(seconds < TOLD_S);
    mk_comm_close(comm);
}

/* ---- what a rank does ---- */

/* The last rank launches another shape than the others. */
static int scene_shapes(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id);
    struct call one = call_make(id, comm, asked_op(), 1, NULL),
                two = call_make(id, comm, asked_op(), 2, NULL);
    int last = id->rank + 1 == id->nodes * id->gpus;
    char says[64];
    call_run(id, comm, &one);
    call_run(id, comm, &two);
    uint64_t began = mk_now_ns();
    REQUIRE(call_launch(last ? &two : &one) == 0);
    int result = mk_wait(comm);
    snprintf(says, sizeof says, "launches %s ", mk_op_name(asked_op()));
    is_told(id, comm, result, began, says, "where rank");
    return 0;
}

/* Rank 1 launches another operator, which another option makes another plan of. */
static int scene_operators(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id);
    struct call one = call_make(id, comm, MK_OP_AG_GEMM, 1, NULL),
                two = call_make(id, comm, MK_OP_GEMM_AR, 1, NULL);
    call_run(id, comm, &one);
    call_run(id, comm, &two);
    uint64_t began = mk_now_ns();
    REQUIRE(call_launch(id->rank == 1 ? &two : &one) == 0);
    is_told(id, comm, mk_wait(comm), began, "launches ag_gemm", "launches gemm_ar");
    return 0;
}

static int scene_options(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id);
    struct call one = call_make(id, comm, MK_OP_AG_GEMM, 1, NULL),
                two = call_make(id, comm, MK_OP_AG_GEMM, 1, "epilogue=silu");
    call_run(id, comm, &one);
    call_run(id, comm, &two);
    uint64_t began = mk_now_ns();
    REQUIRE(call_launch(id->rank == 1 ? &two : &one) == 0);
    is_told(id, comm, mk_wait(comm), began, "launches ag_gemm", "(another epilogue)");
    return 0;
}

/* Rank 1 leaves a launch out and goes on: with another, with a plan, with the end. */
static int scene_left_out(const struct ranks_identity *id, const char *then)
{
    struct mk_comm *comm = open_comm(id);
    struct call one = call_make(id, comm, MK_OP_AG_GEMM, 1, NULL);
    call_run(id, comm, &one);
    uint64_t began = mk_now_ns();
    if (id->rank != 1) {
        REQUIRE(call_launch(&one) == 0);
        is_told(id, comm, mk_wait(comm), began, "launches ag_gemm", then);
        return 0;
    }
    struct mk_spec spec = {.op = MK_OP_GEMM_AR, .shape = {16, 16, 16}};
    struct mk_plan *plan;
    if (strstr(then, "makes"))
        is_told(id, comm, mk_plan_create(&plan, comm, &spec), began, "launches ag_gemm", then);
    else if (strstr(then, "destroys"))
        is_told(id, comm, mk_plan_destroy(one.plan), began, "launches ag_gemm", then);
    else
        mk_comm_close(comm);
    REQUIRE(mk_now_ns() - began < TOLD_S * 1e9);
    return 0;
}

static int scene_then_plan(const struct ranks_identity *id)
{
    return scene_left_out(id, "rank 1 makes another plan, of gemm_ar");
}

static int scene_then_destroy(const struct ranks_identity *id)
{
    return scene_left_out(id, "rank 1 destroys a plan of ag_gemm");
}

static int scene_then_close(const struct ranks_identity *id)
{
    return scene_left_out(id, "rank 1 closes its communicator");
}

/* One makes a plan where the other destroys one. */
static int scene_plans(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id);
    struct call one = call_make(id, comm, MK_OP_AG_GEMM, 1, NULL);
    struct mk_spec spec = {.op = MK_OP_GEMM_AR, .shape = {16, 16, 16}};
    struct mk_plan *plan;
    int result = id->rank ? mk_plan_create(&plan, comm, &spec) : mk_plan_destroy(one.plan);
    REQUIRE(result == -EINVAL && strstr(mk_error(comm), "rank 1 plans where rank 0 destroys"));
    call_run(id, comm, &one);
    mk_comm_close(comm);
    return 0;
}

/* Ranks that are late by turns, in launches, before them and before a plan, are not accused. */
static int scene_late(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id);
    struct call one = call_make(id, comm, MK_OP_AG_GEMM, 1, NULL),
                two = call_make(id, comm, MK_OP_GEMM_AR, 1, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        REQUIRE(call_launch(&one) == 0);
        if (i % 2 == id->rank % 2)
            nanosleep(&(struct timespec){0, 700000000}, NULL);
        REQUIRE(call_launch(&two) == 0);
        if (i % 2 != id->rank % 2)
            nanosleep(&(struct timespec){0, 700000000}, NULL);
        if (i == 1) {
            REQUIRE(mk_wait(comm) == 0);
            if (id->rank == 0)
                nanosleep(&(struct timespec){0, 700000000}, NULL);
            struct call three = call_make(id, comm, MK_OP_GEMM_RS, 1, NULL);
            call_run(id, comm, &three);
            if (id->rank == 1)
                nanosleep(&(struct timespec){0, 700000000}, NULL);
            REQUIRE(mk_plan_destroy(three.plan) == 0);
        }
    }
    REQUIRE(mk_wait(comm) == 0);
    if (id->rank == 1)
        nanosleep(&(struct timespec){0, 700000000}, NULL);
    mk_comm_close(comm);
    return 0;
}

/* ---- tests ---- */

static void end_well(const char *scene, enum mk_exec exec, uint32_t op, uint32_t nodes,
                     uint32_t gpus)
{
    int statuses[RANKS_MAX];
    char number[16];
    snprintf(number, sizeof number, "%d", (int)exec);
    setenv("ORDER_EXEC", number, 1);
    snprintf(number, sizeof number, "%u", op);
    setenv("ORDER_OP", number, 1);
    ranks_run(scene, nodes, gpus, 60, statuses);
    for (uint32_t rank = 0; rank < nodes * gpus; rank++) {
        if (statuses[rank])
            print_message("%s, executor %d, %s, %u x %u: rank %u ended with %#x\n", scene,
                          (int)exec, mk_op_name(op), nodes, gpus, rank, statuses[rank]);
        assert_int_equal(statuses[rank], 0);
    }
}

CASE(every_operator_on_the_host)
{
    for (uint32_t op = 0; op < MK_OPS; op++) {
        end_well("shapes", MK_EXEC_HOST, op, 1, 2);
        if (ranks_have_softnic())
            end_well("shapes", MK_EXEC_HOST, op, 2, 1);
    }
    end_well("shapes", MK_EXEC_HOST, MK_OP_AG_GEMM, 1, 4);
}

CASE(every_operator_on_emulated_gpus)
{
    for (uint32_t op = 0; op < MK_OPS; op++)
        end_well("shapes", MK_EXEC_EMULATED, op, 1, 2);
}

CASE(operators_and_options)
{
    end_well("operators", MK_EXEC_HOST, MK_OPS, 1, 2);
    end_well("operators", MK_EXEC_HOST, MK_OPS, 1, 3);
    end_well("options", MK_EXEC_HOST, MK_OPS, 1, 2);
}

CASE(a_launch_that_is_left_out)
{
    end_well("then_plan", MK_EXEC_HOST, MK_OPS, 1, 2);
    end_well("then_destroy", MK_EXEC_HOST, MK_OPS, 1, 2);
    end_well("then_close", MK_EXEC_HOST, MK_OPS, 1, 2);
    end_well("then_close", MK_EXEC_HOST, MK_OPS, 1, 3);
    end_well("plans", MK_EXEC_HOST, MK_OPS, 1, 2);
}

CASE(late_ranks_are_not_accused)
{
    end_well("late", MK_EXEC_HOST, MK_OPS, 1, 2);
    end_well("late", MK_EXEC_EMULATED, MK_OPS, 1, 3);
}

int main(int argc, char **argv)
{
    static const struct ranks_scene scenes[] = {{"shapes", scene_shapes},
                                                {"operators", scene_operators},
                                                {"options", scene_options},
                                                {"then_plan", scene_then_plan},
                                                {"then_destroy", scene_then_destroy},
                                                {"then_close", scene_then_close},
                                                {"plans", scene_plans},
                                                {"late", scene_late}};
    const int status = ranks_play(argc, argv, scenes, sizeof scenes / sizeof *scenes);
    return status < 0 ? cmocka_run_group_tests(test_cases, NULL, NULL) : status;
}
