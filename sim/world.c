#include "sim/model_fabric.h"
#include "core/base/sentence.h"
#include "core/plan/plan_fields.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING_CAPACITY 64

/* ---- what CTAs and proxies ask of the world; the context is the rank ---- */

static uint64_t world_now(void *context)
{
    struct sim_world_rank *r = context;
    return r->world->now;
}

static int world_failed(void *context)
{
    struct sim_world_rank *r = context;
    return r->world->result->failure.kind != MK_FAIL_NONE;
}

/* As comm_fail and the bootstrap do between processes: every record counts, and the one that names
 * the rank that hangs is kept. */
static void world_fail(void *context, const struct mk_failure *failure)
{
    struct sim_world_rank *r = context;
    const struct mk_topo *topo = &r->plan.problem.topo;
    struct mk_failure f = *failure;
    f.relay = f.kind == MK_FAIL_TIMEOUT && f.producer < mk_world(topo)
                  ? mk_relay_of(topo, f.producer)
                  : UINT32_MAX;
    failure_merge(&r->world->failure, &f);
    r->world->result->failure = r->world->failure.kept;
}

static void world_describe(void *context, uint32_t plan, struct mk_failure *f)
{
    struct sim_world_rank *r = context;
    struct mk_flag_meaning meaning;
    f->op = r->plan.problem.op;
    if (f->flag == UINT32_MAX)
        return;
    plan_describe_flag(&r->plan, f->flag, &meaning);
    f->chunk = meaning.chunk;
    snprintf(f->what, sizeof f->what, "%s", meaning.text);
}

/* ---- launches ---- */

void sim_world_begin_launch(struct sim_world_rank *r)
{
    struct sim_world *w = r->world;
    const struct sim_world_config *config = &w->config;
    uint64_t bytes[MK_SPACES - 1] = {0};
    void **arguments = sim_world_arguments(r, ++r->launch);
    uint32_t outputs = op_extents(&r->plan.problem, bytes);
    if (config->inputs) {
        config->inputs(config->context, &r->plan, r->launch, arguments);
    } else {
        const struct sim_launch l = {
            .plan = &r->plan, .seed = config->seed, .launch = r->launch, .arguments = arguments};
        w->op->fill(&l);
    }
    for (uint32_t i = 0; i < MK_SPACES - 1; i++)
        if (outputs >> i & 1)
            memset(arguments[i], 0xff, bytes[i]); /* NaN */
    for (uint32_t i = 0; w->hopper && r->launch > 1 && i < MK_SPACES - 1; i++)
        world_emulated_wrote(r, arguments[i], bytes[i]);
    if (r->compute)
        compute_load_b(r->compute, arguments, r->rank.beats);
    r->rank.epoch = r->launch;
    for (uint32_t i = 0; i < w->ctas; i++)
        sim_cta_begin(&r->rank.ctas[i], &r->rank, i);
    r->running = w->ctas;
    r->busy++;
    int result = w->hopper ? world_emulated_launch(r) : 0;
    if (result)
        sim_world_error(w, -EBADMSG, "rank %u: its kernel is not launched: %d",
                        r->plan.problem.topo.rank, result);
}

/* A launch ends with no put under way, of an operator that promises that (docs/MODEL.md). */
static void world_check_drained(struct sim_world *w, const struct sim_world_rank *r)
{
    for (uint32_t i = 0; i < r->ring_count; i++) {
        uint64_t posted = w->hopper ? world_emulated_posted(r, i) : r->rings[i]->posted,
                 under_way = posted - r->rings[i]->completed;
        if (under_way)
            sim_world_error(w, -EBADMSG,
                            "launch %lu, rank %u: it has ended with %lu puts of ring %u under way",
                            r->launch, r->plan.problem.topo.rank, under_way, i);
    }
}

