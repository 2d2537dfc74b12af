/* What the queues of a QP have in common, RC's and SRD's: entries become frames, and completions. */
#include "nic.h"

void softnic_qp_wake_at(struct softnic_qp *qp, uint64_t when)
{
    if (!qp->timer_ns || when < qp->timer_ns)
        qp->timer_ns = when;
    softnic_timer_at(softnic_qp_context(qp), when);
}

struct softnic_frame softnic_wqe_frame(const struct softnic_qp *qp, const struct softnic_wqe *wqe)
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
        .qpn_from = qp->ibv.qp_num,
        .imm = imm ? wqe->imm : 0,
        .rkey = wqe->rkey};
}

void softnic_sq_complete(struct softnic_qp *qp, const struct softnic_wqe *wqe,
                         enum ibv_wc_status status)
{
    static const uint8_t opcodes[] = {[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
                                      [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
                                      [IBV_WR_SEND] = IBV_WC_SEND,
                                      [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
                                      [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
                                      [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
                                      [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD};
    uint64_t release = ++qp->sq_completed;
    if (status == IBV_WC_SUCCESS && !qp->srd && !wqe->signaled && !qp->init.sq_sig_all)
        return; /* SRD's requests all complete */
    struct softnic_cqe cqe = {.wc = {.wr_id = wqe->wr_id,
                                     .status = status,
                                     .opcode = (enum ibv_wc_opcode)opcodes[wqe->opcode],
                                     .byte_len = softnic_needs_response(wqe) ? wqe->length : 0,
                                     .qp_num = qp->ibv.qp_num},
                              .qp = qp,
                              .sq_release = release,
                              .last = release == qp->sq_posted};
    softnic_cq_push(softnic_cq_of(qp->init.send_cq), &cqe, false);
}

void softnic_rq_flush(struct softnic_qp *qp)
{
    for (; qp->rq_head < qp->rq_tail; qp->rq_head++) {
        struct softnic_cqe cqe = {.wc = {.wr_id = qp->rq[qp->rq_head % qp->rq_size].wr_id,
                                         .status = IBV_WC_WR_FLUSH_ERR,
                                         .opcode = IBV_WC_RECV,
                                         .qp_num = qp->ibv.qp_num},
                                  .qp = qp};
        softnic_cq_push(softnic_cq_of(qp->init.recv_cq), &cqe, false);
    }
}
