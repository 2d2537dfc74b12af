/* Completion queues, completion channels, and the plain polling call. completion_ex.c has the
 * extended one. */
#include "nic.h"
#include "core/base/clock.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    /* empty polls in a row after which the poller lets the progress threads have its core */
    YIELD_AFTER = 16,
    /* ns, for events that the application got and did not acknowledge, when it destroys their source */
    ACK_WAIT_NS = 10000000000,
};

/* Waits until *done reaches `delivered`. The caller holds `mutex`. False: it did not within the
 * time. */
bool softnic_wait_acknowledged(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *done,
                               const uint32_t *delivered)
{
    const uint64_t end = mk_now_ns() + ACK_WAIT_NS;
    while (*done != *delivered)
        if (mk_cond_wait_until(cond, mutex, end) == ETIMEDOUT)
            return false;
    return true;
}

struct softnic_cq *softnic_cq_create(struct ibv_context *context, int cqe, void *cq_context,
                                     struct ibv_comp_channel *channel, int vector)
{
    struct softnic_context *ctx = softnic_context_of(context);
    if (cqe < 1 || cqe > SOFTNIC_MAX_CQE || vector < 0 || vector >= context->num_comp_vectors)
        return softnic_none(EINVAL);
    struct softnic_cq *cq = calloc(1, sizeof(*cq));
    uint32_t size = 1;
    while (size < (uint32_t)cqe)
        size *= 2;
    if (cq)
        cq->ring = calloc(size, sizeof(*cq->ring));
    if (!cq || !cq->ring) {
        free(cq);
        return softnic_none(ENOMEM);
    }
    cq->size = size;
    cq->ibv.context = context;
    cq->ibv.channel = channel;
    cq->ibv.cq_context = cq_context;
    cq->ibv.cqe = (int)size;
    pthread_mutex_init(&cq->ibv.mutex, NULL);
    mk_cond_init(&cq->ibv.cond);
    pthread_mutex_init(&cq->lock, NULL);
    pthread_mutex_lock(&ctx->lock);
    cq->serial = ++ctx->serial;
    cq->ibv.handle = (uint32_t)cq->serial;
    cq->next = ctx->cqs;
    ctx->cqs = cq;
    if (channel)
        channel->refcnt++;
    pthread_mutex_unlock(&ctx->lock);
    return cq;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    struct softnic_cq *cq = softnic_cq_create(context, cqe, cq_context, channel, vector);
    return cq ? &cq->ibv : NULL;
}

int ibv_destroy_cq(struct ibv_cq *ibv)
{
    struct softnic_context *ctx = softnic_context_of(ibv->context);
    struct softnic_cq *cq = softnic_cq_of(ibv);
    pthread_mutex_lock(&ctx->lock);
    if (cq->users) {
        pthread_mutex_unlock(&ctx->lock);
        return EBUSY;
    }
    struct softnic_cq **at = &ctx->cqs;
    while (*at != cq)
        at = &(*at)->next;
    *at = cq->next; /* events that are still in a pipe find no CQ from now on */
    pthread_mutex_unlock(&ctx->lock);

    pthread_mutex_lock(&ibv->mutex);
    bool acknowledged =
        softnic_wait_acknowledged(&ibv->mutex, &ibv->cond, &ibv->comp_events_completed,
                                  &cq->events_delivered) &&
        softnic_wait_acknowledged(&ibv->mutex, &ibv->cond, &ibv->async_events_completed,
                                  &cq->async_delivered);
    pthread_mutex_unlock(&ibv->mutex);
    pthread_mutex_lock(&ctx->lock);
    if (!acknowledged) {
        cq->next = ctx->cqs;
        ctx->cqs = cq;
    } else if (ibv->channel) {
        ibv->channel->refcnt--;
    }
    pthread_mutex_unlock(&ctx->lock);
    if (!acknowledged)
        return EBUSY;
    pthread_mutex_destroy(&ibv->mutex);
    pthread_cond_destroy(&ibv->cond);
    pthread_mutex_destroy(&cq->lock);
    free(cq->ring);
    free(cq);
    return 0;
}

int ibv_resize_cq(struct ibv_cq *ibv, int cqe)
{
    struct softnic_cq *cq = softnic_cq_of(ibv);
    uint32_t size = 1;
    int error = 0;
    if (cqe < 1 || cqe > SOFTNIC_MAX_CQE)
        return EINVAL;
    while (size < (uint32_t)cqe)
        size *= 2;
    struct softnic_cqe *ring = calloc(size, sizeof(*ring));
    if (!ring)
        return ENOMEM;
    pthread_mutex_lock(&cq->lock);
    if (cq->tail - cq->head > size) {
        error = EINVAL; /* would lose completions */
    } else {
        for (uint64_t i = cq->head; i < cq->tail; i++)
            ring[i % size] = cq->ring[i % cq->size];
        struct softnic_cqe *old = cq->ring;
        cq->ring = ring;
        cq->size = size;
        cq->ibv.cqe = (int)size;
        ring = old;
    }
    pthread_mutex_unlock(&cq->lock);
    free(ring);
    return error;
}

/* Under context->lock. A CQ without room is an error of the CQ and of the QP: completions are lost
 * for good. */
