/* The progress thread of a context: sleeps in epoll until a socket or the timer has something, and
 * never spins. */
#include "gpu.h"
#include "srd.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { WAKE_NS = 50000 };

/* The socket has room again. Only the progress thread stops waiting for that: another thread that
 * empties the buffer leaves it to the event to wake those QPs that found the buffer full. */
static void progress_writable(struct softnic_link *link)
{
    softnic_link_flush(link);
    if (link->dead || softnic_link_pending(link))
        return;
    softnic_link_watch(link, false);
    if (link->requester)
        softnic_requester_link_ready(link->context, link);
}

static bool progress_can_read(struct softnic_link *link, uint64_t address, uint64_t expected)
{
    uint64_t seen = 0;
    struct iovec to = {&seen, sizeof(seen)};
    struct softnic_segment from = {address, sizeof(seen)};
    return link->context->options.copy != SOFTNIC_COPY_STREAM && link->peer_pid > 0 &&
           !softnic_pull(link, &to, 1, &from, 1, sizeof(seen)) && seen == expected;
}

/* The two ends introduce themselves, and each finds out whether it can copy out of the other's
 * memory. */
static void progress_introduce(struct softnic_link *link, const struct softnic_message *message)
{
    const struct softnic_frame *head = &message->head;
    if (link->requester) {
        if (head->kind != SOFTNIC_WELCOME || link->ready) {
            softnic_link_kill(link);
            return;
        }
        link->peer_pulls = head->flags & SOFTNIC_FLAG_PULL;
        link->pulls = progress_can_read(link, head->address, head->operand[0]);
        link->ready = true;
        softnic_share_announce(link);
        softnic_requester_link_ready(link->context, link);
        return;
    }
    int device = (int)(head->qpn_from >> SOFTNIC_QP_BITS);
    if (head->kind != SOFTNIC_HELLO || link->ready || softnic_drops(link->context, device)) {
        softnic_link_kill(link);
        return;
    }
    link->peer_device = device;
    link->peer_context = (int)(head->qpn_from & (SOFTNIC_MAX_CONTEXT - 1));
    link->ready = true;
    struct softnic_frame welcome = {.kind = SOFTNIC_WELCOME,
                                    .address = (uintptr_t)&link->hello_word,
                                    .operand = {link->hello_word}};
    if (progress_can_read(link, head->address, head->operand[0]))
        welcome.flags = SOFTNIC_FLAG_PULL;
    softnic_link_send(link, &welcome, NULL, 0);
}

static void progress_dispatch(struct softnic_link *link, const struct softnic_message *message)
{
    unsigned kind = message->head.kind;
    if (kind <= SOFTNIC_WELCOME)
        progress_introduce(link, message);
    else if (!link->ready || link->requester != (kind >= SOFTNIC_ACK))
        softnic_link_kill(link); /* a response on a request link, or the other way round */
    else if (kind == SOFTNIC_SHARE)
        softnic_share_take(link, message);
    else if (kind == SOFTNIC_SHARED)
        softnic_share_answered(link, message);
    else if (link->requester)
        softnic_requester_response(link, message);
    else
        softnic_responder_request(link, message);
}

/* A handler may let go of the lock while it copies; the link stays, only this thread frees it. */
static void progress_readable(struct softnic_link *link)
{
    struct softnic_message message;
    ssize_t n =
        recv(link->fd, link->in + link->in_have, sizeof(link->in) - link->in_have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        softnic_link_kill(link);
        return;
    }
    link->in_have += (size_t)n;
    size_t at = 0;
    while (!link->dead) {
        ssize_t used = softnic_frame_parse(link->in + at, link->in_have - at, &message);
        if (used < 0)
            softnic_link_kill(link);
        if (used <= 0)
            break;
        at += (size_t)used;
        progress_dispatch(link, &message);
    }
    link->in_have -= at;
    memmove(link->in, link->in + at, link->in_have);
    softnic_gpu_start(link->context);
    softnic_gpu_poll(link->context);
    if (!link->requester && !link->dead)
        softnic_link_flush_acks(link);
}

static void progress_run_timers(struct softnic_context *ctx)
{
    uint64_t expirations;
    if (read(ctx->timer_fd, &expirations, sizeof(expirations)) < 0 && errno != EAGAIN)
        return;
    ctx->timer_set_ns = 0;
    uint64_t now = softnic_now();
    for (uint32_t i = 0; i < ctx->qp_top; i++) {
        struct softnic_qp *qp = ctx->qp[i];
        if (!qp || !qp->timer_ns)
            continue;
        if (qp->timer_ns <= now) {
            qp->timer_ns = 0;
            softnic_requester_timer(qp, now);
        }
        if (ctx->qp[i] == qp && qp->timer_ns)
            softnic_timer_at(ctx, qp->timer_ns);
    }
}

