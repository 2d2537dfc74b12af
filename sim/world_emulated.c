/* Form (b) with GPUs: the kernels' own device code in place of CTAs that are coroutines. All ranks'
 * GPUs are one emulated machine (sim/hopper), which is one actor of the world's scheduler; proxies
 * and the network are the same as ever. */
#include "core/bf16.h"
#include "core/ops/op.h"
#include "core/quantize.h"
#include "kernels/report.h"
#include "kernels/stuck.h"
#include "sim/emulated.h"
#include "sim/exact.h"
#include "sim/hopper/hopper.h"
#include "sim/world_state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MK_HAVE_EMULATION

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
                                         .pool = w->pool,
                                         .seed = w->config.seed,
                                         .now = &w->now,
                                         .mutations = w->config.mutations,
                                         .mutation_count = w->config.mutation_count,
                                         .tries_end = w->config.tries_end,
                                         .races = !w->config.unwatched,
                                         .forgives = world_emulated_forgives,
                                         .context = w};
    if (!emulated_op_of(w->config.problem.op)) {
        snprintf(error, size, "%s has no kernel that could be emulated",
                 plan_op_name(w->config.problem.op));
        return -EINVAL;
    }
    if (w->config.fault.kind == SIM_FAULT_MUTE || w->config.costs) {
        snprintf(error, size, "%s: emulated kernels explore orders only",
                 w->config.costs ? "a cost model" : "CTAs that never run");
        return -EINVAL;
    }
    w->emulated = calloc(w->world, sizeof *w->emulated);
    return w->emulated ? hopper_create(&w->hopper, &config) : -ENOMEM;
}

void world_emulated_close(struct sim_world *w)
{
    uint32_t count = 0;
    uint64_t forgotten = w->hopper ? hopper_forgotten(w->hopper) : 0;
    if (forgotten)
        sim_world_error(w, -ETIMEDOUT,
                        "incomplete: the watch over memory has forgotten %llu accesses for want of "
                        "room",
                        (unsigned long long)forgotten);
    const struct hopper_site *sites = w->hopper ? hopper_sites(w->hopper, &count) : NULL;
    if (sites && w->config.sites)
        w->config.sites(w->config.context, sites, count);
    hopper_destroy(w->hopper);
    free(w->emulated);
    w->hopper = NULL;
}

/* In memory that is watched: nobody reads them, but kernels hand them from thread to thread. */
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
    return emulated_op_of(r->plan.problem.op)->launch(&r->plan, &l, NULL);
}

uint64_t world_emulated_posted(const struct sim_world_rank *r, uint32_t ring)
{
    return r->world->emulated[r - r->world->ranks].words[POSTED + ring];
}

/* ---- running ---- */

