/* The send side of an SRD QP: the one answer that ends a request. */
#include "srd.h"

#include <errno.h>

#define RNR_NS 200000ull

static void srd_response_refused(struct softnic_qp *qp, struct srd_request *r, uint64_t why,
                                 uint64_t now)
{
    static const enum ibv_wc_status statuses[SOFTNIC_NAKS] = {
        [SOFTNIC_NAK_UNREACHABLE] = IBV_WC_REM_INV_RD_REQ_ERR,
        [SOFTNIC_NAK_RNR] = IBV_WC_RNR_RETRY_EXC_ERR,
        [SOFTNIC_NAK_ACCESS] = IBV_WC_REM_ACCESS_ERR,
        [SOFTNIC_NAK_INVALID] = IBV_WC_REM_INV_REQ_ERR,
        [SOFTNIC_NAK_OPERATION] = IBV_WC_REM_ABORT_ERR,
        [SOFTNIC_NAK_STRANGER] = IBV_WC_REM_OP_ERR};
    if (why == SOFTNIC_NAK_RNR && (qp->attr.rnr_retry == 7 || r->rnr_left)) {
        r->rnr_left -= qp->attr.rnr_retry != 7;
        qp->counters.retransmissions++;
        softnic_srd_start_over(qp, r, now + RNR_NS);
        softnic_qp_wake_at(qp, r->when);
        return;
    }
    r->answered = true;
    r->status = statuses[why] ? statuses[why] : IBV_WC_BAD_RESP_ERR;
    if (r->state == SRD_SENT)
        softnic_srd_finish(qp, r, now);
}

/* False: not a softnic at the other end. */
static bool srd_response_take_read(struct softnic_link *link, struct softnic_qp *qp,
                                   struct srd_request *r, const struct softnic_message *message,
                                   uint64_t now)
{
    int result = softnic_payload_arrive(link, qp, &r->wqe, message, &r->arrived);
    if (result == -EACCES)
        softnic_srd_complete(qp, r, IBV_WC_LOC_PROT_ERR);
    if (result == -EFAULT)
        softnic_srd_complete(qp, r, IBV_WC_REM_ABORT_ERR);
    if (result > 0) {
        r->answered = true;
        r->status = IBV_WC_SUCCESS;
        softnic_srd_finish(qp, r, now);
    }
    return result != -EPROTO;
}

void softnic_srd_response(struct softnic_link *link, struct softnic_qp *qp,
                          const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    uint32_t slot = head->psn & ((1u << SRD_SLOT_BITS) - 1);
    struct srd_request *r = slot < qp->sq_size ? &qp->srd->slots[slot] : NULL;
    uint64_t now = softnic_now();
    if (!r || r->at >= qp->srd->active_count || qp->srd->active[r->at] != slot || r->link != link ||
        softnic_srd_token(qp, r) != head->psn || r->state == SRD_ANSWERED || r->answered)
        return; /* an answer to something that is over */
    bool fits = true;
    if (head->kind == SOFTNIC_NAK) {
        srd_response_refused(qp, r, head->operand[0], now);
    } else if (head->kind == SOFTNIC_ACK) {
        fits = r->state == SRD_SENT && r->wqe.opcode != IBV_WR_RDMA_READ;
        r->answered = true;
        r->status = IBV_WC_SUCCESS;
        if (fits)
            softnic_srd_finish(qp, r, now);
    } else if (head->kind == SOFTNIC_READ_DATA) {
        fits = srd_response_take_read(link, qp, r, message, now);
    } else {
        fits = false;
    }
    if (!fits)
        softnic_link_kill(link);
}
