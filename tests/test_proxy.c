/* The proxy hands every command to the fabric once and in its ring's order, counts completions in
 * that order with any order of the peers' answers, and ends the job with one exact record when a
 * command is garbled or a put fails or hangs. */
#include "backends/proxy.h"
#include "core/cta/ring_host.h"
#include "tests/helpers/fake_fabric.h"
#include "tests/helpers/test.h"

enum { RINGS = 3, CAPACITY = 16, NODES = 5, FLAGS = 2048, HEAP = 1 << 20 };

struct bench {
    struct fake_fabric fabric;
    struct mk_ring *rings[RINGS];
    struct proxy *proxy;
    struct mk_message messages[64];
    struct mk_message_log log;
    uint64_t time;
    int job_failed;
    int failures;
    struct mk_failure failure;
    uint32_t described_plan;
};

static uint64_t now(void *context)
{
    return ((struct bench *)context)->time++;
}

static int failed(void *context)
{
    return ((struct bench *)context)->job_failed;
}

static void fail_job(void *context, const struct mk_failure *failure)
{
    struct bench *b = context;
    b->failure = *failure;
    b->failures++;
}

static void describe(void *context, uint32_t plan, struct mk_failure *failure)
{
    ((struct bench *)context)->described_plan = plan;
    failure->op = MK_OP_AG_GEMM;
    if (failure->flag != UINT32_MAX)
        snprintf(failure->what, sizeof failure->what, "what flag %u says", failure->flag);
}

static struct bench *bench_open(uint32_t in_flight, uint64_t timeout)
{
    struct bench *b = calloc(1, sizeof *b);
    b->fabric.fabric.ops = &fake_ops;
    b->time = 1000;
    b->log = (struct mk_message_log){.messages = b->messages, .capacity = 64};
    for (int i = 0; i < RINGS; i++) {
        b->rings[i] = calloc(1, mk_ring_bytes(CAPACITY));
        b->rings[i]->capacity = CAPACITY;
    }
    struct proxy_config config = {.fabric = &b->fabric.fabric,
                                  .rings = b->rings,
                                  .ring_count = RINGS,
                                  .in_flight = in_flight,
                                  .timeout_ns = timeout,
                                  .topo = {.nodes = NODES, .gpus = 1, .rank = 0},
                                  .heap_bytes = HEAP,
                                  .heap_flags = FLAGS,
                                  .messages = &b->log,
                                  .now = now,
                                  .failed = failed,
                                  .fail = fail_job,
                                  .describe = describe,
                                  .context = b};
    assert_int_equal(proxy_create(&b->proxy, &config), 0);
    return b;
}

static void bench_close(struct bench *b)
{
    proxy_destroy(b->proxy);
    for (int i = 0; i < RINGS; i++)
        free(b->rings[i]);
    free(b);
}

static int try_post(struct bench *b, int ring, struct mk_command c)
{
    c.lo = (c.lo & ~1ull) | mk_ring_parity(CAPACITY, b->rings[ring]->posted);
    return mk_ring_post(b->rings[ring], c);
}

static void begin(struct bench *b, int ring, uint64_t epoch)
{
    assert_int_equal(try_post(b, ring, mk_command_begin(7, epoch, 0)), 0);
}

static int try_put(struct bench *b, int ring, uint32_t peer, uint32_t flag)
{
    return try_post(
        b, ring, mk_command_put(peer, 128ull * (32 + flag), 128ull * (128 + flag), 256, flag, 0));
}

static void put(struct bench *b, int ring, uint32_t peer, uint32_t flag)
{
    assert_int_equal(try_put(b, ring, peer, flag), 0);
}

static void step(struct bench *b, int passes)
{
    while (passes-- > 0)
        proxy_step(b->proxy);
}

