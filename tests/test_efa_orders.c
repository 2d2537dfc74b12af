/* The efa fabric keeps its word in every order that SRD allows: a flag rises only when all bytes of
 * its put are there, one put's after the other, each put completes once and in order, its source is
 * not read afterwards, and nothing is stuck, with queues of any length and devices that find no
 * memory; in half of the cases flags lie where only a copy engine, which takes its time, writes
 * them. A case that fails is had again with EFA_SEED=its number. */
#define OWN_MAIN
#include "backends/efa/efa.h"
#include "tests/helpers/fake_copier.h"
#include "tests/helpers/fake_efa_network.h"

enum { RANKS = 3, PUTS = 120, FLAGS = 512, USED = 6, AREA = 4096, AREAS = 4, STEPS = 3000000 };
enum { HEAP = FLAGS * 8 + 2 * RANKS * USED * AREAS * AREA };

/* One put, from its making to its being seen. */
struct made {
    uint64_t value, bytes, cookie;
    int seen;
};

/* All puts of one rank to one flag of another. */
struct stream {
    struct made puts[PUTS];
    uint32_t made, completed, seen;
    uint64_t value;
};

struct rank {
    struct fabric *fabric;
    char *heap;
    struct stream to[RANKS][USED];
    uint32_t order[RANKS][PUTS * USED]; /* cookies of what was put to each peer */
    uint32_t made[RANKS], completed[RANKS];
};

struct settings {
    uint32_t ranks, devices, puts;
    uint64_t most; /* bytes of a put */
    enum mk_memory memory;
    struct efa_options options;
};

static struct rank ranks[RANKS];
static uint64_t current; /* the case's seed */

#define EXPECT(what, ...)                                                                          \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            print_message("EFA_SEED=%d: ", (int)current);                                          \
            fail_msg(__VA_ARGS__);                                                                 \
        }                                                                                          \
    } while (0)

/* ---- memory ---- */

static uint64_t area(int incoming, uint32_t peer, uint32_t flag, uint32_t number)
{
    return FLAGS * 8 +
           ((((uint64_t)incoming * RANKS + peer) * USED + flag) * AREAS + number % AREAS) * AREA;
}

/* The rank that puts to a flag: each flag of a rank belongs to one other. */
static uint32_t flag_index(uint32_t from, uint32_t flag)
{
    return from * USED + flag;
}

static uint64_t word_of(uint32_t from, uint32_t to, uint32_t flag, uint64_t value, uint64_t i)
{
    uint64_t x = ((from * 8 + to) * 8 + flag) * 1000003 + value * 4099 + i;
    x *= 0x9e3779b97f4a7c15ull;
    return x ^ x >> 29;
}

static void fill(uint32_t from, uint32_t to, uint32_t flag, const struct made *m, uint32_t number)
{
    uint64_t *source = (uint64_t *)(void *)(ranks[from].heap + area(0, to, flag, number));
    for (uint64_t i = 0; i < m->bytes / 8; i++)
        source[i] = word_of(from, to, flag, m->value, i);
}

/* ---- what is seen ---- */

/* The receiver's flag, and the bytes of every put that it speaks for. */
static void look(uint32_t from, uint32_t to, uint32_t flag)
{
    struct stream *s = &ranks[from].to[to][flag];
    uint64_t value = ((uint64_t *)(void *)ranks[to].heap)[flag_index(from, flag)];
    EXPECT(value >= s->value, "flag %u of rank %u goes back", flag, to);
    s->value = value;
    EXPECT(!value || (s->made && value <= s->puts[s->made - 1].value),
           "flag %u of rank %u has a value that was never put", flag, to);
    while (s->seen < s->made && s->puts[s->seen].value <= value) {
        const struct made *m = &s->puts[s->seen];
        const uint64_t *data =
            (const uint64_t *)(const void *)(ranks[to].heap + area(1, from, flag, s->seen));
        for (uint64_t i = 0; i < m->bytes / 8; i++)
            EXPECT(data[i] == word_of(from, to, flag, m->value, i),
                   "rank %u, flag %u: word %d of %d of put %u came after its flag", to, flag,
                   (int)i, (int)(m->bytes / 8), s->seen);
        s->seen++;
    }
}

static void look_everywhere(const struct settings *k)
{
    for (uint32_t from = 0; from < k->ranks; from++)
        for (uint32_t to = 0; to < k->ranks; to++)
            for (uint32_t flag = 0; flag < USED && from != to; flag++)
                look(from, to, flag);
}

