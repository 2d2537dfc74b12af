/* The sending side of the efa fabric: puts become writes with immediate, and writes are handed over
 * as the devices have room. */
#include "backends/efa/efa_state.h"
#include "core/base/sentence.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { POLL_BATCH = 32 };

/* wr_id: which peer, which of its puts (or a credit, or a warm-up message). */
#define ID_CREDIT (1u << 16)
#define ID_WARM_UP (1u << 17)

static uint64_t efa_put_write_id(uint32_t peer, uint32_t low)
{
    return (uint64_t)peer << 32 | low;
}

/* ---- handing over ---- */

/* `count` writes in one batch. 0, or the provider's error, and then none of them was taken. */
static int efa_put_hand_over(struct efa_device *d, uint32_t count)
{
    ibv_wr_start(d->ex);
    for (uint32_t i = 0; i < count; i++) {
        const struct efa_write *w = &d->writes[(d->posted + i) % d->depth];
        d->ex->wr_id = w->id;
        d->ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write_imm(d->ex, w->rkey, w->to, htobe32(w->imm));
        ibv_wr_set_sge(d->ex, w->lkey, w->from, w->bytes);
        ibv_wr_set_ud_addr(d->ex, w->ah, w->qpn, w->qkey);
    }
    return ibv_wr_complete(d->ex);
}

/* ENOMEM: the device holds fewer than it said. Half as many may fit; a completion makes room. */
static void efa_put_flush_device(struct efa *e, struct efa_device *d)
{
    while (d->posted != d->queued && !d->held && !e->useless) {
        uint64_t waiting = d->queued - d->posted;
        uint32_t count = waiting < d->batch ? (uint32_t)waiting : d->batch;
        int rc = efa_put_hand_over(d, count);
        if (!rc) {
            d->posted += count;
            d->batch = d->batch * 2 < d->depth ? d->batch * 2 : d->depth;
        } else if (rc == ENOMEM && count > 1) {
            d->batch = count / 2;
        } else if (rc == ENOMEM && d->posted != d->completed) {
            d->held = 1;
        } else if (rc == ENOMEM) {
            /* nothing that could complete: tried again at the next poll, bounded by the put's
             * timeout */
            return;
        } else {
            char detail[64];
            snprintf(detail, sizeof detail, "posting a write: %s", strerror(rc));
            efa_break_all(e, detail);
        }
    }
}

int efa_flush(struct fabric *fabric)
{
    struct efa *e = efa_of(fabric);
    for (uint32_t i = 0; i < e->device_count; i++)
        efa_put_flush_device(e, &e->devices[i]);
    return 0; /* completions report errors */
}

static uint64_t efa_put_room(const struct efa_device *d)
{
    return d->depth - (d->queued - d->completed);
}

static struct efa_write *efa_put_queue_write(struct efa_device *d, const struct efa_lane *lane,
                                             uint64_t id)
{
    struct efa_write *w = &d->writes[d->queued++ % d->depth];
    *w = (struct efa_write){.id = id, .ah = lane->ah, .qpn = lane->qpn, .qkey = lane->qkey};
    return w;
}

/* Eight bytes into one of the peer's places: a message that is no data. */
static struct efa_write *efa_put_queue_word(struct efa *e, uint32_t index, uint32_t lane,
                                            uint32_t place, uint64_t value, uint64_t id)
{
    struct efa_device *d = &e->devices[lane];
    struct efa_peer *peer = &e->peers[index];
    uint64_t *word = efa_outgoing(e, index, place);
    struct efa_write *w = efa_put_queue_write(d, &peer->lanes[lane], id);
    *word = value;
    w->from = (uintptr_t)word;
    w->lkey = d->control->lkey;
    w->to = peer->landing + place * 8ull;
    w->rkey = peer->lanes[lane].control_rkey;
    w->bytes = 8;
    return w;
}

/* ---- puts ---- */