CASE(test_every_field_arrives)
{
    struct bench *b = bench_open(0, 1u << 30);
    begin(b, 0, 41);
    put(b, 0, 3, 17);
    assert_int_equal(try_post(b, 0, mk_command_put(3, 0, 0, 0, 18, 0)), 0); /* the flag alone */
    step(b, 1);
    const struct fabric_put *p = b->fabric.peers[3].queue;
    assert_int_equal(b->fabric.puts, 2);
    assert_int_equal(p->flag, 17);
    assert_int_equal(p->value, 41);
    assert_int_equal(p->source, 128 * (32 + 17));
    assert_int_equal(p->destination, 128 * (128 + 17));
    assert_int_equal(p->bytes, 256);
    assert_int_equal(p[1].bytes, 0);
    assert_int_equal(p[1].flag, 18);
    assert_int_equal(b->fabric.flushes, 1); /* one doorbell for both */
    assert_int_equal(b->rings[0]->seen, 3);
    assert_int_equal(b->rings[0]->completed, 1); /* the BEGIN */
    assert_int_equal(proxy_in_flight(b->proxy), 2);
    b->fabric.automatic = 1;
    step(b, 1);
    assert_int_equal(b->rings[0]->completed, 3);
    assert_int_equal(proxy_in_flight(b->proxy), 0);
    bench_close(b);
}

CASE(test_completed_counts_in_ring_order)
{
    struct bench *b = bench_open(0, 1u << 30);
    begin(b, 1, 1);
    put(b, 1, 1, 0);
    put(b, 1, 2, 1);
    put(b, 1, 2, 2);
    put(b, 1, 3, 3);
    step(b, 1);
    b->fabric.peers[2].may_complete = 2;
    b->fabric.peers[3].may_complete = 1;
    step(b, 2);
    assert_int_equal(b->rings[1]->completed, 1); /* peer 1's put stands before them all */
    assert_int_equal(proxy_in_flight(b->proxy), 1);
    b->fabric.peers[1].may_complete = 1;
    step(b, 1);
    assert_int_equal(b->rings[1]->completed, 5);
    bench_close(b);
}

/* Random peers, random completions, several laps of three rings: each ring's commands reach each
 * peer in order, none is lost or doubled, and `completed` never passes a put that is still under
 * way. */
CASE(test_laps)
{
    struct bench *b = bench_open(12, 1u << 30);
    b->fabric.room = 3;
    unsigned seed = 7;
    uint32_t next[RINGS] = {0}, total = 400;
    static uint32_t peer_of[RINGS][400];
    uint32_t seen_until[RINGS][NODES] = {{0}};
    for (int i = 0; i < RINGS; i++)
        begin(b, i, 1);
    int left = 1;
    uint64_t checked[FAKE_PEERS] = {0};
    for (int pass = 0; left && pass < 1000000; pass++) {
        for (int i = 0; i < RINGS; i++)
            for (int k = rand_r(&seed) % 9; k > 0 && next[i] < total; k--) {
                uint32_t peer = 1 + (uint32_t)rand_r(&seed) % (NODES - 1);
                if (try_put(b, i, peer, (uint32_t)i * total + next[i]) == 0)
                    peer_of[i][next[i]++] = peer;
            }
        step(b, 1);
        for (int peer = 0; peer < FAKE_PEERS; peer++) {
            struct fake_peer *p = &b->fabric.peers[peer];
            for (; checked[peer] < p->posted; checked[peer]++) {
                uint32_t flag = p->queue[checked[peer] % FAKE_QUEUE].flag, ring = flag / total,
                         n = flag % total;
                assert_true(n < next[ring]);
                assert_int_equal(peer_of[ring][n], peer);
                for (uint32_t k = seen_until[ring][peer]; k < n; k++)
                    assert_int_not_equal(peer_of[ring][k], peer);
                assert_true(n >= seen_until[ring][peer]);
                seen_until[ring][peer] = n + 1;
            }
            if (p->posted > p->may_complete && rand_r(&seed) % 3 == 0)
                p->may_complete += 1 + (uint64_t)rand_r(&seed) % (p->posted - p->may_complete);
        }
        uint64_t done = 0, posted = 0;
        for (int i = 0; i < RINGS; i++) {
            done += b->rings[i]->completed;
            posted += b->rings[i]->seen;
        }
        assert_true(posted - done >= proxy_in_flight(b->proxy));
        left = done != RINGS * (total + 1);
    }
    assert_int_equal(left, 0);
    assert_int_equal(b->fabric.puts, RINGS * total);
    assert_true(b->fabric.refused > 0);
    assert_int_equal(b->log.count + b->log.dropped, RINGS * total); /* 64 kept, the rest counted */
    assert_int_equal(b->log.count, 64);
    bench_close(b);
}

/* An empty ring stays empty on every lap: what an earlier lap left in a slot is never read
 * again. */
