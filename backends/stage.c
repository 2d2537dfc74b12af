#include "backends/stage.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STAGE_MAGIC 0x31474154534b4dull
#define CREDIT UINT32_MAX

enum {
    SLOTS = 8,         /* per peer and way */
    QUEUE = 64,        /* puts accepted per peer */
    HEADER_BYTES = 64, /* before a piece, in its slot */
    PIECE_BYTES = 512 << 10,
    PIECE_BYTES_LEAST = 16 << 10,
    SLOTS_BYTES = 256 << 20, /* all slots, while pieces can be smaller */
    CLOSE_NS = 1000000000,
};

/* What travels in front of a piece. */
struct header {
    uint64_t destination, bytes;
    uint64_t value;
    uint32_t flag, last; /* last: the flag follows */
};

struct put {
    struct fabric_put put;
    uint64_t cut; /* bytes in pieces already */
    int32_t status;
};

struct peer {
    uint32_t rank, place; /* place: in the group, this rank included, ascending */
    struct put puts[QUEUE];
    uint64_t accepted, cutting, finished, reported; /* puts, in order */
    int64_t out_tickets[SLOTS], in_tickets[SLOTS];
    int out_last[SLOTS];
    uint64_t copying, sent,
        acknowledged;              /* pieces out: copies started, handed to the NIC, taken by the peer's */
    uint64_t landing, freed, told; /* pieces in: copies started, ended, and the peer knows */
    int telling;
    int broken;
    char detail[64];
};

/* What a rank tells its peers, behind the inner fabric's address. */
struct address {
    uint64_t magic, heap_bytes, flag_bytes, slot_bytes;
};

struct stage {
    struct fabric fabric; /* first */
    struct fabric *inner;
    const struct mr_memory_ops *ops;
    struct mk_heap heap;
    struct stage_memory memory;
    uint32_t rank, world, peer_count, place;
    uint64_t piece_bytes, slot_bytes;
    struct peer *peers;
    int dirty; /* the inner fabric has puts to flush */
};

static struct stage *stage_of(struct fabric *fabric)
{
    return (struct stage *)fabric;
}

static struct peer *peer_of(struct stage *s, uint32_t rank)
{
    for (uint32_t i = 0; i < s->peer_count; i++)
        if (s->peers[i].rank == rank)
            return &s->peers[i];
    return NULL;
}

/* Slot `piece` of those for (in: from) the member of the group at `place`. The same on every rank. */
static uint64_t slot_at(const struct stage *s, uint32_t place, int in, uint64_t piece)
{
    return s->memory.flag_bytes +
           (((uint64_t)place * 2 + (uint64_t)in) * SLOTS + piece % SLOTS) * s->slot_bytes;
}

static struct header *slot(struct stage *s, uint32_t place, int in, uint64_t piece)
{
    return (struct header *)((char *)s->memory.base + slot_at(s, place, in, piece));
}

/* Words that others count up: pieces that `rank` has sent here, pieces of this rank's that it has freed. */
static uint32_t arrived_flag(uint32_t rank)
{
    return 2 * rank;
}

static uint32_t freed_flag(uint32_t rank)
{
    return 2 * rank + 1;
}

static uint64_t counted(const struct stage *s, uint32_t flag)
{
    return __atomic_load_n((uint64_t *)s->memory.base + flag, __ATOMIC_ACQUIRE);
}

static void break_peer(struct peer *peer, int status, const char *detail)
{
    if (peer->broken)
        return;
    peer->broken = status;
    snprintf(peer->detail, sizeof peer->detail, "%s", detail);
    for (; peer->finished != peer->accepted; peer->finished++)
        peer->puts[peer->finished % QUEUE].status = status;
}

/* ---- out ---- */

static uint64_t cut_bytes(const struct stage *s, const struct put *p)
{
    uint64_t left = p->put.bytes - p->cut;
    return left < s->piece_bytes ? left : s->piece_bytes;
}

