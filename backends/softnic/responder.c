/* The receive side of a QP: checks a request against keys, bounds and queues as a channel adapter
 * does, places its data, and answers. Requests execute in PSN order; one that comes again is
 * answered again and not executed again. */
#include "gpu.h"
#include "srd.h"

#include <errno.h>

static struct softnic_frame responder_answer(enum softnic_kind kind,
                                             const struct softnic_frame *request)
{
    return (struct softnic_frame){.kind = (uint8_t)kind,
                                  .qpn_to = request->qpn_from,
                                  .qpn_from = request->qpn_to,
                                  .psn = request->psn};
}

static void responder_say_no(struct softnic_link *link, struct softnic_qp *qp,
                             const struct softnic_frame *request, enum softnic_nak why)
{
    softnic_link_flush_acks(link);
    struct softnic_frame nak = responder_answer(SOFTNIC_NAK, request);
    nak.operand[0] = why;
    nak.operand[1] = qp ? qp->attr.min_rnr_timer : 0;
    softnic_link_send(link, &nak, NULL, 0);
    if (qp) {
        qp->rx_nak_sent = true;
        qp->rx_nak_psn = request->psn;
    }
}

/* A refusal also says that everything before it is done, as every response but an acknowledgement
 * of its own does: so GPU copies end first. */
static void responder_settle(struct softnic_link *link, const struct softnic_qp *qp)
{
    if (qp && qp->copies)
        softnic_gpu_settle(link->context);
}

static void responder_refuse(struct softnic_link *link, struct softnic_qp *qp,
                             const struct softnic_frame *request, enum softnic_nak why)
{
    responder_settle(link, qp);
    responder_say_no(link, qp, request, why);
}

static void responder_copied(struct softnic_link *link, struct softnic_qp *qp,
                             const struct softnic_frame *request, bool failed)
{
    if (!failed) {
        softnic_link_acknowledge(link, request);
        return;
    }
    responder_say_no(link, qp, request, SOFTNIC_NAK_OPERATION);
    softnic_qp_to_error(qp);
}

/* Errors of the requester's making that put the responder's QP into error too. */
static void responder_refuse_and_fail(struct softnic_link *link, struct softnic_qp *qp,
                                      const struct softnic_frame *request, enum softnic_nak why)
{
    responder_refuse(link, qp, request, why);
    softnic_qp_to_error(qp);
    if (why == SOFTNIC_NAK_ACCESS)
        softnic_event_qp(qp, IBV_EVENT_QP_ACCESS_ERR);
    else if (why == SOFTNIC_NAK_INVALID)
        softnic_event_qp(qp, IBV_EVENT_QP_REQ_ERR);
}

static void responder_complete_receive(struct softnic_qp *qp, const struct softnic_frame *request,
                                       enum ibv_wc_status status)
{
    struct softnic_rqe *rqe = &qp->rq[qp->rq_head % qp->rq_size];
    bool write = request->kind == SOFTNIC_WRITE, imm = request->flags & SOFTNIC_FLAG_IMM;
    struct softnic_cqe cqe = {.wc = {.wr_id = rqe->wr_id,
                                     .status = status,
                                     .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
                                     .byte_len = request->length,
                                     .qp_num = qp->ibv.qp_num,
                                     .src_qp = qp->attr.dest_qp_num,
                                     .slid = (uint16_t)(qp->peer_device + 1),
                                     .wc_flags = imm ? IBV_WC_WITH_IMM : 0},
                              .qp = qp};
    cqe.wc.imm_data = request->imm;
    qp->rq_head++;
    softnic_cq_push(softnic_cq_of(qp->init.recv_cq), &cqe,
                    request->flags & SOFTNIC_FLAG_SOLICITED || status != IBV_WC_SUCCESS);
}

static void responder_fail_receive(struct softnic_link *link, struct softnic_qp *qp,
                                   const struct softnic_frame *request, enum ibv_wc_status status,
                                   enum softnic_nak why)
{
    responder_refuse(link, qp, request, why);
    responder_complete_receive(qp, request, status);
    softnic_qp_to_error(qp);
}

static struct softnic_mr *responder_target(struct softnic_link *link, struct softnic_qp *qp,
                                           const struct softnic_frame *request, unsigned access)
{
    return qp->attr.qp_access_flags & access
               ? softnic_mr_find(qp, request->rkey, true, access, request->address, request->length)
               : NULL;
}

/* WRITE and SEND: this frame's bytes to where they belong. Returns false when the request was
 * refused. */
