/* ibv_wr_*: requests are built in the send queue behind what is posted, and posted together by
 * wr_complete. An SRD QP builds its own beside the queue (srd_post.c), by the same calls.
 */
#include "srd.h"

#include <errno.h>
#include <string.h>

static struct softnic_qp *post_ex_of(struct ibv_qp_ex *ex)
{
    return (struct softnic_qp *)ex;
}

static struct softnic_wqe *post_ex_begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
    struct softnic_qp *qp = post_ex_of(ex);
    if (qp->srd)
        return qp->batch_wqe = softnic_srd_post_begin(qp, opcode);
    struct softnic_wqe *wqe = softnic_sq_slot(qp, qp->batch_count);
    qp->batch_wqe = wqe;
    if (!wqe) {
        qp->batch_error = ENOMEM;
        return NULL;
    }
    qp->batch_count++;
    wqe->wr_id = ex->wr_id;
    wqe->opcode = (uint8_t)opcode;
    wqe->num_sge = 0;
    wqe->signaled = ex->wr_flags & IBV_SEND_SIGNALED;
    wqe->solicited = ex->wr_flags & IBV_SEND_SOLICITED;
    wqe->fence = ex->wr_flags & IBV_SEND_FENCE;
    wqe->is_inline = false;
    wqe->imm = wqe->rkey = wqe->length = 0;
    wqe->remote = wqe->operand[0] = wqe->operand[1] = 0;
    return wqe;
}

static struct softnic_wqe *post_ex_begin_remote(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode,
                                                uint32_t rkey, uint64_t remote, __be32 imm)
{
    struct softnic_wqe *wqe = post_ex_begin(ex, opcode);
    if (wqe) {
        wqe->rkey = rkey;
        wqe->remote = remote;
        wqe->imm = imm;
    }
    return wqe;
}

static void post_ex_wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote)
{
    post_ex_begin_remote(ex, IBV_WR_RDMA_WRITE, rkey, remote, 0);
}

static void post_ex_wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote,
                                      __be32 imm)
{
    post_ex_begin_remote(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote, imm);
}

static void post_ex_wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote)
{
    post_ex_begin_remote(ex, IBV_WR_RDMA_READ, rkey, remote, 0);
}

static void post_ex_wr_send(struct ibv_qp_ex *ex)
{
    post_ex_begin(ex, IBV_WR_SEND);
}

static void post_ex_wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
    post_ex_begin_remote(ex, IBV_WR_SEND_WITH_IMM, 0, 0, imm);
}

static void post_ex_wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote,
                                      uint64_t compare, uint64_t swap)
{
    struct softnic_wqe *wqe = post_ex_begin_remote(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote, 0);
    if (wqe) {
        wqe->operand[0] = compare;
        wqe->operand[1] = swap;
    }
}

static void post_ex_wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t remote,
                                        uint64_t add)
{
    struct softnic_wqe *wqe =
        post_ex_begin_remote(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote, 0);
    if (wqe)
        wqe->operand[0] = add;
}

static void post_ex_wr_set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *sge)
{
    struct softnic_qp *qp = post_ex_of(ex);
    struct softnic_wqe *wqe = qp->batch_wqe;
    uint64_t length = 0;
    if (!wqe)
        return;
    if (count > qp->init.cap.max_send_sge) {
        qp->batch_error = EINVAL;
        return;
    }
    for (size_t i = 0; i < count; i++)
        length += (wqe->sge[i] = sge[i]).length;
    wqe->num_sge = (uint8_t)count;
    wqe->length = length > SOFTNIC_MAX_MESSAGE ? SOFTNIC_MAX_MESSAGE + 1u : (uint32_t)length;
}

static void post_ex_wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t address,
                               uint32_t length)
{
    struct ibv_sge sge = {address, length, lkey};
    ex->wr_set_sge_list(ex, 1, &sge);
}

