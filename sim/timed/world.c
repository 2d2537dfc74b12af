/* A timed run: its ranks, their launches, and the event loop. The numbers of events are those of
 * CTAs, of ranks, of links (sim/timed/links.c), and of flags in flight, in this order. */
#include "core/base/clock.h"
#include "core/comm/comm.h"
#include "core/model/gemm.h"
#include "core/base/sentence.h"
#include "sim/large.h"
#include "sim/timed/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const timed_part_names[TIMED_PARTS] = {
    [TIMED_LAUNCH] = "launch",  [TIMED_TILES] = "tiles", [TIMED_NVLINK] = "NVLink",
    [TIMED_MEMORY] = "memory",  [TIMED_FLAG] = "flags",  [TIMED_PROXY] = "proxy",
    [TIMED_NETWORK] = "network"};

/* Bytes of the routing tables of a MoE's rank: its buffers of words, without those that only a
 * GPU's kernel uses. */
static double world_tables(const struct mk_plan *plan)
{
    struct op_tables t;
    double bytes = 0;
    plan_tables(plan, &t);
    for (uint32_t i = 0; i < t.buffer_count; i++)
        if (t.buffers[i].each <= 4 * MK_TERMS && strcmp(t.buffers[i].name, "scratch") &&
            strcmp(t.buffers[i].name, "spill"))
            bytes += (double)t.buffers[i].copies * (double)t.buffers[i].count *
                     (double)t.buffers[i].each;
    return bytes;
}

/* A CTA needs a page or two of stack and its struct; a rank of a MoE also its tables. */
int timed_memory_check(const struct mk_plan *plan, char *error, size_t size)
{
    const struct mk_problem *q = &plan->problem;
    const struct mk_role_split *split = &q->tuning.split;
    double ranks = mk_world(&q->topo), ctas = mk_total_ctas(split) + split->ctas[MK_COMPUTE];
    double rank = ctas * (8192 + sizeof(struct timed_cta)) + 8.0 * plan->flags + sizeof *plan;
    if (sim_op_of(q->op)->routes)
        rank += world_tables(plan);
    double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (have <= 0 || ranks * rank <= have)
        return 0;
    return mk_fail(-EINVAL, error, size,
                   "%.0f ranks of %.0f CTAs%s take %.0f GB and this machine has %.0f GB: a smaller "
                   "problem fits, or fewer ranks",
                   ranks, ctas, sim_op_of(q->op)->routes ? " and their tables of tokens" : "",
                   ranks * rank / 1e9, have / 1e9);
}

/* ---- launches ---- */

/* The CTAs of a half of a launch, or all. */
static void world_begin_ctas(struct timed_world *w, struct timed_rank *r, double wait)
{
    r->running = 0;
    for (uint32_t i = 0; i < w->per_rank; i++) {
        struct timed_cta *c = &r->ctas[i];
        if (r->half != MK_WHOLE && (r->half == MK_END) != (c->cta.role == MK_INTER_REDUCE))
            continue;
        r->running++;
        c->cta.epoch = r->launch;
        c->path = r->path;
        c->at = w->queue.now;
        c->state = TIMED_SLEEPS;
        timed_spend(c, TIMED_LAUNCH, wait * timed_scatter(w));
        timed_cta_start(c);
        timed_queue_put(&w->queue, c->number, c->at);
    }
}

static void world_begin_launch(struct timed_world *w, struct timed_rank *r)
{
    r->launch++;
    r->rank.epoch = r->launch;
    r->taken = r->units = 0;
    r->begun = w->queue.now;
    r->busy = r->launch == w->config.launches ? 0 : r->busy;
    timed_ids_place(w, &r->plan, r->launch);
    if (r->engines)
        memset(r->engines, 0, r->plan.problem.tuning.split.ctas[MK_COMPUTE] * sizeof *r->engines);
    r->half = op_halves(&r->plan.problem) ? MK_BEGIN : MK_WHOLE;
    world_begin_ctas(w, r, w->machine->launch + (r->launch > 1 ? w->machine->between : 0));
}

/* A rank's event: its launch or the first half of it has ended, or the first may begin. */
static void world_rank_event(struct timed_world *w, struct timed_rank *r)
{
    if (r->half == MK_BEGIN) {
        r->half = MK_END;
        world_begin_ctas(w, r, w->machine->launch + w->machine->between);
        return;
    }
    if (r->launch < w->config.launches)
        world_begin_launch(w, r);
    else
        w->ended++;
}

