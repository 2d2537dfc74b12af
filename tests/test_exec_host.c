/* Form (a) of the host executor: ranks as processes that share their node's heaps compute the right
 * product launch after launch, and when one of them hangs or dies the others end in time with the
 * sentence that says so. */
/* WAITS */
#define OWN_MAIN
#include "tests/helpers/test.h"
#include "core/roles/ag_gemm_plan.h"
#include "core/comm/comm.h"
#include "sim/fill.h"
#include "tests/helpers/ranks.h"
#include "tests/helpers/reference.h"
#include "tests/helpers/sanitized.h"

#define SEED 77
#define TIMEOUT_NS 2000000000ull
#define TRACE_EVENTS 100000

/* ---- what a rank does ---- */

static struct mk_comm *open_comm(const struct ranks_identity *id, uint32_t trace_events)
{
    struct mk_config config;
    struct mk_comm *comm = NULL;
    memset(&config, 0, sizeof config);
    config.version = MK_VERSION_NUMBER;
    config.exec = MK_EXEC_HOST;
    config.rank = id->rank;
    config.nodes = id->nodes;
    config.gpus = id->gpus;
    config.port = id->port;
    config.listen_fd = id->listen_fd;
    config.heap_bytes = 64 << 20;
    config.timeout_ns = TIMEOUT_NS;
    config.trace_events = trace_events;
    snprintf(config.host, sizeof config.host, "127.0.0.1");
    snprintf(config.nic, sizeof config.nic, "soft");
    snprintf(config.token, sizeof config.token, "%s", id->token);
    REQUIRE(mk_comm_open(&comm, &config) == 0);
    return comm;
}

static struct mk_problem problem_of(uint64_t m, uint64_t n, uint64_t k, int transposed)
{
    struct mk_problem q;
    memset(&q, 0, sizeof q);
    q.op = MK_OP_AG_GEMM;
    q.m = m;
    q.n = n;
    q.k = k;
    q.b_transposed = transposed;
    return q;
}

/* One plan's operands for a burst of launches, and its reference. */
struct operands {
    struct mk_problem problem;
    struct mk_plan *plan;
    struct reference reference;
    uint16_t *whole_a;
    uint16_t *a[5], *b[5], *c[5];
    uint64_t launch;
};

static void operands_make(struct operands *o, const struct ranks_identity *id, struct mk_comm *comm,
                          struct mk_problem problem)
{
    uint32_t world = id->nodes * id->gpus;
    memset(o, 0, sizeof *o);
    o->problem = problem;
    REQUIRE(comm_make_plan(&o->plan, comm, &problem) == 0);
    REQUIRE(reference_make(&o->reference, problem.m, problem.n, problem.k) == 0);
    o->whole_a = malloc(problem.m * problem.k * 2);
    for (int i = 0; i < 5; i++) {
        o->a[i] = aligned_alloc(16, mk_round_up(problem.m / world * problem.k * 2, 16));
        o->b[i] = aligned_alloc(16, mk_round_up(problem.k * problem.n * 2, 16));
        o->c[i] = aligned_alloc(16, mk_round_up(problem.m * problem.n * 2, 16));
    }
}

static void operands_free(struct operands *o)
{
    reference_free(&o->reference);
    free(o->whole_a);
    for (int i = 0; i < 5; i++) {
        free(o->a[i]);
        free(o->b[i]);
        free(o->c[i]);
    }
}

/* Five launches back to back with five inputs, then a wait, then every result. */
static void run_burst(struct operands *o, const struct ranks_identity *id, struct mk_comm *comm)
{
    uint64_t m = o->problem.m, n = o->problem.n, k = o->problem.k,
             shard = m / (id->nodes * id->gpus) * k;
    char text[256] = "";
    for (uint64_t i = 0; i < 5; i++) {
        sim_fill(o->a[i], shard, SEED, id->rank, o->launch + i, 0);
        sim_fill(o->b[i], k * n, SEED, id->rank, o->launch + i, 1);
        memset(o->c[i], 0xff, m * n * 2);
        REQUIRE(mk_ag_gemm(o->plan, o->a[i], o->b[i], o->c[i], NULL) == 0);
    }
    REQUIRE(mk_wait(comm) == 0);
    for (uint64_t i = 0; i < 5; i++) {
        for (uint32_t rank = 0; rank < id->nodes * id->gpus; rank++)
            sim_fill(o->whole_a + rank * shard, shard, SEED, rank, o->launch + i, 0);
        reference_multiply(&o->reference, o->whole_a, o->b[i], o->problem.b_transposed);
        int wrong = reference_compare(&o->reference, o->c[i], text, sizeof text);
        if (wrong)
            fprintf(stderr, "rank %u, launch %d: %s\n", id->rank, (int)(o->launch + i), text);
        REQUIRE(!wrong);
    }
    o->launch += 5;
}

