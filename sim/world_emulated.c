/* Form (b) with GPUs: the kernels' own device code in place of CTAs that are coroutines. All ranks'
 * GPUs are one emulated machine (sim/hopper), which is one actor of the world's scheduler; proxies
 * and the network are the same as ever. */
#include "core/cta/halves.h"
#include "core/ops/op.h"
#include "core/base/sentence.h"
#include "kernels/host/report.h"
#include "kernels/host/stuck.h"
#include "sim/emulated.h"
#include "sim/hopper/hopper.h"
#include "sim/world_state.h"

#include <errno.h>
#include <stdlib.h>

enum { WORDS = 128, POSTED = 32, ENDING = 64, TAKEN = 80, BATCH = 64 };

struct emulated_rank {
    _Alignas(16) struct gpu_report report; /* whose `stuck` is one store */
    uint64_t *words;                       /* its GPU's */
    struct mk_track *tracks;
    int reported;
};

/* A kernel whose wait has ended goes on with whatever is there. */
static int world_emulated_forgives(void *context)
{
    struct sim_world *w = context;
    for (uint32_t rank = 0; rank < w->world; rank++) {
        const uint64_t *words = w->emulated[rank].words;
        if (words && __atomic_load_n(words + ENDING, __ATOMIC_RELAXED))
            return 1;
    }
    return 0;
}

/* A launch that comes early begins where SMs are free: as on a GPU that the one before fills; with
 * some seeds at once, on SMs of its own. Threads of many ranks would take more mappings for that
 * than a process may have. */
static uint32_t world_emulated_spare(const struct sim_world *w)
{
    const int early = w->config.launches > 1 && w->world <= 4 && w->config.seed % 8 == 0;
    return early || w->config.problem.block_shared ? w->config.emulated : 0;
}

int world_emulated_open(struct sim_world *w, char *error, size_t size)
{
    const struct hopper_config config = {.ranks = w->world,
                                         .sms = w->config.emulated,
                                         .spare = world_emulated_spare(w),
                                         .together = w->config.together,
                                         .pool = w->pool,
                                         .seed = w->config.seed,
                                         .now = &w->now,
                                         .mutations = w->config.mutations,
                                         .mutation_count = w->config.mutation_count,
                                         .tries_end = w->config.tries_end,
                                         .races = !w->config.unwatched,
                                         .forgives = world_emulated_forgives,
                                         .context = w};
    if (!emulated_op_of(w->config.problem.op))
        return mk_fail(-EINVAL, error, size, "%s has no kernel that could be emulated%s",
                       plan_op_name(w->config.problem.op),
                       emulated_built ? "" : " in this build: no C++ compiler was found");
    if (w->config.fault.kind == SIM_FAULT_MUTE || w->config.costs)
        return mk_fail(-EINVAL, error, size, "%s: emulated kernels explore orders only",
                       w->config.costs ? "a cost model" : "CTAs that never run");
    w->emulated = calloc(w->world, sizeof *w->emulated);
    return w->emulated ? hopper_create(&w->hopper, &config) : -ENOMEM;
}

void world_emulated_close(struct sim_world *w)
{
    uint32_t count = 0;
    uint64_t forgotten = w->hopper ? hopper_forgotten(w->hopper) : 0;
    if (forgotten)
        sim_world_error(w, -ETIMEDOUT,
                        "incomplete: the watch over memory has forgotten %lu accesses for want of "
                        "room",
                        forgotten);
    const struct hopper_site *sites = w->hopper ? hopper_sites(w->hopper, &count) : NULL;
    if (sites && w->config.sites)
        w->config.sites(w->config.context, sites, count);
    hopper_destroy(w->hopper);
    free(w->emulated);
    w->hopper = NULL;
}

/* In watched memory: kernels hand tracks from thread to thread. */
static int world_emulated_make_tracks(struct sim_world *w, struct emulated_rank *e)
{
    uint32_t count = (1 + MK_AUXILIARY_WARPS) * w->config.emulated * GPU_TRACK_WARPS;
    struct mk_event *events =
        hopper_memory(w->hopper, (size_t)count * w->config.tracks * sizeof *events);
    e->tracks = hopper_memory(w->hopper, count * sizeof *e->tracks);
    for (uint32_t i = 0; events && e->tracks && i < count; i++)
        e->tracks[i] = (struct mk_track){.events = events + (size_t)i * w->config.tracks,
                                         .capacity = w->config.tracks};
    return events && e->tracks ? 0 : -ENOMEM;
}

int world_emulated_rank(struct sim_world *w, struct sim_world_rank *r, char *error, size_t size)
{
    struct emulated_rank *e = &w->emulated[r - w->ranks];
    e->words = hopper_memory(w->hopper, WORDS * sizeof *e->words);
    if (!e->words)
        return -ENOMEM;
    if (w->config.tracks && world_emulated_make_tracks(w, e))
        return -ENOMEM;
    hopper_use(w->hopper, (uint32_t)(r - w->ranks));
    return emulated_op_of(r->plan.problem.op)->prepare(&r->plan, error, size);
}

void *world_emulated_memory(struct sim_world *w, size_t bytes)
{
    return hopper_memory(w->hopper, bytes);
}

/* Kernels of a launch. */
static uint32_t world_emulated_kernels(const struct sim_world_rank *r)
{
    return op_halves(&r->plan.problem) ? 2 : 1;
}

