/* The efa fabric refuses in one sentence what it cannot open or reach, works with a peer that has
 * other devices, windows and capabilities, and turns a failed request, a device that fails and a
 * credit that cannot be sent into one completion that says so, after which nothing is stuck. */
#include "backends/efa/efa.h"
#include "tests/helpers/fake_copier.h"
#include "tests/helpers/fake_efa_network.h"

enum { FLAGS = 512, HEAP = FLAGS * 8 + 65536 };

struct end {
    struct fabric *fabric;
    char *heap;
    char error[256];
};

static struct end ends[2];
static struct efa_config configs[2];

static void configure(uint32_t rank, uint32_t devices)
{
    static const uint32_t peers[2] = {1, 0};
    configs[rank] = (struct efa_config){.api = &fake_api,
                                        .end = {.nics = {.soft = 1, .count = devices},
                                                .rank = rank,
                                                .world = 2,
                                                .peers = &peers[rank],
                                                .peer_count = 1}};
    efa_options_default(&configs[rank].options);
    for (uint32_t i = 0; i < devices; i++)
        snprintf(configs[rank].end.nics.devices[i], sizeof configs[rank].end.nics.devices[i],
                 "fake%u", rank * 4 + i);
    free(ends[rank].heap);
    ends[rank].heap = aligned_alloc(4096, HEAP);
    memset(ends[rank].heap, 0, HEAP);
    configs[rank].end.heap = (struct mr_heap){MK_MEMORY_HOST, ends[rank].heap, FLAGS * 8, HEAP};
}

static int setup(void **state)
{
    fake_reset(7);
    configure(0, 2);
    configure(1, 2);
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < 2; i++) {
        if (ends[i].fabric)
            ends[i].fabric->ops->close(ends[i].fabric);
        free(ends[i].heap);
    }
    memset(ends, 0, sizeof ends);
    fake_reset(0);
    return 0;
}

static int open_end(uint32_t rank)
{
    return efa_open(&ends[rank].fabric, &configs[rank], ends[rank].error, sizeof ends[rank].error);
}

static int connect_end(uint32_t rank, const void *addresses)
{
    uint32_t peer = 1 - rank;
    return ends[rank].fabric->ops->connect(ends[rank].fabric, addresses, &peer, 1, ends[rank].error,
                                           sizeof ends[rank].error);
}

static void open_both(char *addresses)
{
    for (uint32_t i = 0; i < 2; i++) {
        if (open_end(i))
            fail_msg("%s", ends[i].error);
        ends[i].fabric->ops->address(
            ends[i].fabric, addresses + i * ends[i].fabric->ops->address_bytes(ends[i].fabric));
    }
}

static void join(void)
{
    char addresses[2 * 4096];
    open_both(addresses);
    for (uint32_t i = 0; i < 2; i++)
        if (connect_end(i, addresses))
            fail_msg("%s", ends[i].error);
}

static int put(uint32_t from, uint32_t flag, uint64_t value, uint64_t bytes)
{
    struct fabric_put p = {.peer = 1 - from,
                           .flag = flag,
                           .value = value,
                           .source = FLAGS * 8,
                           .destination = FLAGS * 8 + 32768,
                           .bytes = bytes,
                           .cookie = flag};
    return ends[from].fabric->ops->put(ends[from].fabric, &p);
}

static uint64_t flag_of(uint32_t rank, uint32_t flag)
{
    return ((uint64_t *)(void *)ends[rank].heap)[flag];
}

/* The next completion of `rank` that is more than news of arrivals; 0: none comes. */
static int next(uint32_t rank, struct fabric_completion *c)
{
    for (int i = 0; i < 20000; i++) {
        struct fabric_completion other;
        ends[1 - rank].fabric->ops->poll(ends[1 - rank].fabric, &other, 1);
        if (ends[rank].fabric->ops->poll(ends[rank].fabric, c, 1) == 1 &&
            (c->cookie != FABRIC_NO_PUT || c->status))
            return 1;
        fake_step();
    }
    return 0;
}

static void expect_error(uint32_t rank, const char *says)
{
    if (!strstr(ends[rank].error, says) || strchr(ends[rank].error, '\n'))
        fail_msg("\"%s\" does not say \"%s\"", ends[rank].error, says);
}

/* ---- opening ---- */

