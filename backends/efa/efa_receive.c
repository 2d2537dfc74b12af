/* The receiving side of the efa fabric: immediates are counted, flags raised, receives
 * replenished. */
#include "backends/efa/efa_state.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { POLL_BATCH = 32, EVENTS_EVERY = 1024 /* idle polls */ };

/* EFA wants a buffer in each receive; a write with immediate does not touch it. */
void efa_post_receives(struct efa *e, struct efa_device *d)
{
    struct ibv_sge sge = {.addr = (uintptr_t)(e->control + 2ull * e->peer_count * EFA_PLACES),
                          .length = 8,
                          .lkey = d->control->lkey};
    struct ibv_recv_wr wr[POLL_BATCH], *bad;
    while (d->receives) {
        uint32_t count = d->receives < POLL_BATCH ? d->receives : POLL_BATCH;
        for (uint32_t i = 0; i < count; i++)
            wr[i] = (struct ibv_recv_wr){
                .next = i + 1 < count ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
        bad = NULL;
        int rc = ibv_post_recv(d->qp, wr, &bad);
        uint32_t taken = rc ? bad ? (uint32_t)(bad - wr) : 0 : count;
        d->receives -= taken;
        if (rc && rc != ENOMEM) {
            char detail[64];
            snprintf(detail, sizeof detail, "posting a receive: %s", strerror(rc));
            efa_break_all(e, detail);
        }
        if (rc)
            return; /* full: the rest at the next poll */
    }
}

static void efa_receive_take_credit(struct efa_peer *peer, uint32_t count)
{
    uint64_t told = peer->counted + ((count - (uint32_t)peer->counted) & EFA_COUNT_MASK);
    if (told > peer->started) /* more than was ever sent cannot have been counted */
        return;
    while (peer->counted != told)
        peer->outstanding -= peer->flights[peer->counted++ % EFA_WINDOW].parts;
}

static void efa_receive_arrived(struct efa *e, struct efa_device *d, const struct ibv_wc *wc)
{
    uint32_t index = efa_device_source(d, e->peer_count, wc->slid, wc->src_qp);
    if (index == NIC_NO_PEER)
        return; /* of another job: its keys let it write nothing here */
    struct efa_peer *peer = &e->peers[index];
    struct efa_imm imm = efa_imm_decode(be32toh(wc->imm_data));
    struct efa_raise raise;
    if (imm.kind == EFA_CREDIT) {
        efa_receive_take_credit(peer, imm.count);
        return;
    }
    int rc = efa_count_take(&peer->arrivals, &imm, &raise);
    if (rc > 0)
        efa_raise(e, &raise);
    else if (rc < 0)
        efa_alarm(e, peer, IBV_WC_GENERAL_ERR, "a message arrived that belongs to no put");
}

static int efa_receive_all(struct efa *e, struct efa_device *d)
{
    struct ibv_wc wc[POLL_BATCH];
    int n, batch, all = 0;
    do {
        uint32_t room = efa_raise_room(e); /* an immediate raises one flag at most */
        batch = room < POLL_BATCH ? (int)room : POLL_BATCH;
        n = batch ? ibv_poll_cq(d->recv_cq, batch, wc) : 0;
        for (int i = 0; i < n; i++) {
            d->receives += !e->unsolicited;
            if (wc[i].status == IBV_WC_SUCCESS)
                efa_receive_arrived(e, d, &wc[i]);
            else if (!e->useless)
                efa_break_all(e, e->api.verbs.wc_status_str(wc[i].status));
        }
        all += n > 0 ? n : 0;
        efa_post_receives(e, d);
    } while (n && n == batch);
    if (n < 0)
        efa_break_all(e, "a completion queue cannot be polled");
    return all;
}

/* ---- completions for the proxy ---- */

static int efa_receive_report_peer(struct efa *e, struct efa_peer *peer,
                                   struct fabric_completion *out, int max)
{
    int n = 0;
    while (n < max && peer->reported != peer->started &&
           !peer->flights[peer->reported % EFA_WINDOW].left) {
        const struct efa_flight *f = &peer->flights[peer->reported++ % EFA_WINDOW];
        out[n] = (struct fabric_completion){.cookie = f->cookie, .status = f->status};
        if (f->status)
            snprintf(out[n].detail, sizeof out[n].detail, "%s",
                     f->status == peer->status
                         ? peer->detail
                         : e->api.verbs.wc_status_str((enum ibv_wc_status)f->status));
        n++;
    }
    return n;
}

static void efa_receive_look_at_events(struct efa *e)
{
    for (uint32_t i = 0; i < e->device_count; i++)
        if (verbs_device_events(&e->devices[i].verbs))
            efa_break_all(e, e->devices[i].verbs.event);
}

int efa_poll(struct fabric *fabric, struct fabric_completion *out, int max)
{
    struct efa *e = efa_of(fabric);
    int came = 0, n = 0;
    if (!e->connected)
        return 0;
    for (uint32_t i = 0; i < e->device_count && !e->useless; i++) {
        came += efa_receive_all(e, &e->devices[i]);
        efa_collect(e, &e->devices[i]);
    }
    came += efa_raise_advance(e);
    efa_send_credits(e);
    efa_flush(fabric);
    if (came && n < max)
        out[n++] = (struct fabric_completion){.cookie = FABRIC_NO_PUT};
    for (uint32_t i = 0; i < e->peer_count && n < max; i++)
        n += efa_receive_report_peer(e, &e->peers[(e->next + i) % e->peer_count], out + n, max - n);
    e->next = (e->next + 1) % e->peer_count;
    if (e->alarm != NIC_NO_PEER && n < max) { /* after the puts, whose records say more */
        out[n] = (struct fabric_completion){
            .cookie = FABRIC_NO_PUT, .peer = e->alarm, .status = e->alarm_status};
        snprintf(out[n].detail, sizeof out[n].detail, "%s", e->alarm_detail);
        e->alarm = NIC_NO_PEER;
        n++;
    }
    if (!n && ++e->idle_polls % EVENTS_EVERY == 0)
        efa_receive_look_at_events(e);
    return n;
}
