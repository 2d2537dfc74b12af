/* The data path of the verbs fabric: puts become chains of work requests, completions go back in
 * each peer's order. */
#include "backends/verbs/rc_state.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { POLL_BATCH = 32, EVENTS_EVERY = 1024 /* idle polls */, RECOVER_EVERY = 64 /* polls */ };

static struct rc *rc_of(struct fabric *fabric)
{
    return (struct rc *)fabric;
}

/* ---- completions ---- */

static void rc_put_make_ready(struct rc *rc, struct rc_peer *peer)
{
    const struct rc_flight *head = &peer->flights[peer->reported & rc->flight_mask];
    if (peer->ready || peer->reported == peer->started || !head->done)
        return;
    peer->ready = 1;
    rc->ready[rc->ready_tail++ % rc->peer_count] = (uint32_t)(peer - rc->peers);
}

void rc_retire(struct rc *rc, struct rc_qp *q, uint64_t until, int status)
{
    struct rc_peer *peer = &rc->peers[q->peer];
    for (; q->put_retired != until; q->put_retired++) {
        const struct rc_put *put = &q->puts[q->put_retired % rc->depth];
        struct rc_flight *flight = &peer->flights[put->flight & rc->flight_mask];
        flight->status = status;
        flight->done = 1;
        q->wr_retired += put->wrs;
    }
    rc_put_make_ready(rc, peer);
}

/* Marks a QP as broken: its put `number` ended with `status`, and those behind it are flushed.
 * Other QPs of the peer report their own errors. If the QP has no puts that could report the error,
 * a completion of no put does. */
void rc_break(struct rc *rc, struct rc_qp *q, uint64_t number, int status, const char *detail)
{
    struct rc_peer *peer = &rc->peers[q->peer];
    if (q->broken)
        return;
    q->broken = 1;
    q->recovery = RC_RUNNING;
    if (!peer->broken) {
        peer->broken = 1;
        peer->status = status;
        snprintf(peer->detail, sizeof peer->detail, "%s", detail);
        if (q->put_retired == q->put_queued && rc->alarm == NIC_NO_PEER)
            rc->alarm = q->peer; /* one is enough to end a job */
    }
    rc_retire(rc, q, number, 0);
    if (q->put_retired != q->put_queued)
        rc_retire(rc, q, number + 1, status);
    rc_retire(rc, q, q->put_queued, IBV_WC_WR_FLUSH_ERR);
    q->wr_posted = q->wr_queued; /* the rest is never handed over */
}

static void rc_put_break_all(struct rc *rc, const char *detail)
{
    for (uint32_t i = 0; i < rc->peer_count * rc->qps_per_peer; i++)
        rc_break(rc, &rc->qps[i], rc->qps[i].put_retired, IBV_WC_FATAL_ERR, detail);
}

uint64_t rc_wr_id(const struct rc_qp *q, uint64_t number)
{
    return (uint64_t)(q->generation & 0xff) << 56 | (uint64_t)q->index << 32 | (uint32_t)number;
}

/* The low half of a wr_id is the put's number on its QP, which is less than 2^31 behind. */
static uint64_t rc_put_number(const struct rc_qp *q, uint64_t wr_id)
{
    return q->put_retired + (uint32_t)((uint32_t)wr_id - (uint32_t)q->put_retired);
}

static void rc_put_completed(struct rc *rc, const struct ibv_wc *wc)
{
    uint64_t index = wc->wr_id >> 32 & RC_CONTROL;
    if (index == RC_CONTROL && (uint32_t)wc->wr_id < rc->peer_count)
        rc->peers[(uint32_t)wc->wr_id].control_broken |= wc->status != IBV_WC_SUCCESS;
    if (index >= (uint64_t)rc->peer_count * rc->qps_per_peer)
        return;
    struct rc_qp *q = &rc->qps[index];
    uint64_t number = rc_put_number(q, wc->wr_id);
    if (q->broken || number >= q->put_queued || wc->wr_id >> 56 != (q->generation & 0xff))
        return; /* the flushed rest of a broken QP, or of a recovered one: already reported */
    if (wc->status == IBV_WC_SUCCESS) {
        rc_retire(rc, q, number + 1, 0);
        return;
    }
    if (rc_recover_begin(rc, q, wc->status))
        return;
    char detail[160];
    const char *event = q->rail->device.event;
    verbs_device_events(&q->rail->device);
    snprintf(detail, sizeof detail, "%s%s%s", rc->rail_count > 1 ? q->rail->device.name : "",
             rc->rail_count > 1 ? ": " : "", rc->api->wc_status_str(wc->status));
    if (event[0])
        mk_append(detail, sizeof detail, "; %s", event);
    else if (wc->vendor_err)
        mk_append(detail, sizeof detail, " (vendor 0x%x)", wc->vendor_err);
    rc_break(rc, q, number, wc->status, detail);
}

