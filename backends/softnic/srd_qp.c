/* SRD queue pairs and address handles: making, states, ending. */
#include "srd.h"

#include <errno.h>
#include <stdlib.h>

void softnic_srd_forget_partials(struct softnic_qp *qp, const struct softnic_link *link)
{
    for (int i = 0; i < SRD_BUCKETS; i++)
        for (struct srd_partial **at = &qp->srd->partials[i]; *at;) {
            struct srd_partial *p = *at;
            if (link && p->link != link) {
                at = &p->next;
                continue;
            }
            *at = p->next;
            free(p);
        }
}

void softnic_srd_link_gone(struct softnic_context *ctx, const struct softnic_link *link)
{
    for (uint32_t i = 0; i < ctx->qp_top; i++)
        if (ctx->qp[i] && ctx->qp[i]->srd)
            softnic_srd_forget_partials(ctx->qp[i], link);
}

int softnic_srd_create(struct softnic_qp *qp, bool unsolicited)
{
    struct softnic_srd *srd = calloc(1, sizeof(*srd));
    qp->srd = srd;
    if (!srd)
        return ENOMEM;
    srd->unsolicited = unsolicited;
    srd->slots = calloc(qp->sq_size, sizeof(*srd->slots));
    srd->batch = calloc(qp->sq_size, sizeof(*srd->batch));
    srd->free = calloc(qp->sq_size, sizeof(*srd->free));
    srd->active = calloc(qp->sq_size, sizeof(*srd->active));
    srd->due = calloc(qp->sq_size, sizeof(*srd->due));
    if (!srd->slots || !srd->batch || !srd->free || !srd->active || !srd->due) {
        softnic_srd_destroy(qp);
        return ENOMEM;
    }
    softnic_srd_reset(qp);
    return 0;
}

void softnic_srd_destroy(struct softnic_qp *qp)
{
    struct softnic_srd *srd = qp->srd;
    if (!srd)
        return;
    softnic_srd_forget_partials(qp, NULL);
    free(srd->slots);
    free(srd->batch);
    free(srd->free);
    free(srd->active);
    free(srd->due);
    free(srd);
    qp->srd = NULL;
}

/* Forgets all requests; the serials go on, so that answers to them find no request. */
void softnic_srd_reset(struct softnic_qp *qp)
{
    struct softnic_srd *srd = qp->srd;
    softnic_srd_forget_partials(qp, NULL);
    srd->active_count = 0;
    srd->free_count = qp->sq_size;
    for (uint32_t i = 0; i < qp->sq_size; i++) {
        srd->free[i] = qp->sq_size - 1 - i;
        srd->slots[i].serial++;
    }
}

/* What the kernel's driver asks for (drivers/infiniband/hw/efa): no path, since a request names its
 * target. */
bool softnic_srd_transition_valid(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
    const int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    int rest = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
    if (to == IBV_QPS_ERR || to == IBV_QPS_RESET)
        return !rest;
    if (from == IBV_QPS_RESET && to == IBV_QPS_INIT)
        return rest == init;
    if (from == IBV_QPS_INIT && to == IBV_QPS_INIT)
        return !(rest & ~init);
    if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
        return !rest;
    if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
        return (rest & IBV_QP_SQ_PSN) && !(rest & ~(IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY));
    return from == IBV_QPS_RTS && to == IBV_QPS_RTS && !rest;
}

/* ---- address handles ---- */

static const struct softnic_ah *srd_qp_ah_to(const struct softnic_context *ctx, int device)
{
    const struct softnic_ah *ah = ctx->ahs;
    while (ah && ah->device != device)
        ah = ah->next;
    return ah;
}

bool softnic_srd_knows(const struct softnic_context *ctx, int device)
{
    return srd_qp_ah_to(ctx, device) != NULL;
}

uint16_t softnic_srd_ahn(const struct softnic_context *ctx, int device)
{
    const struct softnic_ah *ah = srd_qp_ah_to(ctx, device);
    return ah ? ah->number : SRD_NO_AHN;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct softnic_context *ctx = softnic_context_of(pd->context);
    int device = softnic_gid_device(&attr->grh.dgid);
    int error = !ctx->device->efa                                                       ? EOPNOTSUPP
                : attr->port_num != 1 || !attr->is_global || device < SOFTNIC_EFA_FIRST ? EINVAL
                                                                                        : 0;
    struct softnic_ah *ah = error ? NULL : calloc(1, sizeof(*ah));
    if (!ah)
        return softnic_none(error ? error : ENOMEM);
    ah->ibv.context = pd->context;
    ah->ibv.pd = pd;
    ah->device = device;
    pthread_mutex_lock(&ctx->lock);
    ah->number = ctx->ah_next++ % SRD_NO_AHN;
    ah->ibv.handle = ah->number;
    ah->next = ctx->ahs;
    ctx->ahs = ah;
    ((struct softnic_pd *)pd)->users++;
    pthread_mutex_unlock(&ctx->lock);
    return &ah->ibv;
}

int ibv_destroy_ah(struct ibv_ah *ibv)
{
    struct softnic_context *ctx = softnic_context_of(ibv->context);
    struct softnic_ah *ah = (struct softnic_ah *)ibv;
    pthread_mutex_lock(&ctx->lock);
    struct softnic_ah **at = &ctx->ahs;
    while (*at != ah)
        at = &(*at)->next;
    *at = ah->next;
    ((struct softnic_pd *)ibv->pd)->users--;
    pthread_mutex_unlock(&ctx->lock);
    free(ah);
    return 0;
}
