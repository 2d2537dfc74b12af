/* Over a device without inline data flags still come after their bytes and once; over one whose
 * send queue refuses, whose completion queue cannot be polled or which fails for good, each put
 * gets one completion and none says more than is known. */
#include "backends/verbs/rc_state.h"
#include "tests/helpers/verbs_pair.h"
#include "tests/helpers/test.h"

enum { PLACES = 32, PLACE = 65536, DATA = 2 * PLACES * PLACE };

static struct pair_rank r[2];

static const struct rc *rc_of_rank(int rank)
{
    return (const struct rc *)(const void *)r[rank].fabric;
}

/* ---- what the device does otherwise ---- */

static struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);

static struct ibv_qp *create_without_inline(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    if (attr->cap.max_inline_data) {
        errno = EINVAL;
        return NULL;
    }
    struct ibv_qp *qp = create_qp(pd, attr);
    attr->cap.max_inline_data = 0;
    return qp;
}

static void no_inline(struct verbs_api *api)
{
    create_qp = api->create_qp;
    api->create_qp = create_without_inline;
}

static int fatal; /* events to come */

static int get_event(struct ibv_context *context, struct ibv_async_event *event)
{
    if (!fatal)
        return -1;
    fatal--;
    event->event_type = IBV_EVENT_DEVICE_FATAL;
    return 0;
}

static void ack_event(struct ibv_async_event *event)
{
}

static void own_events(struct verbs_api *api)
{
    api->get_async_event = get_event;
    api->ack_async_event = ack_event;
}

static int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);

/* Takes the first request and no other. */
static int refuse_the_second(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct ibv_send_wr first = *wr;
    first.next = NULL;
    int failed = post_send(qp, &first, bad);
    *bad = wr->next;
    return failed ? failed : ENOMEM;
}

static int poll_fails(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
    return -1;
}

/* ---- puts ---- */

static void open_altered(void (*alter)(struct verbs_api *api), const char *options)
{
    pair_alter = alter;
    assert_int_equal(pair_open(r, DATA, options), 0);
    pair_alter = NULL;
}

static void close_both(void)
{
    for (int i = 0; i < 2; i++)
        pair_rank_close(&r[i]);
}

static int put(uint64_t n, uint64_t bytes)
{
    uint64_t place = n % PLACES;
    struct fabric_put p = {.peer = 1,
                           .flag = (uint32_t)place,
                           .value = n + 1,
                           .cookie = n,
                           .bytes = bytes,
                           .source = PAIR_FLAG_BYTES + place * PLACE,
                           .destination = PAIR_FLAG_BYTES + (PLACES + place) * PLACE};
    uint64_t *source = (uint64_t *)(void *)(r[0].heap + p.source);
    source[0] = n;
    if (bytes)
        source[bytes / 8 - 1] = ~n;
    return r[0].fabric->ops->put(r[0].fabric, &p);
}

static const uint64_t sizes[] = {16, 4096, 16, PLACE};

/* A place is read before its next put is made. */
static void look(uint64_t *seen)
{
    for (uint64_t place = 0; place < PLACES; place++) {
        uint64_t value = __atomic_load_n(pair_flag(&r[1], (uint32_t)place), __ATOMIC_ACQUIRE),
                 n = value - 1;
        const uint64_t *data = (const uint64_t *)(const void *)(r[1].heap + PAIR_FLAG_BYTES +
                                                                (PLACES + place) * PLACE);
        if (value == seen[place])
            continue;
        assert_true(value > seen[place] && n % PLACES == place);
        /* its bytes came before its flag */
        assert_true(data[0] == n && data[sizes[n % 4] / 8 - 1] == ~n);
        seen[place] = value;
    }
}