/* How a put is cut: pieces of one size go to lanes in turn, each in writes that its lane takes. */
struct cut {
    uint64_t piece; /* bytes of a piece, the last may be shorter */
    uint32_t pieces, first;
    uint32_t on_lane[NIC_RAILS_MAX]; /* messages */
    uint32_t parts;
    int word; /* one of them says the growth */
};

static uint64_t efa_put_piece_bytes(const struct cut *cut, const struct fabric_put *put,
                                    uint32_t piece)
{
    uint64_t left = put->bytes - piece * cut->piece;
    return left < cut->piece ? left : cut->piece;
}

static void efa_put_make_cut(const struct efa *e, const struct efa_peer *peer,
                             const struct fabric_put *put, uint64_t growth, struct cut *cut)
{
    uint64_t wanted = mk_ceil_div(put->bytes, (uint64_t)e->options.stripe);
    memset(cut, 0, sizeof *cut);
    cut->pieces = wanted > peer->lane_count ? peer->lane_count : (uint32_t)wanted;
    if (cut->pieces) {
        cut->piece = mk_round_up(mk_ceil_div(put->bytes, cut->pieces), MK_HEAP_UNIT);
        cut->pieces = (uint32_t)mk_ceil_div(put->bytes, cut->piece);
    }
    cut->first = peer->turn;
    cut->word = !put->bytes || !growth || growth > EFA_MAX_GROWTH;
    cut->on_lane[cut->first] = (uint32_t)cut->word;
    cut->parts = (uint32_t)cut->word;
    for (uint32_t i = 0; i < cut->pieces; i++) {
        uint32_t lane = (cut->first + i) % peer->lane_count;
        uint64_t writes = mk_ceil_div(efa_put_piece_bytes(cut, put, i), peer->lanes[lane].max_rdma);
        /* refused all the same */
        uint32_t some = writes > EFA_MAX_PARTS ? EFA_MAX_PARTS : (uint32_t)writes;
        cut->on_lane[lane] += some;
        cut->parts += some;
    }
}

static void efa_put_queue_piece(struct efa *e, uint32_t index, const struct fabric_put *put,
                                const struct cut *cut, uint32_t piece, uint32_t *imm, uint32_t tail)
{
    struct efa_peer *peer = &e->peers[index];
    uint32_t lane = (cut->first + piece) % peer->lane_count;
    struct efa_device *d = &e->devices[lane];
    uint64_t from = piece * cut->piece, end = from + efa_put_piece_bytes(cut, put, piece),
             most = peer->lanes[lane].max_rdma;
    for (; from < end; from += most) {
        struct efa_write *w = efa_put_queue_write(
            d, &peer->lanes[lane], efa_put_write_id(index, (uint32_t)(peer->started % EFA_WINDOW)));
        w->from = (uintptr_t)e->heap.base + put->source + from;
        w->lkey = d->mr.data->lkey;
        w->to = peer->heap_base + put->destination + from;
        w->rkey = peer->lanes[lane].data_rkey;
        w->bytes = (uint32_t)(end - from < most ? end - from : most);
        w->imm = *imm;
        *imm = tail;
    }
}

/* Whether the put fits the peer's grant and the devices' queues. */
static int efa_put_fits(const struct efa *e, const struct efa_peer *peer, const struct cut *cut)
{
    if (peer->outstanding + cut->parts > peer->window ||
        peer->started - peer->reported >= EFA_WINDOW)
        return 0;
    for (uint32_t i = 0; i < peer->lane_count; i++)
        if (cut->on_lane[i] > efa_put_room(&e->devices[i]))
            return 0;
    return 1;
}

/* Whether it can never fit. A credit comes for each quarter of the window, so three quarters always
 * come back. */
static int efa_put_too_long(const struct efa *e, const struct efa_peer *peer, const struct cut *cut)
{
    if (cut->parts > EFA_MAX_PARTS || cut->parts > peer->window - peer->window / 4)
        return 1;
    for (uint32_t i = 0; i < peer->lane_count; i++)
        if (cut->on_lane[i] > e->devices[i].depth)
            return 1;
    return 0;
}

