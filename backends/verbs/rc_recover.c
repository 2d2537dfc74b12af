/* Recovery of QPs that their own device has failed. rxe of Linux 6.1 does that when its link goes
 * down while it sends: without a route it fails the QP at the first retry at the latest, where a
 * NIC would go on retrying. Nothing is lost: the sender keeps its requests until they are complete,
 * and each end knows which packet it expects. So both ends restart the QP and send again what the
 * other has not received; each put is still executed once, and the order of each flag is kept.
 *
 * The ends agree over a control QP to each peer, which is otherwise idle, and two control words for
 * each QP, which the other end writes.
 *
 *     the end that fails                                       the other end
 *     WAITING  until the port has been active for a while
 *     STOPPED  QP in INIT, deaf; word 0: "generation g+1,      WAITING, then STOPPED, and sends
 *              I wait for packet p"                            the same word back
 *     STARTED  puts before p' are over; RTR, RTS;              the same
 *              word 1: "send"
 *     RUNNING  sends the rest once the other's word 1 is there
 *
 * Both may fail at once: the words are the same. Neither sends before the other can receive. Each
 * generation has other packet numbers. If recovery takes longer than the QP's own retries would,
 * and than a second, the QP stays broken. */
#include "backends/verbs/rc_state.h"
#include "backends/wall_clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOOK_NS = 100000000, LEAST_NS = 1000000000 };
enum { PSN_MASK = 0xffffff };

