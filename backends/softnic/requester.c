/* The send side of a QP: its queue, from posted to completed.
 *
 * Messages leave in posting order, each with the next PSN. What is not acknowledged is sent again
 * from the first such message on (go-back-N), after a timeout when the other side could not be
 * reached, or after its RNR timer.
 */
#include "requester.h"
#include "srd.h"

static void requester_go_back(struct softnic_qp *qp)
{
    qp->sq_cursor = qp->sq_acked;
    qp->tx_offset = qp->read_offset = 0;
    qp->reads_open = 0;
}

void softnic_requester_resend(struct softnic_qp *qp, uint64_t delay_ns, bool timeout)
{
    requester_go_back(qp);
    qp->waiting = true;
    qp->timed_out = timeout;
    qp->retry_at = softnic_now() + delay_ns;
    softnic_qp_wake_at(qp, qp->retry_at);
}

/* No answer comes. A real requester finds that out by its timer only, so this does not fail sooner
 * either. */
void softnic_requester_unreachable(struct softnic_qp *qp)
{
    if (qp->waiting || qp->sq_acked == qp->sq_posted)
        return;
    if (qp->attr.timeout) {
        softnic_requester_resend(qp, (uint64_t)4096 << qp->attr.timeout, true);
        /* no timer, as the specification has it: waits until the QP is moved to another state */
    } else {
        requester_go_back(qp);
        qp->waiting = true;
        qp->retry_at = UINT64_MAX;
    }
}

void softnic_qp_fail(struct softnic_qp *qp, enum ibv_wc_status first)
{
    if (qp->srd) {
        softnic_srd_flush(qp);
        return;
    }
    while (qp->sq_completed < qp->sq_acked)
        softnic_sq_complete(qp, softnic_wqe_at(qp, qp->sq_completed), IBV_WC_SUCCESS);
    qp->ibv.state = qp->attr.qp_state = IBV_QPS_ERR;
    qp->generation++;
    qp->waiting = false;
    qp->timer_ns = 0;
    while (qp->sq_completed < qp->sq_posted) {
        softnic_sq_complete(qp, softnic_wqe_at(qp, qp->sq_completed), first);
        first = IBV_WC_WR_FLUSH_ERR;
    }
    qp->sq_acked = qp->sq_cursor = qp->sq_posted;
    qp->reads_open = 0;
    softnic_rq_flush(qp);
}

void softnic_qp_to_error(struct softnic_qp *qp)
{
    if (qp->ibv.state != IBV_QPS_ERR)
        softnic_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
}

/* Completes the requests that are answered and due; then, if its turn has come, the one that cannot
 * be sent. */
static void requester_retire(struct softnic_qp *qp)
{
    uint64_t now = 0;
    while (qp->sq_completed < qp->sq_acked) {
        struct softnic_wqe *wqe = softnic_wqe_at(qp, qp->sq_completed);
        if (wqe->due_ns && wqe->due_ns > (now ? now : (now = softnic_now()))) {
            softnic_qp_wake_at(qp, wqe->due_ns);
            return;
        }
        softnic_sq_complete(qp, wqe, IBV_WC_SUCCESS);
    }
    if (qp->ibv.state == IBV_QPS_RTS && qp->sq_completed == qp->sq_cursor &&
        qp->sq_cursor < qp->sq_posted) {
        enum ibv_wc_status status = softnic_wqe_at(qp, qp->sq_cursor)->status;
        if (status != IBV_WC_SUCCESS && qp->busy)
            softnic_qp_wake_at(qp,
                               /* a copy into this QP's buffers is running: fail after it */
                               softnic_now());
        else if (status != IBV_WC_SUCCESS)
            softnic_qp_fail(qp, status);
    }
    bool begun = qp->sq_cursor < qp->sq_posted && softnic_wqe_at(qp, qp->sq_cursor)->sent_before;
    if (qp->ibv.state == IBV_QPS_SQD && qp->sq_completed == qp->sq_cursor && !begun &&
        !qp->drained_told) {
        qp->drained_told = true;
        if (qp->attr.en_sqd_async_notify)
            softnic_event_qp(qp, IBV_EVENT_SQ_DRAINED);
    }
}