/* ---- life ---- */

static int world_make_heap(struct timed_world *w, struct timed_rank *r)
{
    uint64_t bytes[MK_SPACES - 1] = {0};
    r->flags = calloc(r->plan.flag_base + r->plan.flags + 1, sizeof *r->flags);
    if (!r->flags)
        return -ENOMEM;
    if (!w->op->routes)
        return 0;
    op_extents(&r->plan.problem, bytes);
    uint64_t whole = r->plan.heap_base + r->plan.heap_bytes;
    r->heap = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (r->heap == MAP_FAILED) {
        r->heap = NULL;
        return -ENOMEM;
    }
    r->summary = calloc(r->plan.problem.moe.experts + 1, 8);
    return r->summary ? 0 : -ENOMEM;
}

static enum machine_mover world_mover(const struct timed_world *w, const struct mk_plan *plan,
                                      uint32_t role)
{
    if (plan->problem.exec == MK_EXEC_HOST || (role == MK_COMPUTE && !w->op->handed))
        return MACHINE_TMA;
    if (role == MK_INTRA_COMM && plan->problem.tuning.split.intra_comm_warps)
        return MACHINE_WARP;
    return w->pipeline.by_thread ? MACHINE_TMA : MACHINE_BLOCK;
}

static int world_make_cta(struct timed_world *w, struct timed_rank *r, uint32_t i)
{
    const uint32_t *ctas = r->plan.problem.tuning.split.ctas;
    struct timed_cta *c = &r->ctas[i];
    uint32_t total = mk_total_ctas(&r->plan.problem.tuning.split), role = 0,
             index = i < total ? i : (i - total) / w->senders;
    c->grid = i < total ? i : index;
    while (index >= ctas[role])
        index -= ctas[role++];
    c->cta.role = role;
    c->cta.index = index;
    c->cta.count = ctas[role];
    c->rank = &r->rank;
    c->number = r->plan.problem.topo.rank * w->per_rank + i;
    c->mover = (uint8_t)(i < total ? (int)world_mover(w, &r->plan, role) : TIMED_SENDS);
    c->beside = TIMED_NONE;
    if (w->beside && (c->mover == MACHINE_WARP || c->mover == TIMED_SENDS))
        c->beside = r->plan.problem.topo.rank * w->per_rank +
                    index % ctas[MK_COMPUTE] / w->cluster * w->cluster;
    if (i < total && role >= MK_INTER_SEND && r->plan.problem.topo.nodes > 1) {
        c->post = calloc(1, sizeof *c->post);
        if (!c->post)
            return -ENOMEM;
        c->post->seen = calloc(w->config.ring, sizeof *c->post->seen);
        if (!c->post->seen)
            return -ENOMEM;
    }
    /* two senders of a CTA send half of each tile each: only the first has a track */
    if (w->config.trace_events && (i < total || (i - total) % w->senders == 0)) {
        c->track = calloc(1, sizeof *c->track);
        if (!c->track)
            return -ENOMEM;
        c->track->events = malloc(w->config.trace_events * sizeof *c->track->events);
        c->track->capacity = w->config.trace_events;
        if (!c->track->events)
            return -ENOMEM;
    }
    return coroutine_create(&c->coroutine, w->pool);
}

