/* What `mkernel bench fabric` measures, by the methods of perftest's ib_write_bw and ib_write_lat:
 * bandwidth with a window of puts under way, latency as half of a ping-pong. A put is the data and
 * its flag. */
#include "experiments/bench/bench_fabric.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLL_BATCH = 32 };

/* Flags take turns, and each rises by one from turn to turn, as those of launches do. */
static uint64_t bench_fabric_measure_value_of(const struct wire_message *t, uint64_t i)
{
    return t->first + i / FABRIC_FLAGS;
}

/* Puts of a test lie side by side in the region, as far as it goes. */
static struct fabric_put bench_fabric_measure_put_of(const struct wire_message *t, uint32_t peer,
                                                     uint64_t i)
{
    uint64_t stride = mk_round_up(t->bytes, 128), places = t->region / stride;
    struct fabric_put p = {.peer = peer,
                           .flag = (uint32_t)(i % FABRIC_FLAGS),
                           .value = bench_fabric_measure_value_of(t, i),
                           .bytes = t->bytes};
    p.source = p.destination = FABRIC_FLAG_BYTES + t->base + i % places * stride;
    return p;
}

/* Takes what has completed; stamps it where `when` is not NULL. Returns how many things there were,
 * or -errno. */
static int bench_fabric_measure_reap(struct fabric_end *e, uint64_t *when)
{
    struct fabric_completion c[POLL_BATCH];
    int n = e->fabric->ops->poll(e->fabric, c, POLL_BATCH);
    uint64_t now = when && n ? fabric_now() : 0;
    for (int i = 0; i < n; i++) {
        if (c[i].status)
            return mk_fail(-EIO, e->error, sizeof e->error, "a put failed: %.*s",
                           (int)sizeof c[i].detail, c[i].detail);
        if (c[i].cookie == FABRIC_NO_PUT)
            continue;
        if (when)
            when[e->completed] = now;
        e->completed++;
    }
    return n;
}

static int bench_fabric_measure_expired(struct fabric_end *e, const char *what)
{
    return mk_fail(-ETIMEDOUT, e->error, sizeof e->error, "%s did not come within %.1f s", what,
                   (double)e->timeout_ns / 1e9);
}

static void bench_fabric_measure_extend(struct fabric_end *e)
{
    e->deadline = fabric_now() + e->timeout_ns;
}

/* Starts what the window takes of the puts before `until`; returns how many, or -errno. */
static int bench_fabric_measure_start(struct fabric_end *e, const struct wire_message *t,
                                      uint64_t until, uint32_t depth, uint64_t *when)
{
    uint64_t first = e->started;
    while (e->started < until && e->started - e->completed < depth) {
        struct fabric_put p = bench_fabric_measure_put_of(t, 1 - e->rank, e->started);
        if (when)
            when[e->started] = fabric_now();
        int rc = e->fabric->ops->put(e->fabric, &p);
        if (rc == -EAGAIN)
            break;
        if (rc)
            return mk_fail(rc, e->error, sizeof e->error, "a put was refused: %s", strerror(-rc));
        e->started++;
    }
    return e->started != first ? (e->fabric->ops->flush(e->fabric), (int)(e->started - first)) : 0;
}

static int bench_fabric_measure_run_puts(struct fabric_end *e, const struct wire_message *t,
                                         uint32_t depth, uint64_t *posted, uint64_t *done)
{
    uint32_t spins = 0;
    e->started = e->completed = 0;
    bench_fabric_measure_extend(e);
    while (e->completed < t->iterations) {
        int started = bench_fabric_measure_start(e, t, t->iterations, depth, posted);
        int n = started < 0 ? started : bench_fabric_measure_reap(e, done);
        if (n < 0)
            return n;
        if (n || started)
            bench_fabric_measure_extend(e);
        else if (fabric_idle(e, &spins))
            return bench_fabric_measure_expired(e, "a completion");
    }
    return 0;
}

/* The best rate over any run of puts, from the posting of its first to the completion of its
 * last. */
static double bench_fabric_measure_peak_rate(const uint64_t *posted, const uint64_t *done,
                                             uint64_t n)
{
    double best = 0;
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = i; k < n; k++) {
            double rate = (double)(k - i + 1) / (double)(done[k] - posted[i] + 1);
            if (rate > best)
                best = rate;
        }
    return best * 1e9;
}