/* The link to send on, or NULL when nothing can be sent now. */
static struct softnic_link *requester_link_for(struct softnic_qp *qp)
{
    struct softnic_context *ctx = softnic_qp_context(qp);
    if (softnic_drops(ctx, qp->peer_device))
        softnic_links_drop(ctx);
    if (!qp->link)
        qp->link = softnic_link_to(ctx, qp->peer_device, qp->peer_context);
    if (!qp->link)
        softnic_requester_unreachable(qp);
    return qp->link && qp->link->ready && !qp->link->dead ? qp->link : NULL;
}

void softnic_requester_pump(struct softnic_qp *qp)
{
    while (!qp->waiting && qp->sq_cursor < qp->sq_posted) {
        struct softnic_wqe *wqe = softnic_wqe_at(qp, qp->sq_cursor);
        if (qp->ibv.state != IBV_QPS_RTS && !(qp->ibv.state == IBV_QPS_SQD && wqe->sent_before))
            break; /* a draining queue finishes what it has begun */
        bool responds = softnic_needs_response(wqe);
        if (wqe->status != IBV_WC_SUCCESS || (wqe->fence && qp->reads_open))
            break;
        if (responds && !qp->tx_offset && qp->reads_open >= qp->attr.max_rd_atomic) {
            if (!qp->attr.max_rd_atomic)
                wqe->status = IBV_WC_LOC_QP_OP_ERR;
            break;
        }
        if (wqe->release_ns && wqe->release_ns > softnic_now()) {
            softnic_qp_wake_at(qp, wqe->release_ns);
            break;
        }
        struct softnic_link *link = requester_link_for(qp);
        if (!link)
            break;
        enum softnic_sent sent = softnic_requester_send(qp, wqe, link);
        if (sent == SOFTNIC_REFUSED)
            wqe->status = IBV_WC_LOC_PROT_ERR;
        if (sent != SOFTNIC_SENT)
            break;
        if (wqe->sent_before)
            qp->counters.retransmissions++;
        else
            softnic_tally_sent(qp, qp->peer_device, qp->attr.dest_qp_num, wqe);
        wqe->sent_before = true;
        qp->counters.sent_messages++;
        qp->counters.sent_bytes += wqe->opcode == IBV_WR_RDMA_READ ? 0 : wqe->length;
        qp->sq_cursor++;
        qp->tx_offset = 0;
    }
    requester_retire(qp);
}

void softnic_requester_timer(struct softnic_qp *qp, uint64_t now)
{
    if (qp->srd) {
        softnic_srd_pump(qp);
        return;
    }
    if (qp->waiting && qp->retry_at <= now) {
        if (qp->timed_out && !qp->retries_left) {
            softnic_qp_fail(qp, IBV_WC_RETRY_EXC_ERR);
            return;
        }
        if (qp->timed_out)
            qp->retries_left--;
        qp->waiting = false;
    } else if (qp->waiting && qp->retry_at != UINT64_MAX) {
        softnic_qp_wake_at(qp, qp->retry_at);
    }
    softnic_requester_pump(qp);
}

void softnic_requester_link_lost(struct softnic_context *ctx, struct softnic_link *link)
{
    for (uint32_t i = 0; i < ctx->qp_top; i++) {
        struct softnic_qp *qp = ctx->qp[i];
        if (qp && qp->srd)
            softnic_srd_link_lost(qp, link);
        if (!qp || qp->link != link)
            continue;
        qp->link = NULL;
        if (qp->ibv.state == IBV_QPS_RTS || qp->ibv.state == IBV_QPS_SQD)
            softnic_requester_unreachable(qp);
    }
}

void softnic_requester_link_ready(struct softnic_context *ctx, struct softnic_link *link)
{
    for (uint32_t i = 0; i < ctx->qp_top; i++)
        if (ctx->qp[i] && ctx->qp[i]->srd)
            softnic_srd_pump(ctx->qp[i]);
        else if (ctx->qp[i] && ctx->qp[i]->link == link)
            softnic_requester_pump(ctx->qp[i]);
}