/* Starts copies into slots that both sides have free. */
static void cut_pieces(struct stage *s, struct peer *peer)
{
    uint64_t freed = counted(s, freed_flag(peer->rank));
    while (!peer->broken && peer->cutting != peer->accepted && peer->copying - peer->acknowledged < SLOTS &&
           peer->copying - freed < SLOTS) {
        struct put *p = &peer->puts[peer->cutting % QUEUE];
        uint64_t bytes = cut_bytes(s, p);
        struct header *h = slot(s, peer->place, 0, peer->copying);
        int64_t ticket = -1;
        if (bytes) {
            ticket = s->ops->copy((char *)h + HEADER_BYTES, (char *)s->heap.base + p->put.source + p->cut,
                                  bytes, MEMORY_TO_HOST);
            if (ticket == -EAGAIN)
                return;
            if (ticket < 0) {
                break_peer(peer, (int)ticket, "a copy to host memory failed");
                return;
            }
        }
        *h = (struct header){.destination = p->put.destination + p->cut,
                             .bytes = bytes,
                             .value = p->put.value,
                             .flag = p->put.flag};
        p->cut += bytes;
        h->last = p->cut == p->put.bytes;
        peer->out_tickets[peer->copying % SLOTS] = ticket;
        peer->out_last[peer->copying % SLOTS] = (int)h->last;
        peer->copying++;
        peer->cutting += h->last;
    }
}

static uint64_t cookie_of(const struct stage *s, const struct peer *peer, uint32_t what)
{
    return (uint64_t)(peer - s->peers) << 32 | what;
}

/* Hands what has been copied to the inner fabric, in order. */
static void send_pieces(struct stage *s, struct peer *peer)
{
    while (!peer->broken && peer->sent != peer->copying) {
        int64_t ticket = peer->out_tickets[peer->sent % SLOTS];
        int copied = ticket < 0 ? 1 : s->ops->copied(ticket);
        if (!copied)
            return;
        if (copied < 0) {
            break_peer(peer, copied, "a copy to host memory failed");
            return;
        }
        struct fabric_put put = {.peer = peer->rank,
                                 .flag = arrived_flag(s->rank),
                                 .value = peer->sent + 1,
                                 .source = slot_at(s, peer->place, 0, peer->sent),
                                 .destination = slot_at(s, s->place, 1, peer->sent),
                                 .bytes = HEADER_BYTES + slot(s, peer->place, 0, peer->sent)->bytes,
                                 .cookie = cookie_of(s, peer, (uint32_t)(peer->sent % SLOTS))};
        int rc = s->inner->ops->put(s->inner, &put);
        if (rc == -EAGAIN)
            return;
        if (rc) {
            break_peer(peer, rc, strerror(-rc));
            return;
        }
        s->dirty = 1;
        peer->sent++;
    }
}

/* ---- in ---- */

/* What a peer wrote in front of a piece; foreign bytes. */
static int header_valid(const struct stage *s, const struct header *h)
{
    if (h->bytes > s->piece_bytes || (h->destination | h->bytes) & 7)
        return 0;
    if (h->bytes && (h->destination < s->heap.flag_bytes || h->destination > s->heap.bytes ||
                     h->bytes > s->heap.bytes - h->destination))
        return 0;
    return !h->last || 8ull * h->flag < s->heap.flag_bytes;
}

/* Pieces into the heap, and behind the last one of a put its flag, on the same queue. */
static void land_pieces(struct stage *s, struct peer *peer)
{
    uint64_t arrived = counted(s, arrived_flag(peer->rank));
    while (!peer->broken && peer->landing != arrived && peer->landing - peer->freed < SLOTS) {
        struct header *in_slot = slot(s, peer->place, 1, peer->landing), h = *in_slot;
        int64_t ticket = -1;
        if (!header_valid(s, &h)) {
            break_peer(peer, -EPROTO, "it sent a piece for nowhere in the heap");
            return;
        }
        if (h.bytes)
            ticket = s->ops->copy((char *)s->heap.base + h.destination, (char *)in_slot + HEADER_BYTES,
                                  h.bytes, MEMORY_FROM_HOST);
        if (h.last && (!h.bytes || ticket >= 0)) {
            ticket = s->ops->copy((char *)s->heap.base + 8ull * h.flag, &in_slot->value, 8, MEMORY_FROM_HOST);
            if (ticket == -EAGAIN)
                in_slot->bytes =
                    0; /* next time the flag alone: the queue is in order, so its ticket covers the data */
        }
        if (ticket == -EAGAIN)
            return;
        if (ticket < 0 && (h.bytes || h.last)) {
            break_peer(peer, (int)ticket, "a copy from host memory failed");
            return;
        }
        peer->in_tickets[peer->landing++ % SLOTS] = ticket;
    }
}

