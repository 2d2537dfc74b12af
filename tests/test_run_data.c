/* What a launch leaves unwritten is wrong: before every launch its C is poisoned and its inputs are
 * new, so that neither an element that nobody stored nor the last launch's right result passes the
 * check. */
#include "experiments/job/run.h"
#include "core/bf16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

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

static void test_nothing_written(void **state)
{
    assert_int_equal(run_data_fill(&d, 0, 1), 0);
    struct check_result r = check(1);
    assert_int_equal(r.wrong, M * N);
    assert_true(isinf(check_error(&r))); /* NaN, not what happened to be there */
    assert_false(check_right(&r));
}

static void test_one_left_out(void **state)
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
static void test_stale(void **state)
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_written),
        cmocka_unit_test(test_one_left_out),
        cmocka_unit_test(test_stale),
    };
    return cmocka_run_group_tests(tests, open_data, close_data);
}
