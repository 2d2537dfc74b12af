/* The life of a request to an SRD QP: it begins, perhaps over again, and ends. */
#include "srd.h"

void softnic_srd_start_over(struct softnic_qp *qp, struct srd_request *r, uint64_t when)
{
    struct softnic_context *ctx = softnic_qp_context(qp);
    bool whole = r->wqe.opcode == IBV_WR_RDMA_READ || r->wqe.opcode == IBV_WR_SEND ||
                 r->wqe.opcode == IBV_WR_SEND_WITH_IMM || r->wqe.length <= SRD_FRAGMENT_BYTES;
    r->fragments = 0; /* cut when the link is known */
    if (whole)
        r->fragments = 1;
    r->fragment_bytes = r->wqe.length;
    r->sent = 0;
    r->arrived = 0;
    r->link = NULL;
    r->answered = false;
    r->state = SRD_QUEUED;
    r->serial++;
    r->when = when;
    r->first = r->step = 0;
    if (ctx->options.reorder_ns && softnic_srd_below(ctx, 2))
        r->when += (uint64_t)(softnic_random_unit(ctx) * (double)ctx->options.reorder_ns);
}

void softnic_srd_commit(struct softnic_qp *qp, const struct srd_request *request)
{
    struct softnic_context *ctx = softnic_qp_context(qp);
    struct softnic_srd *srd = qp->srd;
    uint32_t slot = srd->free[--srd->free_count];
    struct srd_request *r = &srd->slots[slot];
    uint32_t serial = r->serial;
    *r = *request;
    r->serial = serial;
    r->wqe.sent_before = false;
    r->at = srd->active_count;
    srd->active[srd->active_count++] = slot;
    qp->sq_posted++;
    r->rnr_left = qp->attr.rnr_retry;
    softnic_shape(ctx, &r->wqe);
    uint64_t now = softnic_now();
    softnic_srd_start_over(qp, r, r->wqe.release_ns > now ? r->wqe.release_ns : now);
    if (++ctx->requests == ctx->options.fail_nth) {
        r->status = (enum ibv_wc_status)ctx->options.fail_status;
        r->answered = true; /* before anything leaves */
    }
}

void softnic_srd_complete(struct softnic_qp *qp, struct srd_request *r, enum ibv_wc_status status)
{
    struct softnic_srd *srd = qp->srd;
    uint32_t last = srd->active[--srd->active_count];
    srd->active[r->at] = last;
    srd->slots[last].at = r->at;
    srd->free[srd->free_count++] = (uint32_t)(r - srd->slots);
    r->serial++;
    softnic_sq_complete(qp, &r->wqe, status);
}

/* It has been answered, or will not be: completes when it has left whole and the shaped time has
 * come. */
void softnic_srd_finish(struct softnic_qp *qp, struct srd_request *r, uint64_t now)
{
    if (r->wqe.due_ns > now && r->status == IBV_WC_SUCCESS) {
        r->state = SRD_ANSWERED;
        r->when = r->wqe.due_ns;
        softnic_qp_wake_at(qp, r->when);
        return;
    }
    softnic_srd_complete(qp, r, r->status);
}

void softnic_srd_flush(struct softnic_qp *qp)
{
    struct softnic_srd *srd = qp->srd;
    qp->ibv.state = qp->attr.qp_state = IBV_QPS_ERR;
    qp->generation++;
    qp->timer_ns = 0;
    while (srd->active_count)
        softnic_srd_complete(qp, &srd->slots[srd->active[0]], IBV_WC_WR_FLUSH_ERR);
    softnic_srd_forget_partials(qp, NULL);
    softnic_rq_flush(qp);
}
