/* A communicator opens its parts in order and closes them in reverse, hands out heap and flags
 * once, and names what the ranks disagree about before it hurts. */
#include "core/base/random.h"
#include "tests/helpers/comm_job.h"

/* ---- the way it should go ---- */

static int launch_twice(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    int result = comm_make_plan(&p, comm, &q);
    for (int i = 0; i < 2 && !result; i++)
        result = mk_ag_gemm(p, memory, memory + 8, output, NULL);
    if (!result)
        result = mk_wait(comm);
    if (fake.arguments[0] != memory || fake.arguments[1] != memory + 8 ||
        fake.arguments[2] != output)
        return -1;
    struct mk_failure of = {.op = MK_OPS, .flag = UINT32_MAX}, none = of;
    comm_describe(comm, p->id, &of);
    comm_describe(comm, p->id + 1, &none);
    if (of.op != MK_OP_AG_GEMM || none.op != MK_OPS)
        return -2;
    if (p->problem.topo.rank != rank || p->problem.timeout_ns != comm->config.timeout_ns)
        return -3;
    snprintf(text, size, "%s", mk_error(comm));
    return result;
}

CASE(parts_open_in_order_and_close_in_reverse)
{
    all(3, (struct setup){launch_twice, 1, NULL, "opllwc"}, 0, "");
    all(4, (struct setup){launch_twice, 2, NULL, "oOpllwCc"}, 0, "");
    all(1, (struct setup){launch_twice, 1, NULL, "opllwc"}, 0, "");
}

static int close_rank(const struct bootstrap_config *c, char *text, size_t size, void *argument)
{
    struct mk_config config = config_of(c, 1);
    struct mk_comm *comm;
    int result = comm_open_with(&comm, &config, &fake_exec, &fake_net);
    double start = test_seconds();
    if (c->rank == 1)
        job_sleep(0.4);
    mk_comm_close(comm);
    return result ? result : test_seconds() - start < 0.35 ? -1 : 0;
}

static void no_end(uint32_t rank, struct mk_config *config)
{
    config->timeout_ns = UINT64_MAX;
}

/* A caller that asks for no end gets a very long time, and not none. */
CASE(the_longest_timeout_is_long)
{
    all(3, (struct setup){launch_twice, 1, no_end, "opllwc"}, 0, "");
}

CASE(closing_waits_for_the_last_rank)
{
    struct job j;
    job_init(&j, 3, 20);
    job_start_all(&j, close_rank, NULL);
    job_finish(&j);
    for (uint32_t r = 0; r < 3; r++) {
        assert_true(j.reports[r].came);
        assert_int_equal(j.reports[r].result, 0);
        assert_true(job_ended_within(&j, r, 1.5));
    }
}

/* ---- heap and plans ---- */

static int use_heap(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    uint64_t a, b, c;
    uint8_t *x = mk_heap_alloc(comm, 100, &a), *y = mk_heap_alloc(comm, 1, &b);
    if (!x || !y || a != comm->heap.flag_bytes || b != a + 128 || y - x != 128 ||
        (uintptr_t)x % 128)
        return -1;
    struct mk_problem q = problem();
    struct mk_plan *p, *second;
    if (comm_make_plan(&p, comm, &q) || p->heap_base != b + 128 || p->flag_base)
        return -2;
    if (comm_make_plan(&second, comm, &q) || second->flag_base != p->flags || second->id != 2 ||
        second->heap_base < p->heap_base + p->heap_bytes)
        return -3;
    uint64_t rest = ranges_longest(&comm->free_bytes);
    if (mk_heap_alloc(comm, rest + 1, &c) ||
        !strstr(mk_error(comm), "open it with more heap_bytes"))
        return -4;
    if (!mk_heap_alloc(comm, rest, &c) || mk_heap_alloc(comm, 1, &c) ||
        mk_heap_alloc(comm, UINT64_MAX, &c))
        return -5;
    return 0;
}

CASE(the_heap_is_handed_out_once)
{
    all(3, (struct setup){use_heap, 1, NULL, NULL}, 0, "");
}