static int world_make_rank(struct timed_world *w, uint32_t rank)
{
    struct timed_rank *r = &w->ranks[rank];
    struct mk_problem problem = w->config.plan->problem;
    char error[512];
    r->world = w;
    r->ctas = w->ctas + (size_t)rank * w->per_rank;
    r->event = w->world * w->per_rank + rank;
    r->slow = (struct timed_slow){1, 1, 1};
    if (w->config.slow)
        r->slow = w->config.slow[rank];
    problem.topo.rank = rank;
    if (plan_build(&r->plan, &problem, w->config.plan->flag_base, w->config.plan->heap_base, error,
                   sizeof error)) {
        timed_error(w, -EINVAL, "%s", error);
        return -EINVAL;
    }
    r->plan.id = 1;
    r->rank.calls = &timed_calls;
    r->rank.plan = &r->plan;
    r->rank.op = w->op;
    r->rank.context = r;
    r->waiting = malloc(TIMED_BUCKETS * sizeof *r->waiting);
    r->flying = calloc(w->config.in_flight, sizeof *r->flying);
    r->engines =
        w->beside ? calloc(problem.tuning.split.ctas[MK_COMPUTE], sizeof *r->engines) : NULL;
    r->lines = w->lines + (size_t)rank * problem.tuning.split.ctas[MK_INTRA_COMM];
    if (!r->waiting || !r->flying || (w->beside && !r->engines))
        return -ENOMEM;
    memset(r->waiting, 0xff, TIMED_BUCKETS * sizeof *r->waiting);
    if (w->config.trace_events && problem.topo.nodes > 1) {
        r->messages.messages = malloc(w->config.trace_events * sizeof *r->messages.messages);
        r->messages.capacity = w->config.trace_events;
        if (!r->messages.messages)
            return -ENOMEM;
    }
    int result = world_make_heap(w, r);
    for (uint32_t i = 0; !result && i < w->per_rank; i++)
        result = world_make_cta(w, r, i);
    return result;
}

static void world_free_rank(struct timed_world *w, struct timed_rank *r)
{
    for (uint32_t i = 0; r->ctas && i < w->per_rank; i++) {
        struct timed_cta *c = &r->ctas[i];
        coroutine_destroy(c->coroutine);
        if (c->post)
            free(c->post->seen);
        free(c->post);
        if (c->track)
            free(c->track->events);
        free(c->track);
    }
    if (r->heap)
        munmap(r->heap, r->plan.heap_base + r->plan.heap_bytes);
    timed_cache_close(r);
    free(r->messages.messages);
    free(r->summary);
    free(r->flags);
    free(r->waiting);
    free(r->flying);
    free(r->engines);
}

static size_t world_ctas_bytes(const struct timed_world *w)
{
    return (size_t)w->world * w->per_rank * sizeof *w->ctas;
}

static size_t world_lines_bytes(const struct timed_world *w)
{
    return (size_t)w->world * w->config.plan->problem.tuning.split.ctas[MK_INTRA_COMM] *
           sizeof *w->lines;
}

static int world_make(struct timed_world *w)
{
    const struct mk_plan *plan = w->config.plan;
    const struct mk_problem *q = &plan->problem;
    const struct mk_role_split *split = &q->tuning.split;
    int cuda = q->exec == MK_EXEC_CUDA;
    w->op = w->config.op ? w->config.op : sim_op_of(q->op);
    w->world = mk_world(&q->topo);
    w->cluster = cuda && q->tuning.cluster ? q->tuning.cluster : 1;
    if (w->config.pipeline)
        w->pipeline = *w->config.pipeline;
    else
        plan_pipeline(plan, &w->pipeline);
    w->senders = w->pipeline.senders;
    w->sends =
        w->pipeline.direct_store && plan_two_shots(&q->tuning) ? MACHINE_BLOCK : MACHINE_WARP;
    w->by_hand = cuda && (w->op->handed || w->pipeline.tickets);
    w->per_rank = mk_total_ctas(split) + w->senders * split->ctas[MK_COMPUTE];
    /* nothing of its CTA stands behind its last tile, which goes without a pace: in one shot of one
     * tile a CTA that is all; and consumers' own stores keep none */
    int unpaced = q->tuning.shots == MK_ONE_SHOT
                      ? plan->tiles <= split->ctas[MK_COMPUTE] / w->cluster
                      : w->pipeline.direct_store;
    w->pace_rate = q->tuning.pace != MK_PACE_NONE && !unpaced ? 512.0 / q->tuning.pace : 0;
    w->tile =
        machine_tile_of(w->machine, q->tuning.tile_m, q->tuning.tile_n, plan_row_ctas(&q->tuning));
    w->peak = timed_peak(w->machine);
    w->beside = cuda && (w->senders || split->intra_comm_warps);
    if (cuda && w->op->operands)
        w->fetched = w->pipeline.tickets ? 0 : model_fetched(w->machine, q);
    w->clock = timed_clock(w->machine, plan);
    if (timed_flags_open(w))
        return -ENOMEM;
    if (!w->pipeline.outbox && w->op->operands) /* what an outbox holds was just computed: in L2 */
        w->spilled = machine_spilled(w->machine, 2.0 * (double)q->m * (double)q->k);
    if (w->senders) {
        uint32_t units = plan->chunks / w->world, reducers = split->ctas[MK_INTER_REDUCE];
        w->movers[TIMED_SENDS] = split->ctas[MK_COMPUTE] * w->senders / q->topo.gpus;
        w->movers[world_mover(w, plan, MK_INTER_REDUCE)] = reducers < units ? reducers : units;
    }
    w->ranks = calloc(w->world, sizeof *w->ranks);
    w->ctas = large_map(world_ctas_bytes(w));
    w->lines = large_map(world_lines_bytes(w));
    w->moved = malloc(w->per_rank * sizeof *w->moved);
    if (!w->ranks || !w->ctas || !w->lines || !w->moved ||
        coroutine_pool_create_small(&w->pool, w->world * w->per_rank))
        return -ENOMEM;
    int result = timed_ids_open(w);
    for (uint32_t rank = 0; !result && rank < w->world; rank++)
        result = world_make_rank(w, rank);
    result = result ? result : timed_map_open(w);
    result = result ? result : timed_links_open(w);
    result = result ? result : timed_queue_open(&w->queue, timed_first_flight(w));
    return result;
}

