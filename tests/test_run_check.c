/* `--check` can fail for every operator: it calls what a launch has made right, and wrong once any
 * one element of any output is left unwritten or is another number, or where the output is the last
 * launch's. */
#include "core/comm/comm.h"
#include "experiments/job/run.h"

#include <math.h>
#include <unistd.h>
#include "tests/helpers/test.h"

/* One line each, with the number of its outputs. */
static const struct {
    struct mk_problem problem;
    int outputs;
} cases[] = {
    {{.op = MK_OP_AG_GEMM, .m = 24, .n = 40, .k = 16}, 1},
    {{.op = MK_OP_GEMM_RS, .m = 24, .n = 40, .k = 16}, 1},
    {{.op = MK_OP_GEMM_AR, .m = 24, .n = 40, .k = 16, .deterministic = 1}, 1},
    {{.op = MK_OP_RING_ATTENTION, .attention = {2, 33, 4, 2, 64, 0, 0}}, 2},
    {{.op = MK_OP_RING_ATTENTION, .attention = {1, 34, 2, 2, 128, 1, 0}}, 2},
    {{.op = MK_OP_MOE_DISPATCH_GEMM, .moe = {13, 64, 40, 6, 3}}, 2},
    {{.op = MK_OP_MOE_FFN, .moe = {13, 64, 40, 6, 3}}, 1},
    {{.op = MK_OP_MOE_DISPATCH, .moe = {13, 64, 0, 6, 3}}, 2},
    {{.op = MK_OP_MOE_DISPATCH, .moe = {13, 144, 0, 6, 3}, .fp8 = 1}, 2},
    {{.op = MK_OP_MOE_COMBINE, .moe = {13, 64, 0, 6, 3}}, 1},
    {{.op = MK_OP_MOE_FFN, .moe = {13, 64, 40, 6, 3}, .deterministic = 1}, 1},
};

static struct run_job job;
static struct run_data d;
static struct mk_comm *comm;
static struct mk_plan *plan;
static uint8_t *poisoned[RUN_ARGUMENTS]; /* the outputs before the launch */

/* One rank with its own communicator; its launch 1 is not run yet. */
static void begin(const struct mk_problem *problem)
{
    struct mk_config config = {.version = MK_VERSION_NUMBER,
                               .exec = MK_EXEC_HOST,
                               .nodes = 1,
                               .gpus = 1,
                               .host = "127.0.0.1",
                               .listen_fd = -1,
                               .heap_bytes = 16 << 20};
    snprintf(config.token, sizeof config.token, "check-%d", (int)getpid());
    memset(&job, 0, sizeof job);
    job.options =
        (struct run_options){.op = problem->op, .seed = 5, .check = 1, .nodes = 1, .gpus = 1};
    job.identity = (struct run_identity){.world = 1};
    job.problem = *problem;
    job.problem.topo = (struct mk_topo){.nodes = 1, .gpus = 1};
    job.burst = 1;
    assert_int_equal(mk_comm_open(&comm, &config), 0);
    assert_int_equal(comm_make_plan(&plan, comm, &job.problem), 0);
    job.plan = *plan;
    assert_int_equal(run_data_open(&d, &job), 0);
    assert_int_equal(run_data_fill(&d, 0, 1), 0);
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++)
        if (d.outputs >> i & 1)
            memcpy(poisoned[i] = malloc(d.bytes[i]), run_data_at(&d, 0, i), d.bytes[i]);
}

static void end(void)
{
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++) {
        free(poisoned[i]);
        poisoned[i] = NULL;
    }
    run_data_close(&d);
    mk_comm_close(comm);
}

static void launch(void)
{
    void *const *a = d.memory;
    int result = -1;
    switch (job.problem.op) {
    case MK_OP_AG_GEMM:
        result = mk_ag_gemm(plan, a[0], a[1], a[2], NULL);
        break;
    case MK_OP_GEMM_RS:
        result = mk_gemm_rs(plan, a[0], a[1], a[2], NULL);
        break;
    case MK_OP_GEMM_AR:
        result = mk_gemm_ar(plan, a[0], a[1], a[2], NULL);
        break;
    case MK_OP_RING_ATTENTION:
        result = mk_ring_attention(plan, a[0], a[1], a[2], a[3], a[4], NULL);
        break;
    case MK_OP_MOE_DISPATCH_GEMM:
        result = mk_moe_dispatch_gemm(plan, a[0], a[1], a[2], a[3], a[4], NULL);
        break;
    case MK_OP_MOE_DISPATCH:
        result = mk_moe_dispatch(plan, a[0], a[1], a[2], a[3], NULL);
        break;
    case MK_OP_MOE_COMBINE:
        result = mk_moe_combine(plan, a[0], a[1], a[2], a[3], NULL);
        break;
    default:
        result = mk_moe_ffn(plan, a[0], a[1], a[2], a[3], a[4], a[5], NULL);
    }
    assert_int_equal(result, 0);
    assert_int_equal(mk_wait(comm), 0);
}

static struct check_result check(uint64_t number)
{
    struct check_result r = {0};
    assert_int_equal(run_data_check(&d, 0, number, NULL, &r), 0);
    return r;
}

