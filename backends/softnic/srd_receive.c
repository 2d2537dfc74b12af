/* The receive side of an SRD QP: fragments come in any order between those of other messages; a
 * message is answered once, when all of it has come, and only then takes its receive. RDMA is for
 * senders that this side has an address handle for. */
#include "gpu.h"
#include "srd.h"

#include <errno.h>
#include <stdlib.h>

static void srd_receive_answer(struct softnic_link *link, const struct softnic_frame *request,
                               enum softnic_nak why)
{
    struct softnic_frame frame = {.kind = why ? SOFTNIC_NAK : SOFTNIC_ACK,
                                  .qpn_to = request->qpn_from,
                                  .qpn_from = request->qpn_to,
                                  .psn = request->psn,
                                  .operand = {why, 0}};
    softnic_link_send(link, &frame, NULL, 0);
}

static struct srd_partial **srd_receive_find(struct softnic_qp *qp, const struct softnic_link *link,
                                             const struct softnic_frame *request)
{
    uint32_t bucket = (request->psn * 2654435761u ^ request->qpn_from) % SRD_BUCKETS;
    struct srd_partial **at = &qp->srd->partials[bucket];
    while (*at &&
           ((*at)->link != link || (*at)->qpn != request->qpn_from || (*at)->token != request->psn))
        at = &(*at)->next;
    return at;
}

static void srd_receive_complete_receive(struct softnic_link *link, struct softnic_qp *qp,
                                         const struct softnic_frame *request, uint64_t total,
                                         enum ibv_wc_status status)
{
    bool write = request->kind == SOFTNIC_WRITE, takes = !write || !qp->srd->unsolicited;
    struct softnic_cqe cqe = {
        .wc = {.wr_id = takes ? qp->rq[qp->rq_head % qp->rq_size].wr_id : 0,
               .status = status,
               .opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV,
               .byte_len = (uint32_t)total,
               .imm_data = request->imm,
               .qp_num = qp->ibv.qp_num,
               .src_qp = request->qpn_from,
               .slid = softnic_srd_ahn(link->context, link->peer_device),
               .wc_flags = request->flags & SOFTNIC_FLAG_IMM ? IBV_WC_WITH_IMM : 0},
        .qp = qp,
        .source = link->peer_device,
        .unsolicited = !takes};
    qp->rq_head += takes;
    softnic_cq_push(softnic_cq_of(qp->init.recv_cq), &cqe, request->flags & SOFTNIC_FLAG_SOLICITED);
}

/* Why the request itself is refused, independent of the fragment. */
static enum softnic_nak srd_receive_objection(struct softnic_link *link, struct softnic_qp *qp,
                                              const struct softnic_frame *request)
{
    bool read = request->kind == SOFTNIC_READ;
    if (request->kind != SOFTNIC_SEND && !softnic_srd_knows(link->context, link->peer_device))
        return SOFTNIC_NAK_STRANGER;
    if ((qp->ibv.state != IBV_QPS_RTR && qp->ibv.state != IBV_QPS_RTS) ||
        request->operand[read ? 1 : 0] != qp->attr.qkey)
        return SOFTNIC_NAK_UNREACHABLE;
    if (request->kind == SOFTNIC_SEND && qp->rq_head == qp->rq_tail)
        return SOFTNIC_NAK_RNR;
    return 0;
}

/* Puts the bytes of one fragment where they belong. 0, an objection, or -1: the QP or the link has
 * gone on. */
static int srd_receive_place(struct softnic_link *link, struct softnic_qp *qp,
                             const struct softnic_message *message)
{
    const struct softnic_frame *request = &message->head;
    struct iovec to[SOFTNIC_MAX_SGE];
    struct softnic_mr *mr[SOFTNIC_MAX_SGE];
    int count = 0;
    if (!request->length)
        return 0;
    if (request->kind == SOFTNIC_WRITE) {
        mr[0] = softnic_mr_find(qp, request->rkey, true, IBV_ACCESS_REMOTE_WRITE, request->address,
                                request->length);
        if (!mr[0])
            return SOFTNIC_NAK_ACCESS;
        to[0] = (struct iovec){softnic_mr_address(mr[0], request->address), request->length};
        count = 1;
    } else {
        struct softnic_rqe *rqe = &qp->rq[qp->rq_head % qp->rq_size];
        count = request->length > rqe->length
                    ? -EMSGSIZE
                    : softnic_sge_slice(qp, rqe->sge, (int)rqe->num_sge, IBV_ACCESS_LOCAL_WRITE, 0,
                                        request->length, to, mr);
        if (count < 0) {
            srd_receive_complete_receive(link, qp, request, request->length,
                                         count == -EMSGSIZE ? IBV_WC_LOC_LEN_ERR
                                                            : IBV_WC_LOC_PROT_ERR);
            return count == -EMSGSIZE ? SOFTNIC_NAK_INVALID : SOFTNIC_NAK_OPERATION;
        }
    }
    int error = softnic_payload_land(link, qp, to, mr, count, message);
    return error == -EFAULT ? SOFTNIC_NAK_OPERATION : error ? -1 : 0;
}