CASE(test_no_inline)
{
    enum { PUTS = 3000 };
    uint64_t over = 0, seen[PLACES] = {0}, end = pair_now() + 60000000000ull;
    struct fabric_completion c[8];
    open_altered(no_inline, "qps=2,depth=32,max_message=16384");
    assert_int_equal(rc_of_rank(0)->rails[0].max_inline, 0);
    for (uint64_t n = 0; over < PUTS;) {
        assert_true(pair_now() < end);
        while (n < PUTS && n - over < PLACES &&
               (n < PLACES || seen[n % PLACES] == n + 1 - PLACES)) {
            int rc = put(n, sizes[n % 4]);
            if (rc == -EAGAIN)
                break;
            assert_int_equal(rc, 0);
            n++;
        }
        r[0].fabric->ops->flush(r[0].fabric);
        int got = r[0].fabric->ops->poll(r[0].fabric, c, 8);
        for (int i = 0; i < got; i++) {
            assert_int_equal(c[i].status, 0);
            assert_int_equal(c[i].cookie, over++);
        }
        look(seen);
    }
    for (uint64_t place = 0; place < PLACES; place++)
        assert_int_equal(*pair_flag(&r[1], (uint32_t)place),
                         PUTS - 1 - (PUTS - 1 - place) % PLACES + 1);
    close_both();
}

/* All that rank 0 is told within many polls. */
static int told(struct fabric_completion *c, int max)
{
    int n = 0;
    for (int polls = 0; polls < 20000 && n < max; polls++)
        n += r[0].fabric->ops->poll(r[0].fabric, c + n, max - n);
    return n;
}

/* Of a put that was posted before, nothing is known: its QP was taken down before its
 * completion. */
CASE(test_refused)
{
    struct fabric_completion c[8];
    open_altered(NULL, "qps=1");
    struct ibv_context *device = rc_of_rank(0)->rails[0].device.context;
    assert_int_equal(put(0, PLACE), 0);
    r[0].fabric->ops->flush(r[0].fabric);
    post_send = device->ops.post_send;
    device->ops.post_send = refuse_the_second;
    for (uint64_t n = 1; n < 4; n++)
        assert_int_equal(put(n, 4096), 0);
    r[0].fabric->ops->flush(r[0].fabric);
    assert_int_equal(told(c, 8), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c[i].cookie, i);
        assert_int_equal(c[i].status, i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_GENERAL_ERR);
    }
    assert_string_equal(c[0].detail, "posting a send: Cannot allocate memory");
    assert_int_equal(put(4, 16), -EPIPE);
    for (uint32_t n = 1; n < 4; n++)
        assert_int_equal(*pair_flag(&r[1], n), 0);
    device->ops.post_send = post_send;
    close_both();
}

CASE(test_no_polling)
{
    struct fabric_completion c[8];
    open_altered(NULL, "qps=1");
    struct ibv_context *device = rc_of_rank(0)->rails[0].device.context;
    int (*before)(struct ibv_cq * cq, int entries, struct ibv_wc *wc) = device->ops.poll_cq;
    for (uint64_t n = 0; n < 3; n++)
        assert_int_equal(put(n, 4096), 0);
    r[0].fabric->ops->flush(r[0].fabric);
    device->ops.poll_cq = poll_fails;
    assert_int_equal(told(c, 8), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c[i].cookie, i);
        assert_int_equal(c[i].status, i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_FATAL_ERR);
    }
    assert_string_equal(c[0].detail, "a completion queue cannot be polled");
    device->ops.poll_cq = before;
    close_both();
}

/* A rank that only receives hears of it too, and not by its timeout. */
CASE(test_fatal)
{
    struct fabric_completion c[8];
    open_altered(own_events, "qps=2");
    fatal = 1;
    assert_int_equal(told(c, 8), 1);
    assert_true(c[0].cookie == FABRIC_NO_PUT && c[0].peer == 1);
    assert_int_equal(c[0].status, IBV_WC_FATAL_ERR);
    assert_non_null(strstr(c[0].detail, "soft0: "));
    assert_int_equal(put(0, 16), -EPIPE);
    assert_int_equal(told(c, 8), 0);
    close_both();
}