CASE(test_lap_parity)
{
    struct bench *b = bench_open(0, 1u << 30);
    b->fabric.automatic = 1;
    begin(b, 0, 1);
    for (uint32_t i = 0; i < 5 * CAPACITY; i++) {
        put(b, 0, 1, i);
        step(b, 3);
        assert_int_equal(b->fabric.puts, i + 1);
        assert_int_equal(b->fabric.peers[1].queue[i].flag, i);
        assert_int_equal(b->rings[0]->seen, b->rings[0]->posted);
        assert_int_equal(b->rings[0]->completed, b->rings[0]->posted);
    }
    assert_int_equal(b->failures, 0);
    bench_close(b);
}

CASE(test_full_ring_and_bounded_flight)
{
    struct bench *b = bench_open(4, 1u << 30);
    begin(b, 0, 1);
    for (uint32_t i = 0; i < CAPACITY - 1; i++)
        put(b, 0, 1, i);
    assert_int_equal(try_put(b, 0, 1, 99), -1); /* full */
    step(b, 3);
    assert_int_equal(proxy_in_flight(b->proxy), 4);
    assert_int_equal(b->rings[0]->seen, 5);
    for (int i = 0; i < 5; i++)
        put(b, 0, 1, 100);
    assert_int_equal(try_put(b, 0, 1, 99), -1);
    b->fabric.automatic = 1;
    step(b, 20);
    assert_int_equal(b->rings[0]->completed, CAPACITY + 5);
    assert_int_equal(b->failures, 0);
    bench_close(b);
}

CASE(test_full_peer_does_not_stop_other_rings)
{
    struct bench *b = bench_open(0, 1u << 30);
    b->fabric.room = 1;
    for (int i = 0; i < 2; i++)
        begin(b, i, 1);
    put(b, 0, 1, 0);
    put(b, 0, 1, 1); /* no room for it */
    put(b, 1, 2, 2);
    step(b, 1);
    assert_int_equal(b->rings[0]->seen, 2);
    assert_int_equal(b->rings[1]->seen, 2);
    assert_int_equal(b->fabric.peers[2].posted, 1);
    bench_close(b);
}

CASE(test_message_stages)
{
    struct bench *b = bench_open(0, 1u << 30);
    b->fabric.room = 1;
    begin(b, 2, 9);
    put(b, 2, 4, 5);
    put(b, 2, 4, 6);
    step(b, 1);
    uint64_t waited_from = b->time;
    step(b, 5);
    b->fabric.automatic = 1;
    step(b, 3);
    assert_int_equal(b->log.count, 2);
    const struct mk_message *m = b->messages;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(m[i].sequence, 1 + i);
        assert_int_equal(m[i].ring, 2);
        assert_int_equal(m[i].peer, 4);
        assert_int_equal(m[i].flag, 5 + i);
        assert_int_equal(m[i].plan, 7);
        assert_int_equal(m[i].epoch, 9);
        assert_int_equal(m[i].bytes, 256);
        assert_true(m[i].seen && m[i].seen <= m[i].posted && m[i].posted < m[i].completed);
    }
    assert_true(m[1].seen < waited_from); /* seen when it was first read, not when there was room */
    assert_true(m[1].posted > waited_from);
    bench_close(b);
}

CASE(test_failing_put)
{
    struct bench *b = bench_open(0, 1u << 30);
    begin(b, 0, 3);
    put(b, 0, 2, 10);
    put(b, 0, 2, 11);
    put(b, 0, 1, 12);
    step(b, 1);
    b->fabric.peers[2].status[0] = 12;
    b->fabric.peers[2].status[1] = 5; /* flushed behind the first */
    b->fabric.automatic = 1;
    step(b, 2);
    assert_int_equal(b->failures, 1);
    assert_int_equal(b->failure.kind, MK_FAIL_NETWORK);
    assert_int_equal(b->failure.op, MK_OP_AG_GEMM);
    assert_int_equal(b->failure.producer, 2);
    assert_int_equal(b->failure.flag, 10);
    assert_int_equal(b->failure.epoch, 3);
    assert_int_equal(b->failure.status, 12);
    assert_int_equal(b->failure.cta, UINT32_MAX);
    assert_string_equal(b->failure.what, "what flag 10 says");
    assert_string_equal(b->failure.detail, "transport retry counter exceeded");
    assert_int_equal(b->described_plan, 7);
    /* it drains: commands are dropped, their slots free, and nothing is counted as complete any
     * more */
    uint64_t puts = b->fabric.puts, completed = b->rings[0]->completed;
    for (uint32_t i = 0; i < 3 * CAPACITY; i++) {
        put(b, 0, 1, 1);
        step(b, 1);
    }
    assert_int_equal(b->fabric.puts, puts);
    assert_int_equal(b->rings[0]->completed, completed);
    assert_int_equal(b->failures, 1);
    assert_int_equal(proxy_in_flight(b->proxy), 0);
    bench_close(b);
}