int measure_bandwidth(struct fabric_end *e, const struct wire_message *t, uint32_t depth,
                      struct bandwidth_result *out)
{
    uint64_t n = t->iterations;
    MK_FREED uint64_t *times = calloc(2 * n, sizeof *times);
    if (!times)
        return mk_fail(-ENOMEM, e->error, sizeof e->error, "no memory for %lu times", n);
    int rc = bench_fabric_measure_run_puts(e, t, depth, times, times + n);
    if (!rc) {
        double seconds = (double)(times[2 * n - 1] - times[0]) / 1e9;
        double peak = bench_fabric_measure_peak_rate(times, times + n, n < 5000 ? n : 5000);
        out->bytes = t->bytes;
        out->iterations = n;
        out->rate = (double)n / seconds;
        out->average = out->rate * (double)t->bytes;
        out->peak = peak * (double)t->bytes;
    }
    return rc;
}

/* Over EFA, what comes is counted; over verbs there is only a sender's QP to be recovered, now and
 * then. */
int receive_until_told(struct fabric_end *e, const struct wire *w)
{
    enum { REST_MS = 20, RECOVERY_POLLS = 64 };
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    uint32_t spins = 0;
    while (!poll(&p, 1, e->efa ? 0 : REST_MS)) {
        int n = bench_fabric_measure_reap(e, NULL);
        for (int i = 0; i < RECOVERY_POLLS && !e->efa && n >= 0; i++)
            n = bench_fabric_measure_reap(e, NULL);
        if (n < 0)
            return n;
        if (!n && ++spins % 64 == 0)
            sched_yield();
    }
    return 0;
}

int check_bandwidth(struct fabric_end *e, const struct wire_message *t)
{
    uint64_t from = t->iterations > FABRIC_FLAGS ? t->iterations - FABRIC_FLAGS : 0;
    uint64_t stride = mk_round_up(t->bytes, 128), places = t->region / stride;
    const uint64_t *words = (const uint64_t *)(void *)e->heap;
    int n;
    do /* all have completed at the sender: they are here, and over EFA wait to be counted */
        n = bench_fabric_measure_reap(e, NULL);
    while (n > 0);
    if (n < 0)
        return n;
    for (uint64_t i = from; i < t->iterations; i++)
        if (__atomic_load_n(&words[i % FABRIC_FLAGS], __ATOMIC_ACQUIRE) !=
            bench_fabric_measure_value_of(t, i))
            return mk_fail(-EBADMSG, e->error, sizeof e->error,
                           "put %lu completed at the sender and its flag did not arrive", i);
    for (uint64_t place = 0; place < places && place < t->iterations; place++) {
        uint64_t first = (FABRIC_FLAG_BYTES + t->base + place * stride) / 8;
        for (uint64_t w = first; w < first + t->bytes / 8; w++)
            if (words[w] != w) { /* the sender's word w holds w */
                return mk_fail(-EBADMSG, e->error, sizeof e->error, "wrong bytes arrived at %lu",
                               w * 8);
            }
    }
    return 0;
}

/* Before both begin: what goes out holds what check_bandwidth looks for, what comes in does not. */
static void bench_fabric_measure_prepare(struct fabric_end *e, const struct wire_message *t,
                                         int outgoing)
{
    uint64_t *words = (uint64_t *)(void *)e->heap, first = (FABRIC_FLAG_BYTES + t->base) / 8;
    for (uint64_t w = first; w < first + t->region / 8; w++)
        words[w] = outgoing ? w : ~w;
}

int measure_bidirectional(struct fabric_end *e, struct wire *w, const struct wire_message *t,
                          struct bandwidth_result *out)
{
    struct wire_message sent = *t, got = *t, mine = {.kind = WIRE_DONE}, other = {0};
    uint64_t usual = w->timeout_ns;
    sent.region = got.region = t->region / 2 / 4096 * 4096;
    sent.base = e->rank ? sent.region : 0;
    got.base = e->rank ? 0 : got.region;
    bench_fabric_measure_prepare(e, &sent, 1);
    bench_fabric_measure_prepare(e, &got, 0);
    /* both are ready before either begins */
    int rc = wire_send(w, &mine);
    rc = rc ? rc : wire_receive(w, WIRE_DONE, &other);
    rc = rc ? rc : measure_bandwidth(e, &sent, (uint32_t)t->depth, out);
    mine = (struct wire_message){.kind = WIRE_DONE, .status = rc};
    mine.bytes = rc ? 0 : (uint64_t)out->average;
    mine.iterations = rc ? 0 : (uint64_t)out->peak;
    mine.first = rc ? 0 : (uint64_t)out->rate;
    rc = rc ? rc : wire_send(w, &mine);
    rc = rc ? rc : receive_until_told(e, w);
    w->timeout_ns = UINT64_MAX / 4; /* as long as the other end lives: its own waits are bounded */
    rc = rc ? rc : wire_receive(w, WIRE_DONE, &other);
    w->timeout_ns = usual;
    rc = rc ? rc : check_bandwidth(e, &got);
    if (!rc) {
        out->average += (double)other.bytes;
        out->peak += (double)other.iterations;
        out->rate += (double)other.first;
    }
    return rc;
}