CASE_WITH(test_open_refuses, setup, teardown)
{
    configs[0].end.heap.memory = MK_MEMORY_CUDA;
    assert_int_equal(open_end(0), -EOPNOTSUPP);
    expect_error(0, "this process cannot copy");
    configs[0].end.heap.memory = MK_MEMORY_HOST;
    configs[0].end.heap.flag_bytes = 16 << 20; /* two million */
    assert_int_equal(open_end(0), -ERANGE);
    expect_error(0, "2097152 flags are more than the 1048576");
    configs[0].end.heap.flag_bytes = FLAGS * 8;
    fake.caps = EFA_CAP_RNR_RETRY;
    assert_int_equal(open_end(0), -EOPNOTSUPP);
    expect_error(0, "fake0 has no RDMA write");
    fake.caps |= EFA_CAP_RDMA_WRITE;
    fake.receives = 12;
    assert_int_equal(open_end(0), -ENOSPC);
    expect_error(0, "fake0 holds 4096 sends and 12 receives, too few for 1 peers");
    fake.receives = 4096;
    snprintf(configs[0].end.nics.devices[1], sizeof configs[0].end.nics.devices[1], "fake77");
    assert_int_equal(open_end(0), -ENODEV);
    expect_error(0, "there is no RDMA device fake77");
    configs[0].end.nics.count = 0;
    assert_int_equal(open_end(0), -EINVAL);
    assert_null(ends[0].fabric);
}

