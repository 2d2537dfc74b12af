/* ibv_wr_* of an SRD QP: requests are built beside the send queue and enter it together at
 * wr_complete. Refused there, as the efa driver refuses it: a full queue (ENOMEM), more than one
 * SGE or inline data of an RDMA request, a request without a target. */
#include "srd.h"

#include <errno.h>
#include <string.h>

static struct softnic_qp *srd_post_of(struct ibv_qp_ex *ex)
{
    return (struct softnic_qp *)ex;
}

static bool srd_post_is_send(const struct srd_request *r)
{
    return r->wqe.opcode == IBV_WR_SEND || r->wqe.opcode == IBV_WR_SEND_WITH_IMM;
}

struct softnic_wqe *softnic_srd_post_begin(struct softnic_qp *qp, enum ibv_wr_opcode opcode)
{
    uint64_t used =
        qp->sq_posted + qp->batch_count - __atomic_load_n(&qp->sq_polled, __ATOMIC_ACQUIRE);
    if (used >= qp->sq_size)
        qp->batch_error = ENOMEM;
    if (qp->batch_error)
        return NULL;
    struct srd_request *r = &qp->srd->batch[qp->batch_count++];
    memset(r, 0, sizeof(*r));
    r->wqe.wr_id = qp->ex.wr_id;
    r->wqe.opcode = (uint8_t)opcode;
    r->wqe.solicited = qp->ex.wr_flags & IBV_SEND_SOLICITED && !srd_post_is_send(r);
    r->device = -1;
    return &r->wqe;
}

static void srd_post_wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn,
                                    uint32_t qkey)
{
    struct softnic_qp *qp = srd_post_of(ex);
    if (!qp->batch_wqe)
        return;
    struct srd_request *r = &qp->srd->batch[qp->batch_count - 1];
    if (!ah || ah->pd != qp->ibv.pd) {
        qp->batch_error = EINVAL;
        return;
    }
    r->device = ((struct softnic_ah *)ah)->device;
    r->qpn = qpn;
    r->qkey = qkey;
}

static int srd_post_check(struct softnic_context *ctx, const struct srd_request *r)
{
    if (r->device < 0 || (!srd_post_is_send(r) && (r->wqe.num_sge != 1 || r->wqe.is_inline)))
        return EINVAL;
    return r->wqe.length > (srd_post_is_send(r) ? SRD_MAX_SEND : ctx->options.efa_rdma_bytes)
               ? EINVAL
               : 0;
}

/* All or nothing, as the call promises. */
static int srd_post_wr_complete(struct ibv_qp_ex *ex)
{
    struct softnic_qp *qp = srd_post_of(ex);
    struct softnic_context *ctx = softnic_qp_context(qp);
    pthread_mutex_lock(&ctx->lock);
    int error = qp->batch_error;
    if (!error && qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_ERR)
        error = EINVAL;
    for (unsigned i = 0; i < qp->batch_count && !error; i++)
        error = srd_post_check(ctx, &qp->srd->batch[i]);
    for (unsigned i = 0; i < qp->batch_count && !error; i++)
        softnic_srd_commit(qp, &qp->srd->batch[i]);
    if (!error && qp->ibv.state == IBV_QPS_ERR)
        softnic_srd_flush(qp);
    else if (!error)
        softnic_srd_pump(qp);
    softnic_links_flush(ctx);
    pthread_mutex_unlock(&ctx->lock);
    pthread_mutex_unlock(&qp->batch_lock);
    return error;
}

void softnic_srd_post_setup(struct softnic_qp *qp)
{
    qp->ex.wr_complete = srd_post_wr_complete;
    qp->ex.wr_set_ud_addr = srd_post_wr_set_ud_addr;
}
