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

static struct srd_request *srd_post_current(struct ibv_qp_ex *ex)
{
    struct softnic_qp *qp = srd_post_of(ex);
    return qp->batch_error || !qp->batch_count ? NULL : &qp->srd->batch[qp->batch_count - 1];
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
    r->wqe.solicited = qp->ex.wr_flags & IBV_SEND_SOLICITED;
    r->device = -1;
    return &r->wqe;
}

static bool srd_post_is_send(const struct srd_request *r)
{
    return r->wqe.opcode == IBV_WR_SEND || r->wqe.opcode == IBV_WR_SEND_WITH_IMM;
}

static void srd_post_wr_set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *sge)
{
    struct softnic_qp *qp = srd_post_of(ex);
    struct srd_request *r = srd_post_current(ex);
    uint64_t length = 0;
    if (!r)
        return;
    if (count > (srd_post_is_send(r) ? qp->init.cap.max_send_sge : 1u)) {
        qp->batch_error = EINVAL;
        return;
    }
    for (size_t i = 0; i < count; i++)
        length += (r->wqe.sge[i] = sge[i]).length;
    r->wqe.num_sge = (uint8_t)count;
    r->wqe.length = length > UINT32_MAX ? UINT32_MAX : (uint32_t)length;
}

static void srd_post_wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t count,
                                             const struct ibv_data_buf *list)
{
    struct softnic_qp *qp = srd_post_of(ex);
    struct srd_request *r = srd_post_current(ex);
    uint32_t length = 0;
    for (size_t i = 0; r && i < count; i++) {
        if (!srd_post_is_send(r) || list[i].length > SRD_INLINE - length) {
            qp->batch_error = EINVAL;
            return;
        }
        memcpy(r->wqe.inline_data + length, list[i].addr, list[i].length);
        length += (uint32_t)list[i].length;
    }
    if (r) {
        r->wqe.is_inline = true;
        r->wqe.length = length;
    }
}

static void srd_post_wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn,
                                    uint32_t qkey)
{
    struct softnic_qp *qp = srd_post_of(ex);
    struct srd_request *r = srd_post_current(ex);
    if (!r)
        return;
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
    if (r->device < 0 || (!srd_post_is_send(r) && r->wqe.num_sge != 1))
        return EINVAL;
    return r->wqe.length > (srd_post_is_send(r) ? SRD_MAX_SEND : softnic_srd_max_rdma(ctx)) ? EINVAL
                                                                                            : 0;
}

/* All or nothing, as the call promises. */
static int srd_post_wr_complete(struct ibv_qp_ex *ex)
{
    struct softnic_qp *qp = srd_post_of(ex);
    struct softnic_context *ctx = softnic_context_of(qp->ibv.context);
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

void softnic_srd_post_setup(struct softnic_qp *qp, uint64_t ops)
{
    struct ibv_qp_ex *ex = &qp->ex;
    softnic_post_ex_setup(qp, ops);
    ex->wr_complete = srd_post_wr_complete;
    ex->wr_set_sge_list = srd_post_wr_set_sge_list;
    ex->wr_set_inline_data_list = srd_post_wr_set_inline_data_list;
    ex->wr_set_ud_addr = srd_post_wr_set_ud_addr;
}
