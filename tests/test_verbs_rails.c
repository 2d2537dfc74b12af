/* Over several devices, of which one may be slow, late or broken, every put's bytes still come
 * before its flag, a flag's values come in the order of their puts and never go back (four ways of
 * striping that are wrong are caught), all devices carry their share, and ranks with different
 * numbers of devices find each other. */
#include "backends/verbs/rc_state.h"
#include "tests/helpers/verbs_pair.h"
#include "tests/helpers/test.h"

#ifdef __SANITIZE_THREAD__
enum { PLACE = 4096, WATCHED = 1 }; /* every word that is read is a call */
#else
enum { PLACE = 65536, WATCHED = 0 };
#endif
enum { FLAGS = 12, DATA = FLAGS * 2 * PLACE };

/* ---- order ---- */

/* A receiver of launches: each raises every flag once and brings its bytes, into one of two halves
 * by its parity. */
struct launches {
    struct pair_rank ranks[2];
    uint64_t posted[FLAGS], seen[FLAGS], arrived;
    char broken[160]; /* the first fault that a kernel would have met; "": none */
};

/* Ways of using several QPs that break a promise of backends/fabric.h. */
enum mutation {
    NOTHING,
    QPS_IN_TURN,    /* a flag's next value may overtake the last one */
    FLAG_ELSEWHERE, /* data by one QP, its flag by another */
    HALF_ELSEWHERE, /* half of the data by another QP, without a count */
    FLAG_FIRST,
    MUTATIONS
};
static enum mutation mutation;

static uint64_t place_of(uint32_t flag, uint64_t launch)
{
    return PAIR_FLAG_BYTES + (flag * 2 + launch % 2) * PLACE;
}

static uint64_t word_of(uint32_t flag, uint64_t launch, uint64_t i)
{
    return (flag + 1) * 0x9e3779b97f4a7c15ull + launch * 1000003 + i;
}

/* What a kernel may do at this moment: a CTA that waits for a value, or for the one before it, goes
 * on and reads its bytes. */
static void look(struct launches *l)
{
    for (uint32_t flag = 0; flag < FLAGS && !l->broken[0]; flag++) {
        uint64_t value = __atomic_load_n(pair_flag(&l->ranks[1], flag), __ATOMIC_ACQUIRE);
        if (value < l->seen[flag] || value > l->posted[flag])
            snprintf(l->broken, sizeof l->broken, "flag %u went from %llu to %llu", flag,
                     (unsigned long long)l->seen[flag], (unsigned long long)value);
        for (; l->seen[flag] < value; l->arrived++) {
            uint64_t launch = ++l->seen[flag];
            const uint64_t *data =
                (const uint64_t *)(const void *)(l->ranks[1].heap + place_of(flag, launch));
            for (uint64_t i = PLACE / 8; i-- > 0;)
                if (data[i] != word_of(flag, launch, i))
                    snprintf(l->broken, sizeof l->broken,
                             "flag %u says %llu, and word %llu of launch %llu is not here", flag,
                             (unsigned long long)value, (unsigned long long)i,
                             (unsigned long long)launch);
        }
    }
}

/* Hands a put to the fabric, or breaks it. Data that goes elsewhere carries a flag that is not
 * looked at. */
static int put_or_break(struct fabric *f, const struct fabric_put *put)
{
    struct fabric_put first = *put, second = *put;
    if (mutation == NOTHING)
        return f->ops->put(f, put);
    if (mutation == QPS_IN_TURN) {
        ((struct rc *)f)->peers[0].rank++; /* which a flag's QP is counted from */
        return f->ops->put(f, put);
    }
    first.flag = FLAGS + 1 + put->flag;
    if (mutation == FLAG_ELSEWHERE)
        second.bytes = 0;
    if (mutation == HALF_ELSEWHERE) {
        first.bytes = second.bytes = put->bytes / 2;
        second.source += first.bytes;
        second.destination += first.bytes;
    }
    if (mutation == FLAG_FIRST) {
        first.flag = put->flag;
        first.bytes = 0;
        second.flag = FLAGS + put->flag;
    }
    int rc = f->ops->put(f, &first);
    return rc ? rc : f->ops->put(f, &second);
}

