/* ibv_post_send and ibv_post_recv. */
#include "nic.h"

#include <errno.h>
#include <string.h>

struct softnic_wqe *softnic_sq_slot(struct softnic_qp *qp, unsigned ahead)
{
    uint64_t index = qp->sq_posted + ahead;
    if (index - __atomic_load_n(&qp->sq_polled, __ATOMIC_ACQUIRE) >= qp->sq_size)
        return NULL;
    return softnic_wqe_at(qp, index);
}

/* What a driver refuses at once; everything else becomes a completion. */
int softnic_sq_check(struct softnic_qp *qp, const struct softnic_wqe *wqe)
{
    bool atomic =
        wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    if (wqe->length > SOFTNIC_MAX_MESSAGE || (atomic && wqe->length != 8))
        return EINVAL;
    if (wqe->is_inline && (wqe->opcode == IBV_WR_RDMA_READ || atomic))
        return EINVAL;
    return 0;
}

void softnic_sq_commit(struct softnic_qp *qp)
{
    struct softnic_context *ctx = softnic_qp_context(qp);
    struct softnic_wqe *wqe = softnic_wqe_at(qp, qp->sq_posted++);
    wqe->status = IBV_WC_SUCCESS;
    wqe->sent_before = false;
    if (++ctx->requests == ctx->options.fail_nth)
        wqe->status = (enum ibv_wc_status)ctx->options.fail_status;
    softnic_shape(ctx, wqe);
}

void softnic_sq_ring(struct softnic_qp *qp)
{
    if (qp->ibv.state == IBV_QPS_ERR) {
        softnic_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
        return;
    }
    softnic_requester_pump(qp);
    softnic_links_flush(softnic_qp_context(qp));
}

static int post_copy_inline(struct softnic_wqe *wqe, const struct ibv_send_wr *wr)
{
    uint32_t length = 0;
    for (int i = 0; i < wr->num_sge; i++) {
        if (wr->sg_list[i].length > SOFTNIC_MAX_INLINE - length)
            return ENOMEM; /* as rdma-core's drivers answer */
        memcpy(wqe->inline_data + length, (void *)(uintptr_t)wr->sg_list[i].addr,
               wr->sg_list[i].length);
        length += wr->sg_list[i].length;
    }
    wqe->length = length;
    return 0;
}

static int post_fill(struct softnic_qp *qp, struct softnic_wqe *wqe, const struct ibv_send_wr *wr)
{
    if ((unsigned)wr->opcode > IBV_WR_ATOMIC_FETCH_AND_ADD)
        return EOPNOTSUPP; /* memory windows, invalidation, segmentation offload */
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->init.cap.max_send_sge)
        return EINVAL;
    wqe->wr_id = wr->wr_id;
    wqe->opcode = (uint8_t)wr->opcode;
    wqe->num_sge = (uint8_t)wr->num_sge;
    wqe->signaled = wr->send_flags & IBV_SEND_SIGNALED;
    wqe->solicited = wr->send_flags & IBV_SEND_SOLICITED;
    wqe->fence = wr->send_flags & IBV_SEND_FENCE;
    wqe->is_inline = wr->send_flags & IBV_SEND_INLINE;
    wqe->imm = wr->imm_data;
    bool atomic =
        wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    wqe->remote = atomic ? wr->wr.atomic.remote_addr : wr->wr.rdma.remote_addr;
    wqe->rkey = atomic ? wr->wr.atomic.rkey : wr->wr.rdma.rkey;
    wqe->operand[0] = wqe->operand[1] = 0;
    if (atomic) {
        wqe->operand[0] = wr->wr.atomic.compare_add;
        wqe->operand[1] = wr->wr.atomic.swap;
    } else if (wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_IMM) {
        wqe->remote = wqe->rkey = 0; /* the union holds nothing for them */
    }
    if (wqe->is_inline) {
        int error = post_copy_inline(wqe, wr);
        return error ? error : softnic_sq_check(qp, wqe);
    }
    uint64_t length = 0;
    for (int i = 0; i < wr->num_sge; i++)
        length += (wqe->sge[i] = wr->sg_list[i]).length;
    wqe->length = length > SOFTNIC_MAX_MESSAGE ? SOFTNIC_MAX_MESSAGE + 1u : (uint32_t)length;
    return softnic_sq_check(qp, wqe);
}

int softnic_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct softnic_qp *qp = softnic_qp_of(ibv);
    struct softnic_context *ctx = softnic_qp_context(qp);
    int error = 0;
    if (qp->srd) { /* SRD takes work by ibv_wr_* only */
        if (bad)
            *bad = wr;
        return EOPNOTSUPP;
    }
    if (qp->extended)
        pthread_mutex_lock(&qp->batch_lock);
    pthread_mutex_lock(&ctx->lock);
    if (ibv->state != IBV_QPS_RTS && ibv->state != IBV_QPS_SQD && ibv->state != IBV_QPS_ERR)
        error = EINVAL;
    for (; wr && !error; wr = error ? wr : wr->next) {
        struct softnic_wqe *wqe = softnic_sq_slot(qp, 0);
        error = wqe ? post_fill(qp, wqe, wr) : ENOMEM;
        if (!error)
            softnic_sq_commit(qp);
    }
    if (error && bad)
        *bad = wr;
    softnic_sq_ring(qp); /* requests before the bad one count */
    pthread_mutex_unlock(&ctx->lock);
    if (qp->extended)
        pthread_mutex_unlock(&qp->batch_lock);
    return error;
}

static int post_one_receive(struct softnic_qp *qp, const struct ibv_recv_wr *wr)
{
    if (qp->rq_tail - qp->rq_head >= qp->rq_size)
        return ENOMEM;
    if (wr->num_sge < (qp->srd ? 1 : 0) || (uint32_t)wr->num_sge > qp->init.cap.max_recv_sge)
        return EINVAL;
    struct softnic_rqe *rqe = &qp->rq[qp->rq_tail % qp->rq_size];
    uint64_t length = 0;
    rqe->wr_id = wr->wr_id;
    rqe->num_sge = (uint32_t)wr->num_sge;
    for (int i = 0; i < wr->num_sge; i++)
        length += (rqe->sge[i] = wr->sg_list[i]).length;
    rqe->length = length > SOFTNIC_MAX_MESSAGE ? SOFTNIC_MAX_MESSAGE : (uint32_t)length;
    qp->rq_tail++;
    return 0;
}

int softnic_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct softnic_qp *qp = softnic_qp_of(ibv);
    struct softnic_context *ctx = softnic_qp_context(qp);
    pthread_mutex_lock(&ctx->lock);
    int error = ibv->state == IBV_QPS_RESET ? EINVAL : 0;
    for (; wr && !error; wr = error ? wr : wr->next)
        error = post_one_receive(qp, wr);
    if (error && bad)
        *bad = wr;
    if (ibv->state == IBV_QPS_ERR)
        softnic_rq_flush(qp);
    pthread_mutex_unlock(&ctx->lock);
    return error;
}