static int too_large(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem(), small = problem();
    struct mk_plan *p;
    q.m = 96 << 10;
    int result = comm_make_plan(&p, comm, &q);
    snprintf(text, size, "%s", mk_error(comm));
    unsigned long long bytes = 0;
    const char *at = strstr(text, "heap_bytes of at least ");
    if (result != -E2BIG || p || !at || sscanf(at, "heap_bytes of at least %llu", &bytes) != 1 ||
        bytes != mk_round_up(2ull * (96 << 10) * 64 * 2, 4096))
        return -1;
    return comm_make_plan(&p, comm, &small); /* it is still open */
}

static int too_many_flags(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p, needed;
    q.m = 3 * 8 * 1024;
    q.k = 8;
    q.tuning.tile_m = q.tuning.chunk_rows = 8;
    q.topo = comm->topo;
    if (plan_build(&needed, &q, 0, 0, text, size))
        return -1;
    int result = comm_make_plan(&p, comm, &q);
    char says[160];
    snprintf(says, sizeof says,
             "needs %u flags and 512 of 512 are free: open the communicator with flag_bytes of at "
             "least %llu",
             needed.flags, (unsigned long long)mk_round_up(needed.flags * 8ull, 4096));
    snprintf(text, size, "%s", mk_error(comm));
    return strstr(text, says) ? result : -2;
}

static void few_flags(uint32_t rank, struct mk_config *config)
{
    config->flag_bytes = 4096;
}

/* More than any table of an executor used to have, until the heap is full. */
static int many_plans(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = {.op = MK_OP_AG_GEMM, .m = 3, .n = 8, .k = 8};
    struct mk_plan *p;
    int made = 0, result;
    while (!(result = comm_make_plan(&p, comm, &q)) && made < 10000)
        made++;
    snprintf(text, size, "%s", mk_error(comm));
    return made < 300 ? -1 : result;
}

CASE(a_plan_that_does_not_fit_says_what_it_needs)
{
    all(3, (struct setup){too_large, 1, NULL, NULL}, 0, "");
    all(3, (struct setup){too_many_flags, 1, few_flags, NULL}, -E2BIG, "ag_gemm needs");
    all(3, (struct setup){many_plans, 1, NULL, NULL}, -ENOSPC, "are free");
}

/* ---- plans that go ---- */

enum { ROUNDS = 40, HELD = 5 };

/* Plans and blocks of random sizes, which go in another order than they came, many times as much in
 * all as there is room: none lies over another, and in the end all is free again. */
static int come_and_go(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_plan *held[HELD] = {NULL};
    uint64_t whole = ranges_digest(&comm->free_bytes), seed = 7;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t i = (uint32_t)(mk_random(&seed) % HELD);
        struct mk_problem q = problem();
        q.m = 96 * (1 + mk_random(&seed) % 8);
        int result = mk_plan_destroy(held[i]);
        held[i] = NULL;
        result = result ? result : comm_make_plan(&held[i], comm, &q);
        if (result)
            return result;
        for (uint32_t j = 0; j < HELD; j++) {
            const struct mk_plan *a = held[i], *b = held[j];
            if (j == i || !b)
                continue;
            if ((a->heap_base < b->heap_base + b->heap_bytes &&
                 b->heap_base < a->heap_base + a->heap_bytes) ||
                (a->flag_base < b->flag_base + b->flags && b->flag_base < a->flag_base + a->flags))
                return -2;
            if (a->slot == b->slot || a->id == b->id)
                return -3;
        }
        if (mk_ag_gemm(held[i], memory, memory, output, NULL) || comm->plan_count > HELD + 1)
            return -4;
    }
    for (uint32_t i = 0; i < HELD; i++)
        if (mk_plan_destroy(held[i]))
            return -5;
    return ranges_digest(&comm->free_bytes) != whole || ranges_first(&comm->free_flags)
               ? -6
               : mk_plan_destroy(NULL);
}

/* Its launches are waited for before anything of it goes. */
static int destroy_waits(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    int result = comm_make_plan(&p, comm, &q);
    if (!result)
        result = mk_ag_gemm(p, memory, memory, output, NULL);
    return result ? result : mk_plan_destroy(p);
}

static int destroy_others(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p[2];
    if (comm_make_plan(&p[0], comm, &q) || comm_make_plan(&p[1], comm, &q))
        return -1;
    int result = mk_plan_destroy(p[rank == 2]);
    snprintf(text, size, "%s", mk_error(comm));
    return mk_plan_destroy(p[0]) || mk_plan_destroy(p[1]) ? -1 : result; /* nothing is lost by it */
}