static void post_ex_wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t count,
                                            const struct ibv_data_buf *list)
{
    struct softnic_qp *qp = post_ex_of(ex);
    struct softnic_wqe *wqe = qp->batch_wqe;
    uint32_t length = 0;
    if (!wqe)
        return;
    for (size_t i = 0; i < count; i++) {
        if (list[i].length > qp->init.cap.max_inline_data - length) {
            qp->batch_error = qp->srd ? EINVAL : ENOMEM;
            return;
        }
        memcpy(wqe->inline_data + length, list[i].addr, list[i].length);
        length += (uint32_t)list[i].length;
    }
    wqe->is_inline = true;
    wqe->length = length;
}

static void post_ex_wr_set_inline_data(struct ibv_qp_ex *ex, void *address, size_t length)
{
    struct ibv_data_buf one = {address, length};
    ex->wr_set_inline_data_list(ex, 1, &one);
}

static void post_ex_wr_start(struct ibv_qp_ex *ex)
{
    struct softnic_qp *qp = post_ex_of(ex);
    pthread_mutex_lock(&qp->batch_lock);
    qp->batch_count = 0;
    qp->batch_error = 0;
    qp->batch_wqe = NULL;
}

static void post_ex_wr_abort(struct ibv_qp_ex *ex)
{
    pthread_mutex_unlock(&post_ex_of(ex)->batch_lock);
}

/* All or nothing, as the call promises. */
static int post_ex_wr_complete(struct ibv_qp_ex *ex)
{
    struct softnic_qp *qp = post_ex_of(ex);
    struct softnic_context *ctx = softnic_qp_context(qp);
    pthread_mutex_lock(&ctx->lock);
    enum ibv_qp_state state = qp->ibv.state;
    int error = qp->batch_error;
    if (!error && state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_ERR)
        error = EINVAL;
    for (unsigned i = 0; i < qp->batch_count && !error; i++)
        error = softnic_sq_check(qp, softnic_wqe_at(qp, qp->sq_posted + i));
    for (unsigned i = 0; i < qp->batch_count && !error; i++)
        softnic_sq_commit(qp);
    if (!error)
        softnic_sq_ring(qp);
    pthread_mutex_unlock(&ctx->lock);
    pthread_mutex_unlock(&qp->batch_lock);
    return error;
}

/* Only what was asked for at creation is there to be called; the rest stays NULL. */
void softnic_post_ex_setup(struct softnic_qp *qp, uint64_t ops)
{
    struct ibv_qp_ex *ex = &qp->ex;
    qp->extended = true;
    ex->wr_start = post_ex_wr_start;
    ex->wr_complete = post_ex_wr_complete;
    ex->wr_abort = post_ex_wr_abort;
    ex->wr_set_sge = post_ex_wr_set_sge;
    ex->wr_set_sge_list = post_ex_wr_set_sge_list;
    ex->wr_set_inline_data = post_ex_wr_set_inline_data;
    ex->wr_set_inline_data_list = post_ex_wr_set_inline_data_list;
    ex->wr_rdma_write = ops & IBV_QP_EX_WITH_RDMA_WRITE ? post_ex_wr_rdma_write : NULL;
    ex->wr_rdma_write_imm =
        ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM ? post_ex_wr_rdma_write_imm : NULL;
    ex->wr_rdma_read = ops & IBV_QP_EX_WITH_RDMA_READ ? post_ex_wr_rdma_read : NULL;
    ex->wr_send = ops & IBV_QP_EX_WITH_SEND ? post_ex_wr_send : NULL;
    ex->wr_send_imm = ops & IBV_QP_EX_WITH_SEND_WITH_IMM ? post_ex_wr_send_imm : NULL;
    ex->wr_atomic_cmp_swp =
        ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP ? post_ex_wr_atomic_cmp_swp : NULL;
    ex->wr_atomic_fetch_add =
        ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD ? post_ex_wr_atomic_fetch_add : NULL;
    if (qp->srd)
        softnic_srd_post_setup(qp);
}
