/* Queue pairs: making, moving through their states, ending. */
#include "gpu.h"
#include "core/base/clock.h"
#include "srd.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int qp_init_error(const struct softnic_context *ctx, const struct ibv_qp_init_attr *init,
                         bool srd)
{
    const struct ibv_qp_cap *cap = &init->cap;
    if (init->qp_type != (srd ? IBV_QPT_DRIVER : IBV_QPT_RC) || init->srq ||
        srd != ctx->device->efa)
        return EOPNOTSUPP;
    if (srd && (cap->max_send_wr > ctx->options.efa_depth ||
                cap->max_recv_wr > ctx->options.efa_depth || cap->max_send_sge > SRD_MAX_SGE ||
                cap->max_recv_sge > SRD_MAX_SGE || cap->max_inline_data > SRD_INLINE))
        return EINVAL;
    if (!init->send_cq || !init->recv_cq || cap->max_send_wr > SOFTNIC_MAX_WR ||
        cap->max_recv_wr > SOFTNIC_MAX_WR || cap->max_send_sge > SOFTNIC_MAX_SGE ||
        cap->max_recv_sge > SOFTNIC_MAX_SGE || cap->max_inline_data > SOFTNIC_MAX_INLINE)
        return EINVAL;
    return 0;
}

static void qp_clear(struct softnic_qp *qp)
{
    memset(&qp->attr, 0, sizeof(qp->attr));
    qp->attr.port_num = 1;
    qp->ibv.state = IBV_QPS_RESET;
    qp->generation++;
    qp->link = NULL;
    qp->peer_device = qp->peer_context = -1;
    qp->sq_polled = qp->sq_completed = qp->sq_acked = qp->sq_cursor = qp->sq_posted = 0;
    qp->tx_offset = qp->read_offset = 0;
    qp->reads_open = 0;
    qp->waiting = qp->drained_told = false;
    qp->timer_ns = 0;
    qp->rq_head = qp->rq_tail = 0;
    qp->rx_psn = qp->rx_offset = qp->rx_done = qp->rx_packets = 0;
    qp->rx_nak_sent = qp->rx_established = false;
    memset(qp->atomics, 0, sizeof(qp->atomics));
    qp->batch_wqe = NULL;
    if (qp->srd)
        softnic_srd_reset(qp);
}

/* Numbers go round, so that a late frame for a QP that is gone does not find its successor. */
static int qp_take_number(struct softnic_context *ctx, struct softnic_qp *qp)
{
    for (uint32_t tried = 0; tried < SOFTNIC_MAX_QP; tried++) {
        uint32_t index = (ctx->qp_next + tried) % SOFTNIC_MAX_QP;
        if (ctx->qp[index])
            continue;
        ctx->qp[index] = qp;
        ctx->qp_next = index + 1;
        if (ctx->qp_top <= index)
            ctx->qp_top = index + 1;
        qp->serial = ++ctx->serial;
        qp->ibv.handle = index;
        qp->ibv.qp_num = ctx->id << SOFTNIC_QP_BITS | index;
        return 0;
    }
    return ENOMEM;
}

struct ibv_qp *softnic_qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *init,
                                 const uint64_t *send_ops, const bool *srd_unsolicited)
{
    struct softnic_context *ctx = softnic_context_of(pd->context);
    bool srd = srd_unsolicited != NULL;
    int error = qp_init_error(ctx, init, srd);
    struct softnic_qp *qp = error ? NULL : calloc(1, sizeof(*qp));
    if (!qp)
        return softnic_none(error ? error : ENOMEM);
    struct ibv_qp_cap *cap = &init->cap;
    qp->sq_size = cap->max_send_wr ? cap->max_send_wr : 1;
    qp->rq_size = cap->max_recv_wr ? cap->max_recv_wr : 1;
    qp->sq = calloc(srd ? 1 : qp->sq_size, sizeof(*qp->sq));
    qp->rq = calloc(qp->rq_size, sizeof(*qp->rq));
    pthread_mutex_init(&qp->ibv.mutex, NULL);
    mk_cond_init(&qp->ibv.cond);
    pthread_mutex_init(&qp->batch_lock, NULL);
    qp->ibv.context = pd->context;
    qp->ibv.pd = pd;
    qp->ibv.qp_context = init->qp_context;
    qp->ibv.send_cq = init->send_cq;
    qp->ibv.recv_cq = init->recv_cq;
    qp->ibv.qp_type = init->qp_type;
    /* what it can do, as drivers report */
    cap->max_inline_data = srd ? SRD_INLINE : SOFTNIC_MAX_INLINE;
    qp->init = *init;
    qp_clear(qp);
    bool whole = qp->sq && qp->rq && (!srd || !softnic_srd_create(qp, *srd_unsolicited));
    if (send_ops)
        softnic_post_ex_setup(qp, *send_ops);

    pthread_mutex_lock(&ctx->lock);
    error = whole ? qp_take_number(ctx, qp) : ENOMEM;
    if (!error) {
        ((struct softnic_pd *)pd)->users++;
        softnic_cq_of(init->send_cq)->users++;
        softnic_cq_of(init->recv_cq)->users++;
    }
    pthread_mutex_unlock(&ctx->lock);
    if (error) {
        softnic_srd_destroy(qp);
        free(qp->sq);
        free(qp->rq);
        free(qp);
        return softnic_none(error);
    }
    return &qp->ibv;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    return softnic_qp_create(pd, init, NULL, NULL);
}

