/* The host executor, form (a): a rank is a process, its CTAs are coroutines on one thread, time and
 * fabric are real. */
#include "backends/wall_clock.h"
#include "core/comm.h"
#include "sim/compute.h"
#include "sim/host_heap.h"
#include "sim/op.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE 256 /* launches that may be asked for before one is done */

/* Waits look around this often, allow a CTA this much beyond the timeout, which is the bound of its
 * own waits, and this much once the job has failed: its waits end at once then, and what it
 * computes shows that it goes on. */
#define LOOK_NS 50000000ull
#define BEYOND_NS 300000000ull
#define LINGER_NS 300000000ull

struct launch {
    struct mk_plan *plan;
    uint64_t epoch;
    void *arguments[MK_SPACES - 1];
};

struct host_plan {
    uint64_t epoch; /* of the last launch asked for */
    struct compute *compute;
};

struct host_executor {
    struct mk_comm *comm;
    struct sim_rank rank;
    struct host_plan plans[COMM_MOST_PLANS]; /* by slot */
    struct compute *compute;                 /* of the launch that runs */
    struct coroutine_pool *pool;
    uint32_t cta_count; /* of the largest plan so far */
    pthread_t thread;
    int threaded;
    pthread_mutex_t lock;
    pthread_cond_t asked, done;
    struct launch queue[QUEUE];
    uint64_t head, tail; /* launches asked for, launches done */
    int stop;            /* atomic; the communicator closes */
    int ended;           /* the thread has */
    uint64_t beats;      /* atomic; grows while CTAs go on */
    uint32_t running;    /* atomic; the CTA that runs; UINT32_MAX: none */
};

static int exec_host_job_failed(void *context)
{
    struct host_executor *h = context;
    return __atomic_load_n(&h->stop, __ATOMIC_RELAXED) || comm_failed(h->comm);
}

static void exec_host_fail_job(void *context, const struct mk_failure *failure)
{
    struct host_executor *h = context;
    /* a CTA that closing cut short has not failed */
    if (!__atomic_load_n(&h->stop, __ATOMIC_RELAXED))
        comm_fail(h->comm, failure);
}

static void exec_host_do_math(struct sim_cta *cta, const struct mk_tile *tile)
{
    struct host_executor *h = cta->rank->context;
    compute_tile(h->compute, cta, tile);
}

/* No CTA could go on: spin in case that lasts nanoseconds, then give the core to another rank, then
 * sleep. */
static void exec_host_back_off(uint32_t idle)
{
    if (idle < 32)
        return;
    if (idle < 64) {
        sched_yield();
        return;
    }
    struct timespec t = {0, idle < 256 ? 10000 : 100000};
    nanosleep(&t, NULL);
}

static void exec_host_run_launch(struct host_executor *h, const struct launch *launch)
{
    struct sim_rank *r = &h->rank;
    r->plan = launch->plan;
    r->op = sim_op_of(launch->plan->problem.op);
    r->epoch = launch->epoch;
    for (int i = 0; i < MK_SPACES - 1; i++)
        r->spaces[MK_SPACE_ARG0 + i] = launch->arguments[i];
    h->compute = h->plans[launch->plan->slot].compute;
    compute_load_b(h->compute, launch->arguments, &h->beats);
    r->cta_count = mk_total_ctas(&launch->plan->problem.tuning.split);
    for (uint32_t i = 0; i < r->cta_count; i++)
        sim_cta_begin(&r->ctas[i], r, i);

    uint32_t left = r->cta_count, idle = 0;
    while (left) {
        uint64_t now = wall_clock(NULL);
        int failed = exec_host_job_failed(h), moved = 0;
        for (uint32_t i = 0; i < r->cta_count; i++) {
            struct sim_cta *c = &r->ctas[i];
            if (!sim_cta_runnable(c, now, failed))
                continue;
            moved = 1;
            __atomic_store_n(&h->running, i, __ATOMIC_RELAXED);
            if (!coroutine_resume(c->coroutine))
                left--;
            __atomic_fetch_add(&h->beats, 1, __ATOMIC_RELAXED);
        }
        __atomic_store_n(&h->running, UINT32_MAX, __ATOMIC_RELAXED);
        idle = moved ? 0 : idle + 1;
        if (idle)
            exec_host_back_off(idle);
    }
    for (uint32_t i = 0; i < r->cta_count && !__atomic_load_n(&h->stop, __ATOMIC_RELAXED); i++)
        h->comm->tracks[i] = r->ctas[i].track;
}