/* ---- what is done ---- */

static void poll_rank(const struct settings *k, uint32_t rank)
{
    struct fabric_completion c[8];
    int n = ranks[rank].fabric->ops->poll(ranks[rank].fabric, c, 1 + (int)fake_random(8));
    for (int i = 0; i < n; i++) {
        EXPECT(!c[i].status, "rank %u: %s", rank, c[i].detail);
        if (c[i].cookie == FABRIC_NO_PUT)
            continue;
        uint32_t peer = (uint32_t)(c[i].cookie >> 32), flag = (uint32_t)c[i].cookie >> 16 & 255;
        EXPECT(peer < k->ranks && ranks[rank].completed[peer] < ranks[rank].made[peer] &&
                   ranks[rank].order[peer][ranks[rank].completed[peer]] == (uint32_t)c[i].cookie,
               "rank %u: a completion of what is not the oldest put", rank);
        ranks[rank].completed[peer]++;
        struct stream *s = &ranks[rank].to[peer][flag];
        /* it may be overwritten */
        memset(ranks[rank].heap + area(0, peer, flag, s->completed), 0xee, AREA);
        s->completed++;
    }
}

static void put_from(const struct settings *k, uint32_t from)
{
    uint32_t to = (from + 1 + fake_random(k->ranks - 1)) % k->ranks, flag = fake_random(USED);
    struct stream *s = &ranks[from].to[to][flag];
    /* As an op does: its source and its destination are free again. */
    if (s->made == k->puts || s->made - s->completed == AREAS || s->made - s->seen == AREAS)
        return;
    struct made *m = &s->puts[s->made];
    uint32_t kind = fake_random(16);
    uint64_t growth = kind == 15 ? 1ull << fake_random(40) : kind == 14 ? 0 : 1 + fake_random(4);
    m->value = (s->made ? s->puts[s->made - 1].value : 0) + growth;
    if (!m->value)
        m->value = 1;
    /* the flag could not tell whether its bytes are there */
    int again = s->made && m->value == s->puts[s->made - 1].value;
    m->bytes = !again && fake_random(8) ? 16 * (1 + fake_random((uint32_t)(k->most / 16))) : 0;
    m->cookie = (uint64_t)to << 32 | flag << 16 | s->made;
    fill(from, to, flag, m, s->made);
    struct fabric_put put = {.peer = to,
                             .flag = flag_index(from, flag),
                             .value = m->value,
                             .source = area(0, to, flag, s->made),
                             .destination = area(1, from, flag, s->made),
                             .bytes = m->bytes,
                             .cookie = m->cookie};
    int rc = ranks[from].fabric->ops->put(ranks[from].fabric, &put);
    if (rc == -EAGAIN)
        return;
    EXPECT(!rc, "a put of %d bytes: %s", (int)m->bytes, strerror(-rc));
    ranks[from].order[to][ranks[from].made[to]++] = (uint32_t)m->cookie;
    s->made++;
    if (fake_random(3) == 0)
        ranks[from].fabric->ops->flush(ranks[from].fabric);
}

static int all_done(const struct settings *k)
{
    for (uint32_t from = 0; from < k->ranks; from++)
        for (uint32_t to = 0; to < k->ranks; to++)
            for (uint32_t flag = 0; flag < USED && from != to; flag++) {
                const struct stream *s = &ranks[from].to[to][flag];
                if (s->made != k->puts || s->completed != s->made || s->seen != s->made ||
                    s->value != s->puts[s->made - 1].value)
                    return 0;
            }
    return 1;
}

/* ---- a case ---- */

static void open_ranks(const struct settings *k)
{
    char error[256], *addresses = NULL;
    for (uint32_t r = 0; r < k->ranks; r++) {
        uint32_t peers[RANKS], count = 0;
        for (uint32_t i = 0; i < k->ranks; i++)
            if (i != r)
                peers[count++] = i;
        ranks[r].heap = aligned_alloc(4096, HEAP / 4096 * 4096 + 4096);
        memset(ranks[r].heap, 0, HEAP);
        struct efa_config c = {.api = &fake_api,
                               .end = {.nics = {.soft = 1, .count = k->devices},
                                       .heap = {k->memory, ranks[r].heap, FLAGS * 8, HEAP},
                                       .rank = r,
                                       .world = k->ranks,
                                       .peers = peers,
                                       .peer_count = count},
                               .options = k->options};
        for (uint32_t d = 0; d < k->devices; d++)
            snprintf(c.end.nics.devices[d], sizeof c.end.nics.devices[d], "fake%u",
                     r * k->devices + d);
        EXPECT(!efa_open(&ranks[r].fabric, &c, error, sizeof error), "%s", error);
        size_t bytes = ranks[r].fabric->ops->address_bytes(ranks[r].fabric);
        if (!addresses)
            addresses = calloc(k->ranks, bytes);
        ranks[r].fabric->ops->address(ranks[r].fabric, addresses + r * bytes);
    }
    for (uint32_t r = 0; r < k->ranks; r++) {
        uint32_t peers[RANKS], count = 0;
        for (uint32_t i = 0; i < k->ranks; i++)
            if (i != r)
                peers[count++] = i;
        EXPECT(!ranks[r].fabric->ops->connect(ranks[r].fabric, addresses, peers, count, error,
                                              sizeof error),
               "%s", error);
    }
    free(addresses);
}