static void world_close(struct timed_world *w)
{
    for (uint32_t rank = 0; w->ranks && rank < w->world; rank++)
        world_free_rank(w, &w->ranks[rank]);
    timed_links_close(w);
    timed_queue_close(&w->queue);
    timed_flags_close(w);
    free(w->moved);
    timed_ids_close(w);
    large_unmap(w->ctas, world_ctas_bytes(w));
    large_unmap(w->lines, world_lines_bytes(w));
    free(w->ranks);
    coroutine_pool_destroy(w->pool);
}

/* ---- the run ---- */

/* The queue is empty, but not all ranks have ended: a CTA waits for a flag that is never raised. */
static void world_deadlock(struct timed_world *w)
{
    for (uint32_t i = 0; i < w->world * w->per_rank; i++) {
        const struct timed_cta *c = &w->ctas[i];
        if (c->state != TIMED_WAITS)
            continue;
        const struct timed_rank *r = timed_rank_of(c);
        struct mk_flag_meaning meaning;
        plan_describe_flag(&r->plan, c->flag, &meaning);
        timed_error(w, -EDEADLK,
                    "nothing can go on: rank %u CTA %u (%s) waits for %s in launch %lu (flag is "
                    "%lu, wants %lu)",
                    r->plan.problem.topo.rank, c->grid, plan_role_name(c->cta.role), meaning.text,
                    r->launch, r->flags[c->flag], c->target);
        return;
    }
    timed_error(w, -EDEADLK, "nothing can go on");
}

static void world_loop(struct timed_world *w)
{
    uint32_t ctas = w->world * w->per_rank, ranks = ctas + w->world, links = timed_first_flight(w);
    for (uint32_t rank = 0; rank < w->world; rank++)
        timed_queue_put(&w->queue, w->ranks[rank].event, 0);
    while (!w->error && w->ended < w->world) {
        uint32_t event = timed_queue_next(&w->queue);
        timed_look_ahead(w);
        if (event < ctas) {
            if (w->ctas[event].state == TIMED_BEGINS)
                timed_move_begins(&w->ctas[event]);
            else
                timed_resume(w, &w->ctas[event]);
        } else if (event < ranks) {
            world_rank_event(w, &w->ranks[event - ctas]);
        } else if (event < links) {
            for (uint32_t i = 0, moved = timed_links_event(w, event); i < moved; i++)
                timed_moved(w, &w->ctas[w->moved[i]]);
        } else if (event != TIMED_NONE) {
            struct timed_flight f = w->flights[event - links];
            timed_queue_give(&w->queue, event);
            if (f.poster == TIMED_NONE)
                timed_raise_now(w, &f);
            else
                timed_put_leaves(w, &f);
        } else {
            world_deadlock(w);
        }
        if (w->config.max_events && w->queue.taken > w->config.max_events)
            timed_error(w, -EDEADLK, "not over after %lu events", w->config.max_events);
        if (w->config.beat && !(w->queue.taken & 0xfff))
            __atomic_store_n(w->config.beat, (uint64_t)w->flop, __ATOMIC_RELAXED);
    }
    if (w->config.beat)
        __atomic_store_n(w->config.beat, (uint64_t)w->flop, __ATOMIC_RELAXED);
}