/* All fragments have arrived, and none was refused. */
static enum softnic_nak srd_receive_deliver(struct softnic_link *link, struct softnic_qp *qp,
                                            const struct softnic_frame *request, uint64_t total)
{
    bool write = request->kind == SOFTNIC_WRITE, imm = request->flags & SOFTNIC_FLAG_IMM;
    if (write && imm && !qp->srd->unsolicited && qp->rq_head == qp->rq_tail)
        return SOFTNIC_NAK_RNR;
    qp->counters.received_messages++;
    qp->counters.received_bytes += total;
    if (!write || imm)
        srd_receive_complete_receive(link, qp, request, total, IBV_WC_SUCCESS);
    return 0;
}

static void srd_receive_copied(struct softnic_link *link, struct softnic_qp *qp,
                               const struct softnic_frame *request, bool failed)
{
    srd_receive_answer(link, request,
                       failed ? SOFTNIC_NAK_OPERATION
                              : srd_receive_deliver(link, qp, request, request->operand[1]));
}

/* A SEND's bytes lie in the receive that is first in the queue: no other message may take that
 * meanwhile. */
static void srd_receive_settle_for(struct softnic_link *link, struct softnic_qp *qp,
                                   const struct softnic_frame *request)
{
    if (request->kind == SOFTNIC_SEND && qp->copies)
        softnic_gpu_settle(link->context);
}

static void srd_receive_take_data(struct softnic_link *link, struct softnic_qp *qp,
                                  const struct softnic_message *message)
{
    const struct softnic_frame *request = &message->head;
    uint64_t total = request->operand[1];
    struct srd_partial **at = srd_receive_find(qp, link, request), *p = *at;
    bool broken = request->offset || (!request->segments && request->payload != request->length) ||
                  total > SOFTNIC_MAX_MESSAGE || request->length > total ||
                  (total && !request->length) ||
                  (request->kind == SOFTNIC_SEND && request->length != total) ||
                  (p && (p->total != total || p->arrived + request->length > total));
    if (!broken && !p && request->length < total) {
        *at = p = calloc(1, sizeof(*p));
        broken = !p;
        if (p)
            *p = (struct srd_partial){
                .link = link, .qpn = request->qpn_from, .token = request->psn, .total = total};
    }
    if (broken) { /* no softnic would send it */
        softnic_link_kill(link);
        return;
    }
    srd_receive_settle_for(link, qp, request);
    int why = p && p->refused ? (int)p->refused : (int)srd_receive_objection(link, qp, request);
    if (!why)
        why = srd_receive_place(link, qp, message);
    if (why < 0)
        return; /* with the QP or the link, what had come of the message is forgotten too */
    if (p) {
        p->refused = (enum softnic_nak)why;
        p->arrived += request->length;
        if (p->arrived < total)
            return;
        at = srd_receive_find(qp, link, request);
        *at = p->next;
        free(p);
    }
    srd_receive_settle_for(link, qp, request);
    if (why)
        srd_receive_answer(link, request, (enum softnic_nak)why);
    else if (qp->copies)
        softnic_gpu_answer_later(link, qp, request, srd_receive_copied);
    else
        srd_receive_copied(link, qp, request, false);
}

static void srd_receive_take_read(struct softnic_link *link, struct softnic_qp *qp,
                                  const struct softnic_frame *request)
{
    enum softnic_nak why = srd_receive_objection(link, qp, request);
    struct softnic_mr *mr = NULL;
    if (!why && request->length) {
        mr = softnic_mr_find(qp, request->rkey, true, IBV_ACCESS_REMOTE_READ, request->address,
                             request->length);
        why = mr ? 0 : SOFTNIC_NAK_ACCESS;
    }
    if (why) {
        srd_receive_answer(link, request, why);
        return;
    }
    struct softnic_frame data = {.kind = SOFTNIC_READ_DATA,
                                 .qpn_to = request->qpn_from,
                                 .qpn_from = request->qpn_to,
                                 .psn = request->psn,
                                 .length = request->length};
    const char *from = mr ? softnic_mr_address(mr, request->address) : NULL;
    softnic_payload_answer(link, &data, from, request->length, request->flags & SOFTNIC_FLAG_PULL);
    qp->counters.sent_bytes += request->length;
}

void softnic_srd_request(struct softnic_link *link, struct softnic_qp *qp,
                         const struct softnic_message *message)
{
    if (message->head.kind == SOFTNIC_READ)
        srd_receive_take_read(link, qp, &message->head);
    else if (message->head.kind == SOFTNIC_WRITE || message->head.kind == SOFTNIC_SEND)
        srd_receive_take_data(link, qp, message);
    else
        softnic_link_kill(link); /* SRD has no atomics */
}