static int rc_put_report(struct rc *rc, struct fabric_completion *out, int max)
{
    int n = 0;
    while (n < max && rc->ready_head != rc->ready_tail) {
        struct rc_peer *peer = &rc->peers[rc->ready[rc->ready_head % rc->peer_count]];
        struct rc_flight *flight;
        while (n < max && peer->reported != peer->started &&
               (flight = &peer->flights[peer->reported & rc->flight_mask])->done) {
            flight->done = 0;
            out[n].cookie = flight->cookie;
            out[n].status = flight->status;
            if (flight->status)
                snprintf(out[n].detail, sizeof out[n].detail, "%s",
                         flight->status == peer->status
                             ? peer->detail
                             : rc->api->wc_status_str((enum ibv_wc_status)flight->status));
            peer->reported++;
            n++;
        }
        rc->ready_head++;
        peer->ready = 0;
        rc_put_make_ready(rc, peer); /* more than fitted: again, at the end */
        if (n == max)
            break;
    }
    if (rc->alarm != NIC_NO_PEER && n < max) { /* after the puts, whose records say more */
        const struct rc_peer *peer = &rc->peers[rc->alarm];
        out[n] = (struct fabric_completion){
            .cookie = FABRIC_NO_PUT, .peer = peer->rank, .status = peer->status};
        memcpy(out[n++].detail, peer->detail, sizeof peer->detail);
        rc->alarm = NIC_NO_PEER;
    }
    return n;
}

int rc_poll(struct fabric *fabric, struct fabric_completion *out, int max)
{
    struct rc *rc = rc_of(fabric);
    struct ibv_wc wc[POLL_BATCH];
    int idle = 1;
    for (uint32_t rail = 0; rail < rc->rail_count; rail++) {
        int n = rc->rails[rail].cq ? ibv_poll_cq(rc->rails[rail].cq, POLL_BATCH, wc) : 0;
        if (n < 0)
            rc_put_break_all(rc, "a completion queue cannot be polled");
        for (int i = 0; i < n; i++)
            rc_put_completed(rc, &wc[i]);
        idle &= n == 0;
    }
    if (idle && ++rc->idle_polls % EVENTS_EVERY == 0)
        for (uint32_t rail = 0; rail < rc->rail_count; rail++)
            if (verbs_device_events(&rc->rails[rail].device))
                rc_put_break_all(rc, rc->rails[rail].device.event);
    if (++rc->polls % RECOVER_EVERY == 0)
        rc_recover_step(rc);
    return rc_put_report(rc, out, max);
}

/* ---- puts ---- */

static struct rc_slot *rc_put_next_slot(struct rc *rc, struct rc_qp *q, uint64_t bytes)
{
    struct rc_slot *slot = &q->slots[q->wr_queued % rc->depth];
    memset(&slot->wr, 0, sizeof slot->wr);
    slot->wr.wr_id = rc_wr_id(q, q->put_queued);
    slot->packets = q->packets += mk_ceil_div(bytes, q->mtu);
    slot->wr.opcode = IBV_WR_RDMA_WRITE;
    slot->wr.sg_list = &slot->sge;
    slot->wr.num_sge = 1;
    if (q->wr_queued != q->wr_posted)
        q->slots[(q->wr_queued - 1) % rc->depth].wr.next = &slot->wr;
    q->wr_queued++;
    return slot;
}

static void rc_put_queue_data(struct rc *rc, struct rc_qp *q, const struct rc_peer *peer,
                              const struct fabric_put *put)
{
    for (uint64_t at = 0; at < put->bytes; at += rc->max_message) {
        uint64_t bytes = put->bytes - at < rc->max_message ? put->bytes - at : rc->max_message;
        struct rc_slot *slot = rc_put_next_slot(rc, q, bytes);
        slot->sge.addr = (uintptr_t)rc->heap.base + put->source + at;
        slot->sge.length = (uint32_t)bytes;
        slot->sge.lkey = q->rail->mr.data->lkey;
        slot->wr.wr.rdma.remote_addr = peer->heap_base + put->destination + at;
        slot->wr.wr.rdma.rkey = q->port.data_rkey;
    }
}

