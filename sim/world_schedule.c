/* The scheduler of form (b). Actors of a rank, in this order: its CTAs, their outboxes, its proxy,
 * its fabric, its host (which begins launches). */
#include "core/cta/halves.h"
#include "sim/model_fabric.h"

#include <errno.h>

enum { PROXY, FABRIC, HOST, SINGLES };

static int world_schedule_failed(const struct sim_world *w)
{
    return w->result->failure.kind != MK_FAIL_NONE;
}

static int world_schedule_mute(const struct sim_world *w, const struct sim_cta *c)
{
    const struct sim_fault *fault = &w->config.fault;
    return fault->kind == SIM_FAULT_MUTE && c->cta.role != MK_COMPUTE &&
           c->rank->plan->problem.topo.rank == fault->rank;
}

/* A second half begins when the first has ended and what it stored has landed. */
static int world_schedule_half_waits(const struct sim_world *w, const struct sim_world_rank *r,
                                     const struct sim_cta *c)
{
    const struct mk_role_split *split = &r->plan.problem.tuning.split;
    if (c->cta.role != MK_INTER_REDUCE || !op_halves(&r->plan.problem))
        return 0;
    if (r->running > split->ctas[MK_INTER_REDUCE])
        return 1;
    for (uint32_t i = 0; i < mk_half_end(split, MK_BEGIN); i++)
        if (r->outboxes[i].count)
            return 1;
    return 0;
}

/* The emulated GPUs of all ranks are one actor, the last. */
static int world_schedule_is_machine(const struct sim_world *w, uint32_t id)
{
    return w->hopper && id == w->actors - 1;
}

static uint64_t world_schedule_lateness(const struct sim_world *w, uint32_t rank)
{
    const struct sim_fault *fault = &w->config.fault;
    return fault->kind == SIM_FAULT_LATE && rank >= fault->rank
               ? (rank - fault->rank + 1) * fault->number
               : 0;
}

static int world_schedule_may_begin(const struct sim_world_rank *r)
{
    return r->busy < r->ahead && r->launch < r->world->config.launches;
}

static int world_schedule_ready(struct sim_world *w, uint32_t id)
{
    if (world_schedule_is_machine(w, id))
        return w->machine_runs;
    struct sim_actor a = w->actor[id];
    struct sim_world_rank *r = a.rank;
    int failed = world_schedule_failed(w);
    if (w->dropped && sim_world_dropped(w, r->plan.problem.topo.rank))
        return 0;
    if (a.number < w->ctas) {
        struct sim_cta *c = &r->rank.ctas[a.number];
        return r->busy && (!world_schedule_mute(w, c) || failed) &&
               !world_schedule_half_waits(w, r, c) && sim_cta_runnable(c, w->now, failed);
    }
    if (a.number < 2 * w->ctas)
        return sim_outbox_ready(w, &r->outboxes[a.number - w->ctas]);
    switch (a.number - 2 * w->ctas) {
    case PROXY:
        return r->proxy && r->proxy_touched;
    case FABRIC:
        return r->fabric && model_fabric_ready(r->fabric);
    default:
        return !failed && world_schedule_may_begin(r) && w->now >= r->begins;
    }
}

/* When an actor that is not ready will be, if nothing else happens. */
static uint64_t world_schedule_due(struct sim_world *w, uint32_t id)
{
    if (world_schedule_is_machine(w, id))
        return SIM_NEVER;
    struct sim_actor a = w->actor[id];
    struct sim_world_rank *r = a.rank;
    if (sim_world_dropped(w, r->plan.problem.topo.rank))
        return SIM_NEVER;
    if (a.number < w->ctas) {
        struct sim_cta *c = &r->rank.ctas[a.number];
        if (!r->busy || c->ended || world_schedule_mute(w, c) || world_schedule_half_waits(w, r, c))
            return SIM_NEVER;
        return c->word && c->deadline > c->ready ? c->deadline : c->ready;
    }
    if (a.number < 2 * w->ctas)
        return sim_outbox_due(&r->outboxes[a.number - w->ctas]);
    switch (a.number - 2 * w->ctas) {
    case PROXY: {
        if (!r->proxy)
            return SIM_NEVER;
        uint64_t oldest = model_fabric_oldest(r->fabric);
        return oldest == SIM_NEVER ? SIM_NEVER : oldest + r->plan.problem.timeout_ns;
    }
    case FABRIC:
        return r->fabric ? model_fabric_due(r->fabric) : SIM_NEVER;
    default:
        return world_schedule_may_begin(r) && w->now < r->begins ? r->begins : SIM_NEVER;
    }
}

