/* Asynchronous events of a context: a pipe of small records, so that async_fd can be polled. */
#include "nic.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* The write end never blocks: the device must not wait for an application that does not read its
 * events. */
int softnic_event_pipe(int fds[2])
{
    if (pipe2(fds, O_CLOEXEC))
        return -errno;
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    return 0;
}

static void event_raise_event(struct softnic_context *ctx, uint64_t serial,
                              enum ibv_event_type type, bool qp)
{
    struct softnic_event event = {.serial = serial, .type = type, .qp = qp};
    if (write(ctx->event_write_fd, &event, sizeof(event)) != sizeof(event))
        return; /* the pipe is full of unread events */
}

void softnic_event_qp(struct softnic_qp *qp, enum ibv_event_type type)
{
    event_raise_event(softnic_qp_context(qp), qp->serial, type, true);
}

void softnic_event_cq(struct softnic_cq *cq, enum ibv_event_type type)
{
    event_raise_event(softnic_context_of(cq->ibv.context), cq->serial, type, false);
}

void softnic_event_device(struct softnic_context *ctx, enum ibv_event_type type)
{
    event_raise_event(ctx, 0, type, false);
}

static bool event_resolve(struct softnic_context *ctx, const struct softnic_event *raw,
                          struct ibv_async_event *event)
{
    bool found = !raw->serial; /* the device's own: there is nothing to find */
    event->event_type = (enum ibv_event_type)raw->type;
    pthread_mutex_lock(&ctx->lock);
    for (uint32_t i = 0; raw->qp && i < ctx->qp_top && !found; i++)
        if (ctx->qp[i] && ctx->qp[i]->serial == raw->serial) {
            struct softnic_qp *qp = ctx->qp[i];
            pthread_mutex_lock(&qp->ibv.mutex);
            qp->events_delivered++;
            pthread_mutex_unlock(&qp->ibv.mutex);
            event->element.qp = &qp->ibv;
            found = true;
        }
    for (struct softnic_cq *cq = ctx->cqs; !raw->qp && cq && !found; cq = cq->next)
        if (cq->serial == raw->serial) {
            pthread_mutex_lock(&cq->ibv.mutex);
            cq->async_delivered++;
            pthread_mutex_unlock(&cq->ibv.mutex);
            event->element.cq = &cq->ibv;
            found = true;
        }
    pthread_mutex_unlock(&ctx->lock);
    return found;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    struct softnic_event raw;
    do {
        if (read(context->async_fd, &raw, sizeof(raw)) != sizeof(raw))
            return -1;
    } while (!event_resolve(softnic_context_of(context), &raw, event)); /* its QP or CQ is gone */
    return 0;
}

static bool event_is_cq_event(enum ibv_event_type type)
{
    return type == IBV_EVENT_CQ_ERR;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    if (event->event_type == IBV_EVENT_DEVICE_FATAL)
        return; /* no thread waits for it */
    pthread_mutex_t *mutex = event_is_cq_event(event->event_type) ? &event->element.cq->mutex
                                                                  : &event->element.qp->mutex;
    pthread_cond_t *cond =
        event_is_cq_event(event->event_type) ? &event->element.cq->cond : &event->element.qp->cond;
    pthread_mutex_lock(mutex);
    if (event_is_cq_event(event->event_type))
        event->element.cq->async_events_completed++;
    else
        event->element.qp->events_completed++;
    pthread_cond_broadcast(cond);
    pthread_mutex_unlock(mutex);
}
