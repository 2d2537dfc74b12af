/* AllGather+GEMM computes from the right bytes in a thousand random orders of its steps, on every form of
 * cluster, with RC's and with SRD's order of delivery. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/helpers/world.h"

struct form {
    uint32_t nodes, gpus, seeds;
    uint64_t m, n, k;
};

/* Drawn small enough that the thousand ends in seconds; the first is the shape that divides nothing. */
static const struct form forms[] = {
    {3, 2, 160, 390, 200, 328},   {1, 1, 20, 390, 200, 328},    {8, 1, 120, 8 * 49, 72, 136},
    {1, 8, 120, 8 * 49, 72, 136}, {2, 2, 200, 4 * 97, 72, 136}, {2, 4, 120, 8 * 49, 72, 136},
    {4, 2, 120, 8 * 33, 40, 72},  {1, 2, 160, 2 * 130, 40, 72}, {3, 3, 60, 9 * 17, 24, 40},
};

/* One thread: the thread sanitizer has nothing to find in the orders, only in the switching of stacks. */
#ifdef __SANITIZE_THREAD__
#define PART 20
#else
#define PART 1
#endif

static uint64_t explored;

static void explore(const struct form *f)
{
    struct coroutine_pool *pool;
    struct sim_world_result result;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint64_t seed = 0; seed < f->seeds / PART; seed++) {
        struct sim_world_config config = world_config(f->nodes, f->gpus, f->m, f->n, f->k);
        config.seed = seed;
        sim_world_vary(&config);
        config.pool = pool;
        int rc = sim_world_run(&config, &result);
        if (rc)
            print_error("%u x %u seed %d: %s\n", f->nodes, f->gpus, (int)seed, result.sentence);
        assert_int_equal(rc, 0);
        explored++;
    }
    coroutine_pool_destroy(pool);
}

static void test_forms(void **state)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        explore(&forms[i]);
    assert_true(explored >= 1000 / PART);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