int rc_recover_create(struct rc *rc, char *error, size_t size)
{
    const struct verbs_device *d = &rc->rails[0].device;
    size_t words = (size_t)rc->peer_count * rc->qps_per_peer * RC_CONTROL_WORDS;
    rc->control = calloc(2 * words, sizeof *rc->control);
    if (!rc->control)
        return -ENOMEM;
    errno = 0;
    rc->control_mr = rc->api->reg_mr(d->pd, rc->control, 2 * words * sizeof *rc->control,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    int failed = rc->control_mr ? 0 : errno ? errno : ENOMEM;
    for (uint32_t i = 0; i < rc->peer_count && !failed; i++) {
        struct rc_qp *control = &rc->peers[i].control;
        control->rail = &rc->rails[0];
        control->peer = i;
        control->qp = rc_qp_make(rc, control->rail, RC_CONTROL_DEPTH);
        failed = control->qp ? rc_qp_to_init(d, control->qp) : errno ? errno : ENOMEM;
    }
    if (failed)
        snprintf(error, size, "%s cannot make control QPs: %s", d->name, strerror(abs(failed)));
    return -abs(failed);
}

void rc_recover_destroy(struct rc *rc)
{
    for (uint32_t i = 0; rc->peers && i < rc->peer_count; i++)
        if (rc->peers[i].control.qp)
            rc->api->destroy_qp(rc->peers[i].control.qp);
    if (rc->control_mr)
        rc->api->dereg_mr(rc->control_mr);
    free(rc->control);
}

/* How long the QP's retries would have gone on, but at least the time for looks and control
 * words. */
static uint64_t rc_recover_patience(const struct rc *rc, const struct rc_rail *rail)
{
    uint64_t retries =
        (4096ull << rc_timeout(rc, &rail->device)) * ((uint64_t)rc->options.retry + 1);
    return retries > LEAST_NS ? retries : LEAST_NS;
}

static void rc_recover_give_up(struct rc *rc, struct rc_qp *q, const char *why)
{
    char detail[160];
    const char *event = q->rail->device.event;
    snprintf(detail, sizeof detail, "%s; %s", rc->api->wc_status_str(IBV_WC_LOC_QP_OP_ERR),
             event[0] ? event : why);
    rc_break(rc, q, q->put_retired, IBV_WC_LOC_QP_OP_ERR, detail);
}

static void begin(const struct rc *rc, struct rc_qp *q)
{
    q->recovery = RC_WAITING;
    q->looked = wall_clock(NULL);
    q->deadline = q->looked + rc_recover_patience(rc, q->rail);
    q->seen_active = 0;
}

int rc_recover_begin(struct rc *rc, struct rc_qp *q, enum ibv_wc_status why)
{
    const struct rc_peer *peer = &rc->peers[q->peer];
    if (q->recovery != RC_RUNNING)
        return 1;
    if (why != IBV_WC_LOC_QP_OP_ERR ||
        q->rail->device.port_attr.link_layer != IBV_LINK_LAYER_ETHERNET || !rc->options.recover ||
        !peer->control_to || peer->broken)
        return 0;
    begin(rc, q);
    return 1;
}

static int rc_recover_active(const struct rc *rc, const struct rc_rail *rail)
{
    struct ibv_port_attr port;
    return !verbs_query_port(rc->api, rail->device.context, rail->device.port, &port) &&
           port.state == IBV_PORT_ACTIVE;
}

/* At two looks, the first a while after the failure: the port goes down after the route and comes
 * up before it. */
static int rc_recover_steady(const struct rc *rc, struct rc_qp *q)
{
    uint64_t now = wall_clock(NULL);
    if (now - q->looked < LOOK_NS)
        return 0;
    q->looked = now;
    q->seen_active = rc_recover_active(rc, q->rail) && rc_recover_active(rc, &rc->rails[0])
                         ? q->seen_active + 1
                         : 0;
    return q->seen_active > 1;
}

/* ---- a control word each way ---- */

static int rc_recover_send_control(struct rc *rc, struct rc_qp *q, int which, uint32_t psn)
{
    struct rc_peer *peer = &rc->peers[q->peer];
    size_t words = (size_t)rc->peer_count * rc->qps_per_peer * RC_CONTROL_WORDS;
    uint64_t *word = &rc->control[words + (size_t)q->index * RC_CONTROL_WORDS + (size_t)which];
    *word = (uint64_t)q->generation << 32 | psn;
    struct ibv_sge sge = {
        .addr = (uintptr_t)word, .length = sizeof *word, .lkey = rc->control_mr->lkey};
    uint64_t at = (q->index % rc->qps_per_peer) * RC_CONTROL_WORDS + (uint32_t)which;
    struct ibv_send_wr *bad,
        wr = {.wr_id = (uint64_t)RC_CONTROL << 32 | q->peer,
              .sg_list = &sge,
              .num_sge = 1,
              .opcode = IBV_WR_RDMA_WRITE,
              .send_flags = IBV_SEND_SIGNALED,
              .wr.rdma = {peer->control_to + at * sizeof *word, peer->control_rkey}};
    return ibv_post_send(peer->control.qp, &wr, &bad);
}

/* ---- the steps of a QP ---- */

static void rc_recover_stop(struct rc *rc, struct rc_qp *q)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    struct ibv_qp_init_attr made;
    rc->api->modify_qp(q->qp, &attr, IBV_QP_STATE); /* it may be there */
    int failed = rc->api->query_qp(q->qp, &attr, IBV_QP_RQ_PSN, &made);
    uint32_t waits_for = attr.rq_psn & PSN_MASK;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET};
    failed = failed ? failed : rc->api->modify_qp(q->qp, &attr, IBV_QP_STATE);
    failed = failed ? failed : rc_qp_to_init(&q->rail->device, q->qp);
    q->generation++;
    q->recovery = RC_STOPPED;
    if (failed || rc_recover_send_control(rc, q, 0, waits_for))
        rc_recover_give_up(rc, q, "the QP cannot be restarted");
}

/* Packets of this generation before the oldest write that is not over. */
static uint64_t rc_recover_packets_over(const struct rc *rc, const struct rc_qp *q)
{
    if (q->wr_retired == q->wr_queued)
        return q->packets;
    const struct rc_slot *slot = &q->slots[q->wr_retired % rc->depth];
    return slot->packets - mk_ceil_div(slot->sge.length, q->mtu);
}