static void world_schedule_step_proxy(struct sim_world *w, struct sim_world_rank *r)
{
    int did = proxy_step(r->proxy);
    r->proxy_touched = did > 0;
    if (w->hopper && did > 0) {
        world_emulated_proxy(r);
        w->machine_runs = 1;
    }
}

static void world_schedule_step_cta(struct sim_world_rank *r, struct sim_cta *c)
{
    uint64_t posted = c->ring ? c->ring->posted : 0;
    if (!coroutine_resume(c->coroutine))
        r->running--;
    if (c->ring && c->ring->posted != posted)
        r->proxy_touched = 1;
}

static void world_schedule_end_launch_if_over(struct sim_world *w, struct sim_world_rank *r)
{
    if (!r->busy || r->running || (w->hopper && world_emulated_busy(r)))
        return;
    for (uint32_t i = 0; i < w->ctas; i++)
        if (r->outboxes[i].count)
            return;
    sim_world_end_launch(r);
}

static void world_schedule_step_machine(struct sim_world *w)
{
    w->steps++;
    w->machine_runs = world_emulated_step(w);
    for (uint32_t rank = 0; rank < w->world && !w->error; rank++)
        world_schedule_end_launch_if_over(w, &w->ranks[rank]);
}

static void world_schedule_step(struct sim_world *w, uint32_t id)
{
    if (world_schedule_is_machine(w, id)) {
        world_schedule_step_machine(w);
        return;
    }
    struct sim_actor a = w->actor[id];
    struct sim_world_rank *r = a.rank;
    w->last = id;
    w->steps++;
    if (!w->config.costs)
        w->now += sim_random_below(&w->random, 32);
    w->hash = sim_mix(w->hash ^ id ^ w->now << 20);
    if (a.number < w->ctas)
        world_schedule_step_cta(r, &r->rank.ctas[a.number]);
    else if (a.number < 2 * w->ctas)
        sim_outbox_step(r, a.number - w->ctas);
    else if (a.number - 2 * w->ctas == PROXY)
        world_schedule_step_proxy(w, r);
    else if (a.number - 2 * w->ctas == FABRIC)
        model_fabric_step(r->fabric);
    else
        sim_world_begin_launch(r);
    if (a.number - 2 * w->ctas != PROXY)
        w->machine_runs = 1; /* it may have reason to */
    world_schedule_end_launch_if_over(w, r);
}

/* ---- drawing ---- */

static int world_schedule_starved(const struct sim_world *w, uint32_t id)
{
    uint32_t past = id - w->starved_from;
    return id >= w->starved_from && past % w->starved_step == 0 &&
           past / w->starved_step < w->starved_count;
}

/* The first ready actor from `first` on; w->actors where none is. */
static uint32_t world_schedule_ready_from(struct sim_world *w, uint32_t first)
{
    for (uint32_t i = 0; i < w->actors; i++)
        if (world_schedule_ready(w, (first + i) % w->actors))
            return (first + i) % w->actors;
    return w->actors;
}

/* One of the ready actors, all equally likely but those that are starved; w->actors where none
 * is. Where many draws were in vain, all are asked once: if none is ready, draws go on without
 * asking (a seed's numbers stay the same). */
