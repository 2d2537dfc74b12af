/* The verbs fabric over softnic delivers every put's bytes before its flag, completes each put once
 * and in order over several QPs and many laps of their queues, and turns a failed work request or a
 * dead peer into one named completion in time. */
#include "backends/verbs/rc_state.h"
#include "tests/helpers/verbs_pair.h"
#include "tests/helpers/test.h"

enum { DATA = 8 << 20 };

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

/* ---- data before flag ---- */

enum { SIZES = 14, ROUNDS = 40 };
static const uint64_t sizes[SIZES] = {16,    128,    144,     1024,    4096,    4112,    65536,
                                      65552, 262144, 1 << 20, 1048592, 3 << 20, 4194288, 4 << 20};

static const char *order_options;

/* The flag's round says how many bytes must be there: the reader checks the last bytes first, the
 * moment it sees it. */
static int data_before_flag(uint32_t rank, int fd)
{
    struct pair_rank r;
    char byte = 0;
    int bad = pair_join(&r, rank, fd, DATA, order_options);
    uint64_t completed = 0, started = 0;
    int status = 0;
    for (uint64_t round = 1; round <= ROUNDS && !bad; round++)
        for (uint32_t s = 0; s < SIZES && !bad; s++) {
            uint64_t words = sizes[s] / 8, seed = mix(round * SIZES + s + 1);
            uint64_t *data = (uint64_t *)(void *)(r.heap + PAIR_FLAG_BYTES + (s % 2) * (DATA / 2));
            if (rank == 0) {
                for (uint64_t i = 0; i < words; i++)
                    data[i] = seed + i;
                struct fabric_put put = {.peer = 1,
                                         .flag = s,
                                         .value = round,
                                         .cookie = started++,
                                         .source = (uint64_t)((char *)data - r.heap),
                                         .bytes = sizes[s]};
                put.destination = put.source;
                bad = pair_put(&r, &put, &completed, &status) ||
                      pair_drain(&r, &completed, started, &status) || status;
            } else {
                uint64_t end = pair_now() + 10000000000ull;
                while (__atomic_load_n(pair_flag(&r, s), __ATOMIC_ACQUIRE) != round &&
                       pair_now() < end)
                    ;
                uint64_t wrong = words;
                for (uint64_t i = words; i-- > 0;)
                    if (data[i] != seed + i)
                        wrong = i;
                bad = wrong != words;
                if (bad)
                    fprintf(stderr, "round %d, %d bytes: word %d came after its flag\n", (int)round,
                            (int)sizes[s], (int)wrong);
                struct fabric_put answer = {
                    .peer = 0, .flag = s, .value = round, .cookie = started++}; /* the flag alone */
                bad |= pair_put(&r, &answer, &completed, &status) ||
                       pair_drain(&r, &completed, started, &status) || status;
                continue;
            }
            uint64_t end = pair_now() + 10000000000ull;
            while (!bad && __atomic_load_n(pair_flag(&r, s), __ATOMIC_ACQUIRE) != round)
                bad = pair_now() > end;
        }
    bad |= pair_exchange(fd, &byte, &byte, 1);
    pair_rank_close(&r);
    return bad;
}

CASE(test_data_before_flag)
{
    order_options = "qps=2";
    assert_int_equal(pair_fork(data_before_flag), 0);
    order_options = "qps=1,max_message=4096,depth=2048"; /* long puts as a thousand writes */
    assert_int_equal(pair_fork(data_before_flag), 0);
}

/* ---- many puts under way ---- */

/* 20,000 puts of random sizes and places over queues of 32: each completes once, in order, and the
 * receiver ends with what the last put to each place said. */