/* The puts of which the peer has had every packet are over. 0, or -EPROTO where the peer's number
 * is impossible. */
static int rc_recover_settle(struct rc *rc, struct rc_qp *q, uint32_t peer_waits_for)
{
    uint64_t over = rc_recover_packets_over(rc, q), span = q->packets - over, wr = q->wr_retired,
             number = q->put_retired;
    uint32_t came =
        (peer_waits_for - rc_first_psn(rc->psn, q->generation - 1) - (uint32_t)over) & PSN_MASK;
    if (span > PSN_MASK / 2 || came > span)
        return -EPROTO;
    for (; number != q->put_queued; number++) {
        wr += q->puts[number % rc->depth].wrs;
        if (q->slots[(wr - 1) % rc->depth].packets - over > came)
            break;
    }
    rc_retire(rc, q, number, 0);
    return 0;
}

static void rc_recover_start(struct rc *rc, struct rc_qp *q, uint32_t peer_waits_for)
{
    char error[160];
    int failed = rc_recover_settle(rc, q, peer_waits_for);
    failed = failed ? failed : rc_qp_start(rc, q, error, sizeof error);
    q->recovery = RC_STARTED;
    if (failed || rc_recover_send_control(rc, q, 1, 0))
        rc_recover_give_up(rc, q, "the QP cannot be restarted");
}

/* Sends again all puts that are not over, under the new generation's numbers. */
static void rc_recover_resume(struct rc *rc, struct rc_qp *q)
{
    uint64_t number = q->put_retired, left = 0;
    q->packets = 0;
    for (uint64_t wr = q->wr_retired; wr != q->wr_queued; wr++, left--) {
        struct rc_slot *slot = &q->slots[wr % rc->depth];
        if (!left)
            left = q->puts[number++ % rc->depth].wrs;
        slot->wr.wr_id = rc_wr_id(q, number - 1);
        slot->packets = q->packets += mk_ceil_div(slot->sge.length, q->mtu);
        slot->wr.next = wr + 1 == q->wr_queued ? NULL : &q->slots[(wr + 1) % rc->depth].wr;
    }
    q->wr_posted = q->wr_retired;
    q->recovery = RC_RUNNING;
    rc->recovered++;
    rc_post(rc, q);
}

static void step(struct rc *rc, struct rc_qp *q)
{
    const uint64_t *words = &rc->control[(size_t)q->index * RC_CONTROL_WORDS];
    uint64_t waits_for = __atomic_load_n(&words[0], __ATOMIC_ACQUIRE),
             send = __atomic_load_n(&words[1], __ATOMIC_ACQUIRE);
    int told = waits_for >> 32 == q->generation + 1;
    if (q->broken || (q->recovery == RC_RUNNING && !told))
        return;
    if (q->recovery == RC_RUNNING)
        begin(rc, q);
    if (q->recovery == RC_WAITING && (told || rc_recover_steady(rc, q)))
        rc_recover_stop(rc, q);
    if (q->recovery == RC_STOPPED && waits_for >> 32 == q->generation)
        rc_recover_start(rc, q, (uint32_t)waits_for);
    if (q->recovery == RC_STARTED && send >> 32 == q->generation)
        rc_recover_resume(rc, q);
    if (q->recovery != RC_RUNNING && rc->peers[q->peer].control_broken)
        rc_recover_give_up(rc, q, "the peer cannot be reached over the control QP");
    else if (q->recovery != RC_RUNNING && wall_clock(NULL) > q->deadline)
        rc_recover_give_up(rc, q, "the QP was not recovered in time");
}

void rc_recover_step(struct rc *rc)
{
    for (uint32_t i = 0; i < rc->peer_count; i++)
        for (uint32_t j = 0; j < rc->peers[i].qps_in_use; j++)
            step(rc, &rc->peers[i].qps[j]);
}
