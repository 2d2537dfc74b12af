/* The staged fabric keeps a fabric's promises over a NIC that sees host memory only: data before
 * flag, completions in order, bounded memory, foreign bytes checked, and failures told. */
#define OWN_MAIN
#include "backends/stage.h"
#include "tests/helpers/fake_copier.h"
#include "tests/helpers/test.h"

enum { FLAGS = 4096, HEAP = 24004096 + 96 * 4096, PUTS = 300, WIRE_ROOM = 6 };

/* The inner fabric: two ranks of this process. A put that is drawn arrives when its sender polls:
 * puts of one flag in order, others in any; they complete in order. */
struct wire {
    struct fabric fabric;
    struct stage_memory memory;
    struct wire *far;
    struct fabric_put queue[WIRE_ROOM];
    uint64_t posted, completed, random;
    int landed[WIRE_ROOM];
    int status;                    /* of the completions to come */
    struct fabric_completion news; /* of no put, told at the next poll; status 0: none */
    int corrupt;                   /* the next put of bytes says that it is for the flags */
};

static struct wire wires[2];
static struct fabric *ranks[2];
static char *heaps[2];
static char error[256];

static int wire_put(struct fabric *f, const struct fabric_put *put)
{
    struct wire *w = (struct wire *)f;
    if (w->posted - w->completed == WIRE_ROOM)
        return -EAGAIN;
    w->landed[w->posted % WIRE_ROOM] = 0;
    w->queue[w->posted++ % WIRE_ROOM] = *put;
    return 0;
}

static void wire_land(struct wire *w, uint64_t number)
{
    const struct fabric_put *p = &w->queue[number % WIRE_ROOM];
    assert_true(p->destination >= w->far->memory.flag_bytes &&
                p->destination + p->bytes <= w->far->memory.bytes);
    memcpy((char *)w->far->memory.base + p->destination, (char *)w->memory.base + p->source,
           p->bytes);
    if (w->corrupt && p->bytes) {
        uint64_t nowhere = 8;
        memcpy((char *)w->far->memory.base + p->destination, &nowhere, 8);
        w->corrupt = 0;
    }
    __atomic_store_n((uint64_t *)w->far->memory.base + p->flag, p->value, __ATOMIC_RELEASE);
    w->landed[number % WIRE_ROOM] = 1;
}

/* One that has not landed, if there is any. */
static void wire_move(struct wire *w)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    uint64_t draw = w->completed + (w->random >> 33) % (w->posted - w->completed),
             first = w->completed;
    while (first < draw && (w->landed[first % WIRE_ROOM] ||
                            w->queue[first % WIRE_ROOM].flag != w->queue[draw % WIRE_ROOM].flag))
        first++;
    if (!w->landed[first % WIRE_ROOM])
        wire_land(w, first);
}

static int wire_flush(struct fabric *f)
{
    return 0;
}

static int wire_poll(struct fabric *f, struct fabric_completion *out, int max)
{
    struct wire *w = (struct wire *)f;
    if (w->news.status && max > 0) {
        *out = w->news;
        w->news.status = 0;
        return 1;
    }
    if (w->posted == w->completed || max < 1)
        return 0;
    if (!w->status)
        wire_move(w);
    if (!w->status && !w->landed[w->completed % WIRE_ROOM])
        return 0;
    *out = (struct fabric_completion){.cookie = w->queue[w->completed++ % WIRE_ROOM].cookie,
                                      .status = w->status};
    if (w->status)
        snprintf(out->detail, sizeof out->detail, "transport retry counter exceeded");
    return 1;
}

static size_t wire_address_bytes(struct fabric *f)
{
    return 8;
}

static void wire_address(struct fabric *f, void *out)
{
    memcpy(out, "wire0000", 8);
}

static int wire_connect(struct fabric *f, const void *addresses, const uint32_t *peers,
                        uint32_t count, char *text, size_t size)
{
    return count == 1 && !memcmp((const char *)addresses + 8 * peers[0], "wire0000", 8) ? 0
                                                                                        : -EPROTO;
}

static void wire_close(struct fabric *f)
{
}

static const struct fabric_ops wire_ops = {.name = "wire",
                                           .address_bytes = wire_address_bytes,
                                           .address = wire_address,
                                           .connect = wire_connect,
                                           .put = wire_put,
                                           .flush = wire_flush,
                                           .poll = wire_poll,
                                           .close = wire_close};

static int open_wire(void *context, struct fabric **out, const struct stage_memory *memory,
                     char *text, size_t size)
{
    struct wire *w = context;
    *w = (struct wire){
        .fabric = {&wire_ops}, .memory = *memory, .far = w == wires ? wires + 1 : wires};
    *out = &w->fabric;
    return 0;
}