/* Slots whose copies have ended go back to the peer; one message at a time says how many there have been. */
static void give_back(struct stage *s, struct peer *peer)
{
    while (!peer->broken && peer->freed != peer->landing) {
        int64_t ticket = peer->in_tickets[peer->freed % SLOTS];
        int copied = ticket < 0 ? 1 : s->ops->copied(ticket);
        if (copied < 0)
            break_peer(peer, copied, "a copy from host memory failed");
        if (copied != 1)
            break;
        peer->freed++;
    }
    if (peer->broken || peer->telling || peer->told == peer->freed)
        return;
    struct fabric_put put = {.peer = peer->rank,
                             .flag = freed_flag(s->rank),
                             .value = peer->freed,
                             .source = s->memory.flag_bytes,
                             .destination = s->memory.flag_bytes,
                             .cookie = cookie_of(s, peer, CREDIT)};
    int rc = s->inner->ops->put(s->inner, &put);
    if (rc && rc != -EAGAIN)
        break_peer(peer, rc, strerror(-rc));
    if (rc)
        return;
    s->dirty = peer->telling = 1;
    peer->told = peer->freed;
}

/* ---- the fabric's calls ---- */

static void advance(struct stage *s)
{
    for (uint32_t i = 0; i < s->peer_count; i++) {
        cut_pieces(s, &s->peers[i]);
        send_pieces(s, &s->peers[i]);
        land_pieces(s, &s->peers[i]);
        give_back(s, &s->peers[i]);
    }
    if (s->dirty)
        s->inner->ops->flush(s->inner);
    s->dirty = 0;
}

static int stage_put(struct fabric *fabric, const struct fabric_put *put)
{
    struct stage *s = stage_of(fabric);
    struct peer *peer = peer_of(s, put->peer);
    if (!peer)
        return -ENOTCONN;
    if (peer->broken)
        return peer->reported != peer->accepted ? -EAGAIN : -EPIPE;
    if ((put->source | put->destination | put->bytes) & 7)
        return -EINVAL;
    if (put->source > s->heap.bytes || put->bytes > s->heap.bytes - put->source ||
        put->destination > s->heap.bytes || put->bytes > s->heap.bytes - put->destination ||
        8ull * put->flag >= s->heap.flag_bytes)
        return -ERANGE;
    if (put->bytes && (put->source < s->heap.flag_bytes || put->destination < s->heap.flag_bytes))
        return -ERANGE; /* flags are no data */
    if (peer->accepted - peer->reported == QUEUE)
        return -EAGAIN;
    peer->puts[peer->accepted++ % QUEUE] = (struct put){.put = *put};
    return 0;
}

static int stage_flush(struct fabric *fabric)
{
    advance(stage_of(fabric));
    return 0;
}

static void inner_completed(struct stage *s, const struct fabric_completion *c)
{
    if (c->cookie >> 32 >= s->peer_count)
        return;
    struct peer *peer = &s->peers[c->cookie >> 32];
    if (c->status) {
        break_peer(peer, c->status, c->detail);
    } else if ((uint32_t)c->cookie == CREDIT) {
        peer->telling = 0;
    } else if (!peer->broken) {
        peer->finished += (uint64_t)peer->out_last[peer->acknowledged % SLOTS];
        peer->acknowledged++;
    }
}

static int stage_poll(struct fabric *fabric, struct fabric_completion *out, int max)
{
    enum { BATCH = 32 };
    struct stage *s = stage_of(fabric);
    struct fabric_completion inner[BATCH];
    int n = s->inner->ops->poll(s->inner, inner, BATCH), reported = 0;
    for (int i = 0; i < n; i++)
        inner_completed(s, &inner[i]);
    advance(s);
    for (uint32_t i = 0; i < s->peer_count; i++) {
        struct peer *peer = &s->peers[i];
        while (reported < max && peer->reported != peer->finished) {
            const struct put *p = &peer->puts[peer->reported++ % QUEUE];
            out[reported].cookie = p->put.cookie;
            out[reported].status = p->status;
            if (p->status)
                memcpy(out[reported].detail, peer->detail, sizeof peer->detail);
            reported++;
        }
    }
    return reported;
}

static size_t stage_address_bytes(struct fabric *fabric)
{
    struct stage *s = stage_of(fabric);
    return s->inner->ops->address_bytes(s->inner) + sizeof(struct address);
}

static void stage_address(struct fabric *fabric, void *out)
{
    struct stage *s = stage_of(fabric);
    struct address mine = {STAGE_MAGIC, s->heap.bytes, s->heap.flag_bytes, s->slot_bytes};
    s->inner->ops->address(s->inner, (char *)out + sizeof mine);
    memcpy(out, &mine, sizeof mine);
}

