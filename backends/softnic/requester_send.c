/* The send side of a QP: a send queue entry becomes frames. */
#include "gpu.h"
#include "requester.h"

#define READ_PIECE (1u << 20) /* a READ through the socket asks for this much at a time */

static struct softnic_context *requester_send_context_of(struct softnic_qp *qp)
{
    return softnic_context_of(qp->ibv.context);
}

static struct softnic_frame requester_send_frame_for(struct softnic_qp *qp,
                                                     const struct softnic_wqe *wqe)
{
    static const uint8_t kinds[] = {[IBV_WR_RDMA_WRITE] = SOFTNIC_WRITE,
                                    [IBV_WR_RDMA_WRITE_WITH_IMM] = SOFTNIC_WRITE,
                                    [IBV_WR_SEND] = SOFTNIC_SEND,
                                    [IBV_WR_SEND_WITH_IMM] = SOFTNIC_SEND,
                                    [IBV_WR_RDMA_READ] = SOFTNIC_READ,
                                    [IBV_WR_ATOMIC_CMP_AND_SWP] = SOFTNIC_COMPARE_SWAP,
                                    [IBV_WR_ATOMIC_FETCH_AND_ADD] = SOFTNIC_FETCH_ADD};
    bool imm = wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wqe->opcode == IBV_WR_SEND_WITH_IMM;
    bool solicited = wqe->solicited && (imm || wqe->opcode == IBV_WR_SEND);
    return (struct softnic_frame){
        .kind = kinds[wqe->opcode],
        .flags = (uint8_t)((imm ? SOFTNIC_FLAG_IMM : 0) | (solicited ? SOFTNIC_FLAG_SOLICITED : 0)),
        .qpn_to = qp->attr.dest_qp_num,
        .qpn_from = qp->ibv.qp_num,
        .psn = (uint32_t)(qp->attr.sq_psn + qp->sq_cursor) & SOFTNIC_MESSAGE_MASK,
        .imm = imm ? wqe->imm : 0,
        .rkey = wqe->rkey,
        .length = wqe->length,
        .address = wqe->remote,
        .operand = {wqe->operand[0], wqe->operand[1]}};
}

/* Data in frames, as much as the link has room for. */
static enum softnic_sent requester_send_payload(struct softnic_qp *qp, struct softnic_wqe *wqe,
                                                struct softnic_link *link)
{
    struct softnic_frame head = requester_send_frame_for(qp, wqe);
    struct iovec from[SOFTNIC_MAX_SGE];
    do {
        if (softnic_link_pending(link) > SOFTNIC_LINK_LIMIT)
            softnic_link_flush(link);
        if (link->dead || softnic_link_pending(link) > SOFTNIC_LINK_LIMIT)
            return SOFTNIC_BLOCKED;
        uint32_t left = wqe->length - qp->tx_offset;
        head.payload = left < SOFTNIC_MAX_PAYLOAD ? left : SOFTNIC_MAX_PAYLOAD;
        head.offset = qp->tx_offset;
        int count = wqe->is_inline
                        ? 0
                        : softnic_sge_slice(requester_send_context_of(qp), qp->ibv.pd, wqe->sge,
                                            wqe->num_sge, 0, head.offset, head.payload, from, NULL);
        if (count < 0)
            return SOFTNIC_REFUSED;
        if (!softnic_payload_carry(link, &head, wqe, from, count))
            return SOFTNIC_BLOCKED;
        qp->tx_offset += head.payload;
    } while (qp->tx_offset < wqe->length);
    return SOFTNIC_SENT;
}

/* The addresses of the data; the peer fetches it. */
static enum softnic_sent requester_send_segments(struct softnic_qp *qp, struct softnic_wqe *wqe,
                                                 struct softnic_link *link)
{
    struct softnic_frame head = requester_send_frame_for(qp, wqe);
    struct iovec from[SOFTNIC_MAX_SGE];
    int count = softnic_sge_slice(requester_send_context_of(qp), qp->ibv.pd, wqe->sge, wqe->num_sge,
                                  0, 0, wqe->length, from, NULL);
    if (count < 0)
        return SOFTNIC_REFUSED;
    return softnic_payload_refer(link, &head, from, count) ? SOFTNIC_SENT : SOFTNIC_BLOCKED;
}

static enum softnic_sent requester_send_read(struct softnic_qp *qp, struct softnic_wqe *wqe,
                                             struct softnic_link *link)
{
    struct softnic_frame head = requester_send_frame_for(qp, wqe);
    struct iovec to[SOFTNIC_MAX_SGE];
    if (softnic_sge_slice(requester_send_context_of(qp), qp->ibv.pd, wqe->sge, wqe->num_sge,
                          IBV_ACCESS_LOCAL_WRITE, 0, wqe->length, to, NULL) < 0 ||
        softnic_payload_in_gpu(qp, wqe, IBV_ACCESS_LOCAL_WRITE))
        return SOFTNIC_REFUSED;
    if (!qp->tx_offset)
        qp->reads_open++;
    uint32_t left = wqe->length - qp->tx_offset;
    head.offset = qp->tx_offset;
    head.operand[0] = link->pulls || left < READ_PIECE ? left : READ_PIECE;
    head.flags |= link->pulls ? SOFTNIC_FLAG_PULL : 0;
    if (!softnic_payload_ask(link, &head, NULL, 0))
        return SOFTNIC_BLOCKED;
    qp->tx_offset += (uint32_t)head.operand[0];
    return qp->tx_offset < wqe->length ? SOFTNIC_BLOCKED
                                       /* the next piece goes when this one has come */
                                       : SOFTNIC_SENT;
}

static enum softnic_sent requester_send_atomic(struct softnic_qp *qp, struct softnic_wqe *wqe,
                                               struct softnic_link *link)
{
    struct softnic_frame head = requester_send_frame_for(qp, wqe);
    struct iovec to[SOFTNIC_MAX_SGE];
    if (softnic_sge_slice(requester_send_context_of(qp), qp->ibv.pd, wqe->sge, wqe->num_sge,
                          IBV_ACCESS_LOCAL_WRITE, 0, 8, to, NULL) < 0 ||
        softnic_payload_in_gpu(qp, wqe, IBV_ACCESS_LOCAL_WRITE))
        return SOFTNIC_REFUSED;
    if (!softnic_payload_ask(link, &head, NULL, 0))
        return SOFTNIC_BLOCKED;
    qp->reads_open++;
    return SOFTNIC_SENT;
}

enum softnic_sent softnic_requester_send(struct softnic_qp *qp, struct softnic_wqe *wqe,
                                         struct softnic_link *link)
{
    if (wqe->opcode == IBV_WR_RDMA_READ)
        return requester_send_read(qp, wqe, link);
    if (softnic_needs_response(wqe))
        return requester_send_atomic(qp, wqe, link);
    if (requester_send_context_of(qp)->shares && softnic_payload_in_gpu(qp, wqe, 0)) {
        softnic_share_announce(link);
        return requester_send_segments(qp, wqe, link);
    }
    if (wqe->is_inline || wqe->length <= SOFTNIC_COPY_LIMIT || !link->peer_pulls)
        return requester_send_payload(qp, wqe, link);
    return requester_send_segments(qp, wqe, link);
}
