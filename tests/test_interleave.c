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

/* Every knob of the plan and of the machine, turned by the seed. */
static void turn_knobs(struct sim_world_config *c, uint64_t seed)
{
    struct mk_tuning *t = &c->problem.tuning;
    uint32_t gpus = c->problem.topo.gpus, nodes = c->problem.topo.nodes;
    c->seed = seed;
    c->order = seed >> 2 & 1 ? SIM_ORDER_SRD : SIM_ORDER_RC;
    c->problem.a_in_heap = (int)(seed >> 3 & 1);
    t->pieces = 1 + (uint32_t)(seed >> 4) % 3;
    t->tile_m = seed >> 5 & 1 ? 16 : 64;
    t->tile_n = 64;
    t->chunk_rows = t->tile_m << (seed >> 6 & 1);
    t->split.ctas[MK_COMPUTE] = 1 + (uint32_t)(seed >> 2) % 3;
    t->split.ctas[MK_INTRA_COMM] = gpus > 1 ? 1 + (uint32_t)(seed >> 7) % 2 : 0;
    t->split.ctas[MK_INTER_SEND] = nodes > 1 ? 1 + (uint32_t)(seed >> 3) % 2 : 0;
    c->ring_capacity = 1u << (seed >> 4) % 4;
    c->fabric_depth = 1 + (uint32_t)(seed >> 2) % 5;
    c->delay_ns = seed >> 3 & 1 ? 500 : 0;
}

static uint64_t explored;

static void explore(const struct form *f)
{
    struct coroutine_pool *pool;
    struct sim_world_result result;
    assert_int_equal(coroutine_pool_create(&pool, 0), 0);
    for (uint64_t seed = 0; seed < f->seeds; seed++) {
        struct sim_world_config config = world_config(f->nodes, f->gpus, f->m, f->n, f->k);
        turn_knobs(&config, seed);
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
    assert_true(explored >= 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
