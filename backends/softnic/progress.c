/* The progress thread of a context: sleeps in epoll until a socket or the timer has something, and
 * never spins. */
#include "gpu.h"
#include "srd.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { WAKE_NS = 50000 };

void softnic_qp_wake_at(struct softnic_qp *qp, uint64_t when)
{
    if (!qp->timer_ns || when < qp->timer_ns)
        qp->timer_ns = when;
    softnic_timer_at(softnic_context_of(qp->ibv.context), when);
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

static void progress_reap(struct softnic_context *ctx)
{
    for (struct softnic_link **at = &ctx->links; *at;) {
        struct softnic_link *link = *at;
        if (link->dead) {
            *at = link->next;
            softnic_srd_link_gone(ctx, link);
            softnic_link_free(link);
        } else {
            at = &link->next;
        }
    }
}

/* How long to sleep at most, ms. While the GPU copies for this context, or something is to leave
 * within what waking up takes, the thread looks again at once: a put of a chunk lasts no longer
 * than that. */
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
                    softnic_link_writable(link);
                if (!link->dead && (events[i].events & ~(uint32_t)EPOLLOUT))
                    softnic_link_readable(link);
            }
        }
        if (ctx->gpu && ctx->timer_set_ns && ctx->timer_set_ns <= softnic_now())
            progress_run_timers(ctx);
        softnic_gpu_poll(ctx);
        softnic_links_flush(ctx);
        progress_reap(ctx);
    }
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
    softnic_gpu_close(ctx);
    while (ctx->links) {
        struct softnic_link *link = ctx->links;
        ctx->links = link->next;
        softnic_link_free(link);
    }
    progress_close_all(ctx);
}