static int efa_put_check(const struct efa *e, const struct efa_peer *peer,
                         const struct fabric_put *put)
{
    if (!fabric_put_inside(put, e->heap.flag_bytes, e->heap.bytes, peer->flag_bytes,
                           peer->heap_bytes))
        return -ERANGE;
    /* flags never go back */
    return put->value < peer->sent[put->flag] >> 1 || put->value >> 63 ? -EINVAL : 0;
}

static void efa_put_start(struct efa *e, uint32_t index, const struct fabric_put *put,
                          const struct cut *cut, uint64_t growth)
{
    struct efa_peer *peer = &e->peers[index];
    uint32_t number = (uint32_t)(peer->started % EFA_WINDOW);
    uint32_t imm = efa_imm_head(cut->parts == 1, number, put->flag, cut->word ? 0 : growth);
    uint32_t tail = efa_imm_tail(number, cut->parts);
    peer->flights[number] = (struct efa_flight){
        .cookie = put->cookie, .flag = put->flag, .parts = cut->parts, .left = cut->parts};
    for (uint32_t i = 0; i < cut->pieces; i++)
        efa_put_queue_piece(e, index, put, cut, i, &imm, tail);
    if (cut->word)
        efa_put_queue_word(e, index, cut->first, number, growth, efa_put_write_id(index, number))
            ->imm = imm;
    peer->sent[put->flag] = put->value << 1 | 1;
    peer->outstanding += cut->parts;
    peer->started++;
    peer->turn = (peer->turn + (cut->pieces ? cut->pieces : 1)) % peer->lane_count;
}

int efa_put(struct fabric *fabric, const struct fabric_put *put)
{
    struct efa *e = efa_of(fabric);
    uint32_t index = put->peer < e->world ? e->peer_of_rank[put->peer] : NIC_NO_PEER;
    if (index == NIC_NO_PEER || !e->connected)
        return -ENOTCONN;
    struct efa_peer *peer = &e->peers[index];
    if (peer->broken) /* the completion that says why comes first */
        return peer->reported != peer->started ? -EAGAIN : -EPIPE;
    int rc = efa_put_check(e, peer, put);
    if (rc)
        return rc;
    struct cut cut;
    uint64_t growth = put->value - (peer->sent[put->flag] >> 1);
    efa_put_make_cut(e, peer, put, growth, &cut);
    if (efa_put_too_long(e, peer, &cut))
        return -EMSGSIZE;
    if (peer->sent[put->flag] & 1 || !efa_put_fits(e, peer, &cut)) {
        efa_flush(fabric); /* handing over what is collected makes room later */
        return -EAGAIN;
    }
    efa_put_start(e, index, put, &cut, growth);
    return 0;
}

/* Tells each peer how many of its puts are whole here, once there is a quarter of the window to
 * tell. One at a time: two could overtake each other. */
void efa_send_credits(struct efa *e)
{
    for (uint32_t i = 0; i < e->peer_count; i++) {
        struct efa_peer *peer = &e->peers[i];
        if (peer->arrivals.untold < e->window / 4 || peer->credit_flying || peer->broken)
            continue;
        for (uint32_t lane = 0; lane < peer->lane_count && !peer->credit_flying; lane++) {
            if (!efa_put_room(&e->devices[lane]))
                continue;
            efa_put_queue_word(e, i, lane, EFA_CREDIT_PLACE, peer->arrivals.counted,
                               efa_put_write_id(i, ID_CREDIT))
                ->imm = efa_imm_credit(peer->arrivals.counted);
            peer->arrivals.untold = 0;
            peer->credit_flying = 1;
        }
    }
}

/* A warm-up message is a credit for nothing. Lane by lane of peer after peer, as the devices have
 * room. */