/* The link is in no list any more. */
static void progress_free(struct softnic_link *link)
{
    softnic_gpu_forget_link(link->context, link);
    if (link->mappings) {
        softnic_gpu_settle(link->context);          /* nothing copies out of them any more */
        pthread_mutex_unlock(&link->context->lock); /* unmapping may wait for a kernel that runs */
        softnic_share_unmap_all(link);
        pthread_mutex_lock(&link->context->lock);
    }
    /* a child that was forked just now may still hold the socket: closing it here would not end its
     * events, which name this link */
    epoll_ctl(link->context->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
    close(link->fd);
    free(link->out);
    free(link);
}

/* Fails the requests that were in flight on a dead link. On this thread alone. */
static void progress_reap(struct softnic_context *ctx)
{
    for (struct softnic_link **at = &ctx->links; *at;) {
        struct softnic_link *link = *at;
        if (link->dead) {
            *at = link->next;
            if (link->requester)
                softnic_requester_link_lost(ctx, link);
            else
                softnic_srd_link_gone(ctx, link);
            progress_free(link);
        } else {
            at = &link->next;
        }
    }
}

/* How long to sleep at most, ms. 0 while the GPU copies for this context, or if something is to
 * leave sooner than the thread could wake up: waking up takes as long as a put of a chunk. */
static int progress_patience(struct softnic_context *ctx)
{
    if (softnic_gpu_busy(ctx))
        return 0;
    return ctx->gpu && ctx->timer_set_ns && ctx->timer_set_ns < softnic_now() + WAKE_NS ? 0 : -1;
}

static void *progress(void *argument)
{
    struct softnic_context *ctx = argument;
    struct epoll_event events[32];
    pthread_mutex_lock(&ctx->lock);
    while (!ctx->stop) {
        int timeout = progress_patience(ctx);
        pthread_mutex_unlock(&ctx->lock);
        int count = epoll_wait(ctx->epoll_fd, events, 32, timeout);
        if (!count)
            sched_yield();
        pthread_mutex_lock(&ctx->lock);
        for (int i = 0; i < count && !ctx->stop; i++) {
            void *source = events[i].data.ptr;
            if (source == &ctx->listen_fd) {
                softnic_link_accept(ctx);
            } else if (source == &ctx->timer_fd) {
                progress_run_timers(ctx);
            } else if (source != &ctx->wake_fd) {
                struct softnic_link *link = source;
                if (!link->dead && (events[i].events & EPOLLOUT))
                    progress_writable(link);
                if (!link->dead && (events[i].events & ~(uint32_t)EPOLLOUT))
                    progress_readable(link);
            }
        }
        if (ctx->gpu && ctx->timer_set_ns && ctx->timer_set_ns <= softnic_now())
            progress_run_timers(ctx);
        softnic_gpu_poll(ctx);
        softnic_links_flush(ctx);
        progress_reap(ctx);
    }
    for (struct softnic_link *link = ctx->links; link; link = link->next)
        softnic_link_kill(link);
    progress_reap(ctx);
    softnic_gpu_close(ctx);
    pthread_mutex_unlock(&ctx->lock);
    return NULL;
}

static int progress_watch(struct softnic_context *ctx, int *fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = fd};
    return *fd < 0 || epoll_ctl(ctx->epoll_fd, EPOLL_CTL_ADD, *fd, &event) ? -errno : 0;
}

static void progress_close_all(struct softnic_context *ctx)
{
    int fds[] = {ctx->listen_fd, ctx->epoll_fd, ctx->wake_fd, ctx->timer_fd};
    for (int i = 0; i < 4; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* In the child of a fork: the sockets belong to the parent. A copy left open here would hide the
 * parent's death. */
void softnic_progress_forked(struct softnic_context *ctx)
{
    for (struct softnic_link *link = ctx->links; link; link = link->next)
        close(link->fd);
    progress_close_all(ctx);
}

int softnic_progress_start(struct softnic_context *ctx)
{
    sigset_t all, before;
    ctx->listen_fd = -1;
    ctx->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    ctx->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ctx->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int error = softnic_link_listen(ctx);
    if (!error)
        error = progress_watch(ctx, &ctx->listen_fd);
    if (!error)
        error = progress_watch(ctx, &ctx->wake_fd);
    if (!error)
        error = progress_watch(ctx, &ctx->timer_fd);
    if (!error && ctx->options.copy == SOFTNIC_COPY_DIRECT)
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0,
              0); /* fails where there is no Yama, which needs none */
    if (!error) {
        /* The application's signals are for the application's threads. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = -pthread_create(&ctx->thread, NULL, progress, ctx);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (error)
        progress_close_all(ctx);
    return error;
}

void softnic_progress_stop(struct softnic_context *ctx)
{
    uint64_t one = 1;
    pthread_mutex_lock(&ctx->lock);
    ctx->stop = true;
    pthread_mutex_unlock(&ctx->lock);
    if (write(ctx->wake_fd, &one, sizeof(one)) != sizeof(one))
        return; /* cannot happen: the counter is far from full */
    pthread_join(ctx->thread, NULL);
    progress_close_all(ctx);
}
