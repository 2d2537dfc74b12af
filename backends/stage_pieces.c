/* Pieces of puts through slots of pinned host memory: copied out of the heap and sent; landed in it
 * and given back. */
#include "backends/stage_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CREDIT UINT32_MAX

/* In front of each piece. */
struct header {
    uint64_t destination, bytes;
    uint64_t value;
    uint32_t flag, last; /* last: the flag follows */
};

/* Slot `piece` of those for (in: from) the member of the group at `place`. The same on every
 * rank. */
static uint64_t stage_pieces_slot_at(const struct stage *s, uint32_t place, int in, uint64_t piece)
{
    return s->memory.flag_bytes +
           (((uint64_t)place * 2 + (uint64_t)in) * STAGE_SLOTS + piece % STAGE_SLOTS) *
               s->slot_bytes;
}

static struct header *stage_pieces_slot(struct stage *s, uint32_t place, int in, uint64_t piece)
{
    return (struct header *)((char *)s->memory.base + stage_pieces_slot_at(s, place, in, piece));
}

/* Flags that peers set: the number, from 1, of the last piece that `rank` has sent to the slot of
 * `piece`; how many of this rank's pieces it has freed. A flag each for the slots: pieces may
 * arrive in any order. */
static uint32_t stage_pieces_arrived_flag(uint32_t rank, uint64_t piece)
{
    return rank * STAGE_FLAGS + (uint32_t)(piece % STAGE_SLOTS);
}

static uint32_t stage_pieces_freed_flag(uint32_t rank)
{
    return rank * STAGE_FLAGS + STAGE_SLOTS;
}

static uint64_t stage_pieces_counted(const struct stage *s, uint32_t flag)
{
    return __atomic_load_n((uint64_t *)s->memory.base + flag, __ATOMIC_ACQUIRE);
}

/* Reports a broken peer to the proxy: by the completions of puts in flight or, if there are none,
 * by a completion of no put, because waits for the peer's flags would never end. */
static void stage_pieces_break_peer(struct stage *s, struct stage_peer *peer, int status,
                                    const char *detail)
{
    if (peer->broken)
        return;
    peer->broken = status;
    snprintf(peer->detail, sizeof peer->detail, "%s", detail);
    if (peer->finished == peer->accepted && !s->alarm.status) {
        s->alarm = (struct fabric_completion){
            .cookie = FABRIC_NO_PUT, .peer = peer->rank, .status = status};
        memcpy(s->alarm.detail, peer->detail, sizeof peer->detail);
    }
    for (; peer->finished != peer->accepted; peer->finished++)
        peer->puts[peer->finished % STAGE_QUEUE].status = status;
}

/* ---- out ---- */

static uint64_t stage_pieces_cut_bytes(const struct stage *s, const struct stage_put *p)
{
    uint64_t left = p->put.bytes - p->cut;
    return left < s->piece_bytes ? left : s->piece_bytes;
}

/* Starts copies into slots that both sides have free. */
static void stage_pieces_cut_pieces(struct stage *s, struct stage_peer *peer)
{
    uint64_t freed = stage_pieces_counted(s, stage_pieces_freed_flag(peer->rank));
    while (!peer->broken && peer->cutting != peer->accepted &&
           peer->copying - peer->acknowledged < STAGE_SLOTS &&
           peer->copying - freed < STAGE_SLOTS) {
        struct stage_put *p = &peer->puts[peer->cutting % STAGE_QUEUE];
        uint64_t bytes = stage_pieces_cut_bytes(s, p);
        struct header *h = stage_pieces_slot(s, peer->place, 0, peer->copying);
        int64_t ticket = -1;
        if (bytes) {
            ticket =
                s->ops->copy((char *)h + STAGE_HEADER_BYTES,
                             (char *)s->heap.base + p->put.source + p->cut, bytes, MEMORY_TO_HOST);
            if (ticket == -EAGAIN)
                return;
            if (ticket < 0) {
                stage_pieces_break_peer(s, peer, (int)ticket, "a copy to host memory failed");
                return;
            }
        }
        *h = (struct header){.destination = p->put.destination + p->cut,
                             .bytes = bytes,
                             .value = p->put.value,
                             .flag = p->put.flag};
        p->cut += bytes;
        h->last = p->cut == p->put.bytes;
        peer->out_tickets[peer->copying % STAGE_SLOTS] = ticket;
        peer->out_last[peer->copying % STAGE_SLOTS] = (int)h->last;
        peer->copying++;
        peer->cutting += h->last;
    }
}

static uint64_t stage_pieces_cookie_of(const struct stage *s, const struct stage_peer *peer,
                                       uint32_t what)
{
    return (uint64_t)(peer - s->peers) << 32 | what;
}