static void *exec_host_executor_main(void *argument)
{
    struct host_executor *h = argument;
    pthread_mutex_lock(&h->lock);
    for (;;) {
        while (h->head == h->tail && !h->stop)
            pthread_cond_wait(&h->asked, &h->lock);
        if (h->stop)
            break;
        struct launch launch = h->queue[h->tail % QUEUE];
        pthread_mutex_unlock(&h->lock);
        if (!exec_host_job_failed(h))
            exec_host_run_launch(h, &launch);
        pthread_mutex_lock(&h->lock);
        h->tail++;
        pthread_cond_broadcast(&h->done);
    }
    h->ended = 1;
    pthread_cond_broadcast(&h->done);
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static uint32_t exec_host_sms(struct mk_comm *comm)
{
    return 0;
}

static int exec_host_open(struct mk_comm *comm)
{
    struct host_executor *h = calloc(1, sizeof *h);
    if (!h) {
        snprintf(comm->error, sizeof comm->error, "no memory for the host executor");
        return -ENOMEM;
    }
    comm->exec_state = h;
    snprintf(comm->device, sizeof comm->device, "host");
    h->comm = comm;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->asked, NULL);
    mk_cond_init(&h->done);
    h->running = UINT32_MAX;
    comm->exec_beats = &h->beats;
    int result = host_heap_open(comm);
    if (result)
        return result;
    result = coroutine_pool_create(&h->pool, 0);
    if (!result)
        result = host_rings_open(comm);
    comm->track_warps = 1;
    h->rank = (struct sim_rank){.rings = comm->rings,
                                .now = wall_clock,
                                .failed = exec_host_job_failed,
                                .fail = exec_host_fail_job,
                                .math = exec_host_do_math,
                                .beats = &h->beats,
                                .context = h};
    h->rank.spaces[MK_SPACE_HEAP] = comm->heap.base;
    for (uint32_t i = 0; i < MK_MAX_LOCAL; i++)
        h->rank.peers[i] = comm->heap.peers[i];
    if (!result) {
        result = -pthread_create(&h->thread, NULL, exec_host_executor_main, h);
        h->threaded = !result;
    }
    if (result)
        snprintf(comm->error, sizeof comm->error, "the host executor can't start: %s",
                 strerror(-result));
    return result;
}

/* A CTA does not wait, and does not come back either: the job fails for that. */
static void exec_host_fail_silent(struct host_executor *h, uint64_t silent_ns)
{
    uint32_t cta = __atomic_load_n(&h->running, __ATOMIC_RELAXED);
    const struct launch *launch = &h->queue[h->tail % QUEUE];
    const struct mk_plan *plan = launch->plan;
    struct mk_failure f = {.kind = MK_FAIL_TIMEOUT,
                           .op = plan->problem.op,
                           .rank = h->comm->topo.rank,
                           .cta = cta,
                           .role = cta < h->cta_count ? (uint32_t)h->rank.ctas[cta].cta.role : 0,
                           .flag = UINT32_MAX,
                           .chunk = UINT32_MAX,
                           .producer = h->comm->topo.rank,
                           .epoch = launch->epoch,
                           .waited_ns = silent_ns};
    snprintf(f.what, sizeof f.what, "%s",
             cta < h->cta_count ? "its own computation to go on" : "the executor to go on");
    comm_fail(h->comm, &f);
}