static void close_ranks(const struct settings *k)
{
    for (uint32_t r = 0; r < k->ranks; r++) {
        ranks[r].fabric->ops->close(ranks[r].fabric);
        free(ranks[r].heap);
    }
}

static struct settings draw_settings(void)
{
    struct settings k = {.ranks = 2 + fake_random(2), .devices = 1 + fake_random(3)};
    const uint32_t windows[] = {8, 16, 64, 256}, depths[] = {8, 24, 64, 1024};
    k.puts = 1 + fake_random(fake_random(4) ? 12 : PUTS);
    efa_options_default(&k.options);
    k.options.window = windows[fake_random(4)];
    k.options.depth = depths[fake_random(4)];
    k.options.stripe = 128 << fake_random(6);
    k.options.unsolicited = fake_random(2);
    fake.rdma = 4096; /* a put of AREA bytes on one lane is one write */
    k.most = fake_random(2) ? AREA : 256;
    if (k.options.stripe * 3 < (int64_t)k.most && k.options.window == 8 && k.devices == 3)
        k.most = 512;
    fake.no_memory = fake_random(4) ? 0 : 5 + fake_random(30);
    fake.depth_really = fake_random(4) ? 0 : 3 + fake_random(5);
    fake.cqe = fake_random(3) ? 4096 : (k.ranks - 1) * ((uint32_t)k.options.window + 8);
    k.memory = fake_random(2) ? MK_MEMORY_CUDA : MK_MEMORY_HOST;
    memset(&fake_copier, 0, sizeof fake_copier);
    fake_copier.lag = UINT32_MAX; /* asking moves nothing, the case does */
    fake_copier.room = fake_random(2) ? COPIER_ROOM : 1 + fake_random(8);
    return k;
}

static void run_case(uint64_t seed)
{
    current = seed;
    memset(ranks, 0, sizeof ranks);
    fake_reset(seed);
    struct settings k = draw_settings();
    /* How often ranks are looked after, and the network moves: some are slow. */
    uint32_t puts = 1 + fake_random(8), polls = 1 + fake_random(4), moves = 1 + fake_random(24);
    uint32_t sleeper = fake_random(2 * k.ranks), copies = 1 + fake_random(16);
    open_ranks(&k);
    uint32_t steps = 0;
    for (; !all_done(&k); steps++) {
        EXPECT(steps < STEPS, "stuck with %u messages on their way", fake.message_count);
        uint32_t what = fake_random(puts + polls + moves), rank = fake_random(k.ranks);
        if (what < puts)
            put_from(&k, rank);
        else if (what < puts + polls && (rank != sleeper || fake_random(50) == 0))
            poll_rank(&k, rank);
        else if (what >= puts + polls) {
            fake_step();
            if (fake_random(copies) == 0)
                fake_copier_move(MEMORY_FROM_HOST);
        }
        if (what < puts + polls)
            look_everywhere(&k);
    }
    close_ranks(&k);
}

/* ---- tests ---- */

CASE(test_orders)
{
    const char *one = getenv("EFA_SEED"), *count = getenv("EFA_CASES");
    uint64_t cases = count ? strtoull(count, NULL, 10) : 1000;
    if (one) {
        run_case(strtoull(one, NULL, 10));
        return;
    }
    uint64_t copies = 0;
    for (uint64_t seed = 1; seed <= cases; seed++) {
        run_case(seed);
        copies += fake_copier.made;
    }
    assert_true(copies);
}

int main(void)
{
    mr_provide(MK_MEMORY_CUDA, &fake_copier_ops);
    return cmocka_run_group_tests(test_cases, NULL, NULL);
}