/* Arrivals keep the proxy awake and are nothing else; a peer that can no longer be answered fails
 * the job. */
CASE(test_completions_of_no_put)
{
    struct bench *b = bench_open(0, 1000000);
    assert_int_equal(proxy_step(b->proxy), 0);
    b->fabric.news = (struct fabric_completion){.cookie = FABRIC_NO_PUT};
    b->fabric.news_count = 2;
    assert_int_equal(proxy_step(b->proxy), 2);
    assert_int_equal(proxy_step(b->proxy), 0);
    assert_int_equal(b->failures, 0);
    b->fabric.news = (struct fabric_completion){
        .cookie = FABRIC_NO_PUT, .peer = 3, .status = 21, .detail = "response timeout"};
    b->fabric.news_count = 2;
    step(b, 2);
    assert_int_equal(b->failures, 1);
    assert_int_equal(b->failure.kind, MK_FAIL_NETWORK);
    assert_int_equal(b->failure.producer, 3);
    assert_int_equal(b->failure.status, 21);
    assert_string_equal(b->failure.detail, "response timeout");
    bench_close(b);
}

CASE(test_broken_fabric)
{
    struct bench *b = bench_open(0, 1u << 30);
    begin(b, 0, 3);
    put(b, 0, 2, 10);
    b->fabric.broken = -EPIPE;
    step(b, 1);
    assert_int_equal(b->failures, 1);
    assert_int_equal(b->failure.kind, MK_FAIL_NETWORK);
    assert_int_equal(b->failure.status, -EPIPE);
    assert_int_equal(b->failure.producer, 2);
    bench_close(b);
}

CASE(test_put_that_never_completes)
{
    struct bench *b = bench_open(0, 5000);
    begin(b, 0, 3);
    put(b, 0, 2, 10);
    step(b, 1);
    b->time += 2000;
    put(b, 0, 1, 11);
    b->fabric.peers[1].may_complete = 1;
    step(b, 2);
    assert_int_equal(b->failures, 0);
    b->time += 2900;
    step(b, 1);
    assert_int_equal(b->failures, 0);
    b->time += 200;
    step(b, 1);
    assert_int_equal(b->failures, 1);
    assert_int_equal(b->failure.kind, MK_FAIL_NETWORK);
    assert_int_equal(b->failure.producer, 2);
    assert_int_equal(b->failure.flag, 10);
    assert_int_equal(b->failure.status, -ETIMEDOUT);
    assert_true(b->failure.waited_ns >= 5000 && b->failure.waited_ns < 6000);
    bench_close(b);
}

CASE(test_put_that_finds_no_room)
{
    struct bench *b = bench_open(0, 5000);
    b->fabric.broken = -EAGAIN;
    begin(b, 0, 3);
    put(b, 0, 2, 10);
    step(b, 3);
    assert_int_equal(b->failures, 0);
    b->time += 6000;
    step(b, 1);
    assert_int_equal(b->failures, 1);
    assert_int_equal(b->failure.status, -EAGAIN);
    bench_close(b);
}

/* A send queue that all peers share is full of puts to one that is gone: it is named, and not whose
 * turn it is. */
CASE(test_no_room_for_another_peer)
{
    struct bench *b = bench_open(0, 5000);
    begin(b, 0, 3);
    put(b, 0, 2, 10);
    step(b, 1);
    b->fabric.broken = -EAGAIN;
    put(b, 0, 1, 11);
    step(b, 3);
    assert_int_equal(b->failures, 0);
    b->time += 6000;
    step(b, 1);
    assert_true(b->failures > 0);
    assert_int_equal(b->failure.producer, 2);
    assert_int_equal(b->failure.flag, 10);
    assert_int_equal(b->failure.status, -ETIMEDOUT);
    bench_close(b);
}