int efa_warm_up(struct fabric *fabric, char *error, size_t size)
{
    struct efa *e = efa_of(fabric);
    struct fabric_completion c;
    for (; e->warm_up_sent < e->peer_count * NIC_RAILS_MAX; e->warm_up_sent++) {
        uint32_t index = e->warm_up_sent / NIC_RAILS_MAX, lane = e->warm_up_sent % NIC_RAILS_MAX;
        if (lane >= e->peers[index].lane_count)
            continue;
        if (!efa_put_room(&e->devices[lane]))
            break;
        efa_put_queue_word(e, index, lane, EFA_CREDIT_PLACE, 0, efa_put_write_id(index, ID_WARM_UP))
            ->imm = efa_imm_credit(0);
        e->warm_up_left++;
    }
    while (efa_poll(fabric, &c, 1) == 1)
        if (c.status)
            return mk_fail(-EIO, error, size, "rank %u cannot be reached: %s", c.peer, c.detail);
    return e->warm_up_left || e->warm_up_sent < e->peer_count * NIC_RAILS_MAX ? -EAGAIN : 0;
}

/* ---- completions ---- */

static void efa_put_break_peer(struct efa *e, struct efa_peer *peer, int32_t status,
                               const char *detail)
{
    if (peer->broken)
        return;
    peer->broken = 1;
    peer->status = status;
    snprintf(peer->detail, sizeof peer->detail, "%s", detail);
}

void efa_alarm(struct efa *e, struct efa_peer *peer, int32_t status, const char *detail)
{
    if (peer->broken)
        return;
    efa_put_break_peer(e, peer, status, detail);
    if (e->alarm != NIC_NO_PEER)
        return; /* one is enough to end a job */
    e->alarm = peer->rank;
    e->alarm_status = status;
    snprintf(e->alarm_detail, sizeof e->alarm_detail, "%s", detail);
}

/* The fabric is of no more use: all puts on their way end here. */
void efa_break_all(struct efa *e, const char *detail)
{
    e->useless = 1;
    for (uint32_t i = 0; i < e->peer_count; i++) {
        struct efa_peer *peer = &e->peers[i];
        efa_alarm(e, peer, IBV_WC_FATAL_ERR, detail);
        for (uint64_t n = peer->reported; n != peer->started; n++) {
            struct efa_flight *f = &peer->flights[n % EFA_WINDOW];
            if (f->left && !f->status)
                f->status = IBV_WC_FATAL_ERR;
            f->left = 0;
        }
    }
}

static void efa_put_completed(struct efa *e, struct efa_device *d, const struct ibv_wc *wc)
{
    uint32_t index = (uint32_t)(wc->wr_id >> 32), low = (uint32_t)wc->wr_id;
    d->completed++;
    d->held = 0;
    if (index >= e->peer_count || e->useless)
        return;
    struct efa_peer *peer = &e->peers[index];
    char detail[64] = "";
    if (wc->status != IBV_WC_SUCCESS)
        snprintf(detail, sizeof detail, "%.20s: %.40s", d->verbs.name,
                 e->api.verbs.wc_status_str(wc->status));
    if (low & (ID_CREDIT | ID_WARM_UP)) {
        if (low & ID_CREDIT)
            peer->credit_flying = 0;
        else
            e->warm_up_left--;
        if (wc->status != IBV_WC_SUCCESS)
            efa_alarm(e, peer, wc->status, detail);
        return;
    }
    struct efa_flight *f = &peer->flights[low % EFA_WINDOW];
    if (wc->status != IBV_WC_SUCCESS) {
        if (!f->status)
            f->status = wc->status;
        efa_put_break_peer(e, peer, wc->status, detail);
    }
    if (f->left && !--f->left)
        peer->sent[f->flag] &= ~1ull; /* the next put to that flag may go */
}

void efa_collect(struct efa *e, struct efa_device *d)
{
    struct ibv_wc wc[POLL_BATCH];
    int n;
    do {
        n = ibv_poll_cq(d->send_cq, POLL_BATCH, wc);
        for (int i = 0; i < n; i++)
            efa_put_completed(e, d, &wc[i]);
    } while (n == POLL_BATCH);
    if (n < 0)
        efa_break_all(e, "a completion queue cannot be polled");
}