static void world_report(struct timed_world *w)
{
    struct timed_result *result = w->result;
    double launches = w->config.launches, compute = 0;
    const struct timed_rank *last = &w->ranks[0];
    for (uint32_t rank = 0; rank < w->world; rank++) {
        const struct timed_rank *r = &w->ranks[rank];
        last = r->ended > last->ended ? r : last;
        result->nvlink_bytes += r->nvlink_in / w->world / launches;
        result->network_bytes += r->network_in / w->world / launches;
        uint32_t engines = r->plan.problem.tuning.split.ctas[MK_COMPUTE] / w->cluster;
        if (r->ended > r->begun)
            compute += r->busy / engines / (double)(r->ended - r->begun) / w->world;
    }
    result->ns = last->ended;
    result->last_rank = last->plan.problem.topo.rank;
    result->busy = compute;
    for (int i = 0; i < TIMED_PARTS; i++)
        result->parts[i] = last->path.parts[i] / launches;
    for (int i = 0; i < MK_ROLES; i++)
        result->roles[i] = last->path.roles[i] / launches;
    result->slower = w->clock;
}

/* Collects a rank's tracks as a communicator's, like sim_world_finish. A sender's track is that of
 * the second warp of its compute CTA. */
static int world_finish(struct timed_world *w)
{
    uint32_t total = mk_total_ctas(&w->config.plan->problem.tuning.split);
    uint32_t warps = w->config.trace_events && w->senders ? 2 : 1;
    struct mk_comm *comms = calloc(w->world, sizeof *comms),
                   **list = calloc(w->world, sizeof *list);
    struct mk_track *tracks = calloc((size_t)w->world * total * warps, sizeof *tracks);
    int rc = comms && list && tracks ? 0 : -ENOMEM;
    for (uint32_t rank = 0; !rc && rank < w->world; rank++) {
        struct timed_rank *r = &w->ranks[rank];
        struct mk_comm *c = list[rank] = &comms[rank];
        c->topo = r->plan.problem.topo;
        c->plans[0] = &r->plan;
        c->plan_count = 1;
        c->messages = r->messages;
        c->tracks = &tracks[(size_t)rank * total * warps];
        c->track_count = w->config.trace_events ? total * warps : 0;
        c->track_warps = warps;
        for (uint32_t i = 0; i < w->per_rank && w->config.trace_events; i++) {
            if (r->ctas[i].track)
                c->tracks[r->ctas[i].grid * warps + (i >= total)] = *r->ctas[i].track;
        }
    }
    rc = rc ? rc : w->config.finished(w->config.context, list, w->world);
    free(tracks);
    free(list);
    free(comms);
    return rc;
}

int timed_run(const struct timed_config *config, struct timed_result *result)
{
    struct timed_world *w = calloc(1, sizeof *w);
    uint64_t begin = mk_now_ns(), used = mk_clock_ns(CLOCK_THREAD_CPUTIME_ID);
    memset(result, 0, sizeof *result);
    if (!w)
        return mk_fail(-ENOMEM, result->sentence, sizeof result->sentence,
                       "no memory for a cluster");
    w->config = *config;
    w->machine = config->machine;
    w->result = result;
    w->random.state = sim_mix(config->seed + 1);
    if (!w->config.ring)
        w->config.ring = 1024;
    if (!w->config.in_flight)
        w->config.in_flight =
            config->machine->in_flight >= 1 ? (uint32_t)config->machine->in_flight : 256;
    int made = world_make(w);
    if (made)
        timed_error(w, made, "no memory for %u ranks of %u CTAs", w->world, w->per_rank);
    else
        world_loop(w);
    for (uint32_t i = 0; !made && i < w->world * w->per_rank; i++)
        if (coroutine_overflowed(w->ctas[i].coroutine))
            timed_error(w, -ENOMEM, "a CTA's stack is too small");
    if (!w->error)
        world_report(w);
    result->events = w->queue.taken;
    result->tiles = w->tiles;
    result->seconds = (double)(mk_now_ns() - begin) / 1e9;
    result->cpu_seconds = (double)(mk_clock_ns(CLOCK_THREAD_CPUTIME_ID) - used) / 1e9;
    if (!w->error && config->finished)
        w->error = world_finish(w);
    int error = w->error;
    world_close(w);
    free(w);
    return error;
}
