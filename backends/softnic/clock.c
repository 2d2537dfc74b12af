/* Time on the wire: shaping (bandwidth, latency), and the faults that options ask for. */
#include "nic.h"
#include "core/base/clock.h"
#include "core/base/random.h"

#include <sys/timerfd.h>
#include <time.h>

#define GPU_BYTES_PER_NS 50.0 /* 400 Gb/s */
enum { GPU_LATENCY_NS = 3000 };

uint64_t softnic_now(void)
{
    return mk_now_ns();
}

double softnic_random_unit(struct softnic_context *ctx)
{
    return mk_random_unit(&ctx->random);
}

static uint64_t clock_occupy(uint64_t *free_at, uint64_t from, uint64_t bytes, double bytes_per_ns)
{
    uint64_t start = *free_at > from ? *free_at : from;
    *free_at = start + (bytes_per_ns > 0 ? (uint64_t)((double)bytes / bytes_per_ns) : 0);
    return *free_at;
}

/* A request takes its turn on the wire when it is posted: the wire is a queue that serves requests
 * in posting order. A READ's bytes use the wire's other direction, after the request has
 * crossed. */
void softnic_shape(struct softnic_context *ctx, struct softnic_wqe *wqe)
{
    const struct softnic_options *o = &ctx->options;
    uint64_t nth = ++ctx->messages;
    bool delayed = o->delay_ns && (o->delay_nth ? nth == o->delay_nth
                                                : o->delay_chance >= 1 ||
                                                      softnic_random_unit(ctx) < o->delay_chance);

    /* A device beside a GPU is as fast as those of the clusters that it stands for, unless
     * something else was asked. */
    double rate = o->bytes_per_ns >= 0 ? o->bytes_per_ns : ctx->shares ? GPU_BYTES_PER_NS : 0;
    uint64_t latency = o->latency_ns != SOFTNIC_NOT_GIVEN ? o->latency_ns
                       : ctx->shares                      ? GPU_LATENCY_NS
                                                          : 0;
    wqe->release_ns = wqe->due_ns = 0;
    if (!delayed && !latency && rate <= 0)
        return;
    uint64_t now = softnic_now(), extra = latency + (delayed ? o->delay_ns : 0);
    if (wqe->opcode == IBV_WR_RDMA_READ) {
        wqe->release_ns = now + extra;
        wqe->due_ns = clock_occupy(&ctx->in_free_ns, wqe->release_ns, wqe->length, rate) + latency;
    } else {
        wqe->release_ns = clock_occupy(&ctx->link_free_ns, now, wqe->length, rate) + extra;
        wqe->due_ns = wqe->release_ns + latency;
    }
}

bool softnic_drops(struct softnic_context *ctx, int device)
{
    return ctx->options.drop_device == device && ctx->messages >= ctx->options.drop_after;
}

/* The progress thread wakes at the earliest time that was asked for, and then asks all users
 * again. */
void softnic_timer_at(struct softnic_context *ctx, uint64_t when_ns)
{
    if (ctx->timer_set_ns && ctx->timer_set_ns <= when_ns)
        return;
    struct itimerspec spec = {
        .it_value = {(time_t)(when_ns / 1000000000u), (long)(when_ns % 1000000000u)}};
    ctx->timer_set_ns = when_ns;
    timerfd_settime(ctx->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}