static int stage_connect(struct fabric *fabric, const void *addresses, const uint32_t *peers, uint32_t count,
                         char *error, size_t error_size)
{
    struct stage *s = stage_of(fabric);
    struct address mine = {STAGE_MAGIC, s->heap.bytes, s->heap.flag_bytes, s->slot_bytes};
    size_t own = sizeof mine, inner = s->inner->ops->address_bytes(s->inner);
    for (uint32_t i = 0; i < count; i++)
        if (memcmp((const char *)addresses + peers[i] * (own + inner), &mine, own)) {
            snprintf(error, error_size, "cannot connect to rank %u: it has another heap, or does not stage",
                     peers[i]);
            return -EPROTO;
        }
    char *inners = calloc(s->world, inner);
    if (!inners)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->world; i++)
        memcpy(inners + i * inner, (const char *)addresses + i * (own + inner) + own, inner);
    int rc = s->inner->ops->connect(s->inner, inners, peers, count, error, error_size);
    free(inners);
    return rc;
}

/* Until no copy touches the slots any more, at most a second. */
static void wait_for_copies(struct stage *s)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t begun = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec, now = begun;
    for (uint32_t i = 0; i < s->peer_count; i++)
        for (int slot_number = 0; slot_number < 2 * SLOTS; slot_number++) {
            struct peer *p = &s->peers[i];
            int64_t ticket =
                slot_number < SLOTS ? p->out_tickets[slot_number] : p->in_tickets[slot_number - SLOTS];
            while (ticket >= 0 && !s->ops->copied(ticket) && now - begun < CLOSE_NS) {
                sched_yield();
                clock_gettime(CLOCK_MONOTONIC, &t);
                now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
            }
        }
}

static void stage_close(struct fabric *fabric)
{
    struct stage *s = stage_of(fabric);
    if (s->inner)
        s->inner->ops->close(s->inner);
    if (s->peers)
        wait_for_copies(s);
    if (s->memory.base)
        s->ops->unpin(s->memory.base);
    free(s->peers);
    free(s);
}

static const struct fabric_ops stage_ops = {.name = "staged",
                                            .address_bytes = stage_address_bytes,
                                            .address = stage_address,
                                            .connect = stage_connect,
                                            .put = stage_put,
                                            .flush = stage_flush,
                                            .poll = stage_poll,
                                            .close = stage_close};

static void lay_out(struct stage *s)
{
    uint64_t slots = 2ull * SLOTS * (s->peer_count + 1);
    s->slot_bytes = PIECE_BYTES + 4096;
    while (s->slot_bytes * slots > SLOTS_BYTES && s->slot_bytes > PIECE_BYTES_LEAST)
        s->slot_bytes -= 4096;
    s->piece_bytes = s->slot_bytes - HEADER_BYTES;
    s->memory.flag_bytes = mk_round_up(16ull * s->world, 4096);
    s->memory.bytes = s->memory.flag_bytes + slots * s->slot_bytes;
}

static int make_peers(struct stage *s, const struct stage_config *config)
{
    s->peers = calloc(s->peer_count ? s->peer_count : 1, sizeof *s->peers);
    for (uint32_t i = 0; s->peers && i < s->peer_count; i++) {
        s->peers[i].rank = config->peers[i];
        s->peers[i].place = i + (config->peers[i] > s->rank);
        s->place += config->peers[i] < s->rank;
        for (int k = 0; k < SLOTS; k++)
            s->peers[i].out_tickets[k] = s->peers[i].in_tickets[k] = -1;
    }
    return s->peers ? 0 : -ENOMEM;
}

int stage_open(struct fabric **out, const struct stage_config *config, char *error, size_t error_size)
{
    *out = NULL;
    error[0] = '\0';
    const struct mr_memory_ops *ops = config->ops;
    if (!ops || !ops->copy || !ops->copied || !ops->pinned || !ops->unpin) {
        snprintf(error, error_size,
                 "this NIC cannot reach the heap's memory, and nobody here can copy it to where it can");
        return -EOPNOTSUPP;
    }
    struct stage *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->fabric.ops = &stage_ops;
    s->ops = ops;
    s->heap = config->heap;
    s->rank = config->rank;
    s->world = config->world;
    s->peer_count = config->peer_count;
    lay_out(s);
    int rc = make_peers(s, config);
    if (!rc && !(s->memory.base = ops->pinned(s->memory.bytes)))
        rc = -ENOMEM;
    if (!rc)
        rc = config->open_inner(config->context, &s->inner, &s->memory, error, error_size);
    if (rc) {
        if (!error[0])
            snprintf(error, error_size, "no %" PRIu64 " MiB of pinned memory to stage puts in",
                     s->memory.bytes >> 20);
        stage_close(&s->fabric);
        return rc;
    }
    *out = &s->fabric;
    return 0;
}