static int open_rank(uint32_t rank, uint64_t heap_bytes)
{
    uint32_t peer = 1 - rank;
    struct stage_config c = {.ops = &fake_copier_ops,
                             .heap = {.memory = MK_MEMORY_CUDA,
                                      .base = heaps[rank],
                                      .flag_bytes = FLAGS,
                                      .bytes = heap_bytes},
                             .rank = rank,
                             .world = 2,
                             .peers = &peer,
                             .peer_count = 1,
                             .open_inner = open_wire,
                             .context = &wires[rank]};
    return stage_open(&ranks[rank], &c, error, sizeof error);
}

static int connect_ranks(void)
{
    size_t bytes = ranks[0]->ops->address_bytes(ranks[0]);
    char *all = calloc(2, bytes);
    int rc = 0;
    for (uint32_t i = 0; i < 2; i++)
        ranks[i]->ops->address(ranks[i], all + i * bytes);
    for (uint32_t i = 0; i < 2 && !rc; i++) {
        uint32_t peer = 1 - i;
        rc = ranks[i]->ops->connect(ranks[i], all, &peer, 1, error, sizeof error);
    }
    free(all);
    return rc;
}

static int setup(void **state)
{
    memset(&fake_copier, 0, sizeof fake_copier);
    fake_copier.room = COPIER_ROOM;
    for (uint32_t i = 0; i < 2; i++) {
        heaps[i] = calloc(1, HEAP);
        assert_int_equal(open_rank(i, HEAP), 0);
    }
    assert_int_equal(connect_ranks(), 0);
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < 2; i++) {
        ranks[i]->ops->close(ranks[i]);
        free(heaps[i]);
    }
    return 0;
}

static struct fabric_put one(uint32_t flag, uint64_t value, uint64_t bytes, uint64_t cookie)
{
    return (struct fabric_put){.peer = 1,
                               .flag = flag,
                               .value = value,
                               .source = FLAGS,
                               .destination = FLAGS + 64,
                               .bytes = bytes,
                               .cookie = cookie};
}

static int polled(uint32_t rank, struct fabric_completion *c)
{
    return ranks[rank]->ops->poll(ranks[rank], c, 1);
}

static uint64_t flag(uint32_t rank, uint32_t index)
{
    return ((uint64_t *)(void *)heaps[rank])[index];
}

static uint64_t put_bytes(uint32_t i)
{
    static const uint64_t some[] = {
        16, 0, 4096, 524288, 524288 + 4096 - 64, 524288 + 4096 - 48, 1500000, 3000000};
    return some[i % 8];
}

/* Both ranks put at once; however late the wire and the copies are, no flag is before its data. */
CASE_WITH(test_order, setup, teardown)
{
    uint64_t sent[2] = {0}, done[2] = {0}, seen[2] = {0};
    struct fabric_completion c;
    fake_copier.lag = 3;
    fake_copier.room = 5; /* less than the slots want */
    for (uint64_t turn = 0; done[0] < PUTS || done[1] < PUTS || seen[0] < PUTS || seen[1] < PUTS;
         turn++) {
        assert_true(turn < 4000000);
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t i = (uint32_t)sent[r];
            /* The source is this put's alone while it is under way: 4 areas, and no more than 4
             * puts. */
            uint64_t at = FLAGS + (uint64_t)(i % 4) * 3000064, stamp = (uint64_t)(r + 1) << 32 | i;
            if (sent[r] < PUTS && sent[r] - done[r] < 4 && sent[r] - seen[1 - r] < 4) {
                for (uint64_t k = 0; k < put_bytes(i); k += 8)
                    memcpy(heaps[r] + at + k, &stamp, 8);
                struct fabric_put p = {.peer = 1 - r,
                                       .flag = 3,
                                       .value = i + 1,
                                       .source = at,
                                       .destination = at + 12000256,
                                       .bytes = put_bytes(i),
                                       .cookie = i};
                int rc = ranks[r]->ops->put(ranks[r], &p);
                assert_true(rc == 0 || rc == -EAGAIN);
                sent[r] += rc == 0;
                ranks[r]->ops->flush(ranks[r]);
            }
            if (polled(r, &c)) {
                assert_int_equal(c.status, 0);
                assert_int_equal(c.cookie, done[r]);
                done[r]++;
            }
            assert_true(flag(r, 3) >= seen[r]);
            for (; seen[r] < flag(r, 3); seen[r]++) {
                uint64_t want = (uint64_t)(2 - r) << 32 | seen[r],
                         from = FLAGS + seen[r] % 4 * 3000064 + 12000256;
                for (uint64_t k = 0; k < put_bytes((uint32_t)seen[r]); k += 8)
                    assert_memory_equal(heaps[r] + from + k, &want, 8);
            }
        }
    }
}

/* A receiver that does not poll costs no memory: the sender is told to wait, and goes on
 * afterwards. */
