/* The proxy's thread takes everything that a producer thread posts, in order, wakes from its idle
 * sleep, and ends in a bounded time: with everything complete where the job is well, without
 * waiting for a dead peer where it is not. */
#include "backends/proxy.h"
#include "core/cta/ring_host.h"
#include "tests/helpers/fake_fabric.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include "tests/helpers/test.h"

enum { CAPACITY = 64, FLAGS = 64, HEAP = 1 << 20 };

static int job_failed;
static int failures;

static uint64_t now(void *context)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static int failed(void *context)
{
    return __atomic_load_n(&job_failed, __ATOMIC_ACQUIRE);
}

static void fail_job(void *context, const struct mk_failure *failure)
{
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&job_failed, 1, __ATOMIC_RELEASE);
}

/* Counts, per ring (its number is in the peer), that puts come in order: the flag is the sequence
 * modulo FLAGS. */
struct counting_fabric {
    struct fake_fabric fake;
    uint64_t next[4], wrong;
};

static int counting_put(struct fabric *fabric, const struct fabric_put *put)
{
    struct counting_fabric *f = (struct counting_fabric *)fabric;
    uint64_t n = f->next[put->peer]++;
    f->wrong += put->flag != n % FLAGS || put->source != 128 * (n % 1000);
    return fake_put(fabric, put);
}

static const struct fabric_ops counting_ops = {
    .name = "counting", .put = counting_put, .flush = fake_flush, .poll = fake_poll};

struct producer {
    struct mk_ring *ring;
    uint32_t peer;
    uint64_t commands;
};

static int post_within(struct mk_ring *ring, struct mk_command c, uint64_t ns)
{
    uint64_t end = now(NULL) + ns;
    while (mk_ring_post(ring, c)) {
        if (now(NULL) > end)
            return -1;
        sched_yield();
    }
    return 0;
}

static void *produce(void *argument)
{
    struct producer *p = argument;
    struct mk_ring *r = p->ring;
    post_within(r, mk_command_begin(1, 1, mk_ring_parity(CAPACITY, r->posted)), 10000000000ull);
    for (uint64_t n = 0; n < p->commands; n++)
        if (post_within(r,
                        mk_command_put(p->peer, 128 * (n % 1000), 4096, 16, (uint32_t)(n % FLAGS),
                                       mk_ring_parity(CAPACITY, r->posted)),
                        10000000000ull))
            return p;
    return NULL;
}

static struct proxy *start(struct fabric *fabric, struct mk_ring **rings, uint32_t count)
{
    job_failed = failures = 0;
    struct proxy_config config = {.fabric = fabric,
                                  .rings = rings,
                                  .ring_count = count,
                                  .timeout_ns = 20000000000ull,
                                  .topo = {.nodes = 4, .gpus = 1},
                                  .heap_bytes = HEAP,
                                  .heap_flags = FLAGS,
                                  .now = now,
                                  .failed = failed,
                                  .fail = fail_job};
    struct proxy *p;
    assert_int_equal(proxy_create(&p, &config), 0);
    assert_int_equal(proxy_start(p), 0);
    assert_int_equal(proxy_start(p), -EALREADY);
    return p;
}

static struct mk_ring *ring_create(void)
{
    struct mk_ring *r = calloc(1, mk_ring_bytes(CAPACITY));
    r->capacity = CAPACITY;
    return r;
}

CASE(test_two_producers)
{
    static struct counting_fabric fabric;
    memset(&fabric, 0, sizeof fabric);
    fabric.fake.fabric.ops = &counting_ops;
    fabric.fake.automatic = 1;
    struct mk_ring *rings[2] = {ring_create(), ring_create()};
    struct proxy *p = start(&fabric.fake.fabric, rings, 2);
    struct producer producers[2] = {{rings[0], 1, 100000}, {rings[1], 2, 70001}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    proxy_stop(p);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rings[i]->completed, producers[i].commands + 1);
        assert_int_equal(fabric.next[producers[i].peer], producers[i].commands);
        free(rings[i]);
    }
    assert_int_equal(fabric.wrong, 0);
    assert_int_equal(failures, 0);
    proxy_destroy(p);
}

CASE(test_wakes_from_idle)
{
    static struct counting_fabric fabric;
    memset(&fabric, 0, sizeof fabric);
    fabric.fake.fabric.ops = &counting_ops;
    fabric.fake.automatic = 1;
    struct mk_ring *ring = ring_create();
    struct proxy *p = start(&fabric.fake.fabric, &ring, 1);
    for (uint64_t i = 0; i < 5; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        assert_int_equal(
            mk_ring_post(ring, mk_command_begin(1, i + 1, mk_ring_parity(CAPACITY, i))), 0);
        uint64_t end = now(NULL) + 5000000000ull;
        while (__atomic_load_n(&ring->completed, __ATOMIC_ACQUIRE) != i + 1 && now(NULL) < end)
            sched_yield();
        assert_int_equal(__atomic_load_n(&ring->completed, __ATOMIC_ACQUIRE), i + 1);
    }
    proxy_destroy(p); /* stops it too */
    free(ring);
}

static void *let_go(void *argument)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    __atomic_store_n(&((struct fake_fabric *)argument)->automatic, 1, __ATOMIC_RELAXED);
    return NULL;
}

CASE(test_stop_waits_for_what_is_under_way)
{
    static struct counting_fabric fabric;
    memset(&fabric, 0, sizeof fabric);
    fabric.fake.fabric.ops = &counting_ops;
    struct mk_ring *ring = ring_create();
    struct proxy *p = start(&fabric.fake.fabric, &ring, 1);
    struct producer producer = {ring, 1, 8};
    pthread_t thread;
    assert_null(produce(&producer));
    assert_int_equal(pthread_create(&thread, NULL, let_go, &fabric.fake), 0);
    proxy_stop(p);
    assert_int_equal(proxy_in_flight(p), 0);
    assert_int_equal(ring->completed, 9);
    assert_int_equal(failures, 0);
    pthread_join(thread, NULL);
    proxy_destroy(p);
    free(ring);
}

CASE(test_stop_with_a_dead_peer)
{
    static struct counting_fabric fabric;
    memset(&fabric, 0, sizeof fabric);
    fabric.fake.fabric.ops = &counting_ops; /* nothing ever completes */
    struct mk_ring *ring = ring_create();
    struct proxy *p = start(&fabric.fake.fabric, &ring, 1);
    struct producer producer = {ring, 1, 8};
    assert_null(produce(&producer));
    uint64_t end = now(NULL) + 5000000000ull;
    while (proxy_in_flight(p) != 8 && now(NULL) < end)
        sched_yield();
    assert_int_equal(proxy_in_flight(p), 8);
    uint64_t before = now(NULL);
    __atomic_store_n(&job_failed, 1, __ATOMIC_RELEASE);
    proxy_stop(p);
    assert_true(now(NULL) - before < 2000000000ull); /* 100 ms, and a busy machine */
    assert_int_equal(proxy_in_flight(p), 8);
    proxy_destroy(p);
    free(ring);
}