static uint64_t count_events(const struct mk_comm *comm, uint32_t kind)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < comm->track_count; i++)
        for (uint32_t j = 0; j < comm->tracks[i].count; j++)
            count += mk_event_kind_of(&comm->tracks[i].events[j]) == kind;
    return count;
}

/* Fifty launches, and a trace that has every tile of them. */
static int scene_product(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id, TRACE_EVENTS);
    struct operands o;
    operands_make(&o, id, comm, problem_of(48 * id->nodes * id->gpus, 72, 136, 0));
    for (int burst = 0; burst < 10; burst++)
        run_burst(&o, id, comm);
    uint32_t ctas = mk_total_ctas(&o.plan->problem.tuning.split);
    REQUIRE(comm->track_count == ctas && comm->progress_count == ctas);
    REQUIRE(count_events(comm, MK_EV_LAUNCH) == 50 * ctas);
    REQUIRE(count_events(comm, MK_EV_TILE) == 50 * o.plan->tiles);
    /* Slices of own chunks to each peer of the node, chunks once into the staging buffer; those of
     * other nodes, forwarded. */
    uint64_t chunks = o.plan->chunks / (id->nodes * id->gpus);
    uint64_t slices = ag_gemm_plan_of(o.plan)->slices;
    REQUIRE(count_events(comm, MK_EV_COPY) ==
            50 * chunks * ((id->gpus - 1) * id->nodes * slices + (id->nodes > 1)));
    REQUIRE(count_events(comm, MK_EV_COMMAND) == 50 * (id->nodes - 1) * chunks);
    for (uint32_t i = 0; i < ctas; i++)
        REQUIRE((uint32_t)comm->progress[i] == 0 && comm->tracks[i].dropped == 0);
    operands_free(&o);
    mk_comm_close(comm);
    return 0;
}

/* More puts in a launch than a command ring holds. */
static int scene_ring(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id, TRACE_EVENTS);
    struct operands o;
    struct mk_problem q = problem_of(16 * 3000, 8, 8, 0);
    q.tuning.tile_m = q.tuning.chunk_rows = 8;
    q.tuning.tile_n = 8;
    operands_make(&o, id, comm, q);
    run_burst(&o, id, comm);
    uint64_t full = 0;
    for (uint32_t i = 0; i < comm->track_count; i++)
        for (uint32_t j = 0; j < comm->tracks[i].count; j++)
            full += mk_event_kind_of(&comm->tracks[i].events[j]) == MK_EV_WAIT &&
                    mk_event_cause_of(&comm->tracks[i].events[j]) == MK_CAUSE_BACKPRESSURE;
#ifndef __SANITIZE_THREAD__ /* which slows the CTAs more than the network */
    REQUIRE(full > 0);
#endif
    operands_free(&o);
    mk_comm_close(comm);
    return 0;
}

/* Plans of different shapes and role splits in turn, the second larger than the first. */
static int scene_plans(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id, 0);
    struct operands first, second;
    struct mk_problem q = problem_of(130 * id->gpus, 200, 328, 1);
    operands_make(&first, id, comm, problem_of(32 * id->gpus, 40, 72, 0));
    run_burst(&first, id, comm);
    q.tuning.split = (struct mk_role_split){.ctas = {3, id->gpus > 1 ? 2 : 0, 0, 0}};
    q.tuning.pieces = 3;
    operands_make(&second, id, comm, q);
    for (int i = 0; i < 3; i++) {
        run_burst(&second, id, comm);
        run_burst(&first, id, comm);
    }
    operands_free(&first);
    operands_free(&second);
    mk_comm_close(comm);
    return 0;
}

/* Rank 1 joins everything but never launches. */
static int scene_hang(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id, 0);
    struct operands o;
    operands_make(&o, id, comm, problem_of(64 * id->gpus, 64, 64, 0));
    if (id->rank != 1) {
        uint64_t waits = 0;
        REQUIRE(mk_ag_gemm(o.plan, o.a[0], o.b[0], o.c[0], NULL) == 0);
        for (int i = 0; i < 1000 && !waits; i++) { /* what it does can be read while it hangs */
            nanosleep(&(struct timespec){0, 1000000}, NULL);
            for (uint32_t cta = 0; cta < comm->progress_count; cta++) {
                uint64_t word = __atomic_load_n(&comm->progress[cta], __ATOMIC_RELAXED);
                waits += word >> 32 == 1 && (word & 15) == MK_EV_WAIT;
            }
        }
        REQUIRE(waits > 0);
    } else { /* as bad as a rank that crashed in its own code: alive, and silent */
        while (!comm_failed(comm))
            nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    REQUIRE(mk_wait(comm) == -EIO);
    REQUIRE(strstr(mk_error(comm), "ag_gemm: rank ") && strstr(mk_error(comm), " waited ") &&
            strstr(mk_error(comm), " s for chunk 0 of rank 1's A in epoch 1"));
    REQUIRE(strstr(mk_error(comm), "rank 1 should have produced it"));
    operands_free(&o);
    mk_comm_close(comm);
    return 0;
}