static int destroy_in_a_trace(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    if (comm_make_plan(&p, comm, &q))
        return -1;
    comm->trace_state = rank == 1 ? malloc(1) : NULL;
    int result = mk_plan_destroy(p);
    snprintf(text, size, "%s", mk_error(comm));
    free(comm->trace_state);
    comm->trace_state = NULL;
    return mk_plan_destroy(p) ? -1 : result;
}

static int other_order_of_frees(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p[3], *more;
    for (int i = 0; i < 3; i++)
        if (comm_make_plan(&p[i], comm, &q))
            return -1;
    if (mk_plan_destroy(p[1]))
        return -2;
    uint64_t at;
    if (rank == 0) /* in the hole; elsewhere it is still there */
        mk_heap_alloc(comm, 128, &at);
    int result = comm_make_plan(&more, comm, &q);
    snprintf(text, size, "%s", mk_error(comm));
    return result;
}

/* A launch of one rank has failed: the others learn of it, and end. */
static int destroy_alone(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    int result = comm_make_plan(&p, comm, &q);
    fake.wait_result = rank == 1 ? -EIO : 0;
    if (!result)
        result = mk_plan_destroy(p);
    snprintf(text, size, "%s", mk_error(comm));
    return result;
}

CASE(a_plan_that_goes_leaves_its_room)
{
    all(3, (struct setup){come_and_go, 1, NULL, NULL}, 0, "");
    all(3, (struct setup){destroy_waits, 1, NULL, "oplwuc"}, 0, "");
    all(3, (struct setup){destroy_others, 1, NULL, NULL}, -EINVAL,
        "rank 2 destroys plan = 2 where rank 0 has 1");
    all(3, (struct setup){destroy_in_a_trace, 1, NULL, NULL}, -EINVAL, "a trace is being recorded");
    all(3, (struct setup){other_order_of_frees, 1, NULL, NULL}, -EINVAL,
        "rank 1 plans first heap byte (allocations must be made");
    all(3, (struct setup){destroy_alone, 1, NULL, NULL}, -EIO, "an illegal address");
}

static int refused_shape(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    q.m = 97;
    int result = comm_make_plan(&p, comm, &q);
    snprintf(text, size, "%s", mk_error(comm));
    q.m = 99;
    return comm_make_plan(&p, comm, &q) ? -1 : result;
}

static int one_differs(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    q.n += rank == 2 ? 8 : 0;
    int result = comm_make_plan(&p, comm, &q);
    snprintf(text, size, "%s", mk_error(comm));
    q = problem();
    return comm_make_plan(&p, comm, &q) ? -1 : result; /* nothing is lost by it */
}

static int other_order(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    uint64_t at;
    if (rank == 1)
        mk_heap_alloc(comm, 256, &at);
    int result = comm_make_plan(&p, comm, &q);
    snprintf(text, size, "%s", mk_error(comm));
    return result;
}

/* What nobody asked for differs all the same: as if a plan depended on its rank. */
static int other_layout(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    int result = tuning_parse(&comm->tuning,
                              rank == 2 ? "ag_gemm 96,64,64 kn fast 1x3 host pieces=2\n"
                                        : "ag_gemm 96,64,64 kn fast 1x3 host pieces=4\n",
                              "plans", 0, text, size);
    snprintf(comm->device, sizeof comm->device, "host");
    result = result ? result : comm_make_plan(&p, comm, &q);
    snprintf(text, size, "%s", mk_error(comm));
    q.tuning.pieces = 1;
    return comm_make_plan(&p, comm, &q) ? -1 : result; /* nothing is lost by it */
}

static int only_one_refuses(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    if (rank == 1)
        comm->last_plan_id = COMM_MOST_PLAN_IDS; /* as if */
    int result = comm_make_plan(&p, comm, &q);
    comm->last_plan_id = 0;
    snprintf(text, size, "%s", mk_error(comm));
    return comm_make_plan(&p, comm, &q) ? -1 : result; /* what it had taken, it gave back */
}