/* With the lock held: waits until at most `left` launches are left or, with left UINT64_MAX, the
 * thread has ended. 0, or -ETIMEDOUT where a CTA hangs, and will not see that the job has
 * failed. */
static int exec_host_wait_until(struct host_executor *h, uint64_t left)
{
    uint64_t start = wall_clock(NULL), moved_at = start, failed_at = 0,
             seen = __atomic_load_n(&h->beats, __ATOMIC_RELAXED);
    int told = 0;
    while (left == UINT64_MAX ? !h->ended : h->head - h->tail > left) {
        uint64_t until = wall_clock(NULL) + LOOK_NS, tail = h->tail;
        mk_cond_wait_until(&h->done, &h->lock, until);
        uint64_t now = wall_clock(NULL), beats = __atomic_load_n(&h->beats, __ATOMIC_RELAXED);
        if (beats != seen || tail != h->tail)
            moved_at = now;
        seen = beats;
        if (!failed_at && comm_failed(h->comm))
            failed_at = now;
        if (failed_at && now - failed_at > LINGER_NS && now - moved_at > LINGER_NS)
            return -ETIMEDOUT;
        if (!failed_at && now - moved_at > h->comm->config.timeout_ns + BEYOND_NS) {
            /* closing; or a communicator without a bootstrap, where no other rank can be told */
            if (told || h->stop)
                return -ETIMEDOUT;
            told = 1;
            if (h->head != h->tail)
                exec_host_fail_silent(h, now - moved_at);
        }
    }
    return 0;
}

static int exec_host_wait_idle(struct host_executor *h)
{
    pthread_mutex_lock(&h->lock);
    int result = exec_host_wait_until(h, 0);
    pthread_mutex_unlock(&h->lock);
    return result;
}

/* Makes CTAs and tracks up to `count`. Nothing runs meanwhile. */
static int exec_host_grow(struct host_executor *h, uint32_t count)
{
    struct mk_comm *comm = h->comm;
    struct sim_cta *ctas = realloc(h->rank.ctas, count * sizeof *ctas);
    if (!ctas)
        return -ENOMEM;
    h->rank.ctas = ctas;
    uint64_t *progress = realloc(comm->progress, count * sizeof *progress);
    if (!progress)
        return -ENOMEM;
    h->rank.progress = comm->progress = progress;
    struct mk_track *tracks = realloc(comm->tracks, count * sizeof *tracks);
    if (!tracks)
        return -ENOMEM;
    comm->tracks = tracks;
    while (h->cta_count < count) {
        struct sim_cta *c = &ctas[h->cta_count];
        memset(c, 0, sizeof *c);
        if (coroutine_create(&c->coroutine, h->pool))
            return -ENOMEM;
        c->track.capacity = comm->config.trace_events;
        c->track.events =
            c->track.capacity ? malloc(c->track.capacity * sizeof *c->track.events) : NULL;
        progress[h->cta_count] = 0;
        tracks[h->cta_count] = c->track;
        comm->track_count = comm->progress_count = ++h->cta_count;
        if (c->track.capacity && !c->track.events)
            return -ENOMEM;
    }
    return 0;
}

static int exec_host_plan(struct mk_comm *comm, struct mk_plan *plan)
{
    struct host_executor *h = comm->exec_state;
    uint32_t count = mk_total_ctas(&plan->problem.tuning.split);
    int result = exec_host_wait_idle(h);
    if (!result && count > h->cta_count)
        result = exec_host_grow(h, count);
    if (!result)
        result = compute_create(&h->plans[plan->slot].compute, plan);
    if (result == -ENOMEM)
        snprintf(comm->error, sizeof comm->error,
                 "%s: no memory for a rank's tiles (OpenBLAS alone takes 128 MB of address space "
                 "of each; does `ulimit -v` allow less?)",
                 plan_op_name(plan->problem.op));
    else if (result)
        snprintf(comm->error, sizeof comm->error, "%s on the host: %s",
                 plan_op_name(plan->problem.op), strerror(-result));
    return result;
}