CASE(test_job_that_failed_elsewhere)
{
    struct bench *b = bench_open(0, 5000);
    begin(b, 0, 3);
    put(b, 0, 2, 10);
    step(b, 1);
    b->job_failed = 1;
    put(b, 0, 2, 11);
    b->time += 1000;
    step(b, 2);
    assert_int_equal(b->failures, 0); /* another rank has reported it */
    assert_int_equal(b->fabric.puts, 1);
    assert_int_equal(b->rings[0]->seen, 3);
    bench_close(b);
}

/* A rank that waits for this one was a little quicker: a put that hangs says where the blame
 * belongs. */
CASE(test_hanging_put_when_the_job_fails)
{
    struct bench *b = bench_open(0, 5000);
    begin(b, 0, 3);
    put(b, 0, 2, 10);
    step(b, 1);
    b->time += 4900;
    b->job_failed = 1;
    step(b, 2);
    assert_int_equal(b->failures, 1);
    assert_int_equal(b->failure.kind, MK_FAIL_NETWORK);
    assert_int_equal(b->failure.producer, 2);
    bench_close(b);
}

CASE(test_garbled_commands)
{
    const uint64_t past = HEAP / MK_HEAP_UNIT;
    const struct {
        struct mk_command c;
        const char *detail;
    } cases[] = {
        {{0, 0}, "unknown kind"},
        {{5 << 1, 0}, "unknown kind"},
        {mk_command_begin(0, 4, 0), "without a plan"},
        {mk_command_begin(7, 0, 0), "without an epoch"},
        {mk_command_begin(7, 2, 0), "goes back"},
        {{mk_command_begin(7, 4, 0).lo | 1ull << 50, 4}, "without a plan"},
        {mk_command_put(0, 32768, 32768, 16, 1, 0), "not on another node"},
        {mk_command_put(NODES, 32768, 32768, 16, 1, 0), "not on another node"},
        {mk_command_put(4095, 32768, 32768, 16, 1, 0), "not on another node"},
        {mk_command_put(1, 32768, 32768, 16, FLAGS, 0), "the heap does not have"},
        {mk_command_put(1, HEAP, 32768, 16, 1, 0), "from beyond the heap"},
        {mk_command_put(1, HEAP - 128, 32768, 144, 1, 0), "from beyond the heap"},
        {mk_command_put(1, 32768, HEAP - 128, 144, 1, 0), "to beyond the heap"},
        {{mk_command_put(1, 0, 0, 16, 1, 0).lo, past << 32}, "to beyond the heap"},
        {{mk_command_put(1, 0, 0, 16, 1, 0).lo, 0xffffffffull}, "from beyond the heap"},
        {mk_command_put(1, 32768, 128, 16, 1, 0), "over the flags"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench *b = bench_open(0, 5000);
        begin(b, 0, 3);
        put(b, 0, 1, 1);
        assert_int_equal(try_post(b, 0, cases[i].c), 0);
        put(b, 0, 1, 2);
        step(b, 2);
        assert_int_equal(b->failures, 1);
        assert_int_equal(b->failure.kind, MK_FAIL_INTERNAL);
        if (!strstr(b->failure.detail, cases[i].detail))
            fail_msg("case %zu: %s", i, b->failure.detail);
        assert_non_null(strstr(b->failure.what, "command 2 of ring 0"));
        assert_int_equal(b->fabric.puts, 1); /* neither it nor what follows was sent */
        bench_close(b);
    }
    struct bench *b = bench_open(0, 5000);
    put(b, 0, 1, 1);
    step(b, 1);
    assert_non_null(strstr(b->failure.detail, "before any BEGIN"));
    bench_close(b);
}

CASE(test_create_refuses)
{
    struct proxy *p;
    struct mk_ring ring = {.capacity = 12};
    struct mk_ring *rings[] = {&ring};
    struct proxy_config config = {.rings = rings, .ring_count = 1, .timeout_ns = 1};
    assert_int_equal(proxy_create(&p, &config), -EINVAL);
    config.ring_count = MK_MAX_RINGS + 1;
    assert_int_equal(proxy_create(&p, &config), -EINVAL);
    config.ring_count = 0;
    config.timeout_ns = 0;
    assert_int_equal(proxy_create(&p, &config), -EINVAL);
    proxy_destroy(NULL);
}