/* A launch is one kernel. */
int world_emulated_busy(const struct sim_world_rank *r)
{
    return hopper_over(r->world->hopper, (uint32_t)(r - r->world->ranks)) <= r->launch - r->busy;
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

#else

int world_emulated_open(struct sim_world *w, char *error, size_t size)
{
    snprintf(error, size, "this build has no emulated kernels: no C++ compiler was found");
    return -EINVAL;
}
void world_emulated_close(struct sim_world *w)
{
}
int world_emulated_rank(struct sim_world *w, struct sim_world_rank *r, char *error, size_t size)
{
    return -EINVAL;
}
void *world_emulated_memory(struct sim_world *w, size_t bytes)
{
    return NULL;
}
int world_emulated_launch(struct sim_world_rank *r)
{
    return -EINVAL;
}
int world_emulated_busy(const struct sim_world_rank *r)
{
    return 0;
}
void world_emulated_wrote(struct sim_world_rank *r, const void *p, size_t bytes)
{
}
int world_emulated_step(struct sim_world *w)
{
    return 0;
}
int world_emulated_tick(struct sim_world *w, uint64_t next)
{
    return 0;
}
void world_emulated_deadlock(struct sim_world *w)
{
}
void world_emulated_drop(struct sim_world *w, uint32_t rank)
{
}
void world_emulated_moves(struct sim_world *w, uint32_t rank, const void *destination,
                          const void *source, uint64_t bytes)
{
}
void world_emulated_raises(struct sim_world *w, uint32_t rank, const void *flag)
{
}
void world_emulated_proxy(struct sim_world_rank *r)
{
}

#endif

/* ---- AllGather+GEMM with its own math: the explorer's fingerprints of it are no product ---- */

/* Of small integers, none 0: a sum of K products is exact in fp32. */
static void world_emulated_integers(uint16_t *to, uint64_t count, uint64_t seed, uint64_t launch,
                                    uint32_t rank, uint32_t argument)
{
    /* -3, -2, -1, 1, 2, 3 */
    static const uint16_t values[] = {0xc040, 0xc000, 0xbf80, 0x3f80, 0x4000, 0x4040};
    struct sim_random r = {sim_mix(seed) ^ sim_mix(launch << 20 ^ (uint64_t)rank << 4 ^ argument)};
    for (uint64_t i = 0; i < count; i++)
        to[i] = values[sim_random_below(&r, 6)];
}

/* The same in e4m3; and scales, powers of two of which those of A and of B come near 2^40 and
 * 2^-40, one of each block's others by no more than 8. */
static void world_emulated_codes(uint8_t *to, uint64_t count, uint64_t seed, uint64_t launch,
                                 uint32_t rank, uint32_t argument)
{
    static const uint8_t values[] = {0xc4, 0xc0, 0xb8, 0x38, 0x40, 0x44};
    struct sim_random r = {sim_mix(seed) ^ sim_mix(launch << 20 ^ (uint64_t)rank << 4 ^ argument)};
    for (uint64_t i = 0; i < count; i++)
        to[i] = values[sim_random_below(&r, 6)];
}

static void world_emulated_scales(float *to, uint64_t count, uint64_t seed, uint64_t launch,
                                  uint32_t rank, uint32_t argument)
{
    struct sim_random r = {sim_mix(seed) ^ sim_mix(launch << 20 ^ (uint64_t)rank << 4 ^ argument)};
    for (uint64_t i = 0; i < count; i++)
        to[i] = ldexpf(1, (int)sim_random_below(&r, 3) + (argument == 3 ? 38 : -40));
}

void world_emulated_fill(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                         void *const arguments[MK_SPACES - 1])
{
    const struct mk_problem *q = &plan->problem;
    if (q->fp8) {
        uint64_t bytes[MK_SPACES - 1];
        op_extents(q, bytes);
        for (uint32_t i = 0; i < 2; i++)
            world_emulated_codes(arguments[i], bytes[i], seed, launch, q->topo.rank, i);
        for (uint32_t i = 3; i < 5; i++)
            world_emulated_scales(arguments[i], bytes[i] / 4, seed, launch, q->topo.rank, i);
    } else {
        world_emulated_integers(arguments[0], q->m / mk_world(&q->topo) * q->k, seed, launch,
                                q->topo.rank, 0);
        world_emulated_integers(arguments[1], q->k * q->n, seed, launch, q->topo.rank, 1);
    }
    exact_fill_bias(q, seed, launch, arguments);
}

static void world_emulated_widen(float *to, const uint16_t *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = mk_bf16_to_float(from[i]);
}

/* Sums of products of such numbers are exact in fp32 and in the 14 bits of a tensor core. */
int world_emulated_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                          void *const arguments[MK_SPACES - 1], struct sim_reference *reference,
                          char *text, size_t size)
{
    const struct mk_problem *q = &plan->problem;
    uint64_t shard = q->m / mk_world(&q->topo), m = q->m, n = q->n, k = q->k;
    uint64_t blocks = mk_ceil_div(k, MK_SCALE_BLOCK);
    const uint16_t *c = arguments[2];
    uint16_t *some = malloc(shard * k * sizeof *some);
    float *a = malloc(m * k * sizeof *a), *b = malloc(k * n * sizeof *b),
          *wide = malloc(k * n * sizeof *wide), *row = malloc(n * sizeof *row),
          *scales = malloc(shard * blocks * sizeof *scales);
    int wrong = !some || !a || !b || !wide || !row || !scales;
    for (uint32_t rank = 0; !wrong && rank < mk_world(&q->topo); rank++)
        if (q->fp8) {
            world_emulated_codes((uint8_t *)some, shard * k, seed, launch, rank, 0);
            world_emulated_scales(scales, shard * blocks, seed, launch, rank, 3);
            dequantize_rows((uint8_t *)some, shard, k, scales, shard, a + rank * shard * k);
        } else {
            world_emulated_integers(some, shard * k, seed, launch, rank, 0);
            world_emulated_widen(a + rank * shard * k, some, shard * k);
        }
    if (!wrong && q->fp8)
        dequantize_blocks(arguments[1], n, k, arguments[4], mk_round_up(blocks, 4), b);
    else if (!wrong)
        world_emulated_widen(b, arguments[1], k * n);
    for (uint64_t i = 0; !wrong && i < k * n; i++)
        wide[i] = b[q->b_transposed ? i % n * k + i / n : i];
    for (uint64_t i = 0; i < m && !wrong; i++) {
        memset(row, 0, n * sizeof *row);
        for (uint64_t p = 0; p < k; p++) {
            float v = a[i * k + p];
            for (uint64_t j = 0; j < n; j++)
                row[j] += v * wide[p * n + j];
        }
        for (uint64_t j = 0; j < n && !wrong; j++)
            if (!exact_is_right(q, seed, launch, j, c[i * n + j], &row[j])) {
                snprintf(text, size, "launch %llu, rank %u: C[%llu][%llu] is %g and should be %g%s",
                         (unsigned long long)launch, q->topo.rank, (unsigned long long)i,
                         (unsigned long long)j, (double)mk_bf16_to_float(c[i * n + j]),
                         (double)row[j], c[i * n + j] == 0xffff ? " (never written)" : "");
                wrong = 1;
            }
    }
    free(some);
    free(a);
    free(b);
    free(scales);
    free(wide);
    free(row);
    return wrong;
}