void sim_world_end_launch(struct sim_world_rank *r)
{
    struct sim_world *w = r->world;
    uint64_t bytes[MK_SPACES - 1];
    char text[256];
    uint64_t launch = r->launch - --r->busy;
    void **arguments = sim_world_arguments(r, launch);
    if (w->result->failure.kind)
        return;
    if (!w->op->leaves_puts && !op_halves(&r->plan.problem) &&
        !r->busy) /* else the next one may have put, too */
        world_check_drained(w, r);
    const struct sim_launch l = {&r->plan,      w->config.seed, launch,     arguments,
                                 &w->reference, text,           sizeof text};
    int wrong = w->config.check
                    ? w->config.check(w->config.context, &r->plan, launch,
                                      arguments[__builtin_ctz(op_extents(&r->plan.problem, bytes))],
                                      text, sizeof text)
                    : w->op->verify(&l);
    if (wrong)
        sim_world_error(w, -EBADMSG, "%s", text);
}

/* ---- life ---- */

static int world_make_network(struct sim_world *w, struct sim_world_rank *r)
{
    const uint32_t *ctas = r->plan.problem.tuning.split.ctas;
    uint64_t capacity = w->config.ring_capacity ? w->config.ring_capacity : RING_CAPACITY;
    uint32_t rings = ctas[MK_INTER_SEND] + ctas[MK_INTER_REDUCE];
    if (!rings)
        return 0;
    for (uint32_t i = 0; i < rings; i++) {
        r->rings[i] = calloc(1, mk_ring_bytes(capacity));
        if (!r->rings[i])
            return -ENOMEM;
        r->rings[i]->capacity = capacity;
        r->ring_count = i + 1;
    }
    int result = model_fabric_create(&r->fabric, w, r->plan.problem.topo.rank);
    if (result)
        return result;
    const struct proxy_config config = {.fabric = r->fabric,
                                        .rings = r->rings,
                                        .ring_count = r->ring_count,
                                        .in_flight = w->config.in_flight,
                                        .timeout_ns = r->plan.problem.timeout_ns,
                                        .topo = r->plan.problem.topo,
                                        .heap_bytes = r->heap_bytes,
                                        .heap_flags = r->plan.flag_base + r->plan.flags,
                                        .now = world_now,
                                        .failed = world_failed,
                                        .fail = world_fail,
                                        .describe = world_describe,
                                        .context = r};
    return proxy_create(&r->proxy, &config);
}

static int world_make_memory(struct sim_world *w, struct sim_world_rank *r)
{
    uint64_t bytes[MK_SPACES - 1] = {0};
    op_extents(&r->plan.problem, bytes);
    r->heap = w->hopper ? world_emulated_memory(w, r->heap_bytes)
                        : aligned_alloc(4096, mk_round_up(r->heap_bytes, 4096));
    r->scratch = malloc((uint64_t)r->plan.problem.tuning.split.ctas[MK_COMPUTE] *
                            r->plan.problem.tuning.tile_m * r->plan.problem.k * sizeof(float) +
                        1);
    if (!r->heap || !r->scratch)
        return -ENOMEM;
    r->ahead = w->hopper && w->config.launches > 1 ? 2 : 1;
    for (uint32_t i = 0; i < MK_SPACES - 1; i++)
        if (op_heap_offset(&r->plan.problem, i))
            r->ahead = 1;
    for (uint32_t i = 0; i < r->ahead * (MK_SPACES - 1); i++) {
        uint32_t of = i % (MK_SPACES - 1);
        uint64_t at = op_heap_offset(&r->plan.problem, of);
        void **argument = &r->arguments[i / (MK_SPACES - 1)][of];
        *argument = at           ? r->heap + at
                    : !bytes[of] ? NULL
                    : w->hopper  ? world_emulated_memory(w, bytes[of])
                                 : malloc(bytes[of]);
        if (bytes[of] && !*argument)
            return -ENOMEM;
    }
    uint64_t flag_bytes = 8ull * (r->plan.flag_base + r->plan.flags);
    memset(r->heap, 0, flag_bytes);
    memset(r->heap + flag_bytes, 0xff, r->heap_bytes - flag_bytes);
    memset(r->heap + r->plan.heap_base, 0, r->plan.zero_bytes);
    if (w->op->start && w->op->start(&r->plan, w->config.seed, r->heap))
        return -ENOMEM;
    return w->hopper ? 0 : compute_create(&r->compute, &r->plan);
}