static void run_many(const char *options, uint64_t puts)
{
    enum { PLACES = 64, PLACE = 65536 };
    struct pair_rank r[2];
    assert_int_equal(pair_open(r, 2 * PLACES * PLACE, options), 0);
    unsigned seed = 3;
    uint64_t reported = 0, expect[PLACES] = {0}, lengths[PLACES] = {0}, last[PLACES] = {0},
             end = pair_now() + 60000000000ull;
    for (uint64_t n = 0; n < puts || reported < puts;) {
        struct fabric_completion c[7];
        assert_true(pair_now() < end);
        for (int burst = rand_r(&seed) % 20; burst >= 0 && n < puts; burst--) {
            uint32_t place = (uint32_t)(n % PLACES);
            if (n - reported >= PLACES) /* its place is still being read */
                break;
            uint64_t bytes = 16 * (uint64_t)(rand_r(&seed) % 40 ? rand_r(&seed) % 20
                                                                : rand_r(&seed) % (PLACE / 16));
            uint64_t *source = (uint64_t *)(void *)(r[0].heap + PAIR_FLAG_BYTES + place * PLACE);
            struct fabric_put put = {.peer = 1,
                                     /* so the last put to a place is the last to land */
                                     .flag = place,
                                     .value = n + 1,
                                     .cookie = n,
                                     .bytes = bytes,
                                     .source = PAIR_FLAG_BYTES + (uint64_t)place * PLACE};
            put.destination = put.source + PLACES * PLACE;
            uint64_t before[2] = {source[0], source[1]};
            if (bytes) {
                source[0] = n;
                source[bytes / 8 - 1] = ~n;
            }
            int rc = r[0].fabric->ops->put(r[0].fabric, &put);
            if (rc == -EAGAIN) {
                source[0] = before[0];
                break;
            }
            assert_int_equal(rc, 0);
            last[place] = n + 1;
            if (bytes) {
                expect[place] = n;
                lengths[place] = bytes;
            }
            n++;
        }
        assert_int_equal(r[0].fabric->ops->flush(r[0].fabric), 0);
        int got = r[0].fabric->ops->poll(r[0].fabric, c, 1 + rand_r(&seed) % 7);
        for (int i = 0; i < got; i++) {
            assert_int_equal(c[i].cookie, reported++);
            assert_int_equal(c[i].status, 0);
        }
        if (!got)
            sched_yield();
    }
    for (uint32_t place = 0; place < PLACES; place++) {
        uint64_t *data =
            (uint64_t *)(void *)(r[1].heap + PAIR_FLAG_BYTES + (PLACES + place) * PLACE);
        assert_int_equal(*pair_flag(&r[1], place), last[place]);
        if (lengths[place]) {
            if (lengths[place] > 16)
                assert_int_equal(data[0], expect[place]);
            assert_int_equal(data[lengths[place] / 8 - 1], ~expect[place]);
        }
    }
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

CASE(test_queue_wraps)
{
    run_many("qps=1,depth=32,signal_every=4", 5000);
    run_many("qps=3,depth=32,signal_every=32768", 5000); /* only the last of a flush is signaled */
    run_many("qps=16,depth=64,max_message=4096,signal_every=1", 5000);
}

CASE(test_room_comes_back_without_flush)
{
    struct pair_rank r[2];
    assert_int_equal(pair_open(r, DATA, "qps=2,depth=8,signal_every=1000"), 0);
    uint64_t completed = 0;
    int status = 0;
    for (uint64_t i = 0; i < 500; i++) {
        struct fabric_put put = {
            .peer = 1, .flag = 1, .value = i + 1, .source = 4096, .destination = 4096, .bytes = 64};
        assert_int_equal(pair_put(&r[0], &put, &completed, &status), 0);
    }
    assert_int_equal(pair_drain(&r[0], &completed, 500, &status), 0);
    assert_int_equal(status, 0);
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

/* ---- what is refused ---- */

CASE(test_refusals)
{
    struct pair_rank r[2];
    assert_int_equal(pair_open(r, 65536, "qps=1"), 0);
    struct fabric *f = r[0].fabric;
    const uint64_t top = PAIR_FLAG_BYTES + 65536;
    struct fabric_put puts[] = {
        {.peer = 0, .flag = 1, .source = 4096, .destination = 4096, .bytes = 16}, /* itself */
        /* no such rank */
        {.peer = 2, .flag = 1, .source = 4096, .destination = 4096, .bytes = 16},
        {.peer = 1, .flag = 512, .source = 4096, .destination = 4096, .bytes = 16}, /* no flag */
        /* past the heap here */
        {.peer = 1, .flag = 1, .source = top - 16, .destination = 4096, .bytes = 32},
        /* and there */
        {.peer = 1, .flag = 1, .source = 4096, .destination = top - 16, .bytes = 32},
        /* over flags */
        {.peer = 1, .flag = 1, .source = 4096, .destination = 4080, .bytes = 32},
    };
    for (size_t i = 0; i < sizeof puts / sizeof *puts; i++)
        assert_int_equal(f->ops->put(f, &puts[i]), i < 2 ? -ENOTCONN : -ERANGE);
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

CASE(test_foreign_addresses)
{
    struct pair_rank r[2];
    char addresses[2 * 4096];
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(pair_rank_open(&r[i], i, 65536, "qps=2"), 0);
        r[i].fabric->ops->address(r[i].fabric,
                                  addresses + i * r[i].fabric->ops->address_bytes(r[i].fabric));
    }
    size_t stride = r[0].fabric->ops->address_bytes(r[0].fabric);
    const struct {
        size_t offset;
        uint8_t value;
        const char *says;
    } cases[] = {{offsetof(struct rc_address, magic), 0xff, "version"},
                 {offsetof(struct rc_address, rank), 7, "other peers"},
                 {offsetof(struct rc_address, qps), 200, "QPs"},
                 {offsetof(struct rc_address, provider), 0, "softnic"},
                 {offsetof(struct rc_address, rails), 0, "number of devices"},
                 {offsetof(struct rc_address, rails), 17, "number of devices"},
                 {offsetof(struct rc_address, rails), 3, "number of devices"},
                 {offsetof(struct rc_address, ports[0].link_layer), 77, "InfiniBand"},
                 {offsetof(struct rc_address, ports[0].mtu), 99, "MTU"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *at = addresses + stride + cases[i].offset, keep = *at;
        *at = (char)cases[i].value;
        assert_int_equal(pair_connect(&r[0], 0, addresses), -EPROTO);
        if (!strstr(r[0].error, cases[i].says))
            fail_msg("%s", r[0].error);
        *at = keep;
    }
    struct fabric_put put = {.peer = 1, .flag = 1, .value = 1};
    assert_int_equal(r[0].fabric->ops->put(r[0].fabric, &put), -ENOTCONN); /* not connected yet */
    assert_int_equal(pair_connect(&r[0], 0, addresses), 0);
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

/* ---- failures ---- */

/* Collects until a completion fails, at most `seconds`. */
static int first_failure(struct fabric *f, struct fabric_completion *failure, uint64_t *good,
                         double seconds)
{
    uint64_t end = pair_now() + (uint64_t)(seconds * 1e9);
    while (pair_now() < end) {
        if (f->ops->poll(f, failure, 1) != 1) {
            sched_yield();
            continue;
        }
        if (failure->status)
            return 0;
        ++*good;
    }
    return -1;
}

CASE(test_failed_work_request)
{
    struct pair_rank r[2];
    assert_int_equal(pair_open(r, DATA, "qps=1,depth=64"), 0);
    struct fabric *f = r[0].fabric;
    /* Every put is two work requests: the seventh is the data of the fourth put. */
    assert_int_equal(pair_softnic("fail-wr=REM_ACCESS_ERR@7"), 0);
    for (uint64_t i = 0; i < 8; i++) {
        struct fabric_put put = {.peer = 1,
                                 .flag = (uint32_t)i,
                                 .value = 9,
                                 .cookie = 100 + i,
                                 .source = 4096,
                                 .destination = 4096,
                                 .bytes = 1024};
        assert_int_equal(f->ops->put(f, &put), 0);
    }
    f->ops->flush(f);
    struct fabric_completion c;
    uint64_t good = 0;
    assert_int_equal(first_failure(f, &c, &good, 10), 0);
    assert_int_equal(pair_softnic("fail-wr=none"), 0);
    assert_int_equal(good, 3);
    assert_int_equal(c.cookie, 103);
    assert_int_equal(c.status, IBV_WC_REM_ACCESS_ERR);
    assert_non_null(strstr(c.detail, "remote access error"));
    for (uint64_t i = 4; i < 8; i++) {
        assert_int_equal(f->ops->poll(f, &c, 1), 1);
        assert_int_equal(c.cookie, 100 + i);
        assert_int_equal(c.status, IBV_WC_WR_FLUSH_ERR);
    }
    assert_int_equal(f->ops->poll(f, &c, 1), 0);
    assert_int_equal(*pair_flag(&r[1], 2), 9);
    assert_int_equal(*pair_flag(&r[1], 3), 0); /* its flag never went out */
    struct fabric_put put = {.peer = 1, .flag = 1, .value = 1};
    assert_int_equal(f->ops->put(f, &put), -EPIPE);
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

/* The peer's process ends without a word. */
static int peer_dies(uint32_t rank, int fd)
{
    struct pair_rank r;
    if (pair_join(&r, rank, fd, DATA, "qps=2,timeout=10,retry=3"))
        return 1;
    if (rank == 1) {
        uint64_t end = pair_now() + 10000000000ull;
        while (__atomic_load_n(pair_flag(&r, 0), __ATOMIC_ACQUIRE) < 10 && pair_now() < end)
            sched_yield();
        _exit(0);
    }
    uint64_t completed = 0, good = 0, n = 0;
    int status = 0;
    for (; n < 10; n++) {
        struct fabric_put put = {.peer = 1,
                                 .flag = 0,
                                 .value = n + 1,
                                 .source = 4096,
                                 .destination = 4096,
                                 .bytes = 4096};
        if (pair_put(&r, &put, &completed, &status))
            return 1;
    }
    if (pair_drain(&r, &completed, 10, &status) || status)
        return 1;
    char byte;
    while (recv(fd, &byte, 1, 0) > 0) /* ends when the peer's end is closed */
        ;
    uint64_t from = pair_now();
    int rc = 0;
    struct fabric_completion c = {0};
    for (int i = 0; i < 4 && !rc; i++) {
        struct fabric_put put = {
            .peer = 1, .flag = 0, .value = 99, .source = 4096, .destination = 4096, .bytes = 4096};
        rc = r.fabric->ops->put(r.fabric, &put);
    }
    r.fabric->ops->flush(r.fabric);
    if (first_failure(r.fabric, &c, &good, 8)) {
        fprintf(stderr, "no failure within 8 s\n");
        return 1;
    }
    printf("a dead peer was noticed after %.3f s: %s\n", (double)(pair_now() - from) / 1e9,
           c.detail);
    pair_rank_close(&r);
    return c.status == 0 || !c.detail[0];
}

CASE(test_dead_peer)
{
    assert_int_equal(pair_fork(peer_dies), 0);
}

CASE(test_options)
{
    struct verbs_options o;
    char error[128] = "";
    verbs_options_default(&o);
    assert_int_equal(verbs_options_parse(&o, "qps=4,timeout=16,,mtu=1024,relaxed_ordering=0", error,
                                         sizeof error),
                     0);
    assert_int_equal(o.qps, 4);
    assert_int_equal(o.timeout, 16);
    assert_int_equal(o.mtu, 1024);
    assert_int_equal(o.relaxed_ordering, 0);
    assert_int_equal(o.retry, 6);
    assert_int_equal(verbs_options_parse(&o, NULL, error, sizeof error), 0);
    const char *bad[] = {"qps",     "qps=",     "qps=0",          "qps=17", "qps=4x",
                         "lanes=2", "mtu=1000", "max_message=12", "=4",     "qps=1 ,"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(verbs_options_parse(&o, bad[i], error, sizeof error), -EINVAL);
        assert_int_equal(o.qps, 4);
        assert_true(strlen(error) > 20);
    }
}