static uint32_t world_schedule_draw(struct sim_world *w)
{
    int none = 0;
    for (uint32_t tries = 0; tries < 4 * w->actors; tries++) {
        if (tries == w->actors / 2)
            none = world_schedule_ready_from(w, 0) == w->actors;
        uint32_t id = sim_random_below(&w->random, w->actors);
        if (w->strategy == SIM_STARVE && world_schedule_starved(w, id) &&
            sim_random_below(&w->random, 256))
            continue;
        if (!none && world_schedule_ready(w, id))
            return id;
    }
    uint32_t first = sim_random_below(&w->random, w->actors);
    return none ? w->actors : world_schedule_ready_from(w, first);
}

/* The ready actor of the highest priority; now and then one gets another. After Burckhardt et al.,
 * A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs, ASPLOS 2010. */
static uint32_t world_schedule_draw_by_priority(struct sim_world *w)
{
    uint32_t best = w->actors;
    if (!sim_random_below(&w->random, 128))
        w->priorities[sim_random_below(&w->random, w->actors)] = (uint32_t)sim_random(&w->random);
    for (uint32_t i = 0; i < w->actors; i++)
        if ((best == w->actors || w->priorities[i] > w->priorities[best]) &&
            world_schedule_ready(w, i))
            best = i;
    return best;
}

static uint32_t world_schedule_choose(struct sim_world *w)
{
    if (w->strategy == SIM_PRIORITIES)
        return world_schedule_draw_by_priority(w);
    if (w->strategy == SIM_STICKY && w->last < w->actors && sim_random_below(&w->random, 8) &&
        world_schedule_ready(w, w->last))
        return w->last;
    return world_schedule_draw(w);
}

/* Nothing can go on now: on to the next thing that time alone brings. 0 where there is none. */
static int world_schedule_advance_clock(struct sim_world *w)
{
    uint64_t next = SIM_NEVER;
    for (uint32_t i = 0; i < w->actors; i++) {
        uint64_t t = world_schedule_due(w, i);
        if (t < next)
            next = t;
    }
    if (w->hopper) {
        if (!world_emulated_tick(w, next))
            return 0;
        w->machine_runs = 1;
    } else {
        if (next == SIM_NEVER)
            return 0;
        if (next > w->now)
            w->now = next;
    }
    for (uint32_t rank = 0; rank < w->world; rank++) /* a put may have become overdue */
        w->ranks[rank].proxy_touched = 1;
    return 1;
}

static int world_schedule_everything_ended(const struct sim_world *w)
{
    for (uint32_t rank = 0; rank < w->world; rank++) {
        const struct sim_world_rank *r = &w->ranks[rank];
        if (sim_world_dropped(w, rank))
            continue;
        if (r->busy || (!world_schedule_failed(w) && r->launch < w->config.launches))
            return 0;
    }
    return 1;
}

static void world_schedule_sim_world_deadlock(struct sim_world *w)
{
    if (w->hopper)
        world_emulated_deadlock(w);
    sim_world_error(w, -EDEADLK, "nothing can go on, and no wait has a bound");
}

void sim_world_schedule(struct sim_world *w)
{
    uint64_t limit = w->config.max_steps ? w->config.max_steps : 200000000;
    const struct sim_fault *fault = &w->config.fault;
    for (uint32_t rank = 0; rank < w->world; rank++)
        w->ranks[rank].begins = world_schedule_lateness(w, rank);
    while (!w->error) {
        if (fault->kind == SIM_FAULT_DROP && w->steps >= fault->number && !w->dropped) {
            w->dropped = 1;
            if (w->hopper)
                world_emulated_drop(w, fault->rank);
        }
        if (world_schedule_everything_ended(w))
            return;
        if (w->steps >= limit) {
            sim_world_error(w, -ETIMEDOUT, "incomplete: not over after %lu steps", limit);
            return;
        }
        uint32_t id = world_schedule_choose(w);
        if (id < w->actors)
            world_schedule_step(w, id);
        else if (!world_schedule_advance_clock(w))
            world_schedule_sim_world_deadlock(w);
    }
}