static int bench_fabric_measure_one_put(struct fabric_end *e, const struct wire_message *t,
                                        uint64_t i)
{
    uint32_t spins = 0;
    int rc;
    struct fabric_put p = bench_fabric_measure_put_of(t, 1 - e->rank, i);
    while ((rc = e->fabric->ops->put(e->fabric, &p)) == -EAGAIN)
        if ((rc = bench_fabric_measure_reap(e, NULL)) < 0 || (!rc && (rc = fabric_idle(e, &spins))))
            return rc;
    if (rc)
        snprintf(e->error, sizeof e->error, "a put was refused: %s", strerror(-rc));
    else
        e->fabric->ops->flush(e->fabric);
    return rc;
}

static int bench_fabric_measure_await(struct fabric_end *e, const struct wire_message *t,
                                      uint64_t i)
{
    uint32_t spins = 0;
    const uint64_t *flag = (const uint64_t *)(void *)e->heap + i % FABRIC_FLAGS;
    bench_fabric_measure_extend(e);
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) != bench_fabric_measure_value_of(t, i)) {
        /* over EFA it is this that raises the flag */
        int n = !e->efa && spins % 256 ? 0 : bench_fabric_measure_reap(e, NULL);
        if (n < 0)
            return n;
        if (fabric_idle(e, &spins))
            return bench_fabric_measure_expired(e, "the other end's put");
    }
    return 0;
}

static void bench_fabric_measure_summarise(double *us, uint64_t n, struct latency_result *out)
{
    double sum = 0, squares = 0;
    mk_sort(us, n);
    for (uint64_t i = 0; i < n; i++)
        sum += us[i];
    out->average = sum / (double)n;
    for (uint64_t i = 0; i < n; i++)
        squares += (us[i] - out->average) * (us[i] - out->average);
    out->deviation = sqrt(squares / (double)n);
    out->min = us[0];
    out->max = us[n - 1];
    out->typical = us[n / 2];
    out->p95 = us[(uint64_t)ceil((double)n * 0.95) - 1];
    out->p99 = us[(uint64_t)ceil((double)n * 0.99) - 1];
    out->p999 = us[(uint64_t)ceil((double)n * 0.999) - 1];
}

/* Both ends call it; rank 0 serves and measures. */
int measure_latency(struct fabric_end *e, const struct wire_message *t, struct latency_result *out)
{
    enum { WARM_UP = 20 };
    uint64_t n = t->iterations + WARM_UP;
    MK_FREED double *us = e->rank ? NULL : calloc(t->iterations, sizeof *us);
    int rc = e->rank || us ? 0 : -ENOMEM;
    e->started = e->completed = 0;
    for (uint64_t i = 0; i < n && !rc; i++) {
        uint64_t from = fabric_now();
        bench_fabric_measure_extend(e);
        if (!e->rank)
            rc = bench_fabric_measure_one_put(e, t, i);
        rc = rc ? rc : bench_fabric_measure_await(e, t, i);
        if (!rc && e->rank)
            rc = bench_fabric_measure_one_put(e, t, i);
        if (us && i >= WARM_UP)
            us[i - WARM_UP] = (double)(fabric_now() - from) / 2e3;
    }
    uint32_t spins = 0;
    while (!rc && e->completed < n) { /* nothing of this test may complete in the next */
        int got = bench_fabric_measure_reap(e, NULL);
        rc = got < 0                          ? got
             : !got && fabric_idle(e, &spins) ? bench_fabric_measure_expired(e, "a completion")
                                              : 0;
    }
    if (!rc && us) {
        out->bytes = t->bytes;
        out->iterations = t->iterations;
        bench_fabric_measure_summarise(us, t->iterations, out);
    }
    return rc;
}