void softnic_cq_push(struct softnic_cq *cq, struct softnic_cqe *cqe, bool solicited)
{
    bool first_loss = false, lost = false;
    pthread_mutex_lock(&cq->lock);
    if (cq->tail - cq->head >= cq->size) {
        lost = true;
        first_loss = !cq->overrun;
        cq->overrun = true;
    } else {
        cqe->time_ns = mk_clock_ns(CLOCK_REALTIME);
        cq->ring[cq->tail % cq->size] = *cqe;
        __atomic_store_n(&cq->tail, cq->tail + 1, __ATOMIC_RELEASE);
        bool error = cqe->wc.status != IBV_WC_SUCCESS;
        if (cq->armed == SOFTNIC_ARMED ||
            (cq->armed == SOFTNIC_ARMED_SOLICITED && (solicited || error))) {
            struct softnic_event event = {.serial = cq->serial};
            cq->armed = SOFTNIC_DISARMED;
            if (write(((struct softnic_channel *)cq->ibv.channel)->write_fd, &event,
                      sizeof(event)) != sizeof(event))
                /* thousands of unread events: the reader will find the CQ by those */
                first_loss = false;
        }
    }
    pthread_mutex_unlock(&cq->lock);
    if (first_loss)
        softnic_event_cq(cq, IBV_EVENT_CQ_ERR);
    if (lost && cqe->qp->ibv.state != IBV_QPS_ERR) {
        cqe->qp->ibv.state = cqe->qp->attr.qp_state = IBV_QPS_ERR;
        softnic_event_qp(cqe->qp, IBV_EVENT_QP_FATAL);
    }
}

/* A destroyed or reset QP takes its completions with it, as the driver of a real device sees to. */
void softnic_cq_forget(struct softnic_cq *cq, struct softnic_qp *qp)
{
    pthread_mutex_lock(&cq->lock);
    uint64_t kept = cq->head;
    for (uint64_t i = cq->head; i < cq->tail; i++)
        if (cq->ring[i % cq->size].qp != qp)
            cq->ring[kept++ % cq->size] = cq->ring[i % cq->size];
    __atomic_store_n(&cq->tail, kept, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&cq->lock);
}

/* Under cq->lock. Polling a completion is what frees the send queue entries up to it. */
int softnic_cq_poll_one(struct softnic_cq *cq, struct softnic_cqe *out)
{
    if (cq->head == cq->tail)
        return 0;
    *out = cq->ring[cq->head++ % cq->size];
    if (out->sq_release)
        __atomic_store_n(&out->qp->sq_polled, out->sq_release, __ATOMIC_RELEASE);
    return 1;
}

/* Under cq->lock; `newest`: the last completion that this poll took, NULL where it found none.
 * Whether the poller should let others have its core: pollers, their peers and the progress threads
 * are often more than the cores are. After many empty polls it waits for one of them. And so it
 * does, most likely, when nothing it asked for is under way any more; where it then spins on
 * memory, as ib_write_lat does, this is the last call that it makes. */
bool softnic_cq_should_yield(struct softnic_cq *cq, const struct softnic_cqe *newest)
{
    if (!newest)
        return ++cq->empty_polls % YIELD_AFTER == 0;
    cq->empty_polls = 0;
    return newest->last;
}

int softnic_poll_cq(struct ibv_cq *ibv, int entries, struct ibv_wc *wc)
{
    struct softnic_cq *cq = softnic_cq_of(ibv);
    struct softnic_cqe cqe;
    int count = 0;
    pthread_mutex_lock(&cq->lock);
    while (count < entries && softnic_cq_poll_one(cq, &cqe))
        wc[count++] = cqe.wc;
    bool yield = softnic_cq_should_yield(cq, count ? &cqe : NULL);
    pthread_mutex_unlock(&cq->lock);
    if (yield)
        sched_yield();
    return count;
}

int softnic_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
    struct softnic_cq *cq = softnic_cq_of(ibv);
    if (!ibv->channel)
        return EINVAL;
    pthread_mutex_lock(&cq->lock);
    if (cq->armed != SOFTNIC_ARMED)
        cq->armed = solicited_only ? SOFTNIC_ARMED_SOLICITED : SOFTNIC_ARMED;
    pthread_mutex_unlock(&cq->lock);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct softnic_channel *channel = calloc(1, sizeof(*channel));
    int fds[2], error = channel ? softnic_event_pipe(fds) : -ENOMEM;
    if (error) {
        free(channel);
        return softnic_none(-error);
    }
    channel->ibv.context = context;
    channel->ibv.fd = fds[0];
    channel->write_fd = fds[1];
    return &channel->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
    struct softnic_channel *channel = (struct softnic_channel *)ibv;
    struct softnic_context *ctx = softnic_context_of(ibv->context);
    pthread_mutex_lock(&ctx->lock);
    bool used = ibv->refcnt;
    pthread_mutex_unlock(&ctx->lock);
    if (used)
        return EBUSY;
    close(ibv->fd);
    close(channel->write_fd);
    free(channel);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **out, void **cq_context)
{
    struct softnic_context *ctx = softnic_context_of(channel->context);
    struct softnic_event event;
    struct softnic_cq *cq;
    do {
        if (read(channel->fd, &event, sizeof(event)) != sizeof(event))
            return -1;
        pthread_mutex_lock(&ctx->lock);
        for (cq = ctx->cqs; cq && cq->serial != event.serial;)
            cq = cq->next;
        if (cq) {
            pthread_mutex_lock(&cq->ibv.mutex);
            cq->events_delivered++;
            pthread_mutex_unlock(&cq->ibv.mutex);
        }
        pthread_mutex_unlock(&ctx->lock);
    } while (!cq);
    *out = &cq->ibv;
    *cq_context = cq->ibv.cq_context;
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    pthread_mutex_lock(&cq->mutex);
    cq->comp_events_completed += count;
    pthread_cond_broadcast(&cq->cond);
    pthread_mutex_unlock(&cq->mutex);
}
