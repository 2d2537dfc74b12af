/* Every operator keeps its promise in ten thousand random cases: cluster, shape, plan, network and
 * order of every step drawn from a seed, with slow peers, lost peers and failing puts. A failure is
 * printed as the command that replays it. */
#include "tests/helpers/command.h"
#include "tests/helpers/ops.h"

#include <sys/mman.h>

/* One thread: the thread sanitizer has nothing to find in the orders, only in the switching of
 * stacks. */
#ifdef __SANITIZE_THREAD__
#define PART 40
#elif defined __SANITIZE_ADDRESS__
#define PART 10
#else
#define PART 1
#endif

#define FAILURES_SHOWN 10

/* One line each. A case of a reduction takes three times as long. */
static const struct {
    enum mk_op op;
    uint32_t cases;
} ops[] = {
    {MK_OP_AG_GEMM, 2400},        {MK_OP_GEMM_RS, 1400},           {MK_OP_GEMM_AR, 1300},
    {MK_OP_RING_ATTENTION, 1500}, {MK_OP_MOE_DISPATCH_GEMM, 2200}, {MK_OP_MOE_FFN, 1400},
};

/* What the processes that share the work have found. */
static struct {
    uint32_t done, wrong, faults, srd;
} * found;

/* MKERNEL_SEED=N: other cases than the usual ones. */
static uint64_t first_seed(void)
{
    const char *text = getenv("MKERNEL_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

static struct sim_world_config drawn(enum mk_op op, uint64_t seed)
{
    struct sim_world_config c = {.problem = {.op = op}, .seed = seed};
    sim_world_draw(&c);
    return c;
}

static void run_case(enum mk_op op, uint64_t seed, struct coroutine_pool *pool)
{
    struct sim_world_result result;
    struct sim_world_config c = drawn(op, seed);
    c.pool = pool;
    int rc = sim_world_run(&c, &result), failed = rc == -EIO;
    __atomic_add_fetch(&found->done, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&found->srd, c.order == SIM_ORDER_SRD, __ATOMIC_RELAXED);
    __atomic_add_fetch(&found->faults, failed, __ATOMIC_RELAXED);
    if (sim_world_promised(&c, rc, &result) &&
        __atomic_add_fetch(&found->wrong, 1, __ATOMIC_RELAXED) <= FAILURES_SHOWN)
        print_error("%s\n  replay: build/mkernel sim %s --explore --random --seed %llu --runs 1\n",
                    result.sentence, plan_op_name(op), (unsigned long long)seed);
}

static void work(uint32_t worker, uint32_t workers)
{
    struct coroutine_pool *pool;
    if (coroutine_pool_create(&pool, 0))
        _exit(1);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (uint64_t n = worker; n < ops[i].cases / PART; n += workers)
            run_case(ops[i].op, first_seed() + n, pool);
    coroutine_pool_destroy(pool);
    _exit(0);
}

CASE(every_case)
{
    uint32_t cases = 0, cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
    pid_t pids[8];
    if (cores > 8)
        cores = 8;
    found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(found != MAP_FAILED);
    fflush(NULL);
    for (uint32_t i = 0; i < cores; i++)
        if ((pids[i] = fork()) == 0)
            work(i, cores);
    for (uint32_t i = 0; i < cores; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        cases += ops[i].cases / PART;
    print_message("%u cases, %u of them over SRD, %u with a fault that ended them\n", found->done,
                  found->srd, found->faults);
    assert_int_equal(found->wrong, 0);
    assert_int_equal(found->done, cases);
    assert_true(cases >= 10000 / PART && found->srd > cases / 3 && found->faults > cases / 25);
}

static void expect_replays(const char *line, struct sim_world_config c)
{
    static struct command_run r;
    struct sim_world_result result;
    char events[64];
    sim_world_run(&c, &result);
    snprintf(events, sizeof events, "events %016llx", (unsigned long long)result.hash);
    command_start(&r, line, NULL);
    command_finish(&r, 60);
    if (r.status || !strstr(r.out_text, events))
        fail_msg("mkernel %s: status %d, %s is not in \"%s\" \"%s\"", line, r.status, events,
                 r.out_text, r.err_text);
}

/* The command that a failure prints runs the very case: it ends in the same order of events. So
 * does what the tests of the operators print. */
CASE(test_replay)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        char line[128];
        snprintf(line, sizeof line, "sim %s --explore --random --seed 4321 --runs 1",
                 plan_op_name(ops[i].op));
        expect_replays(line, drawn(ops[i].op, 4321));
        for (size_t form = 0; form < OPS_FORMS; form++) {
            struct sim_world_config c = ops_varied(ops[i].op, form, form % OPS_SHAPES, 3 + form);
            expect_replays(ops_replay(&c), c);
        }
    }
}