static bool responder_place(struct softnic_link *link, struct softnic_qp *qp,
                            const struct softnic_message *message)
{
    const struct softnic_frame *request = &message->head;
    uint32_t bytes = request->segments ? request->length - request->offset : request->payload;
    struct iovec to[SOFTNIC_MAX_SGE];
    struct softnic_mr *mr[SOFTNIC_MAX_SGE] = {NULL};
    int count = 0;
    if (request->kind == SOFTNIC_WRITE && request->length) {
        mr[0] = responder_target(link, qp, request, IBV_ACCESS_REMOTE_WRITE);
        if (!mr[0]) {
            responder_refuse_and_fail(link, qp, request, SOFTNIC_NAK_ACCESS);
            return false;
        }
        to[0] =
            (struct iovec){softnic_mr_address(mr[0], request->address + request->offset), bytes};
        count = 1;
    } else if (request->kind == SOFTNIC_SEND) {
        struct softnic_rqe *rqe = &qp->rq[qp->rq_head % qp->rq_size];
        if (request->length > rqe->length) {
            responder_fail_receive(link, qp, request, IBV_WC_LOC_LEN_ERR, SOFTNIC_NAK_INVALID);
            return false;
        }
        count = softnic_sge_slice(qp, rqe->sge, (int)rqe->num_sge, IBV_ACCESS_LOCAL_WRITE,
                                  request->offset, bytes, to, mr);
        if (count < 0) {
            responder_fail_receive(link, qp, request, IBV_WC_LOC_PROT_ERR, SOFTNIC_NAK_OPERATION);
            return false;
        }
    }
    if (!softnic_regions_in_gpu(mr, count))
        responder_settle(link, qp); /* these bytes come after those on their way to the GPU */
    int error = softnic_payload_land(link, qp, to, mr, count, message);
    if (error == -EFAULT) /* either side has unmapped registered memory */
        responder_refuse_and_fail(link, qp, request, SOFTNIC_NAK_OPERATION);
    return !error;
}

static void responder_next_message(struct softnic_qp *qp, uint32_t bytes)
{
    uint32_t mtu = 128u << qp->attr.path_mtu;
    qp->rx_packets += bytes ? (bytes - 1) / mtu + 1 : 1;
    qp->rx_psn = (qp->rx_psn + 1) & SOFTNIC_MESSAGE_MASK;
    if (qp->rx_done < SOFTNIC_MESSAGE_MASK / 2)
        qp->rx_done++;
}

static void responder_take_data(struct softnic_link *link, struct softnic_qp *qp,
                                const struct softnic_message *message)
{
    const struct softnic_frame *request = &message->head;
    uint32_t bytes = request->segments ? request->length - request->offset : request->payload;
    bool receives = request->kind == SOFTNIC_SEND || request->flags & SOFTNIC_FLAG_IMM;
    if (receives && qp->rq_head == qp->rq_tail) {
        responder_refuse(link, qp, request, SOFTNIC_NAK_RNR);
        return;
    }
    if (!responder_place(link, qp, message))
        return;
    qp->counters.received_bytes += bytes;
    qp->rx_offset = request->offset + bytes;
    if (qp->rx_offset < request->length)
        return;
    qp->counters.received_messages++;
    qp->rx_offset = 0;
    responder_next_message(qp, request->length);
    if (receives)
        responder_settle(link, qp);
    if (qp->copies)
        softnic_gpu_answer_later(link, qp, request, responder_copied);
    else
        softnic_link_acknowledge(link, request);
    if (receives)
        responder_complete_receive(qp, request, IBV_WC_SUCCESS);
}

static void responder_take_read(struct softnic_link *link, struct softnic_qp *qp,
                                const struct softnic_frame *request, bool again)
{
    uint32_t bytes = (uint32_t)request->operand[0], end = request->offset + bytes;
    struct softnic_mr *mr =
        request->length ? responder_target(link, qp, request, IBV_ACCESS_REMOTE_READ) : NULL;
    if (request->length && (!mr || !bytes)) {
        responder_refuse_and_fail(link, qp, request, SOFTNIC_NAK_ACCESS);
        return;
    }
    softnic_link_flush_acks(link);
    struct softnic_frame data = responder_answer(SOFTNIC_READ_DATA, request);
    data.length = request->length;
    data.offset = request->offset;
    const char *from = mr ? softnic_mr_address(mr, request->address) : NULL;
    softnic_payload_answer(link, &data, from, end,
                           request->flags & SOFTNIC_FLAG_PULL && end == request->length);
    qp->counters.sent_bytes += bytes;
    if (again)
        return;
    qp->rx_offset = end;
    if (end == request->length) {
        qp->rx_offset = 0;
        responder_next_message(qp, request->length);
    }
}