static int exec_host_unplan(struct mk_comm *comm, struct mk_plan *plan)
{
    struct host_executor *h = comm->exec_state;
    struct host_plan *p = &h->plans[plan->slot];
    compute_destroy(p->compute);
    *p = (struct host_plan){0};
    host_heap_clear(comm, plan);
    return 0;
}

static int exec_host_launch(struct mk_comm *comm, struct mk_plan *plan,
                            void *const arguments[MK_SPACES - 1], void *stream)
{
    struct host_executor *h = comm->exec_state;
    struct launch launch = {.plan = plan, .epoch = ++h->plans[plan->slot].epoch};
    memcpy(launch.arguments, arguments, sizeof launch.arguments);
    pthread_mutex_lock(&h->lock);
    int result = exec_host_wait_until(h, QUEUE - 1);
    if (!result)
        h->queue[h->head++ % QUEUE] = launch;
    pthread_cond_signal(&h->asked);
    pthread_mutex_unlock(&h->lock);
    return result;
}

static int exec_host_wait(struct mk_comm *comm)
{
    int result = exec_host_wait_idle(comm->exec_state);
    return comm_failed(comm) ? -EIO : result;
}

static int exec_host_forget(struct mk_comm *comm)
{
    struct host_executor *h = comm->exec_state;
    for (uint32_t i = 0; i < h->cta_count; i++) {
        struct mk_track *t = &h->rank.ctas[i].track;
        t->count = 0;
        t->dropped = 0;
        comm->tracks[i] = *t;
    }
    return 0;
}

/* The thread hangs in a CTA. Whatever that may still touch stays, for as long as the process:
 * rings, heap, plans and all. */
static void exec_host_abandon(struct mk_comm *comm)
{
    struct host_executor *h = comm->exec_state;
    pthread_detach(h->thread);
    comm->exec_beats = NULL;
    comm->exec_state = NULL;
    comm->tracks = NULL;
    comm->progress = NULL;
    comm->ring_count = comm->track_count = comm->progress_count = comm->plan_count = 0;
}

static void exec_host_close(struct mk_comm *comm)
{
    struct host_executor *h = comm->exec_state;
    if (!h)
        return;
    if (h->threaded) {
        pthread_mutex_lock(&h->lock);
        /* ends what still runs, as no call waits for it */
        __atomic_store_n(&h->stop, 1, __ATOMIC_RELAXED);
        pthread_cond_signal(&h->asked);
        int hangs = exec_host_wait_until(h, UINT64_MAX);
        pthread_mutex_unlock(&h->lock);
        if (hangs) {
            exec_host_abandon(comm);
            return;
        }
        pthread_join(h->thread, NULL);
    }
    for (uint32_t i = 0; i < h->cta_count; i++) {
        coroutine_destroy(h->rank.ctas[i].coroutine);
        free(h->rank.ctas[i].track.events);
    }
    coroutine_pool_destroy(h->pool);
    for (uint32_t i = 0; i < COMM_MOST_PLANS; i++)
        compute_destroy(h->plans[i].compute);
    host_rings_close(comm);
    free(h->rank.ctas);
    free(comm->tracks);
    free(comm->progress);
    comm->tracks = NULL;
    comm->progress = NULL;
    comm->track_count = comm->progress_count = 0;
    comm->exec_beats = NULL;
    host_heap_close(comm);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->asked);
    pthread_cond_destroy(&h->done);
    free(h);
    comm->exec_state = NULL;
}

const struct mk_exec_ops exec_host = {
    .name = "host",
    .sms = exec_host_sms,
    .open = exec_host_open,
    .plan = exec_host_plan,
    .unplan = exec_host_unplan,
    .launch = exec_host_launch,
    .wait = exec_host_wait,
    .close = exec_host_close,
    .forget = exec_host_forget,
};