/* Hands copied pieces to the inner fabric, in order. */
static void stage_pieces_send_pieces(struct stage *s, struct stage_peer *peer)
{
    while (!peer->broken && peer->sent != peer->copying) {
        int64_t ticket = peer->out_tickets[peer->sent % STAGE_SLOTS];
        int copied = ticket < 0 ? 1 : s->ops->copied(ticket);
        if (!copied)
            return;
        if (copied < 0) {
            stage_pieces_break_peer(s, peer, copied, "a copy to host memory failed");
            return;
        }
        struct fabric_put put = {
            .peer = peer->rank,
            .flag = stage_pieces_arrived_flag(s->rank, peer->sent),
            .value = peer->sent + 1,
            .source = stage_pieces_slot_at(s, peer->place, 0, peer->sent),
            .destination = stage_pieces_slot_at(s, s->place, 1, peer->sent),
            .bytes = STAGE_HEADER_BYTES + stage_pieces_slot(s, peer->place, 0, peer->sent)->bytes,
            .cookie = stage_pieces_cookie_of(s, peer, (uint32_t)(peer->sent % STAGE_SLOTS))};
        int rc = s->inner->ops->put(s->inner, &put);
        if (rc == -EAGAIN)
            return;
        if (rc) {
            stage_pieces_break_peer(s, peer, rc, strerror(-rc));
            return;
        }
        s->dirty = 1;
        peer->sent++;
    }
}

/* ---- in ---- */

/* Whether the header that a peer wrote is valid; foreign bytes. */
static int stage_pieces_header_valid(const struct stage *s, const struct header *h)
{
    if (h->bytes > s->piece_bytes || (h->destination | h->bytes) & 7)
        return 0;
    if (h->bytes && (h->destination < s->heap.flag_bytes || h->destination > s->heap.bytes ||
                     h->bytes > s->heap.bytes - h->destination))
        return 0;
    return !h->last || 8ull * h->flag < s->heap.flag_bytes;
}

/* Pieces into the heap, and behind the last one of a put its flag, on the same queue. */
static void stage_pieces_land_pieces(struct stage *s, struct stage_peer *peer)
{
    while (!peer->broken && peer->landing - peer->freed < STAGE_SLOTS &&
           stage_pieces_counted(s, stage_pieces_arrived_flag(peer->rank, peer->landing)) >
               peer->landing) {
        struct header *in_slot = stage_pieces_slot(s, peer->place, 1, peer->landing), h = *in_slot;
        int64_t ticket = -1;
        if (!stage_pieces_header_valid(s, &h)) {
            stage_pieces_break_peer(s, peer, -EPROTO,
                                    "it sent a piece with a destination outside the heap");
            return;
        }
        if (h.bytes)
            ticket = s->ops->copy((char *)s->heap.base + h.destination,
                                  (char *)in_slot + STAGE_HEADER_BYTES, h.bytes, MEMORY_FROM_HOST);
        if (h.last && (!h.bytes || ticket >= 0)) {
            ticket = s->ops->copy((char *)s->heap.base + 8ull * h.flag, &in_slot->value, 8,
                                  MEMORY_FROM_HOST);
            if (ticket == -EAGAIN)
                /* next time the flag alone: the queue is in order, so its ticket covers the data */
                in_slot->bytes = 0;
        }
        if (ticket == -EAGAIN)
            return;
        if (ticket < 0 && (h.bytes || h.last)) {
            stage_pieces_break_peer(s, peer, (int)ticket, "a copy from host memory failed");
            return;
        }
        peer->in_tickets[peer->landing++ % STAGE_SLOTS] = ticket;
    }
}

/* Slots whose copies have ended go back to the peer; one message at a time says how many there have
 * been. */
static void stage_pieces_give_back(struct stage *s, struct stage_peer *peer)
{
    while (!peer->broken && peer->freed != peer->landing) {
        int64_t ticket = peer->in_tickets[peer->freed % STAGE_SLOTS];
        int copied = ticket < 0 ? 1 : s->ops->copied(ticket);
        if (copied < 0)
            stage_pieces_break_peer(s, peer, copied, "a copy from host memory failed");
        if (copied != 1)
            break;
        peer->freed++;
    }
    if (peer->broken || peer->telling || peer->told == peer->freed)
        return;
    struct fabric_put put = {.peer = peer->rank,
                             .flag = stage_pieces_freed_flag(s->rank),
                             .value = peer->freed,
                             .source = s->memory.flag_bytes,
                             .destination = s->memory.flag_bytes,
                             .cookie = stage_pieces_cookie_of(s, peer, CREDIT)};
    int rc = s->inner->ops->put(s->inner, &put);
    if (rc && rc != -EAGAIN)
        stage_pieces_break_peer(s, peer, rc, strerror(-rc));
    if (rc)
        return;
    s->dirty = peer->telling = 1;
    peer->told = peer->freed;
}

/* ---- both ---- */

void stage_advance(struct stage *s)
{
    for (uint32_t i = 0; i < s->peer_count; i++) {
        stage_pieces_cut_pieces(s, &s->peers[i]);
        stage_pieces_send_pieces(s, &s->peers[i]);
        stage_pieces_land_pieces(s, &s->peers[i]);
        stage_pieces_give_back(s, &s->peers[i]);
    }
    if (s->dirty)
        s->inner->ops->flush(s->inner);
    s->dirty = 0;
}

void stage_completed(struct stage *s, const struct fabric_completion *c)
{
    if (c->cookie >> 32 >= s->peer_count)
        return;
    struct stage_peer *peer = &s->peers[c->cookie >> 32];
    if (c->status) {
        stage_pieces_break_peer(s, peer, c->status, c->detail);
    } else if ((uint32_t)c->cookie == CREDIT) {
        peer->telling = 0;
    } else if (!peer->broken) {
        peer->finished += (uint64_t)peer->out_last[peer->acknowledged % STAGE_SLOTS];
        peer->acknowledged++;
    }
}