/* What exec_cuda.c gives to a launch. */
int world_emulated_launch(struct sim_world_rank *r)
{
    struct sim_world *w = r->world;
    struct emulated_rank *e = &w->emulated[r - w->ranks];
    struct gpu_launch l;
    emulated_launch_begin(&l, &r->plan, r->heap, (void *const *)(void *)r->rank.peers, r->rings,
                          r->ring_count, sim_world_arguments(r, r->launch));
    l.posted = e->words + POSTED;
    l.left = e->words;
    l.taken = e->words + TAKEN;
    l.ending = (uint32_t *)(e->words + ENDING);
    l.report = &e->report;
    l.tracks = e->tracks;
    hopper_use(w->hopper, (uint32_t)(r - w->ranks));
    const struct emulated_op *op = emulated_op_of(r->plan.problem.op);
    if (world_emulated_kernels(r) == 1)
        return op->launch(&r->plan, &l, NULL);
    l.split = mk_half_split(&r->plan.problem.tuning.split, MK_BEGIN);
    int result = op->launch(&r->plan, &l, NULL);
    l.split = mk_half_split(&r->plan.problem.tuning.split, MK_END);
    return result ? result : op->launch(&r->plan, &l, NULL);
}

uint64_t world_emulated_posted(const struct sim_world_rank *r, uint32_t ring)
{
    return r->world->emulated[r - r->world->ranks].words[POSTED + ring];
}

/* ---- running ---- */

int world_emulated_busy(const struct sim_world_rank *r)
{
    const uint64_t over = hopper_over(r->world->hopper, (uint32_t)(r - r->world->ranks));
    return over / world_emulated_kernels(r) <= r->launch - r->busy;
}

void world_emulated_wrote(struct sim_world_rank *r, const void *p, size_t bytes)
{
    hopper_stream_write(r->world->hopper, (uint32_t)(r - r->world->ranks), p, bytes);
}

/* What a kernel reported; then every kernel of the job is told to end, and what it multiplies from
 * then on is not watched. */
static void world_emulated_take_reports(struct sim_world *w)
{
    for (uint32_t rank = 0; rank < w->world; rank++) {
        struct emulated_rank *e = &w->emulated[rank];
        const struct gpu_report *g = &e->report;
        struct sim_world_rank *r = &w->ranks[rank];
        if (!g->failed || e->reported)
            continue;
        e->reported = 1;
        struct mk_failure f;
        gpu_report_failure(g, &r->plan, r->plan.problem.op, rank, &f);
        r->rank.fail(r->rank.context, &f);
    }
    if (!w->result->failure.kind)
        return;
    hopper_unwatch(w->hopper);
    for (uint32_t rank = 0; rank < w->world; rank++)
        ((uint32_t *)(w->emulated[rank].words + ENDING))[1] = 1;
}

/* The machine's sentence; before it what a block that stood at a barrier has said. */
static void world_emulated_fail(struct sim_world *w)
{
    char stood[256] = "";
    for (uint32_t rank = 0; rank < w->world && !stood[0]; rank++)
        stuck_say(w->emulated[rank].report.stuck, stood, sizeof stood);
    sim_world_error(w, -EBADMSG, "%s%s", stood, hopper_error(w->hopper));
}

/* Some steps of the machine. 0: it could do none. */
int world_emulated_step(struct sim_world *w)
{
    uint32_t batch = 1 + sim_random_below(&w->random, BATCH), done = 0;
    while (done < batch && hopper_step(w->hopper))
        done++;
    for (uint32_t rank = 0; done && rank < w->world; rank++) /* commands may have been stored */
        w->ranks[rank].proxy_touched = 1;
    world_emulated_take_reports(w);
    if (hopper_error(w->hopper))
        world_emulated_fail(w);
    w->hash = sim_mix(w->hash ^ hopper_hash(w->hopper));
    return done > 0;
}

/* Nothing else can happen: on to `next`, or a little, if a thread polls. */
int world_emulated_tick(struct sim_world *w, uint64_t next)
{
    uint64_t before = w->now;
    int ticked = hopper_tick(w->hopper);
    if (next != SIM_NEVER && w->now > next)
        w->now = next > before ? next : before;
    return ticked || next != SIM_NEVER;
}

void world_emulated_deadlock(struct sim_world *w)
{
    hopper_deadlock(w->hopper);
    sim_world_error(w, -EDEADLK, "%s", hopper_error(w->hopper));
}

void world_emulated_drop(struct sim_world *w, uint32_t rank)
{
    hopper_drop(w->hopper, rank);
}

/* ---- the network ---- */

void world_emulated_moves(struct sim_world *w, uint32_t rank, const void *destination,
                          const void *source, uint64_t bytes)
{
    hopper_nic_read(w->hopper, rank, source, bytes);
    hopper_nic_write(w->hopper, rank, destination, bytes);
}

void world_emulated_raises(struct sim_world *w, uint32_t rank, const void *flag)
{
    hopper_nic_flag(w->hopper, rank, flag);
}

/* What a rank's proxy tells its GPU: what has been read, and what has left its source. */
void world_emulated_proxy(struct sim_world_rank *r)
{
    for (uint32_t i = 0; i < r->ring_count; i++) {
        hopper_nic_flag(r->world->hopper, (uint32_t)(r - r->world->ranks), &r->rings[i]->completed);
        hopper_nic_flag(r->world->hopper, (uint32_t)(r - r->world->ranks), &r->rings[i]->seen);
    }
}
