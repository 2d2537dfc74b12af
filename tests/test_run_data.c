/* What a launch leaves unwritten is wrong: before every launch its C is poisoned and its inputs are
 * new, so that neither an element that nobody stored nor the last launch's right result passes the
 * check. */
#include "experiments/job/run.h"
#include "core/base/bf16.h"

#include <math.h>
#include "tests/helpers/test.h"

enum { M = 24, N = 40, K = 16 };

static struct run_job job = {.options = {.seed = 5, .check = 1, .nodes = 1, .gpus = 1},
                             .identity = {.rank = 0, .world = 1},
                             .problem = {.op = MK_OP_AG_GEMM,
                                         .exec = MK_EXEC_HOST,
                                         .m = M,
                                         .n = N,
                                         .k = K,
                                         .topo = {.nodes = 1, .gpus = 1}},
                             .burst = 1};
static struct run_data d;

static int open_data(void **state)
{
    job.plan.problem = job.problem; /* what plan_build would have filled in */
    return run_data_open(&d, &job);
}

static int close_data(void **state)
{
    run_data_close(&d);
    return 0;
}

static uint16_t *argument(uint32_t i)
{
    return run_data_at(&d, 0, i);
}

static void compute(void)
{
    const uint16_t *a = argument(0), *b = argument(1);
    for (int i = 0; i < M * N; i++) {
        float sum = 0;
        for (int k = 0; k < K; k++)
            sum += mk_bf16_to_float(a[i / N * K + k]) * mk_bf16_to_float(b[k * N + i % N]);
        argument(2)[i] = mk_bf16_from_float(sum);
    }
}

static struct check_result check(uint64_t launch)
{
    struct check_result r = {0};
    assert_int_equal(run_data_check(&d, 0, launch, NULL, &r), 0);
    assert_int_equal(r.elements, M * N);
    return r;
}

CASE(test_nothing_written)
{
    assert_int_equal(run_data_fill(&d, 0, 1), 0);
    struct check_result r = check(1);
    assert_int_equal(r.wrong, M * N);
    assert_true(isinf(check_error(&r))); /* NaN, not what happened to be there */
    assert_false(check_right(&r));
}

CASE(test_one_left_out)
{
    assert_int_equal(run_data_fill(&d, 0, 2), 0);
    uint16_t poison = argument(2)[M * N - 1];
    compute();
    struct check_result r = check(2);
    assert_true(check_right(&r));
    argument(2)[M * N - 1] = poison;
    r = check(2);
    assert_int_equal(r.wrong, 1);
    assert_false(check_right(&r));
}

/* The result of launch 3 is still in memory when launch 4 begins: as C, and as what its inputs
 * would give. */
CASE(test_stale)
{
    assert_int_equal(run_data_fill(&d, 0, 3), 0);
    compute();
    struct check_result r = check(3);
    assert_true(check_right(&r));
    r = check(4); /* nobody filled anything in: launch 3's C under launch 4's reference */
    assert_false(check_right(&r));
    assert_true(r.wrong > M * N / 2);
    assert_int_equal(run_data_fill(&d, 0, 4), 0);
    r = check(4);
    assert_int_equal(r.wrong, M * N);
    assert_true(isinf(check_error(&r)));
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

FIXTURE(open_data, close_data)