/* Rank 1 is killed between launches that the others go on with. */
static int scene_killed(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id, 0);
    struct operands o;
    operands_make(&o, id, comm, problem_of(64 * id->gpus, 64, 64, 0));
    run_burst(&o, id, comm);
    bootstrap_barrier(comm->bootstrap); /* may hear of the death instead of the others */
    if (id->rank == 1)
        kill(getpid(), SIGKILL);
    REQUIRE(mk_ag_gemm(o.plan, o.a[0], o.b[0], o.c[0], NULL) == 0 || comm_failed(comm));
    REQUIRE(mk_wait(comm) == -EIO);
    REQUIRE(strstr(mk_error(comm), "rank 1"));
    operands_free(&o);
    mk_comm_close(comm);
    return 0;
}

/* Closing without a wait ends what runs, at once. */
static int scene_close(const struct ranks_identity *id)
{
    struct mk_comm *comm = open_comm(id, 0);
    struct operands o;
    operands_make(&o, id, comm, problem_of(64 * id->gpus, 64, 64, 0));
    for (int i = 0; i < 5; i++)
        REQUIRE(mk_ag_gemm(o.plan, o.a[i], o.b[i], o.c[i], NULL) == 0);
    mk_comm_close(comm);
    operands_free(&o);
    return 0;
}

/* ---- what the test asks of them ---- */

static double all_end_well(const char *scene, uint32_t nodes, uint32_t gpus, double seconds)
{
    int statuses[RANKS_MAX];
    double elapsed = ranks_run(scene, nodes, gpus, seconds, statuses);
    for (uint32_t rank = 0; rank < nodes * gpus; rank++)
        assert_int_equal(statuses[rank], 0);
    return elapsed;
}

CASE(test_products)
{
    all_end_well("product", 1, 1, 30);
    all_end_well("product", 1, 2, 30);
    all_end_well("product", 1, 8, 60);
}

CASE(test_plans)
{
    all_end_well("plans", 1, 1, 30);
    all_end_well("plans", 1, 3, 30);
}

static void skip_without_softnic(void)
{
    if (ranks_have_softnic())
        return;
    print_message("no libsoftnic.so beside the tests\n");
    skip();
}

CASE(test_nodes)
{
    skip_without_softnic();
    all_end_well("product", 2, 1, 30);
    all_end_well("product", 3, 2, 60);
}

CASE(test_full_ring)
{
    skip_without_softnic();
    setenv("SOFTNIC", "latency=10ms",
           1); /* so that the ring fills: the proxy has a bounded number of puts under way */
    all_end_well("ring", 2, 1, 60);
    unsetenv("SOFTNIC");
}

CASE(test_hang)
{
    double elapsed = all_end_well("hang", 1, 3, 60);
    assert_true(elapsed > 2.0 && elapsed < 2.0 + 2.0 + BUSY); /* the timeout, and 2 s more */
}

CASE(test_killed)
{
    int statuses[RANKS_MAX];
    double elapsed = ranks_run("killed", 1, 4, 60, statuses);
    for (int rank = 0; rank < 4; rank++) {
        if (rank == 1)
            assert_true(WIFSIGNALED(statuses[rank]));
        else
            assert_int_equal(statuses[rank], 0);
    }
    assert_true(elapsed < 2.0 + 2.0 + BUSY);
}

CASE(test_close)
{
    assert_true(all_end_well("close", 1, 2, 20) < 2.0);
}

int main(int argc, char **argv)
{
    static const struct ranks_scene scenes[] = {{"product", scene_product}, {"ring", scene_ring},
                                                {"plans", scene_plans},     {"hang", scene_hang},
                                                {"killed", scene_killed},   {"close", scene_close}};
    const int status = ranks_play(argc, argv, scenes, sizeof scenes / sizeof *scenes);
    return status < 0 ? cmocka_run_group_tests(test_cases, NULL, NULL) : status;
}