struct ibv_qp *softnic_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const uint64_t ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                         IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                         IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                         IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if (attr->comp_mask & ~known || (extended && attr->send_ops_flags & ~ops))
        return softnic_none(EOPNOTSUPP);
    if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD))
        return softnic_none(EINVAL);
    /* the plain attributes are the extended ones' beginning */
    return softnic_qp_create(attr->pd, (struct ibv_qp_init_attr *)attr,
                             extended ? &attr->send_ops_flags : NULL, NULL);
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
    return softnic_qp_of(qp)->extended ? &softnic_qp_of(qp)->ex : NULL;
}

static void qp_wait_idle(struct softnic_qp *qp)
{
    while (qp->busy || qp->copies) /* bounded by the copies that the progress thread has started */
        pthread_cond_wait(&softnic_qp_context(qp)->idle, &softnic_qp_context(qp)->lock);
}

static void qp_add_counters(struct softnic_counters *to, const struct softnic_counters *from)
{
    to->sent_bytes += from->sent_bytes;
    to->sent_messages += from->sent_messages;
    to->received_bytes += from->received_bytes;
    to->received_messages += from->received_messages;
    to->retransmissions += from->retransmissions;
}

int ibv_destroy_qp(struct ibv_qp *ibv)
{
    struct softnic_context *ctx = softnic_context_of(ibv->context);
    struct softnic_qp *qp = softnic_qp_of(ibv);
    pthread_mutex_lock(&ctx->lock);
    qp->generation++;
    ctx->qp[ibv->handle] = NULL; /* from here on its number is unknown */
    qp_wait_idle(qp);
    softnic_cq_forget(softnic_cq_of(ibv->send_cq), qp);
    softnic_cq_forget(softnic_cq_of(ibv->recv_cq), qp);
    qp_add_counters(&ctx->past, &qp->counters);
    softnic_tally_end(qp);
    softnic_cq_of(ibv->send_cq)->users--;
    softnic_cq_of(ibv->recv_cq)->users--;
    ((struct softnic_pd *)ibv->pd)->users--;
    pthread_mutex_unlock(&ctx->lock);

    pthread_mutex_lock(&ibv->mutex);
    bool acknowledged = softnic_wait_acknowledged(&ibv->mutex, &ibv->cond, &ibv->events_completed,
                                                  &qp->events_delivered);
    pthread_mutex_unlock(&ibv->mutex);
    if (acknowledged) { /* else the application still holds events that point at it */
        pthread_mutex_destroy(&ibv->mutex);
        pthread_cond_destroy(&ibv->cond);
        pthread_mutex_destroy(&qp->batch_lock);
        softnic_srd_destroy(qp);
        free(qp->sq);
        free(qp->rq);
        free(qp);
    }
    return acknowledged ? 0 : EBUSY;
}

/* Copies the fields that the mask names. */
static void qp_take_values(struct softnic_qp *qp, const struct ibv_qp_attr *from, int mask)
{
    struct ibv_qp_attr *to = &qp->attr;
#define TAKE(bit, field)                                                                           \
    if (mask & (bit))                                                                              \
    to->field = from->field
    TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
    TAKE(IBV_QP_PKEY_INDEX, pkey_index);
    TAKE(IBV_QP_PORT, port_num);
    TAKE(IBV_QP_AV, ah_attr);
    TAKE(IBV_QP_PATH_MTU, path_mtu);
    TAKE(IBV_QP_TIMEOUT, timeout);
    TAKE(IBV_QP_RETRY_CNT, retry_cnt);
    TAKE(IBV_QP_RNR_RETRY, rnr_retry);
    TAKE(IBV_QP_RQ_PSN, rq_psn);
    TAKE(IBV_QP_SQ_PSN, sq_psn);
    TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
    TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
    TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
    TAKE(IBV_QP_DEST_QPN, dest_qp_num);
    TAKE(IBV_QP_QKEY, qkey);
    TAKE(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify);
#undef TAKE
    to->rq_psn &= SOFTNIC_MESSAGE_MASK;
    to->sq_psn &= SOFTNIC_MESSAGE_MASK;
}

