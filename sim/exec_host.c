/* The host executor, form (a): a rank is a process, its CTAs are coroutines on one thread, time and
 * fabric are real. */
#include "backends/wall_clock.h"
#include "core/comm/comm.h"
#include "sim/compute.h"
#include "sim/host_heap.h"
#include "sim/launch_queue.h"
#include "sim/op.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Once the job has failed a CTA's waits end at once, and what it computes shows that it goes on. */
#define LINGER_NS 300000000ull

struct host_executor {
    struct launch_queue queue;
    struct mk_comm *comm;
    struct sim_rank rank;
    struct compute *computes[COMM_MOST_PLANS]; /* by slot */
    struct compute *compute;                   /* of the launch that runs */
    struct coroutine_pool *pool;
    uint32_t cta_count;       /* of the largest plan so far */
    struct mk_event **events; /* of each CTA's track; NULL: tracing is off */
    uint32_t running;         /* atomic; the CTA that runs; UINT32_MAX: none */
};

static int exec_host_job_failed(void *context)
{
    struct host_executor *h = context;
    return launch_queue_stops(&h->queue) || comm_failed(h->comm);
}

static void exec_host_fail_job(void *context, const struct mk_failure *failure)
{
    struct host_executor *h = context;
    /* a CTA that closing cut short has not failed */
    if (!launch_queue_stops(&h->queue))
        comm_fail(h->comm, failure);
}

static void exec_host_do_math(struct sim_cta *cta, const struct mk_tile *tile)
{
    struct host_executor *h = cta->rank->context;
    compute_tile(h->compute, cta, tile);
}

static void exec_host_run_launch(struct mk_comm *comm, const struct launch *launch)
{
    struct host_executor *h = comm->exec_state;
    struct sim_rank *r = &h->rank;
    r->plan = launch->plan;
    r->op = sim_op_of(launch->plan->problem.op);
    r->epoch = launch->epoch;
    for (int i = 0; i < MK_SPACES - 1; i++)
        r->spaces[MK_SPACE_ARG0 + i] = launch->arguments[i];
    h->compute = h->computes[launch->plan->slot];
    compute_load_b(h->compute, launch->arguments, &h->queue.turns);
    const struct mk_role_split *split = &launch->plan->problem.tuning.split;
    const uint32_t first = mk_half_first(split, launch->half),
                   end = mk_half_end(split, launch->half);
    r->cta_count = mk_total_ctas(split);
    for (uint32_t i = first; i < end; i++) {
        r->ctas[i].track.events = h->comm->unrecorded ? NULL : h->events[i];
        sim_cta_begin(&r->ctas[i], r, i);
    }

    uint32_t left = end - first, idle = 0;
    while (left) {
        uint64_t now = wall_clock(NULL);
        int failed = exec_host_job_failed(h), moved = 0;
        for (uint32_t i = first; i < end; i++) {
            struct sim_cta *c = &r->ctas[i];
            if (!sim_cta_runnable(c, now, failed))
                continue;
            moved = 1;
            __atomic_store_n(&h->running, i, __ATOMIC_RELAXED);
            if (!coroutine_resume(c->coroutine))
                left--;
            __atomic_fetch_add(&h->queue.turns, 1, __ATOMIC_RELAXED);
        }
        __atomic_store_n(&h->running, UINT32_MAX, __ATOMIC_RELAXED);
        idle = moved ? 0 : idle + 1;
        if (idle)
            launch_queue_back_off(idle);
    }
    for (uint32_t i = first; i < end && !launch_queue_stops(&h->queue); i++) {
        h->comm->tracks[i] = r->ctas[i].track;
        h->comm->tracks[i].events = h->events[i];
    }
}

/* A CTA does not wait, and does not come back either: the job fails for that. */
static void exec_host_fail_silent(struct mk_comm *comm, const struct launch *launch,
                                  uint64_t silent_ns)
{
    const struct host_executor *h = comm->exec_state;
    uint32_t cta = __atomic_load_n(&h->running, __ATOMIC_RELAXED);
    const struct mk_plan *plan = launch->plan;
    struct mk_failure f = {.kind = MK_FAIL_TIMEOUT,
                           .op = plan->problem.op,
                           .rank = comm->topo.rank,
                           .cta = cta,
                           .role = cta < h->cta_count ? (uint32_t)h->rank.ctas[cta].cta.role : 0,
                           .flag = UINT32_MAX,
                           .chunk = UINT32_MAX,
                           .producer = comm->topo.rank,
                           .epoch = launch->epoch,
                           .waited_ns = silent_ns};
    snprintf(f.what, sizeof f.what, "%s",
             cta < h->cta_count ? "its own computation to go on" : "the executor to go on");
    comm_fail(comm, &f);
}

