/* Form (b) of the host executor gives the right product for inputs that change every launch, the
 * same order of events for the same seed, and the right sentence for each fault. */
#include "core/mkernel.h"
#include "tests/helpers/reference.h"
#include "tests/helpers/world.h"

#include "sim/fill.h"

#define SEED 20250

/* ---- the product ---- */

struct product {
    struct reference reference;
    uint16_t *a, *b;
    uint32_t checked;
};

static void fill(void *context, const struct mk_plan *plan, uint64_t launch, void *const *arguments)
{
    const struct mk_problem *q = &plan->problem;
    sim_fill(arguments[0], q->m / mk_world(&q->topo) * q->k, SEED, q->topo.rank, launch, 0);
    sim_fill(arguments[1], q->k * q->n, SEED, q->topo.rank, launch, 1);
}

static int check(void *context, const struct mk_plan *plan, uint64_t launch, const uint16_t *c,
                 char *text, size_t size)
{
    struct product *p = context;
    const struct mk_problem *q = &plan->problem;
    uint32_t world = mk_world(&q->topo);
    uint64_t shard = q->m / world * q->k;
    for (uint32_t rank = 0; rank < world; rank++)
        sim_fill(p->a + rank * shard, shard, SEED, rank, launch, 0);
    sim_fill(p->b, q->k * q->n, SEED, q->topo.rank, launch, 1);
    reference_multiply(&p->reference, p->a, p->b, q->b_transposed);
    p->checked++;
    return reference_compare(&p->reference, c, text, size);
}

static void run_product(struct sim_world_config config)
{
    struct product p = {.checked = 0};
    const struct mk_problem *q = &config.problem;
    assert_int_equal(reference_make(&p.reference, q->m, q->n, q->k), 0);
    p.a = malloc(q->m * q->k * 2);
    p.b = malloc(q->k * q->n * 2);
    config.inputs = fill;
    config.check = check;
    config.context = &p;
    world_right(&config);
    assert_int_equal(p.checked, config.launches * mk_world(&q->topo));
    reference_free(&p.reference);
    free(p.a);
    free(p.b);
}

CASE(test_fifty_launches)
{
    struct sim_world_config config = world_config(3, 2, 390, 200, 328);
    config.launches = 50;
    config.seed = 3;
    run_product(config);
}

CASE(test_layouts)
{
    struct sim_world_config config = world_config(2, 2, 392, 200, 328);
    config.problem.b_transposed = 1;
    run_product(config);
    config.problem.a_in_heap = 1;
    config.seed = 1;
    run_product(config);
    config.problem.b_transposed = 0;
    config.problem.tuning.chunk_rows = 128;
    config.problem.tuning.pieces = 3;
    config.problem.tuning.split = (struct mk_role_split){.ctas = {3, 2, 2, 0}};
    config.seed = 2;
    run_product(config);
}

CASE(test_shapes)
{
    static const uint32_t shapes[][2] = {{1, 1}, {8, 1}, {1, 8}, {2, 2}, {2, 4}, {4, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct sim_world_config config = world_config(shapes[i][0], shapes[i][1], 8 * 49, 72, 136);
        config.seed = i;
        run_product(config);
    }
}

/* ---- determinism ---- */

CASE(test_same_seed_same_events)
{
    struct sim_world_result first, again, other;
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct sim_world_config config = world_config(3, 2, 390, 72, 136);
        config.seed = seed;
        assert_int_equal(sim_world_run(&config, &first), 0);
        assert_int_equal(sim_world_run(&config, &again), 0);
        assert_true(first.hash == again.hash && first.steps == again.steps && first.ns == again.ns);
        config.seed += 8; /* the same way of drawing */
        assert_int_equal(sim_world_run(&config, &other), 0);
        assert_true(first.hash != other.hash);
    }
}

/* ---- faults ---- */

static struct mk_failure run_fault(struct sim_fault fault, uint32_t nodes, uint32_t gpus,
                                   uint64_t seed, char *sentence)
{
    struct sim_world_config config = world_config(nodes, gpus, nodes * gpus * 65, 72, 136);
    struct sim_world_result result;
    config.fault = fault;
    config.seed = seed;
    config.problem.timeout_ns = 10000000000ull;
    int rc = sim_world_run(&config, &result);
    if (rc != -EIO)
        print_error("%d %s\n", rc, result.sentence);
    assert_int_equal(rc, -EIO);
    /* and then the launch has ended everywhere */
    assert_true(result.ns < 2 * config.problem.timeout_ns);
    memcpy(sentence, result.sentence, sizeof result.sentence);
    return result.failure;
}

