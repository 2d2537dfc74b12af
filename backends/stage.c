#include "backends/stage_state.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "backends/wall_clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STAGE_MAGIC 0x31474154534b4dull

enum {
    PIECE_BYTES = 512 << 10,
    PIECE_BYTES_LEAST = 16 << 10,
    SLOTS_BYTES = 256 << 20, /* all slots, while pieces can be smaller */
    CLOSE_NS = 1000000000,
};

/* A rank's own address, in front of the inner fabric's. */
struct address {
    uint64_t magic, heap_bytes, flag_bytes, slot_bytes;
};

static struct stage *stage_of(struct fabric *fabric)
{
    return (struct stage *)fabric;
}

static struct stage_peer *stage_peer_of(struct stage *s, uint32_t rank)
{
    for (uint32_t i = 0; i < s->peer_count; i++)
        if (s->peers[i].rank == rank)
            return &s->peers[i];
    return NULL;
}

static int stage_put(struct fabric *fabric, const struct fabric_put *put)
{
    struct stage *s = stage_of(fabric);
    struct stage_peer *peer = stage_peer_of(s, put->peer);
    if (!peer)
        return -ENOTCONN;
    if (peer->broken)
        return peer->reported != peer->accepted ? -EAGAIN : -EPIPE;
    if ((put->source | put->destination | put->bytes) & 7)
        return -EINVAL;
    if (!fabric_put_inside(put, s->heap.flag_bytes, s->heap.bytes, s->heap.flag_bytes,
                           s->heap.bytes))
        return -ERANGE;
    if (peer->accepted - peer->reported == STAGE_QUEUE)
        return -EAGAIN;
    peer->puts[peer->accepted++ % STAGE_QUEUE] = (struct stage_put){.put = *put};
    return 0;
}

static int stage_flush(struct fabric *fabric)
{
    stage_advance(stage_of(fabric));
    return 0;
}

static int stage_poll(struct fabric *fabric, struct fabric_completion *out, int max)
{
    enum { BATCH = 32 };
    struct stage *s = stage_of(fabric);
    struct fabric_completion inner[BATCH];
    int n = s->inner->ops->poll(s->inner, inner, BATCH), reported = 0;
    for (int i = 0; i < n; i++)
        if (inner[i].cookie != FABRIC_NO_PUT)
            stage_completed(s, &inner[i]);
        else if (inner[i].status)
            s->alarm = inner[i];
    stage_advance(s);
    for (uint32_t i = 0; i < s->peer_count; i++) {
        struct stage_peer *peer = &s->peers[i];
        while (reported < max && peer->reported != peer->finished) {
            const struct stage_put *p = &peer->puts[peer->reported++ % STAGE_QUEUE];
            out[reported].cookie = p->put.cookie;
            out[reported].status = p->status;
            if (p->status)
                memcpy(out[reported].detail, peer->detail, sizeof peer->detail);
            reported++;
        }
    }
    if (s->alarm.status && reported < max) { /* after the puts, whose records say more */
        out[reported++] = s->alarm;
        s->alarm.status = 0;
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

static int stage_connect(struct fabric *fabric, const void *addresses, const uint32_t *peers,
                         uint32_t count, char *error, size_t size)
{
    struct stage *s = stage_of(fabric);
    struct address mine = {STAGE_MAGIC, s->heap.bytes, s->heap.flag_bytes, s->slot_bytes};
    size_t own = sizeof mine, inner = s->inner->ops->address_bytes(s->inner);
    for (uint32_t i = 0; i < count; i++)
        if (memcmp((const char *)addresses + peers[i] * (own + inner), &mine, own))
            return mk_fail(-EPROTO, error, size,
                           "cannot connect to rank %u: it has another heap, or does not stage",
                           peers[i]);
    MK_FREED char *inners = calloc(s->world, inner);
    if (!inners)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->world; i++)
        memcpy(inners + i * inner, (const char *)addresses + i * (own + inner) + own, inner);
    return s->inner->ops->connect(s->inner, inners, peers, count, error, size);
}

/* Waits until no copy uses the slots any more, for a second at most. */
static void stage_wait_for_copies(struct stage *s)
{
    uint64_t deadline = wall_clock(NULL) + CLOSE_NS;
    for (uint32_t i = 0; i < s->peer_count; i++)
        for (int slot_number = 0; slot_number < 2 * STAGE_SLOTS; slot_number++) {
            struct stage_peer *p = &s->peers[i];
            int64_t ticket = slot_number < STAGE_SLOTS ? p->out_tickets[slot_number]
                                                       : p->in_tickets[slot_number - STAGE_SLOTS];
            if (ticket >= 0)
                mr_copy_wait(s->ops, ticket, deadline);
        }
}

static void stage_close(struct fabric *fabric)
{
    struct stage *s = stage_of(fabric);
    if (s->inner)
        s->inner->ops->close(s->inner);
    if (s->peers)
        stage_wait_for_copies(s);
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

static void stage_lay_out(struct stage *s)
{
    uint64_t slots = 2ull * STAGE_SLOTS * (s->peer_count + 1);
    s->slot_bytes = PIECE_BYTES + 4096;
    while (s->slot_bytes * slots > SLOTS_BYTES && s->slot_bytes > PIECE_BYTES_LEAST)
        s->slot_bytes -= 4096;
    s->piece_bytes = s->slot_bytes - STAGE_HEADER_BYTES;
    s->memory.flag_bytes = mk_round_up(8ull * STAGE_FLAGS * s->world, 4096);
    s->memory.bytes = s->memory.flag_bytes + slots * s->slot_bytes;
}

static int stage_make_peers(struct stage *s, const struct stage_config *config)
{
    s->peers = calloc(s->peer_count ? s->peer_count : 1, sizeof *s->peers);
    for (uint32_t i = 0; s->peers && i < s->peer_count; i++) {
        s->peers[i].rank = config->peers[i];
        s->peers[i].place = i + (config->peers[i] > s->rank);
        s->place += config->peers[i] < s->rank;
        for (int k = 0; k < STAGE_SLOTS; k++)
            s->peers[i].out_tickets[k] = s->peers[i].in_tickets[k] = -1;
    }
    return s->peers ? 0 : -ENOMEM;
}

int stage_open(struct fabric **out, const struct stage_config *config, char *error, size_t size)
{
    *out = NULL;
    error[0] = '\0';
    const struct mr_memory_ops *ops = config->ops;
    if (!mr_copies(ops))
        return mk_fail(
            -EOPNOTSUPP, error, size,
            "this NIC cannot reach the heap's memory, and this process cannot copy it to host "
            "memory");
    struct stage *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->fabric.ops = &stage_ops;
    s->ops = ops;
    s->heap = config->heap;
    s->rank = config->rank;
    s->world = config->world;
    s->peer_count = config->peer_count;
    stage_lay_out(s);
    int rc = stage_make_peers(s, config);
    if (!rc && !(s->memory.base = ops->pinned(s->memory.bytes)))
        rc = -ENOMEM;
    rc = rc ? rc : config->open_inner(config->context, &s->inner, &s->memory, error, size);
    if (rc) {
        if (!error[0])
            snprintf(error, size, "no %" PRIu64 " MiB of pinned memory to stage puts in",
                     s->memory.bytes >> 20);
        stage_close(&s->fabric);
        return rc;
    }
    *out = &s->fabric;
    return 0;
}