CASE(ranks_that_disagree_are_named)
{
    all(3, (struct setup){refused_shape, 1, NULL, NULL}, -EINVAL,
        "M = 97 does not divide by 3 ranks; the next that does is 99");
    all(3, (struct setup){one_differs, 1, NULL, NULL}, -EINVAL,
        "rank 2 plans N = 72 where rank 0 has 64");
    all(3, (struct setup){other_order, 1, NULL, NULL}, -EINVAL,
        "rank 1 plans first heap byte (allocations must be made");
    all(3, (struct setup){other_layout, 1, NULL, NULL}, -EINVAL,
        "rank 2 plans another layout of its flags and heap than rank 0");
    all(3, (struct setup){only_one_refuses, 1, NULL, NULL}, -ENOSPC,
        "a communicator has at most 4096 plans at a time");
}

static void other_heap(uint32_t rank, struct mk_config *config)
{
    config->heap_bytes += rank == 1 ? 8192 : 0;
}

static void other_fabric(uint32_t rank, struct mk_config *config)
{
    snprintf(config->fabric, sizeof config->fabric, rank == 2 ? "efa" : "verbs");
}

static char plans[] = "/tmp/mkernel_test_comm_XXXXXX"; /* a tuned plan for one node of 3 ranks */

static void other_plans(uint32_t rank, struct mk_config *config)
{
    snprintf(config->tuning, sizeof config->tuning, "%s", rank == 2 ? plans : "none");
    config->heap_bytes += rank == 2 ? 8192 : 0; /* its consequences are not told in its place */
}

CASE(ranks_started_differently_are_named)
{
    int fd = mkstemp(plans);
    assert_true(fd >= 0);
    dprintf(fd, "ag_gemm 96,64,64 kn fast 1x3 host pieces=2\n");
    close(fd);
    all(3, (struct setup){NULL, 1, other_plans, ""}, -EINVAL,
        "rank 2 was started with another set of tuned plans than rank 0");
    unlink(plans);
    all(3, (struct setup){NULL, 1, other_heap, ""}, -EINVAL,
        "rank 1 was started with heap bytes = 1056768 where rank 0 has 1048576");
    all(3, (struct setup){NULL, 1, other_fabric, ""}, -EINVAL,
        "rank 2 was started with another fabric than rank 0");
}

/* ---- arguments ---- */

static int bad_arguments(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    struct mk_problem q = problem();
    struct mk_plan *p;
    uint64_t at;
    if (comm_make_plan(&p, comm, &q))
        return -1;
    if (mk_ag_gemm(p, NULL, memory, output, NULL) != -EINVAL ||
        mk_ag_gemm(p, memory, memory + 1, output, NULL) != -EINVAL)
        return -2;
    if (!strstr(mk_error(comm), "16-byte aligned"))
        return -3;
    q.a_in_heap = 1;
    q.a_offset = 64;
    if (comm_make_plan(&p, comm, &q) != -EINVAL ||
        !strstr(mk_error(comm), "not a block that mk_heap_alloc returned"))
        return -4;
    uint64_t bytes = q.m / mk_world(&comm->topo) * q.k * 2, rest;
    uint8_t *a = mk_heap_alloc(comm, bytes - 1024, &at);
    q.a_offset = at;
    if (comm_make_plan(&p, comm, &q) != -EINVAL ||
        !strstr(mk_error(comm), "not a block that mk_heap_alloc returned"))
        return -7; /* it begins there, and does not end there */
    if (mk_heap_alloc(comm, 1024, &rest) != a + bytes - 1024 || comm_make_plan(&p, comm, &q))
        return -5;
    struct mk_problem inside = q;
    inside.a_offset = p->heap_base;
    struct mk_plan *other;
    if (comm_make_plan(&other, comm, &inside) != -EINVAL ||
        !strstr(mk_error(comm), "memory of plan ") ||
        !strstr(mk_error(comm), "ag_gemm 96,64,64; mk_heap_alloc returns blocks for arguments"))
        return -12;
    if (mk_ag_gemm(p, memory, memory, output, NULL) != -EINVAL ||
        !strstr(mk_error(comm), "symmetric heap"))
        return -6;
    struct mk_problem sum = {.op = MK_OP_GEMM_AR, .m = q.m, .n = q.n, .k = q.k, .c_in_heap = 1};
    uint8_t *c = mk_heap_alloc(comm, q.m * q.n * 2, &sum.c_offset);
    struct mk_plan *whole;
    if (!c || comm_make_plan(&whole, comm, &sum))
        return -10;
    if (mk_gemm_ar(whole, memory, memory, output, NULL) != -EINVAL ||
        !strstr(mk_error(comm), "C at") || !strstr(mk_error(comm), "symmetric heap"))
        return -11;
    void *const arguments[] = {a, memory, output};
    if (mk_launch(p, arguments, 2, NULL) != -EINVAL ||
        !strstr(mk_error(comm), "2 arguments of ag_gemm: it takes 3"))
        return -8;
    if (mk_gemm_rs(p, a, memory, output, NULL) != -EINVAL ||
        !strstr(mk_error(comm), "mk_gemm_rs got a plan of ag_gemm"))
        return -9;
    int result = mk_ag_gemm(p, a, memory, output, NULL);
    return result ? result : mk_launch(p, arguments, 3, NULL);
}