static void rc_put_queue_flag(struct rc *rc, struct rc_qp *q, const struct rc_peer *peer,
                              const struct fabric_put *put)
{
    struct rc_slot *slot = rc_put_next_slot(rc, q, sizeof slot->value);
    slot->value = put->value;
    slot->sge.addr = (uintptr_t)&slot->value;
    slot->sge.length = sizeof slot->value;
    slot->sge.lkey = q->values ? q->values->lkey : 0;
    slot->wr.wr.rdma.remote_addr = peer->heap_base + 8ull * put->flag;
    slot->wr.wr.rdma.rkey = q->port.flag_rkey;
    slot->wr.send_flags = q->values ? 0 : IBV_SEND_INLINE;
    if (++q->unsignaled >= (uint32_t)rc->options.signal_every) {
        slot->wr.send_flags |= IBV_SEND_SIGNALED;
        q->unsignaled = 0;
    }
}

/* The QP of a flag, always the same one (see verbs_rc.h). It depends on the rank, too: chunks for
 * several peers have the same flag at each, and should not all take the same device. */
static struct rc_qp *rc_put_qp_of_flag(struct rc_peer *peer, uint32_t flag)
{
    return &peer->qps[(flag + peer->rank) % peer->qps_in_use];
}

/* Hands over the work requests that a QP has collected. Its last put is signaled, so that no put
 * stays without a completion to come. */
void rc_post(struct rc *rc, struct rc_qp *q)
{
    if (q->wr_posted == q->wr_queued || q->recovery != RC_RUNNING)
        return;
    struct ibv_send_wr *bad = NULL;
    q->slots[(q->wr_queued - 1) % rc->depth].wr.send_flags |= IBV_SEND_SIGNALED;
    q->unsignaled = 0;
    int failed = ibv_post_send(q->qp, &q->slots[q->wr_posted % rc->depth].wr, &bad);
    q->wr_posted = q->wr_queued;
    if (failed) {
        char detail[64];
        struct ibv_qp_attr error = {.qp_state = IBV_QPS_ERR};
        snprintf(detail, sizeof detail, "posting a send: %s",
                 strerror(failed < 0 ? -failed : failed));
        /* requests posted before it must not be executed */
        rc->api->modify_qp(q->qp, &error, IBV_QP_STATE);
        /* nor is any put over without its completion */
        rc_break(rc, q, q->put_retired, IBV_WC_GENERAL_ERR, detail);
    }
}

int rc_flush(struct fabric *fabric)
{
    struct rc *rc = rc_of(fabric);
    for (uint32_t i = 0; i < rc->dirty_count; i++) {
        rc->qps[rc->dirty[i]].dirty = 0;
        rc_post(rc, &rc->qps[rc->dirty[i]]);
    }
    rc->dirty_count = 0;
    return 0;
}

int rc_put(struct fabric *fabric, const struct fabric_put *put)
{
    struct rc *rc = rc_of(fabric);
    uint32_t index = put->peer < rc->world ? rc->peer_of_rank[put->peer] : NIC_NO_PEER;
    if (index == NIC_NO_PEER)
        return -ENOTCONN;
    struct rc_peer *peer = &rc->peers[index];
    if (!peer->qps_in_use)
        return -ENOTCONN;
    if (peer->broken) /* the completion that reports why may be behind puts on other QPs */
        return peer->reported != peer->started ? -EAGAIN : -EPIPE;
    uint64_t wrs = mk_ceil_div(put->bytes, rc->max_message) + 1;
    if (!fabric_put_inside(put, rc->heap.flag_bytes, rc->heap.bytes, peer->flag_bytes,
                           peer->heap_bytes))
        return -ERANGE;
    if (wrs > rc->depth)
        return -EMSGSIZE;
    struct rc_qp *q = rc_put_qp_of_flag(peer, put->flag);
    if (q->wr_queued + wrs - q->wr_retired > rc->depth ||
        peer->started - peer->reported > rc->flight_mask) {
        rc_flush(fabric); /* handing over what is collected makes room later */
        return -EAGAIN;
    }
    struct rc_flight *flight = &peer->flights[peer->started & rc->flight_mask];
    *flight = (struct rc_flight){.cookie = put->cookie};
    q->puts[q->put_queued % rc->depth] =
        (struct rc_put){.flight = peer->started++, .wrs = (uint32_t)wrs};
    rc_put_queue_data(rc, q, peer, put);
    rc_put_queue_flag(rc, q, peer, put);
    q->put_queued++;
    if (!q->dirty) {
        q->dirty = 1;
        rc->dirty[rc->dirty_count++] = q->index;
    }
    return 0;
}