static int world_make_ctas(struct sim_world *w, struct sim_world_rank *r)
{
    r->rank.ctas = calloc(w->ctas + 1, sizeof *r->rank.ctas);
    r->outboxes = calloc(w->ctas + 1, sizeof *r->outboxes);
    if (!r->rank.ctas || !r->outboxes)
        return -ENOMEM;
    r->rank.cta_count = w->ctas;
    for (uint32_t i = 0; i < w->ctas; i++)
        if (coroutine_create(&r->rank.ctas[i].coroutine, w->pool))
            return -ENOMEM;
    return 0;
}

static int world_make_plan(struct sim_world *w, struct sim_world_rank *r, uint32_t rank,
                           char *error, size_t size)
{
    struct mk_problem problem = w->config.problem;
    /* Flags lie in front of everything, but the plan must not count on beginning at 0. How many it
     * takes is known only once it is built, so it is built twice. */
    uint32_t flag_base = 3;
    problem.topo.rank = rank;
    if (!op_limit_of(&problem)) /* what is drawn is of every kind */
        plan_field_set(plan_field_named("capacity"), &problem, UINT64_MAX);
    int result = plan_build(&r->plan, &problem, flag_base, 0, error, size);
    if (result)
        return result;
    uint64_t data = mk_round_up(8ull * (flag_base + r->plan.flags), 4096),
             bytes[MK_SPACES - 1] = {0};
    op_extents(&r->plan.problem, bytes);
    if (problem.a_in_heap) {
        problem.a_offset = data;
        data += mk_round_up(bytes[0], MK_HEAP_UNIT);
    }
    if (problem.c_in_heap) {
        problem.c_offset = data;
        data += mk_round_up(bytes[2], MK_HEAP_UNIT);
    }
    result = plan_build(&r->plan, &problem, flag_base, data, error, size);
    r->plan.id = 1;
    r->heap_bytes = r->plan.heap_base + r->plan.heap_bytes;
    return result;
}

static int world_make_rank(struct sim_world *w, uint32_t rank, char *error, size_t size)
{
    struct sim_world_rank *r = &w->ranks[rank];
    r->world = w;
    int result = world_make_plan(w, r, rank, error, size);
    if (result)
        return result;
    w->ctas = w->hopper ? 0 : mk_total_ctas(&r->plan.problem.tuning.split);
    result = w->hopper ? world_emulated_rank(w, r, error, size) : 0;
    result = result ? result : world_make_memory(w, r);
    result = result ? result : world_make_ctas(w, r);
    result = result ? result : world_make_network(w, r);
    r->rank.plan = &r->plan;
    r->rank.op = w->op;
    r->rank.rings = r->rings;
    r->rank.now = world_now;
    r->rank.failed = world_failed;
    r->rank.fail = world_fail;
    r->rank.math = sim_world_math;
    r->rank.transfer = sim_world_transfer;
    r->rank.context = r;
    r->rank.spaces[MK_SPACE_HEAP] = r->heap;
    for (uint32_t i = 0; i < MK_SPACES - 1; i++)
        r->rank.spaces[MK_SPACE_ARG0 + i] = r->arguments[0][i];
    return result;
}

static void world_free_rank(struct sim_world *w, struct sim_world_rank *r)
{
    proxy_destroy(r->proxy);
    if (r->fabric)
        r->fabric->ops->close(r->fabric);
    for (uint32_t i = 0; i < r->ring_count; i++)
        free(r->rings[i]);
    for (uint32_t i = 0; i < w->ctas && r->rank.ctas && r->outboxes; i++) {
        coroutine_destroy(r->rank.ctas[i].coroutine);
        sim_outbox_free(&r->outboxes[i]);
    }
    free(r->rank.ctas);
    free(r->outboxes);
    compute_destroy(r->compute);
    for (uint32_t i = 0; i < MK_SPACES - 1 && !w->hopper; i++)
        if (!op_heap_offset(&r->plan.problem, i))
            free(r->arguments[0][i]);
    free(r->scratch);
    if (!w->hopper)
        free(r->heap);
}