/* As far ahead as two halves allow. */
static int may_post(const struct launches *l, uint32_t flag, uint64_t launches)
{
    return l->posted[flag] < launches && l->posted[flag] < l->seen[flag] + 2;
}

/* With nothing under way: a flag that went back while nobody looked says so by staying. */
static void look_for_stuck(struct launches *l, uint64_t launches)
{
    for (uint32_t flag = 0; flag < FLAGS; flag++)
        if (may_post(l, flag, launches))
            return;
    look(l);
    for (uint32_t flag = 0; flag < FLAGS && !l->broken[0]; flag++)
        if (l->seen[flag] < l->posted[flag])
            snprintf(l->broken, sizeof l->broken, "flag %u stays at %llu of %llu", flag,
                     (unsigned long long)l->seen[flag], (unsigned long long)l->posted[flag]);
}

/* Posts a flag's next launch, without a wait for what is still under way. */
static int post(struct launches *l, uint32_t flag, uint64_t cookie)
{
    uint64_t launch = l->posted[flag] + 1, at = place_of(flag, launch);
    uint64_t *source = (uint64_t *)(void *)(l->ranks[0].heap + at);
    struct fabric_put put = {.peer = 1,
                             .flag = flag,
                             .value = launch,
                             .source = at,
                             .destination = at,
                             .bytes = PLACE,
                             .cookie = cookie};
    for (uint64_t i = 0; i < PLACE / 8; i++)
        source[i] = word_of(flag, launch, i);
    int rc = put_or_break(l->ranks[0].fabric, &put);
    l->posted[flag] += rc == 0;
    return rc;
}

/* 0, or 1 where a kernel would have tripped. */
static int run_order(const char *verbs, const char *softnic, uint64_t launches)
{
    struct launches l = {.arrived = 0};
    struct fabric_completion c[8];
    uint64_t started = 0, completed = 0, puts = mutation > QPS_IN_TURN ? 2 : 1,
             end = pair_now() + 60000000000ull;
    assert_int_equal(pair_open(l.ranks, DATA, verbs), 0);
    assert_int_equal(pair_softnic(softnic), 0);
    struct fabric *f = l.ranks[0].fabric;
    while (!l.broken[0] && (l.arrived < launches * FLAGS || completed < started * puts)) {
        assert_true(pair_now() < end);
        for (uint32_t flag = 0; flag < FLAGS; flag++) {
            if (!may_post(&l, flag, launches))
                continue;
            int rc = post(&l, flag, started);
            assert_true(rc == 0 || rc == -EAGAIN);
            started += rc == 0;
        }
        assert_int_equal(f->ops->flush(f), 0);
        int n = f->ops->poll(f, c, 8);
        for (int i = 0; i < n; i++)
            assert_true(c[i].cookie == completed++ / puts && !c[i].status);
        look(&l);
        if (completed == started * puts)
            look_for_stuck(&l, launches);
    }
    assert_int_equal(pair_softnic("bw=unlimited,latency=0ns,delay=0ns,only=all"), 0);
    for (int i = 0; i < 2; i++)
        pair_rank_close(&l.ranks[i]);
    print_message("qps %s, softnic %s: %s\n", verbs, softnic, l.broken[0] ? l.broken : "in order");
    return l.broken[0] != 0;
}

CASE(test_order)
{
    mutation = NOTHING;
    pair_devices = 2;
    assert_int_equal(run_order("qps=1", "delay=0ns", 200), 0);
    /* messages of either are late by chance */
    assert_int_equal(run_order("qps=2", "delay=3ms~0.3,seed=7", 60), 0);
    /* one is farther away */
    assert_int_equal(run_order("qps=2", "latency=2ms,delay=4ms~0.2,only=soft1", 60), 0);
    /* one is slow */
    assert_int_equal(run_order("qps=1", "bw=200MB/s,only=soft0", 40), 0);
    /* puts of 16 writes */
    assert_int_equal(run_order("qps=3,max_message=4096", "delay=1ms~0.02,seed=3", 40), 0);
}