static uint32_t exec_host_sms(struct mk_comm *comm)
{
    return 0;
}

static int exec_host_open(struct mk_comm *comm)
{
    const struct launch_queue queue = {
        .run = exec_host_run_launch, .silent = exec_host_fail_silent, .linger_ns = LINGER_NS};
    struct host_executor *h = launch_queue_open(comm, sizeof *h, &queue);
    if (!h)
        return -ENOMEM;
    snprintf(comm->device, sizeof comm->device, "host");
    h->comm = comm;
    h->running = UINT32_MAX;
    comm->exec_beats = &h->queue.turns;
    int result = host_heap_open(comm);
    if (result)
        return result;
    result = coroutine_pool_create(&h->pool, 0);
    result = result ? result : host_rings_open(comm);
    comm->track_warps = 1;
    h->rank = (struct sim_rank){.rings = comm->rings,
                                .now = wall_clock,
                                .failed = exec_host_job_failed,
                                .fail = exec_host_fail_job,
                                .math = exec_host_do_math,
                                .beats = &h->queue.turns,
                                .context = h};
    h->rank.spaces[MK_SPACE_HEAP] = comm->heap.base;
    for (uint32_t i = 0; i < MK_MAX_LOCAL; i++)
        h->rank.peers[i] = comm->heap.peers[i];
    result = result ? result : launch_queue_start(&h->queue);
    if (result)
        snprintf(comm->error, sizeof comm->error, "the host executor can't start: %s",
                 strerror(-result));
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
    pthread_mutex_lock(&comm->plans_lock); /* other threads read these words under it */
    uint64_t *progress = realloc(comm->progress, count * sizeof *progress);
    if (progress)
        h->rank.progress = comm->progress = progress;
    pthread_mutex_unlock(&comm->plans_lock);
    if (!progress)
        return -ENOMEM;
    struct mk_track *tracks = realloc(comm->tracks, count * sizeof *tracks);
    if (!tracks)
        return -ENOMEM;
    comm->tracks = tracks;
    struct mk_event **events = realloc(h->events, count * sizeof *events);
    if (!events)
        return -ENOMEM;
    h->events = events;
    while (h->cta_count < count) {
        struct sim_cta *c = &ctas[h->cta_count];
        memset(c, 0, sizeof *c);
        if (coroutine_create(&c->coroutine, h->pool))
            return -ENOMEM;
        c->track.capacity = comm->config.trace_events;
        c->track.events =
            c->track.capacity ? malloc(c->track.capacity * sizeof *c->track.events) : NULL;
        events[h->cta_count] = c->track.events;
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
    int result = launch_queue_wait(&h->queue);
    if (!result && count > h->cta_count)
        result = exec_host_grow(h, count);
    result = result ? result : compute_create(&h->computes[plan->slot], plan);
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
    compute_destroy(h->computes[plan->slot]);
    h->computes[plan->slot] = NULL;
    launch_queue_unplan(&h->queue, plan);
    host_heap_clear(comm, plan);
    return 0;
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

static void exec_host_close(struct mk_comm *comm)
{
    struct host_executor *h = comm->exec_state;
    if (!h || launch_queue_stop(&h->queue))
        return;
    for (uint32_t i = 0; i < h->cta_count; i++) {
        coroutine_destroy(h->rank.ctas[i].coroutine);
        free(h->events[i]);
    }
    free(h->events);
    coroutine_pool_destroy(h->pool);
    for (uint32_t i = 0; i < COMM_MOST_PLANS; i++)
        compute_destroy(h->computes[i]);
    host_rings_close(comm);
    free(h->rank.ctas);
    free(comm->tracks);
    free(comm->progress);
    launch_queue_forget(comm);
    host_heap_close(comm);
    free(h);
}

const struct mk_exec_ops exec_host = {
    .name = "host",
    .sms = exec_host_sms,
    .open = exec_host_open,
    .plan = exec_host_plan,
    .unplan = exec_host_unplan,
    .launch = launch_queue_launch,
    .wait = launch_queue_end,
    .left = launch_queue_left,
    .close = exec_host_close,
    .forget = exec_host_forget,
};
