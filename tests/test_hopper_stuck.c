/* A phase of a barrier inside a block that never comes (a load that never lands, a stage that is
 * never given back) is a sentence that says which block, which warp and which ring, in the
 * attention engine as in the GEMMs', when the wait has outlasted its limit. */
#include "sim/hopper/hopper.h"
#include "tests/helpers/hopper_ops.h"

enum { MOST = 64 };

/* Places of the kernels' code that were come to, of one kind and file. */
static struct found {
    const char *file;
    enum hopper_primitive what;
    struct hopper_site sites[MOST];
    uint32_t count;
} found;

static void note(void *context, const struct hopper_site *sites, uint32_t count)
{
    for (uint32_t i = 0; i < count && found.count < MOST; i++)
        if (sites[i].what == found.what && strstr(sites[i].file, found.file))
            found.sites[found.count++] = sites[i];
}

static struct sim_world_config config_of(enum mk_op op)
{
    static const uint64_t shape[] = {66, 72, 200};
    struct sim_world_config c = hopper_ops_config(op, 1, 2, shape, 3);
    if (op == MK_OP_RING_ATTENTION) {
        c.problem.attention = (struct mk_attention){1, 2 * 300, 2, 1, 128, 0, 0, 0};
        c.problem.tuning = (struct mk_tuning){.split = {.ctas = {2, 2, 0, 0}}, .pieces = 2};
    }
    c.launches = 1;
    c.unwatched = 1;
    c.tries_end = 1;
    c.max_steps = 200000;
    return c;
}

/* Each such place done wrong, one at a time: the sentence has one of `rings`. */
static void every_place(enum mk_op op, const char *file, enum hopper_primitive what,
                        const char *const rings[])
{
    struct sim_world_config c = config_of(op);
    struct sim_world_result r;
    found = (struct found){.file = file, .what = what};
    c.sites = note;
    int rc = sim_world_run(&c, &r);
    if (rc)
        fail_msg("unbroken: %s", r.sentence);
    assert_true(found.count > 0);
    c.sites = NULL;
    for (uint32_t i = 0; i < found.count; i++) {
        const struct hopper_mutation m = {found.sites[i], 1};
        int named = 0;
        c.mutations = &m;
        c.mutation_count = 1;
        assert_int_not_equal(sim_world_run(&c, &r), 0);
        for (int k = 0; rings[k]; k++)
            named |= strstr(r.sentence, rings[k]) != NULL;
        if (!named || !strstr(r.sentence, "warp 0 waited too long for ") ||
            strncmp(r.sentence, "block ", 6) != 0)
            fail_msg("%s:%u, %s: %s", m.at.file, m.at.line, hopper_variant(what, 1), r.sentence);
    }
}

static const char *const attention[] = {"of K to be filled and read", "of V to be filled and read",
                                        "of Q to be filled and read", NULL};
static const char *const gemm[] = {"of the engine to be filled and read", NULL};

CASE(test_loads)
{
    every_place(MK_OP_RING_ATTENTION, "attention.cuh", HOPPER_P_LOAD, attention);
    every_place(MK_OP_AG_GEMM, "gemm_produce.cuh", HOPPER_P_LOAD, gemm);
}

CASE(test_arrivals)
{
    every_place(MK_OP_RING_ATTENTION, "pipeline.cuh", HOPPER_P_ARRIVE, attention);
    every_place(MK_OP_AG_GEMM, "pipeline.cuh", HOPPER_P_ARRIVE, gemm);
}

/* Peers that are late one after the other, each by nine tenths of the timeout: a launch waits for
 * them in a chain, and no bound of a barrier ends it, though one that came early waits all the
 * while that the one before it runs, too. */
CASE(test_late_peers)
{
    for (uint32_t i = 0; i < 4; i++) {
        struct sim_world_config c = config_of(MK_OP_AG_GEMM);
        struct sim_world_result r;
        c.problem.topo.gpus = 3;
        c.problem.m = 3 * 66;
        c.problem.timeout_ns = 200000000000; /* a wait looks at its bound every 64 s here */
        c.problem.tuning.shots = 1 + i % 2;
        c.launches = 2;
        c.seed = i < 2 ? 8 : 3; /* with SMs for a launch that comes early, and without */
        c.fault = (struct sim_fault){SIM_FAULT_LATE, 1, 180000000000};
        int rc = sim_world_run(&c, &r);
        if (rc)
            fail_msg("%u shots, seed %u: %s", 1 + i % 2, (unsigned)c.seed, r.sentence);
        assert_in_range(r.ns, 360000000000, 370000000000);
        c.fault.number = 220000000000;
        assert_int_equal(sim_world_run(&c, &r), -EIO);
        assert_non_null(strstr(r.sentence, "rank 1"));
    }
}