/* A plan goes when each put that its launches have posted has completed, also one that the proxy
 * has not seen yet. */
static int posted_puts(struct mk_comm *comm, uint32_t rank, char *text, size_t size)
{
    static struct mk_ring ring;
    struct mk_problem q = problem();
    struct mk_plan *p[2];
    if (comm_make_plan(&p[0], comm, &q) || comm_make_plan(&p[1], comm, &q))
        return -1;
    ring.seen = ring.completed = 2;
    ring.posted = 1;
    fake.posted = 1; /* a device's word */
    comm->rings[0] = &ring;
    comm->ring_count = 1;
    int result = mk_plan_destroy(p[0]);
    if (!result && rank) { /* of this rank one more is under way */
        fake.posted = 2;
        comm->config.timeout_ns = 100000000;
    }
    result = result ? -2 : mk_plan_destroy(p[1]);
    snprintf(text, size, "%s", mk_error(comm));
    comm->ring_count = 0;
    return result;
}

CASE(a_plan_goes_when_its_puts_have_completed)
{
    all(2, (struct setup){posted_puts, 1, NULL, NULL}, -EIO, "puts of a plan do not end");
}

CASE(arguments_are_checked)
{
    all(2, (struct setup){bad_arguments, 1, NULL, NULL}, 0, "");
    struct mk_config bad[] = {
        {.nodes = 0, .gpus = 1, .token = "t"},
        {.nodes = 1, .gpus = 17, .token = "t"},
        {.nodes = 1, .gpus = 2, .rank = 2, .token = "t"},
        {.nodes = 1, .gpus = 2},
        {.nodes = 1, .gpus = 1, .exec = (enum mk_exec)9},
        {.nodes = 1, .gpus = 1, .heap_bytes = UINT64_MAX - 10},
        {.nodes = 1, .gpus = 1, .flag_bytes = (uint64_t)1 << 40},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mk_comm *comm;
        bad[i].listen_fd = -1;
        assert_int_equal(comm_open_with(&comm, &bad[i], &fake_exec, &fake_net), -EINVAL);
        assert_true(strlen(mk_error(comm)) > 10);
        assert_int_equal(mk_wait(comm), -EINVAL);
        assert_int_equal(mk_wait_stream(comm, NULL), -EINVAL);
        mk_comm_close(comm);
    }
    struct mk_config two = {.nodes = 2, .gpus = 1, .token = "t", .listen_fd = -1};
    struct mk_comm *comm;
    assert_int_equal(comm_open_with(&comm, &two, &fake_exec, NULL), -ENODEV);
    assert_non_null(strstr(mk_error(comm), "no network"));
    mk_comm_close(comm);
    assert_int_equal(comm_open_with(&comm, &two, NULL, NULL), -ENODEV);
    mk_comm_close(comm);
    mk_comm_close(NULL);
    assert_string_equal(mk_error(NULL), "out of memory");
}

CASE(one_stream_is_waited_for_alone)
{
    struct mk_config one = {.nodes = 1, .gpus = 1, .token = "t", .listen_fd = -1};
    struct mk_comm *comm;
    int stream;
    memset(&fake, 0, sizeof fake);
    assert_int_equal(comm_open_with(&comm, &one, &fake_exec, NULL), 0);
    assert_int_equal(mk_wait(comm), 0);
    assert_null(fake.waited_for);
    assert_int_equal(mk_wait_stream(comm, &stream), 0);
    assert_ptr_equal(fake.waited_for, &stream);
    fake.wait_result = -EIO;
    assert_int_equal(mk_wait_stream(comm, &stream), -EIO);
    assert_non_null(strstr(mk_error(comm), "an illegal address"));
    mk_comm_close(comm);
    memset(&fake, 0, sizeof fake);
}