/* One way to draw per seed, in turn. */
static void world_choose_strategy(struct sim_world *w)
{
    w->strategy = (enum sim_strategy)(w->config.seed % SIM_STRATEGIES);
    w->last = w->actors;
    for (uint32_t i = 0; i < w->actors; i++)
        w->priorities[i] = (uint32_t)sim_random(&w->random);
    w->starved_from = sim_random_below(&w->random, w->actors);
    switch (sim_random_below(&w->random, 3)) {
    case 0: /* one actor */
        w->starved_step = w->starved_count = 1;
        break;
    case 1: /* a rank */
        w->starved_from -= w->starved_from % w->per_rank;
        w->starved_step = 1;
        w->starved_count = w->per_rank;
        break;
    default: /* the same actor of every rank */
        w->starved_from %= w->per_rank;
        w->starved_step = w->per_rank;
        w->starved_count = w->world;
    }
}

static int world_make_world(struct sim_world *w, char *error, size_t size)
{
    w->op = w->config.op ? w->config.op : sim_op_of(w->config.problem.op);
    w->world = mk_world(&w->config.problem.topo);
    snprintf(error, size, "no memory for a world of %u ranks", w->world);
    if (!w->op || !w->world || w->world > MK_MAX_RANKS)
        return mk_fail(-EINVAL, error, size, "%s on %u nodes of %u ranks: nothing to run",
                       plan_op_name(w->config.problem.op), w->config.problem.topo.nodes,
                       w->config.problem.topo.gpus);
    int result = w->config.pool ? 0 : coroutine_pool_create(&w->own_pool, 0);
    w->pool = w->config.pool ? w->config.pool : w->own_pool;
    if (!result && w->config.emulated)
        result = world_emulated_open(w, error, size);
    if (result)
        return result;
    if (failure_case_open(&w->failure, w->world))
        return -ENOMEM;
    w->ranks = calloc(w->world, sizeof *w->ranks);
    if (!w->ranks)
        return -ENOMEM;
    for (uint32_t rank = 0; !result && rank < w->world; rank++)
        result = world_make_rank(w, rank, error, size);
    if (result)
        return result;
    for (uint32_t rank = 0; rank < w->world; rank++) {
        struct sim_world_rank *r = &w->ranks[rank];
        uint32_t first = rank - rank % w->config.problem.topo.gpus;
        for (uint32_t local = 0; local < w->config.problem.topo.gpus; local++)
            r->rank.peers[local] = w->ranks[first + local].heap;
    }
    w->per_rank = 2 * w->ctas + 3;
    w->actors = w->world * w->per_rank + (w->hopper ? 1 : 0); /* the machine is the last */
    w->priorities = malloc(w->actors * sizeof *w->priorities);
    w->actor = malloc(w->actors * sizeof *w->actor);
    if (!w->priorities || !w->actor)
        return -ENOMEM;
    for (uint32_t i = 0; i < w->world * w->per_rank; i++)
        w->actor[i] = (struct sim_actor){&w->ranks[i / w->per_rank], i % w->per_rank};
    return 0;
}

int sim_world_run(const struct sim_world_config *config, struct sim_world_result *result)
{
    struct sim_world w = {
        .config = *config, .result = result, .random = {sim_mix(config->seed + 1)}, .now = 1};
    char error[sizeof result->sentence] = "";
    memset(result, 0, sizeof *result);
    int made = world_make_world(&w, error, sizeof error);
    if (made) {
        sim_world_error(&w, made, "%s", error);
    } else {
        world_choose_strategy(&w);
        sim_world_schedule(&w);
    }
    if (!w.error && result->failure.kind) {
        w.error = -EIO;
        failure_settle(&w.failure);
        result->failure = w.failure.kept;
        failure_sentence(&result->failure, result->sentence, sizeof result->sentence);
    }
    result->steps = w.steps;
    result->ns = w.now;
    result->hash = w.hash;
    for (uint32_t rank = 0; w.ranks && rank < w.world; rank++)
        world_free_rank(&w, &w.ranks[rank]);
    world_emulated_close(&w);
    free(w.ranks);
    free(w.reference.memory);
    failure_case_close(&w.failure);
    free(w.priorities);
    free(w.actor);
    coroutine_pool_destroy(w.own_pool);
    return w.error;
}