CASE_WITH(test_foreign_addresses, setup, teardown)
{
    char addresses[2 * 4096], keep;
    open_both(addresses);
    size_t stride = ends[0].fabric->ops->address_bytes(ends[0].fabric);
    const struct {
        size_t offset;
        uint8_t value;
        const char *says;
    } cases[] = {{0, 0xff, "version"},
                 {40, 9, "other peers"},
                 {44, 3, "other peers"},
                 {48, 77, "devices"},
                 {52, 3, "window"},
                 {56, 0, "softnic"},
                 {64 + 16 + 4, 0, "devices that it describes"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *at = addresses + stride + cases[i].offset;
        keep = *at;
        *at = (char)cases[i].value;
        assert_int_equal(connect_end(0, addresses), -EPROTO);
        expect_error(0, cases[i].says);
        *at = keep;
    }
    assert_int_equal(put(0, 1, 1, 16), -ENOTCONN);
    assert_int_equal(connect_end(0, addresses), 0);
}

/* Each side has what the other lacks: devices, room, unsolicited writes. */
CASE_WITH(test_unlike_ends, setup, teardown)
{
    configure(0, 3);
    configure(1, 1);
    configs[0].options.window = 8;
    configs[1].options.unsolicited = 0;
    configs[0].options.stripe = configs[1].options.stripe = 128;
    join();
    struct fabric_completion c;
    for (uint64_t value = 1; value <= 300; value++)
        for (uint32_t from = 0; from < 2; from++) {
            while (put(from, 5, value, 4096) == -EAGAIN)
                next(from, &c);
            assert_true(next(from, &c) && c.cookie == 5 && !c.status);
        }
    for (int i = 0; i < 100 || fake_step(); i++)
        for (uint32_t rank = 0; rank < 2; rank++)
            ends[rank].fabric->ops->poll(ends[rank].fabric, &c, 1);
    assert_int_equal(flag_of(0, 5), 300);
    assert_int_equal(flag_of(1, 5), 300);
}

/* A capability that the library cannot turn into a QP is done without. */
CASE_WITH(test_old_library, setup, teardown)
{
    char text[256];
    struct fabric_completion c;
    fake.no_unsolicited = 1;
    join();
    ends[0].fabric->ops->describe(ends[0].fabric, text, sizeof text);
    assert_non_null(strstr(text, "receives posted"));
    assert_int_equal(put(0, 5, 1, 4096), 0);
    assert_true(next(0, &c) && c.cookie == 5 && !c.status);
}

/* The machine's own libraries have every call that the fabric makes. */
CASE_WITH(test_system_libraries, setup, teardown)
{
    struct efa_api api;
    char error[256];
    int rc = efa_api_open(&api, VERBS_SYSTEM, error, sizeof error);
    if (rc == -ENOENT) {
        print_message("skipped: %s\n", error);
        skip();
    }
    if (rc)
        fail_msg("%s", error);
    assert_true(api.create_qp_ex && api.query_device && api.qp_to_qp_ex);
}

/* ---- warm-up ---- */

static int warm_up(uint32_t rank)
{
    return ends[rank].fabric->ops->warm_up(ends[rank].fabric, ends[rank].error,
                                           sizeof ends[rank].error);
}

/* Every peer is reached over every lane, and nothing but that has happened. */
CASE_WITH(test_warm_up, setup, teardown)
{
    configure(0, 3);
    configure(1, 2);
    join();
    int done[2] = {-EAGAIN, -EAGAIN}, steps = 0;
    for (; (done[0] || done[1]) && steps < 1000; steps++)
        for (uint32_t rank = 0; rank < 2; rank++) {
            if (done[rank] == -EAGAIN)
                done[rank] = warm_up(rank);
            fake_step();
        }
    assert_true(!done[0] && !done[1]);
    assert_int_equal(fake.messages_made, 4);
    for (uint32_t i = 0; i < FLAGS; i++)
        assert_true(!flag_of(0, i) && !flag_of(1, i));
    struct fabric_completion c;
    for (uint64_t value = 1; value <= 300; value++) { /* and credits still count */
        assert_int_equal(put(0, 5, value, 64), 0);
        assert_true(next(0, &c) && c.cookie == 5 && !c.status);
    }
}

CASE_WITH(test_warm_up_fails, setup, teardown)
{
    join();
    fake.fail_message = 2;
    fake.fail_status = IBV_WC_REM_OP_ERR;
    int rc = -EAGAIN;
    for (int i = 0; i < 1000 && rc == -EAGAIN; i++, fake_step())
        rc = warm_up(0);
    assert_int_equal(rc, -EIO);
    expect_error(0, "rank 1 cannot be reached: fake1: remote operation error");
}

/* ---- puts ---- */

CASE_WITH(test_put_refuses, setup, teardown)
{
    const uint64_t top = HEAP, data = FLAGS * 8;
    fake.rdma = 4096;
    configs[0].options.window = configs[1].options.window = 8;
    join();
    struct fabric *f = ends[0].fabric;
    const struct {
        struct fabric_put put;
        int rc;
    } cases[] = {
        {{.peer = 0, .source = data, .destination = data, .bytes = 16}, -ENOTCONN}, /* itself */
        /* no such rank */
        {{.peer = 2, .source = data, .destination = data, .bytes = 16}, -ENOTCONN},
        {{.peer = 1, .flag = FLAGS}, -ERANGE}, /* no flag */
        /* past the heap here */
        {{.peer = 1, .source = top - 16, .destination = data, .bytes = 32}, -ERANGE},
        /* and there */
        {{.peer = 1, .source = data, .destination = top - 16, .bytes = 32}, -ERANGE},
        /* over flags */
        {{.peer = 1, .source = data, .destination = data - 16, .bytes = 32}, -ERANGE},
        /* from flags */
        {{.peer = 1, .source = data - 16, .destination = data, .bytes = 32}, -ERANGE},
        /* no epoch */
        {{.peer = 1, .value = 1ull << 63}, -EINVAL},
        {{.peer = 1, .source = data, .destination = data, .bytes = 28672},
         -EMSGSIZE}, /* 7 of a window of 8 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(f->ops->put(f, &cases[i].put), cases[i].rc);
    assert_int_equal(put(0, 3, 2, 64), 0);
    assert_int_equal(put(0, 3, 1, 64), -EINVAL); /* back */
    assert_int_equal(put(0, 3, 3, 64), -EAGAIN); /* not before the other is acknowledged */
    assert_int_equal(put(0, 4, 1, 24576), 0);    /* six */
    assert_int_equal(put(0, 6, 1, 8192), -EAGAIN);
    assert_int_equal(put(0, 6, 1, 4096), 0); /* the window's last */
}

/* ---- failures ---- */

CASE_WITH(test_failed_request, setup, teardown)
{
    configure(0, 1); /* all messages in one queue's order */
    join();
    fake.fail_message = 3;
    fake.fail_status = IBV_WC_REM_OP_ERR;
    for (uint32_t i = 1; i <= 6; i++)
        assert_int_equal(put(0, i, 1, 64), 0);
    struct fabric_completion c;
    for (uint64_t i = 1; i <= 6; i++) { /* SRD's errors are a request's own */
        assert_true(next(0, &c));
        assert_int_equal(c.cookie, i);
        assert_int_equal(c.status, i == 3 ? IBV_WC_REM_OP_ERR : 0);
        if (i == 3)
            assert_string_equal(c.detail, "fake0: remote operation error");
    }
    assert_int_equal(put(0, 1, 9, 64), -EPIPE);
    assert_false(next(0, &c));
    assert_int_equal(flag_of(1, 3), 0);
    assert_int_equal(flag_of(1, 4), 1);
}

CASE_WITH(test_post_fails, setup, teardown)
{
    join();
    fake.post_error = EINVAL;
    assert_int_equal(put(0, 1, 1, 65536 / 4), 0);
    assert_int_equal(put(0, 2, 2, 64), 0);
    struct fabric_completion c;
    for (uint64_t i = 1; i <= 2; i++) {
        assert_true(next(0, &c));
        assert_int_equal(c.cookie, i);
        assert_int_equal(c.status, IBV_WC_FATAL_ERR);
        assert_non_null(strstr(c.detail, "posting a write: Invalid argument"));
    }
    assert_int_equal(put(0, 3, 3, 64), -EPIPE);
}

CASE_WITH(test_queue_fails, setup, teardown)
{
    join();
    assert_int_equal(put(0, 1, 1, 64), 0);
    fake.poll_error = 1;
    struct fabric_completion c;
    assert_true(next(0, &c));
    assert_int_equal(c.cookie, 1);
    assert_string_equal(c.detail, "a completion queue cannot be polled");
    assert_int_equal(put(0, 1, 2, 64), -EPIPE);
}

/* The receiver's copy engine fails: its proxy is told by a completion of no put, and nothing is
 * stuck. */
CASE_WITH(test_copy_fails, setup, teardown)
{
    mr_provide(MK_MEMORY_CUDA, &fake_copier_ops);
    configs[1].end.heap.memory = MK_MEMORY_CUDA;
    join();
    fake_copier.fails = 1;
    struct fabric_completion c;
    assert_int_equal(put(0, 1, 1, 64), 0);
    while (fake_step())
        ;
    assert_true(next(1, &c));
    assert_true(c.cookie == FABRIC_NO_PUT);
    assert_string_equal(c.detail, "a flag cannot be copied into the heap");
    assert_int_equal(put(1, 1, 1, 64), -EPIPE);
    mr_provide(MK_MEMORY_CUDA, NULL);
    fake_copier.fails = 0;
}

/* Rank 1 puts nothing itself, so a credit that fails is told by a completion of no put. */
CASE_WITH(test_credit_fails, setup, teardown)
{
    configs[0].options.window = configs[1].options.window = 8;
    join();
    fake.fail_message = 3; /* after two puts, a quarter of the window: the credit */
    fake.fail_status = IBV_WC_REM_OP_ERR;
    struct fabric_completion c, other;
    assert_int_equal(put(0, 1, 1, 64), 0);
    assert_int_equal(put(0, 2, 2, 64), 0);
    for (int i = 0; i < 1000; i++) {
        if (!fake_step() && i > 100)
            break;
        ends[0].fabric->ops->poll(ends[0].fabric, &other, 1);
        if (ends[1].fabric->ops->poll(ends[1].fabric, &c, 1) == 1 && c.status)
            break;
    }
    assert_true(c.cookie == FABRIC_NO_PUT);
    assert_int_equal(c.peer, 0);
    assert_int_equal(c.status, IBV_WC_REM_OP_ERR);
    assert_int_equal(put(1, 1, 1, 64), -EPIPE);
}

CASE_WITH(test_options, setup, teardown)
{
    struct efa_options o;
    char error[128] = "";
    efa_options_default(&o);
    assert_int_equal(efa_options_parse(&o, "depth=300,window=16,,stripe=4096,unsolicited=0", error,
                                       sizeof error),
                     0);
    assert_int_equal(o.depth, 300);
    assert_int_equal(o.window, 16);
    assert_int_equal(o.unsolicited, 0);
    assert_int_equal(efa_options_parse(&o, NULL, error, sizeof error), 0);
    const char *bad[] = {"depth",     "depth=",  "window=0",    "window=257",
                         "depth=64x", "lanes=2", "max_rdma=12", "=4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        error[0] = '\0';
        assert_int_equal(efa_options_parse(&o, bad[i], error, sizeof error), -EINVAL);
        assert_int_equal(o.depth, 300);
        assert_true(strlen(error) > 20);
    }
}