CASE(test_rank_that_never_sends)
{
    char sentence[512], expected[128];
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct mk_failure f =
            run_fault((struct sim_fault){SIM_FAULT_MUTE, 3, 0}, 3, 2, seed, sentence);
        assert_int_equal(f.kind, MK_FAIL_TIMEOUT);
        assert_int_equal(f.producer, 3);
        assert_int_equal(f.epoch, 1);
        assert_true(f.seen < f.wanted);
        /* a CTA may speak for one that waits a little shorter */
        assert_true(f.waited_ns > 9900000000ull);
        assert_true(f.chunk < 2);
        /* The whole sentence, as a user reads it. */
        assert_non_null(strstr(sentence, "ag_gemm: rank "));
        snprintf(expected, sizeof expected,
                 "rank %u CTA %u (%s) waited 10.0 s for chunk %u of rank 3's A in epoch 1 (flag %u "
                 "saw %d, "
                 "wants %d)",
                 f.rank, f.cta, plan_role_name((enum mk_role)f.role), f.chunk, f.flag, (int)f.seen,
                 (int)f.wanted);
        assert_non_null(strstr(sentence, expected));
        assert_non_null(strstr(sentence, "rank 3 should have produced it"));
    }
}

CASE(test_rank_that_stops)
{
    char sentence[512];
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct mk_failure f =
            run_fault((struct sim_fault){SIM_FAULT_DROP, 1, 300 + 40 * seed}, 2, 2, seed, sentence);
        assert_true(f.kind == MK_FAIL_TIMEOUT || f.kind == MK_FAIL_NETWORK);
        assert_int_not_equal(f.rank, 1);
        assert_int_equal(f.op, MK_OP_AG_GEMM);
    }
}

CASE(test_failed_put)
{
    char sentence[512];
    for (uint64_t number = 1; number <= 8; number++) {
        struct mk_failure f =
            run_fault((struct sim_fault){SIM_FAULT_FAIL_PUT, 2, number}, 2, 2, number, sentence);
        assert_int_equal(f.kind, MK_FAIL_NETWORK);
        assert_int_equal(f.rank, 2);
        assert_int_equal(f.producer, 0);
        assert_int_equal(f.status, 12);
        assert_non_null(strstr(sentence, "transport retry counter exceeded"));
        assert_non_null(strstr(sentence, "ag_gemm"));
    }
}

CASE(test_slow_and_full)
{
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct sim_world_config config = world_config(3, 2, 390, 72, 136);
        /* nine chunks a shard */
        config.problem.tuning.tile_m = config.problem.tuning.chunk_rows = 8;
        config.seed = seed;
        config.ring_capacity = 1 + seed % 2;
        config.in_flight = 1 + (uint32_t)seed % 3;
        config.fabric_depth = 1 + (uint32_t)seed % 2;
        config.delay_ns = 2000;
        config.fault = (struct sim_fault){SIM_FAULT_SLOW, 4, 100000};
        config.order = seed & 1 ? SIM_ORDER_SRD : SIM_ORDER_RC;
        world_right(&config);
    }
}

/* ---- the virtual clock ---- */

static uint64_t tile_cost(void *context, uint64_t now, const struct mk_plan *plan,
                          const struct mk_tile *tile)
{
    return now + 500;
}

static uint64_t put_cost(void *context, uint64_t now, uint32_t from, uint32_t to, uint64_t bytes)
{
    return now + 100000;
}

CASE(test_costs)
{
    struct sim_costs costs = {.tile = tile_cost};
    struct sim_world_result result;
    struct sim_world_config config = world_config(1, 1, 64 * 6, 64, 72); /* six tiles on two CTAs */
    config.costs = &costs;
    for (config.seed = 0; config.seed < 4; config.seed++) {
        assert_int_equal(sim_world_run(&config, &result), 0);
        assert_int_equal(result.ns, 1 + config.launches * 3 * 500);
    }
    /* One tile of its own, then the wait for the other node's, which begins when that launch
     * did. */
    config = world_config(2, 1, 64 * 2, 64, 72);
    config.costs = &costs;
    config.launches = 1;
    costs.put = put_cost;
    assert_int_equal(sim_world_run(&config, &result), 0);
    assert_int_equal(result.ns, 1 + 100000 + 500);
}

CASE(test_refused)
{
    struct sim_world_result result;
    struct sim_world_config config = world_config(3, 2, 391, 72, 136);
    assert_int_equal(sim_world_run(&config, &result), -EINVAL);
    assert_non_null(strstr(result.sentence, "does not divide"));
    config.problem.m = 390;
    config.max_steps = 100;
    assert_int_equal(sim_world_run(&config, &result), -ETIMEDOUT);
    assert_string_equal(result.sentence, "incomplete: not over after 100 steps");
}
