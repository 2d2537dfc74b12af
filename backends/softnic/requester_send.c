/* The send side of a QP: a send queue entry becomes frames. */
#include "gpu.h"
#include "requester.h"

#define READ_PIECE (1u << 20) /* a READ through the socket asks for this much at a time */

static struct softnic_frame requester_send_frame_for(struct softnic_qp *qp,
                                                     const struct softnic_wqe *wqe)
{
    struct softnic_frame head = softnic_wqe_frame(qp, wqe);
    head.qpn_to = qp->attr.dest_qp_num;
    head.psn = (uint32_t)(qp->attr.sq_psn + qp->sq_cursor) & SOFTNIC_MESSAGE_MASK;
    head.length = wqe->length;
    head.address = wqe->remote;
    head.operand[0] = wqe->operand[0];
    head.operand[1] = wqe->operand[1];
    return head;
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
        int count = softnic_wqe_slice(qp, wqe, 0, head.offset, head.payload, from, NULL);
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
    int count = softnic_wqe_slice(qp, wqe, 0, 0, wqe->length, from, NULL);
    if (count < 0)
        return SOFTNIC_REFUSED;
    return softnic_payload_refer(link, &head, from, count) ? SOFTNIC_SENT : SOFTNIC_BLOCKED;
}

static enum softnic_sent requester_send_read(struct softnic_qp *qp, struct softnic_wqe *wqe,
                                             struct softnic_link *link)
{
    struct softnic_frame head = requester_send_frame_for(qp, wqe);
    struct iovec to[SOFTNIC_MAX_SGE];
    if (softnic_wqe_slice(qp, wqe, IBV_ACCESS_LOCAL_WRITE, 0, wqe->length, to, NULL) < 0 ||
        softnic_wqe_in_gpu(qp, wqe, IBV_ACCESS_LOCAL_WRITE))
        return SOFTNIC_REFUSED;
    if (!qp->tx_offset)
        qp->reads_open++;
    uint32_t left = wqe->length - qp->tx_offset;
    head.offset = qp->tx_offset;
    head.operand[0] = link->pulls || left < READ_PIECE ? left : READ_PIECE;
    head.flags |= link->pulls ? SOFTNIC_FLAG_PULL : 0;
    if (!softnic_link_send(link, &head, NULL, 0))
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
    if (softnic_wqe_slice(qp, wqe, IBV_ACCESS_LOCAL_WRITE, 0, 8, to, NULL) < 0 ||
        softnic_wqe_in_gpu(qp, wqe, IBV_ACCESS_LOCAL_WRITE))
        return SOFTNIC_REFUSED;
    if (!softnic_link_send(link, &head, NULL, 0))
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
    if (softnic_qp_context(qp)->shares && softnic_wqe_in_gpu(qp, wqe, 0)) {
        softnic_share_announce(link);
        return requester_send_segments(qp, wqe, link);
    }
    if (wqe->is_inline || wqe->length <= SOFTNIC_COPY_LIMIT || !link->peer_pulls)
        return requester_send_payload(qp, wqe, link);
    return requester_send_segments(qp, wqe, link);
}