CASE_WITH(test_bounded, setup, teardown)
{
    struct fabric_completion c;
    uint64_t taken = 0, done = 0;
    for (int i = 0; i < 2000; i++) {
        struct fabric_put p = one(1, taken + 1, 4096, taken);
        int rc = ranks[0]->ops->put(ranks[0], &p);
        assert_true(rc == 0 || rc == -EAGAIN);
        taken += rc == 0;
        if (polled(0, &c))
            done++;
    }
    assert_true(taken < 100);
    assert_true(done < 16);
    assert_int_equal(flag(1, 1), 0);
    for (int i = 0; i < 100000 && (done < taken || flag(1, 1) < taken); i++) {
        done += (uint64_t)polled(0, &c);
        polled(1, &c);
    }
    assert_int_equal(done, taken);
    assert_int_equal(flag(1, 1), taken);
}

CASE_WITH(test_refusals, setup, teardown)
{
    struct fabric_put p = one(1, 1, 24, 0);
    p.peer = 0;
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), -ENOTCONN);
    p = one(1, 1, 20, 0);
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), -EINVAL);
    p = one(FLAGS / 8, 1, 16, 0);
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), -ERANGE);
    p = one(1, 1, HEAP, 0);
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), -ERANGE);
    p = one(1, 1, 16, 0);
    p.destination = 0;
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), -ERANGE);
}

/* The header that a peer writes in front of its bytes is foreign. */
CASE_WITH(test_foreign_bytes, setup, teardown)
{
    struct fabric_completion c;
    char before[FLAGS];
    memcpy(before, heaps[1], FLAGS);
    wires[0].corrupt = 1;
    struct fabric_put p = one(1, 1, 4096, 0);
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), 0);
    int told = 0;
    for (int i = 0; i < 100; i++) {
        polled(0, &c);
        if (!polled(1, &c))
            continue;
        told++; /* it has no put that could say so, and waits for the flag */
        assert_true(c.cookie == FABRIC_NO_PUT && c.peer == 0);
        assert_int_equal(c.status, -EPROTO);
        assert_non_null(strstr(c.detail, "outside the heap"));
    }
    assert_int_equal(told, 1);
    assert_memory_equal(heaps[1], before, FLAGS);
    p.peer = 0;
    assert_int_equal(ranks[1]->ops->put(ranks[1], &p), -EPIPE);
}

CASE_WITH(test_failures, setup, teardown)
{
    struct fabric_completion c;
    struct fabric_put p = one(1, 1, 1 << 20, 7);
    wires[0].status = 12;
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), 0);
    p.cookie = 8;
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), 0);
    for (uint64_t cookie = 7; cookie < 9; cookie++) {
        int n = 0;
        for (int i = 0; i < 100 && !n; i++)
            n = polled(0, &c);
        assert_int_equal(n, 1);
        assert_int_equal(c.cookie, cookie);
        assert_int_equal(c.status, 12);
        assert_string_equal(c.detail, "transport retry counter exceeded");
    }
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), -EPIPE);
    fake_copier.fails = 1;
    p.peer = 0;
    assert_int_equal(ranks[1]->ops->put(ranks[1], &p), 0);
    assert_int_equal(polled(1, &c), 1);
    assert_int_equal(c.status, -EIO);
    assert_non_null(strstr(c.detail, "copy"));
}

/* A receiver that cannot give slots back starves its sender: it says so itself. */
CASE_WITH(test_credit_fails, setup, teardown)
{
    struct fabric_completion c;
    struct fabric_put p = one(1, 1, 4096, 0);
    int told = 0;
    wires[1].status = 12;
    assert_int_equal(ranks[0]->ops->put(ranks[0], &p), 0);
    for (int i = 0; i < 100; i++) {
        polled(0, &c);
        if (!polled(1, &c))
            continue;
        told++;
        assert_true(c.cookie == FABRIC_NO_PUT && c.peer == 0 && c.status == 12);
        assert_string_equal(c.detail, "transport retry counter exceeded");
    }
    assert_int_equal(told, 1);
}

/* A completion of the inner fabric that belongs to no put reaches the proxy, once. */
CASE_WITH(test_alarm, setup, teardown)
{
    struct fabric_completion c;
    wires[0].news = (struct fabric_completion){.cookie = FABRIC_NO_PUT, .peer = 1, .status = 9};
    assert_int_equal(polled(0, &c), 1);
    assert_true(c.cookie == FABRIC_NO_PUT && c.peer == 1 && c.status == 9);
    assert_int_equal(polled(0, &c), 0);
}

CASE_WITH(test_strangers, setup, teardown)
{
    uint32_t peer = 1;
    ranks[1]->ops->close(ranks[1]);
    assert_int_equal(open_rank(1, HEAP / 2), 0);
    assert_int_equal(connect_ranks(), -EPROTO);
    assert_non_null(strstr(error, "rank 1"));
    struct stage_config c = {.ops = NULL, .world = 2, .peers = &peer, .peer_count = 1};
    struct fabric *none;
    assert_int_equal(stage_open(&none, &c, error, sizeof error), -EOPNOTSUPP);
    assert_null(none);
}

int main(void)
{
    return cmocka_run_group_tests(test_cases, NULL, NULL);
}