static void responder_take_atomic(struct softnic_link *link, struct softnic_qp *qp,
                                  const struct softnic_frame *request, bool again)
{
    struct softnic_frame result = responder_answer(SOFTNIC_ATOMIC_RESULT, request);
    if (again) {
        for (int i = 0; i < SOFTNIC_MAX_RD_ATOMIC; i++)
            if (qp->atomics[i].valid && qp->atomics[i].psn == request->psn) {
                result.operand[0] = qp->atomics[i].value;
                softnic_link_send(link, &result, NULL, 0);
            }
        return;
    }
    struct softnic_mr *mr = responder_target(link, qp, request, IBV_ACCESS_REMOTE_ATOMIC);
    uint64_t *word = mr ? softnic_mr_address(mr, request->address) : NULL;
    if (request->address & 7 || (uintptr_t)word & 7) {
        responder_refuse_and_fail(link, qp, request, SOFTNIC_NAK_INVALID);
        return;
    }
    if (!word) {
        responder_refuse_and_fail(link, qp, request, SOFTNIC_NAK_ACCESS);
        return;
    }
    softnic_link_flush_acks(link);
    if (request->kind == SOFTNIC_FETCH_ADD) {
        result.operand[0] = __atomic_fetch_add(word, request->operand[0], __ATOMIC_ACQ_REL);
    } else {
        result.operand[0] = request->operand[0];
        __atomic_compare_exchange_n(word, &result.operand[0], request->operand[1], false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    unsigned slot = qp->atomic_next++ % SOFTNIC_MAX_RD_ATOMIC;
    qp->atomics[slot].psn = request->psn;
    qp->atomics[slot].valid = true;
    qp->atomics[slot].value = result.operand[0];
    responder_next_message(qp, 0);
    qp->counters.received_messages++;
    qp->counters.received_bytes += 8;
    softnic_link_send(link, &result, NULL, 0);
}

/* The QP that this request is for, if it takes requests from that side. */
static struct softnic_qp *responder_addressed(struct softnic_link *link,
                                              const struct softnic_frame *request)
{
    struct softnic_qp *qp = softnic_qp_find(link->context, request->qpn_to);
    if (!qp || qp->attr.dest_qp_num != request->qpn_from || qp->peer_device != link->peer_device ||
        qp->peer_context != link->peer_context)
        return NULL;
    bool receives = qp->ibv.state == IBV_QPS_RTR || qp->ibv.state == IBV_QPS_RTS ||
                    qp->ibv.state == IBV_QPS_SQD;
    return receives ? qp : NULL;
}

void softnic_responder_request(struct softnic_link *link, const struct softnic_message *message)
{
    const struct softnic_frame *request = &message->head;
    struct softnic_qp *qp = softnic_qp_find(link->context, request->qpn_to);
    if (qp && qp->srd) {
        softnic_srd_request(link, qp, message);
        return;
    }
    qp = responder_addressed(link, request);
    if (!qp) {
        responder_refuse(link, NULL, request, SOFTNIC_NAK_UNREACHABLE);
        return;
    }
    uint32_t ahead = (request->psn - qp->rx_psn) & SOFTNIC_MESSAGE_MASK;
    /* executed since the connection was made */
    bool again = SOFTNIC_MESSAGE_MASK + 1 - ahead <= qp->rx_done;
    if (again && (request->kind == SOFTNIC_WRITE || request->kind == SOFTNIC_SEND)) {
        if (!qp->copies) /* else the answer is on its way */
            softnic_link_acknowledge(link, request);
        return;
    }
    if (!again && (ahead || (request->offset && request->offset != qp->rx_offset))) {
        /* One answer for each attempt: what follows a refused message was on its way before the
         * requester knew. */
        if (!qp->rx_nak_sent || request->psn == qp->rx_nak_psn)
            responder_refuse(link, qp, request, SOFTNIC_NAK_SEQUENCE);
        return;
    }
    if (!again)
        qp->rx_nak_sent = false;
    if (qp->ibv.state == IBV_QPS_RTR && !qp->rx_established) {
        qp->rx_established = true;
        softnic_event_qp(qp, IBV_EVENT_COMM_EST);
    }
    if (request->kind != SOFTNIC_WRITE && request->kind != SOFTNIC_SEND)
        responder_settle(link, qp);
    if (request->kind == SOFTNIC_READ)
        responder_take_read(link, qp, request, again);
    else if (request->kind == SOFTNIC_COMPARE_SWAP || request->kind == SOFTNIC_FETCH_ADD)
        responder_take_atomic(link, qp, request, again);
    else
        responder_take_data(link, qp, message);
}