CASE(test_order_on_one_device)
{
    mutation = NOTHING;
    pair_devices = 1;
    assert_int_equal(run_order("qps=2", "delay=3ms~0.3,seed=5", 60), 0);
    assert_int_equal(run_order("qps=7", "delay=3ms~0.3,seed=6", 60), 0);
}

/* So the test above would see it. */
CASE(test_mutants)
{
    if (WATCHED) {
        printf("a mutant is a data race, which the thread sanitizer reports\n");
        skip();
    }
    for (int devices = 1; devices <= 2; devices++)
        for (int m = NOTHING + 1; m < MUTATIONS; m++) {
            mutation = (enum mutation)m;
            pair_devices = (uint32_t)devices;
            int seen = 0;
            /* longer than a busy machine keeps this thread from looking */
            for (int late = 3; late < 200 && !seen; late *= 2) {
                char network[64];
                snprintf(network, sizeof network, "delay=%dms~0.3,seed=7", late);
                seen = run_order("qps=2", network, 60);
            }
            if (!seen)
                fail_msg("mutation %d over %d devices is not seen", m, devices);
        }
    mutation = NOTHING;
}

/* ---- shares ---- */

CASE(test_shares)
{
    struct pair_rank r[2];
    char text[256];
    uint64_t completed = 0;
    int status = 0;
    pair_devices = 2;
    assert_int_equal(pair_open(r, DATA, "qps=2"), 0);
    r[0].fabric->ops->describe(r[0].fabric, text, sizeof text);
    assert_non_null(strstr(text, "soft0+soft1 port 1"));
    assert_non_null(strstr(text, "4 QPs"));
    /* each: twelve chunks of 50 KB take as long as six, 30 ms; best of some on a busy machine */
    assert_int_equal(pair_softnic("bw=10MB/s"), 0);
    double best = 1e9;
    for (int round = 0; round < 20 && best > 0.04; round++) {
        uint64_t from = pair_now();
        for (uint32_t i = 0; i < 12; i++) {
            struct fabric_put put = {.peer = 1,
                                     .flag = 40 + i,
                                     .value = 1,
                                     .source = 4096,
                                     .destination = 4096,
                                     .bytes = 50000};
            assert_int_equal(pair_put(&r[0], &put, &completed, &status), 0);
        }
        assert_int_equal(pair_drain(&r[0], &completed, 12 * (uint64_t)(round + 1), &status), 0);
        double seconds = (double)(pair_now() - from) / 1e9;
        assert_true(seconds > 0.0299);
        best = seconds < best ? seconds : best;
    }
    assert_int_equal(pair_softnic("bw=unlimited"), 0);
    assert_int_equal(status, 0);
    assert_true(best < 0.055);
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

/* ---- different numbers ---- */

CASE(test_uneven)
{
    struct pair_rank r[2];
    char addresses[2 * 4096];
    for (uint32_t i = 0; i < 2; i++) {
        pair_devices = 1 + i; /* one device with three QPs, and two with three each: three join */
        assert_int_equal(pair_rank_open(&r[i], i, DATA, "qps=3"), 0);
        size_t bytes = r[i].fabric->ops->address_bytes(r[i].fabric);
        assert_int_equal(bytes, r[0].fabric->ops->address_bytes(r[0].fabric));
        r[i].fabric->ops->address(r[i].fabric, addresses + i * bytes);
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pair_connect(&r[i], i, addresses), 0);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t completed = 0;
        int status = 0;
        for (uint32_t f = 0; f < 7; f++) {
            struct fabric_put put = {.peer = 1 - i,
                                     .flag = f,
                                     .value = 5 + f,
                                     .source = 4096,
                                     .destination = 4096 + PLACE,
                                     .bytes = 4096};
            assert_int_equal(pair_put(&r[i], &put, &completed, &status), 0);
        }
        assert_int_equal(pair_drain(&r[i], &completed, 7, &status), 0);
        assert_int_equal(status, 0);
        for (uint32_t f = 0; f < 7; f++)
            assert_int_equal(*pair_flag(&r[1 - i], f), 5 + f);
    }
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

/* ---- failures ---- */

CASE(test_broken_device)
{
    struct pair_rank r[2];
    struct fabric_completion c;
    pair_devices = 2;
    assert_int_equal(pair_open(r, DATA, "qps=1"), 0);
    /* the data of its second put */
    assert_int_equal(pair_softnic("fail-wr=REM_ACCESS_ERR@3,only=soft1"), 0);
    for (uint32_t i = 0; i < 6; i++) {
        struct fabric_put put = {.peer = 1,
                                 .flag = i,
                                 .value = 9,
                                 .cookie = i,
                                 .source = 4096,
                                 .destination = 4096,
                                 .bytes = 4096};
        assert_int_equal(r[0].fabric->ops->put(r[0].fabric, &put), 0);
    }
    r[0].fabric->ops->flush(r[0].fabric);
    uint32_t next = 0, good = 0, failed = 0, flushed = 0;
    for (uint64_t end = pair_now() + 10000000000ull; next < 6 && pair_now() < end;) {
        if (!r[0].fabric->ops->poll(r[0].fabric, &c, 1))
            continue;
        assert_int_equal(c.cookie, next++);
        good += !c.status;
        failed += c.status == IBV_WC_REM_ACCESS_ERR && strstr(c.detail, "remote access error");
        flushed += c.status == IBV_WC_WR_FLUSH_ERR;
        assert_int_equal(*pair_flag(&r[1], (uint32_t)c.cookie), c.status ? 0 : 9);
    }
    assert_true(good == 4 && failed == 1 && flushed == 1); /* soft0's three, and soft1's first */
    struct fabric_put put = {.peer = 1, .flag = 0, .value = 10};
    /* on the other device too */
    assert_int_equal(r[0].fabric->ops->put(r[0].fabric, &put), -EPIPE);
    put.flag = 1;
    assert_int_equal(r[0].fabric->ops->put(r[0].fabric, &put), -EPIPE);
    assert_int_equal(pair_softnic("fail-wr=none,only=all"), 0);
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

CASE(test_refused)
{
    struct fabric *f;
    struct verbs_api api;
    char error[256];
    uint32_t peer = 1;
    char *heap = aligned_alloc(4096, 8192);
    assert_int_equal(verbs_api_open(&api, VERBS_SOFT, error, sizeof error), 0);
    struct verbs_rc_config config = {
        .api = &api, .end = {.rank = 0, .world = 2, .peers = &peer, .peer_count = 1}};
    config.end.heap = (struct mr_heap){.base = heap, .flag_bytes = 4096, .bytes = 8192};
    verbs_options_default(&config.options);
    assert_int_equal(verbs_rc_open(&f, &config, error, sizeof error), -EINVAL);
    config.end.nics.count = NIC_RAILS_MAX + 1;
    assert_int_equal(verbs_rc_open(&f, &config, error, sizeof error), -EINVAL);
    config.end.nics.count = 2;
    strcpy(config.end.nics.devices[0], "soft0");
    strcpy(config.end.nics.devices[1], "soft9"); /* the first is closed again */
    assert_int_equal(verbs_rc_open(&f, &config, error, sizeof error), -ENODEV);
    assert_non_null(strstr(error, "soft9"));
    assert_null(f);
    uint32_t peers[900]; /* their QPs' numbers do not fit an address */
    for (uint32_t i = 0; i < 900; i++)
        peers[i] = i + 1;
    config.end.peers = peers;
    config.end.peer_count = 900;
    config.end.world = 901;
    assert_int_equal(verbs_rc_open(&f, &config, error, sizeof error), -ENOSPC);
    assert_non_null(strstr(error, "900 peers are too many for the verbs fabric over 2 devices"));
    free(heap);
}