static void qp_enter(struct softnic_context *ctx, struct softnic_qp *qp, enum ibv_qp_state from,
                     enum ibv_qp_state to)
{
    qp->ibv.state = qp->attr.qp_state = to;
    if (qp->srd)
        return; /* nothing was to be sent before */
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) {
        const struct ibv_ah_attr *path = &qp->attr.ah_attr;
        qp->rx_psn = qp->attr.rq_psn;
        qp->peer_device = path->is_global ? softnic_gid_device(&path->grh.dgid) : path->dlid - 1;
        qp->peer_context = (int)(qp->attr.dest_qp_num >> SOFTNIC_QP_BITS);
    }
    if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) {
        qp->retries_left = qp->attr.retry_cnt;
        qp->rnr_left = qp->attr.rnr_retry;
        /* early, so that the first message is not late */
        qp->link = softnic_link_to(ctx, qp->peer_device, qp->peer_context);
        softnic_share_wait(ctx, qp);
    }
    if (to == IBV_QPS_SQD)
        qp->drained_told = false;
    softnic_requester_pump(qp);
    softnic_links_flush(ctx);
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    struct softnic_context *ctx = softnic_context_of(ibv->context);
    struct softnic_qp *qp = softnic_qp_of(ibv);
    pthread_mutex_lock(&ctx->lock);
    enum ibv_qp_state from = qp->ibv.state, to = mask & IBV_QP_STATE ? attr->qp_state : from;
    bool wrong_current = mask & IBV_QP_CUR_STATE && attr->cur_qp_state != from;
    bool valid = qp->srd ? softnic_srd_transition_valid(from, to, mask) &&
                               !(mask & IBV_QP_PORT && attr->port_num != 1)
                         : softnic_qp_transition_valid(from, to, mask) &&
                               softnic_qp_values_valid(ctx, attr, mask);
    if (wrong_current || !valid) {
        pthread_mutex_unlock(&ctx->lock);
        return EINVAL;
    }
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
        qp_wait_idle(qp); /* no buffer is touched after its flush */
    if (to == IBV_QPS_RESET) {
        softnic_cq_forget(softnic_cq_of(ibv->send_cq), qp);
        softnic_cq_forget(softnic_cq_of(ibv->recv_cq), qp);
        qp_clear(qp);
    } else if (to == IBV_QPS_ERR) {
        softnic_qp_to_error(qp);
    } else {
        qp_take_values(qp, attr, mask);
        qp_enter(ctx, qp, from, to);
    }
    pthread_mutex_unlock(&ctx->lock);
    return 0;
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask,
                 struct ibv_qp_init_attr *init)
{
    struct softnic_context *ctx = softnic_context_of(ibv->context);
    struct softnic_qp *qp = softnic_qp_of(ibv);
    pthread_mutex_lock(&ctx->lock);
    *attr = qp->attr;
    attr->qp_state = attr->cur_qp_state = ibv->state;
    attr->cap = qp->init.cap;
    /* the one that it waits for, as devices say it */
    attr->rq_psn = (qp->attr.rq_psn + qp->rx_packets) & SOFTNIC_MESSAGE_MASK;
    attr->sq_draining = ibv->state == IBV_QPS_SQD && qp->sq_completed < qp->sq_cursor;
    *init = qp->init;
    pthread_mutex_unlock(&ctx->lock);
    return 0;
}

int softnic_counters(struct ibv_context *context, uint32_t qp_num, struct softnic_counters *out)
{
    struct softnic_context *ctx = softnic_context_of(context);
    pthread_mutex_lock(&ctx->lock);
    struct softnic_qp *qp = softnic_qp_find(ctx, qp_num);
    if (!qp_num) {
        *out = ctx->past;
        for (uint32_t i = 0; i < ctx->qp_top; i++)
            if (ctx->qp[i])
                qp_add_counters(out, &ctx->qp[i]->counters);
    } else if (qp) {
        *out = qp->counters;
    }
    pthread_mutex_unlock(&ctx->lock);
    return !qp_num || qp ? 0 : -ENOENT;
}