static void expect_wrong(uint32_t output, uint64_t place, const char *what)
{
    struct check_result r = check(1);
    if (!r.wrong || check_right(&r) || (job.problem.op == MK_OP_AG_GEMM && r.wrong != 1))
        fail_msg("%s: %s at place %llu of argument %u is called right",
                 plan_op_name(job.problem.op), what, (unsigned long long)place, output);
}

/* Before every launch a product's C is NaN, not what happened to be there. */
static void expect_nothing_written(const struct check_result *r)
{
    if (job.problem.op > MK_OP_GEMM_RS)
        return;
    assert_true(r->elements && r->wrong == r->elements);
    assert_true(isinf(check_error(r)));
}

/* Which output are rows of experts, with the table of them behind; 0: none. */
static uint32_t rows_output(void)
{
    return job.problem.op == MK_OP_MOE_DISPATCH_GEMM ? 3
           : job.problem.op == MK_OP_MOE_DISPATCH    ? 2
                                                     : 0;
}

/* Bytes of an element: lse is float, a table of rows has words. */
static size_t width_of(uint32_t output)
{
    return (output == 4 && job.problem.op != MK_OP_MOE_FFN) ||
                   (rows_output() && output == rows_output() + 1)
               ? 4
               : 2;
}

/* What lies between the experts' rows is nobody's. */
static int counts(uint32_t output, uint64_t place)
{
    if (!rows_output() || output != rows_output())
        return 1;
    const uint32_t *rows = run_data_at(&d, 0, output + 1);
    const uint64_t row = d.bytes[output] / plan->problem.m / 2;
    for (uint64_t e = 0; e < job.problem.moe.experts; e++)
        if (place / row - rows[2 * e] < rows[2 * e + 1])
            return 1;
    return 0;
}

static uint32_t spoil_places(uint32_t output)
{
    size_t width = width_of(output);
    int gaps = rows_output() && output == rows_output();
    uint64_t all = d.bytes[output] / width, step = all / (gaps ? 397 : 37) + 1;
    uint32_t spoilt = 0;
    for (uint64_t place = all - 1; place < all;
         place -= step) { /* the last one first; ends by going below 0 */
        uint8_t *at = (uint8_t *)run_data_at(&d, 0, output) + place * width, kept[4];
        if (!counts(output, place))
            continue;
        memcpy(kept, at, width);
        memcpy(at, poisoned[output] + place * width, width);
        expect_wrong(output, place, "what nobody wrote");
        memcpy(at, kept, width);
        at[width - 1] ^= 0x40; /* of a number, the exponent */
        expect_wrong(output, place, "another number");
        memcpy(at, kept, width);
        spoilt++;
    }
    return spoilt;
}

CASE(test_each)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(&cases[i].problem);
        assert_int_equal(__builtin_popcount(d.outputs), cases[i].outputs);
        struct check_result r = check(1);
        assert_true(r.wrong && !check_right(&r)); /* nothing has run */
        expect_nothing_written(&r);
        launch();
        r = check(1);
        assert_true(r.elements && check_right(&r));
        for (uint32_t output = 0; output < RUN_ARGUMENTS; output++)
            if (d.outputs >> output & 1)
                assert_true(spoil_places(output) >= 12);
        r = check(1);
        assert_true(check_right(&r));
        r = check(2); /* the last launch's results under this one's inputs */
        assert_true(r.wrong && !check_right(&r));
        assert_int_equal(run_data_fill(&d, 0, 2), 0);
        r = check(2);
        expect_nothing_written(&r);
        end();
    }
}

/* --skew S: expert e gets about as many times fewer tokens than expert 0 as (e + 1)^S says, where
 * each token names one; and none is named twice by a token. */
CASE(test_skew)
{
    enum { TOKENS = 20000, EXPERTS = 8 };
    static uint32_t ids[TOKENS * 3];
    struct run_job j = {.options = {.seed = 3}, .skew = 1.2};
    const struct run_data skewed = {.job = &j};
    double counts[EXPERTS] = {0};
    j.problem = (struct mk_problem){.op = MK_OP_MOE_DISPATCH_GEMM,
                                    .topo = {.nodes = 1, .gpus = 1},
                                    .moe = {TOKENS, 8, 8, EXPERTS, 1}};
    run_data_ids(&skewed, 0, 1, ids);
    for (uint32_t i = 0; i < TOKENS; i++)
        counts[ids[i]]++;
    for (uint32_t e = 1; e < EXPERTS; e++) {
        double wanted = counts[0] * pow(e + 1, -1.2);
        assert_true(fabs(counts[e] - wanted) < 5 * sqrt(wanted) + 0.05 * wanted);
    }
    j.problem.moe.k = 3;
    run_data_ids(&skewed, 0, 2, ids);
    for (uint32_t i = 0; i < TOKENS; i++) {
        const uint32_t *own = ids + i * 3;
        assert_true(own[0] != own[1] && own[0] != own[2] && own[1] != own[2]);
        assert_true(own[0] < EXPERTS && own[1] < EXPERTS && own[2] < EXPERTS);
    }
}
