/* The send side of a QP: the answers of the other side. */
#include "requester.h"
#include "srd.h"

#include <errno.h>

/* IB specification, table "Encoding for RNR NAK timer field", in units of 10 us. */
static const uint32_t rnr_timer_10us[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                            16,    24,   32,   48,    64,    96,    128,   192,
                                            256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                            4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};

/* Everything before `index` is done. */
static bool requester_response_acknowledge(struct softnic_qp *qp, uint64_t index)
{
    if (index == qp->sq_acked)
        return true; /* no progress: the retries go on counting */
    for (; qp->sq_acked < index; qp->sq_acked++)
        if (softnic_needs_response(softnic_wqe_at(qp, qp->sq_acked)))
            return false; /* its data should have come first */
    qp->retries_left = qp->attr.retry_cnt;
    qp->rnr_left = qp->attr.rnr_retry;
    return true;
}

static void requester_response_finish_response(struct softnic_qp *qp)
{
    qp->read_offset = 0;
    qp->reads_open--;
    qp->sq_acked++;
    qp->retries_left = qp->attr.retry_cnt;
    qp->rnr_left = qp->attr.rnr_retry;
}

static void requester_response_refused(struct softnic_qp *qp, const struct softnic_frame *head)
{
    static const enum ibv_wc_status statuses[SOFTNIC_NAKS] = {
        [SOFTNIC_NAK_STRANGER] = IBV_WC_REM_OP_ERR,
        [SOFTNIC_NAK_ACCESS] = IBV_WC_REM_ACCESS_ERR,
        [SOFTNIC_NAK_INVALID] = IBV_WC_REM_INV_REQ_ERR,
        [SOFTNIC_NAK_OPERATION] = IBV_WC_REM_OP_ERR};
    if (head->operand[0] == SOFTNIC_NAK_UNREACHABLE || head->operand[0] == SOFTNIC_NAK_SEQUENCE) {
        softnic_requester_unreachable(qp);
    } else if (head->operand[0] != SOFTNIC_NAK_RNR) {
        softnic_qp_fail(qp, statuses[head->operand[0]]);
    } else if (qp->attr.rnr_retry != 7 && !qp->rnr_left) {
        softnic_qp_fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
    } else {
        unsigned left = qp->rnr_left;
        qp->rnr_left = qp->attr.rnr_retry == 7 ? left : left - 1;
        softnic_requester_resend(qp, rnr_timer_10us[head->operand[1]] * (uint64_t)10000, false);
    }
}

/* READ data of the entry that is next to be done. False: the QP has failed or is another one by
 * now. */
static bool requester_response_take_read(struct softnic_link *link, struct softnic_qp *qp,
                                         uint64_t index, const struct softnic_message *message,
                                         bool *fits)
{
    int result =
        softnic_payload_arrive(link, qp, softnic_wqe_at(qp, index), message, &qp->read_offset);
    if (result == -EACCES)
        softnic_qp_fail(qp, IBV_WC_LOC_PROT_ERR);
    if (result == -EFAULT)
        softnic_qp_fail(qp, IBV_WC_REM_OP_ERR);
    *fits = result != -EPROTO;
    if (result > 0 && index < qp->sq_cursor)
        requester_response_finish_response(qp);
    return result >= 0 || !*fits;
}

void softnic_requester_response(struct softnic_link *link, const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    struct softnic_qp *qp = softnic_qp_find(link->context, head->qpn_to);
    if (qp && qp->srd) {
        softnic_srd_response(link, qp, message);
        return;
    }
    if (!qp || qp->link != link || qp->attr.dest_qp_num != head->qpn_from ||
        (qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_SQD))
        return; /* it has gone on since; the answer is to a request that is no longer waited for */

    uint64_t index = qp->sq_acked + ((head->psn - (uint32_t)(qp->attr.sq_psn + qp->sq_acked)) &
                                     SOFTNIC_MESSAGE_MASK);
    uint64_t sent_end = qp->sq_cursor + (qp->tx_offset ? 1 : 0);
    if (index >= sent_end)
        return; /* an answer to something that has been taken back since */
    bool fits = true;
    struct softnic_wqe *wqe = softnic_wqe_at(qp, index);
    if (head->kind == SOFTNIC_ACK) {
        fits = index < qp->sq_cursor && requester_response_acknowledge(qp, index + 1);
    } else if (head->kind == SOFTNIC_NAK) {
        fits = requester_response_acknowledge(qp, index);
        if (fits)
            requester_response_refused(qp, head);
    } else if (head->kind == SOFTNIC_READ_DATA) {
        fits = requester_response_acknowledge(qp, index);
        if (fits && !requester_response_take_read(link, qp, index, message, &fits))
            return;
    } else {
        struct iovec to[SOFTNIC_MAX_SGE];
        fits = requester_response_acknowledge(qp, index) && softnic_needs_response(wqe) &&
               wqe->opcode != IBV_WR_RDMA_READ && index < qp->sq_cursor;
        if (fits && softnic_wqe_slice(qp, wqe, IBV_ACCESS_LOCAL_WRITE, 0, 8, to, NULL) == 1) {
            softnic_copy_in(to[0].iov_base, &head->operand[0], 8);
            qp->counters.received_bytes += 8;
            requester_response_finish_response(qp);
        } else if (fits) {
            softnic_qp_fail(qp, IBV_WC_LOC_PROT_ERR);
        }
    }
    if (!fits)
        softnic_link_kill(link); /* not a softnic at the other end */
    softnic_requester_pump(qp);
}
