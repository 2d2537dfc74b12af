#include "sim/cta.h"
#include "core/cta/ring_host.h"
#include "core/cta/half.h"
#include "core/cta/cta_norm.h"
#include "core/cta/cta_rows.h"
#include "core/plan/pipeline.h"
#include "core/base/quantize.h"
#include "sim/op.h"
#include "sim/transfer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NO_FLAG UINT32_MAX
#define NO_ARGUMENT 0xffffffu

static struct sim_cta *cta_of(struct mk_cta *cta)
{
    return (struct sim_cta *)(void *)cta;
}

/* The executor's own calls; NULL: those below. */
static const struct sim_calls *cta_calls(const struct mk_cta *cta)
{
    return ((const struct sim_head *)(const void *)cta)->rank->calls;
}

static void cta_set_progress(struct sim_cta *c, uint32_t what)
{
    if (c->rank->progress)
        __atomic_store_n(&c->rank->progress[c->grid], c->rank->epoch << 32 | what,
                         __ATOMIC_RELAXED);
}

static struct mk_failure cta_about(const struct sim_cta *c, enum mk_failure_kind kind)
{
    struct mk_failure f;
    memset(&f, 0, sizeof f);
    f.kind = kind;
    f.op = c->rank->plan->problem.op;
    f.rank = f.producer = c->rank->plan->problem.topo.rank;
    f.cta = c->grid;
    f.role = c->cta.role;
    f.flag = f.chunk = f.relay = UINT32_MAX;
    f.epoch = c->rank->epoch;
    return f;
}

void sim_cta_internal(struct sim_cta *c, const char *what)
{
    struct mk_failure f = cta_about(c, MK_FAIL_INTERNAL);
    snprintf(f.what, sizeof f.what, "%s", what);
    c->rank->fail(c->rank->context, &f);
}

/* The CTA whose wait tells most: a wait for the rank's own CTAs or for the ring is often the echo
 * of another CTA's wait for a chunk. */
static const struct sim_cta *cta_most_telling(const struct sim_cta *c)
{
    const struct sim_rank *r = c->rank;
    struct mk_flag_meaning meaning;
    for (uint32_t i = 0; i <= r->cta_count; i++) {
        const struct sim_cta *other = i == 0 ? c : &r->ctas[i - 1];
        if (other->ended || !other->word || other->flag == NO_FLAG)
            continue;
        plan_describe_flag(r->plan, other->flag, &meaning);
        if (meaning.chunk != UINT32_MAX &&
            __atomic_load_n(other->word, __ATOMIC_ACQUIRE) < other->target)
            return other;
    }
    return c;
}

static void cta_report_wait(const struct sim_cta *c, uint64_t now)
{
    struct mk_failure f = cta_about(c, MK_FAIL_TIMEOUT);
    f.flag = c->flag;
    f.seen = __atomic_load_n(c->word, __ATOMIC_ACQUIRE);
    f.wanted = c->target;
    f.waited_ns = now - c->since;
    if (c->flag != NO_FLAG) {
        struct mk_flag_meaning meaning;
        plan_describe_flag(c->rank->plan, c->flag, &meaning);
        f.chunk = meaning.chunk;
        f.producer = meaning.producer;
        snprintf(f.what, sizeof f.what, "%s", meaning.text);
    } else if (c->ring && c->word == &c->ring->seen) {
        snprintf(f.what, sizeof f.what, "room in its command ring");
    } else if (c->ring && c->word == &c->ring->completed) {
        snprintf(f.what, sizeof f.what, "its puts to leave their source");
    } else {
        snprintf(f.what, sizeof f.what, "its own copies");
    }
    c->rank->fail(c->rank->context, &f);
}

/* Yields until *word >= target. 0, or 1 where the launch is ending. */
static int cta_block(struct sim_cta *c, const uint64_t *word, uint64_t target, uint32_t flag,
                     uint32_t what)
{
    struct sim_rank *r = c->rank;
    c->since = r->now(r->context);
    c->deadline = c->since + r->plan->problem.timeout_ns;
    c->target = target;
    c->flag = flag;
    c->what = what;
    c->word = word;
    cta_set_progress(c, what);
    int result = 0;
    for (;;) {
        coroutine_yield();
        if (r->failed(r->context)) {
            /* Where a rank is lost, the job's sentence takes in what others were waiting for. */
            if (__atomic_load_n(word, __ATOMIC_ACQUIRE) < target)
                cta_report_wait(c, r->now(r->context));
            result = 1;
            break;
        }
        if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= target)
            break;
        uint64_t now = r->now(r->context);
        if (now >= c->deadline) {
            cta_report_wait(cta_most_telling(c), now);
            result = 1;
            break;
        }
    }
    c->word = NULL;
    return result;
}

static void cta_record_wait(struct sim_cta *c)
{
    mk_track_add(&c->track, c->what, c->since, c->rank->now(c->rank->context));
}

int mk_cta_wait_all(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target,
                    enum mk_cause cause)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls)
        return calls->wait(cta, flag, count, target, cause);
    return mk_cta_wait_others(cta, flag, count, count, target, cause);
}

int mk_cta_wait_others(struct mk_cta *cta, uint32_t flag, uint32_t count, uint32_t own,
                       uint64_t target, enum mk_cause cause)
{
    for (uint32_t i = 0; i < count; i++)
        if (i != own && mk_cta_wait(cta, flag + i, target, cause))
            return 1;
    return 0;
}

int mk_cta_wait(struct mk_cta *cta, uint32_t flag, uint64_t target, enum mk_cause cause)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls)
        return calls->wait(cta, flag, 1, target, cause);
    struct sim_cta *c = cta_of(cta);
    const uint64_t *word = (const uint64_t *)(const void *)c->rank->spaces[MK_SPACE_HEAP] + flag;
    int result = cta_block(c, word, target, flag, mk_event_what(MK_EV_WAIT, cause, flag));
    cta_record_wait(c);
    return result;
}

static void cta_issue(struct sim_cta *c, struct sim_transfer *t, uint32_t event)
{
    struct sim_rank *r = c->rank;
    uint32_t what = mk_event_what(event, t->local, t->id);
    cta_set_progress(c, what);
    coroutine_yield();
    t->start = r->now(r->context);
    c->issued += SIM_IS_DATA(t->kind);
    if (r->transfer) {
        r->transfer(c, t);
        return;
    }
    sim_transfer_land(r, t);
    c->landed += SIM_IS_DATA(t->kind);
    mk_track_add(&c->track, what, t->start, SIM_IS_DATA(t->kind) ? r->now(r->context) : t->start);
}

/* A copy of a chunk from one of this rank's spaces, of t.bytes; where it goes and by which rows the
 * caller says. */
static void cta_copy(struct mk_cta *cta, enum mk_space from, const struct mk_chunk *chunk,
                     struct sim_transfer t)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls) {
        calls->copy(cta, t.local, chunk->id, t.bytes);
        return;
    }
    t.kind = SIM_COPY;
    t.id = chunk->id;
    t.offset = chunk->destination;
    t.source = cta_of(cta)->rank->spaces[from] + chunk->source;
    cta_issue(cta_of(cta), &t, MK_EV_COPY);
}

void mk_cta_copy(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk)
{
    cta_copy(cta, chunk->space, chunk,
             (struct sim_transfer){.local = local, .bytes = chunk->bytes});
}

void mk_cta_copy_rows(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                      uint32_t rows, uint64_t source_pitch, uint64_t destination_pitch)
{
    if (rows || cta_calls(cta))
        cta_copy(cta, chunk->space, chunk,
                 (struct sim_transfer){.local = local,
                                       .bytes = rows * chunk->bytes,
                                       .row_bytes = chunk->bytes,
                                       .row_pitch = source_pitch,
                                       .to_pitch = destination_pitch});
}

void mk_cta_copy_packed(struct mk_cta *cta, uint32_t local, const struct mk_chunk *chunk,
                        uint32_t rows, uint64_t pitch)
{
    uint64_t row_bytes = rows ? chunk->bytes / rows : 0;
    cta_copy(cta, chunk->space, chunk,
             (struct sim_transfer){.local = local,
                                   .bytes = chunk->bytes,
                                   .row_bytes = row_bytes,
                                   .row_pitch = pitch,
                                   .to_pitch = row_bytes});
}

int mk_rows_without_data(struct mk_cta *cta, uint32_t local, uint32_t id, uint64_t bytes)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls)
        calls->copy(cta, local, id, bytes);
    return calls != NULL;
}

void mk_cta_deliver(struct mk_cta *cta, enum mk_space space, const struct mk_chunk *chunk,
                    uint32_t rows, uint64_t pitch)
{
    const struct mk_topo *topo =
        &((const struct sim_head *)(const void *)cta)->rank->plan->problem.topo;
    cta_copy(cta, chunk->space, chunk,
             (struct sim_transfer){.local = mk_local_of(topo, topo->rank),
                                   .space = space,
                                   .bytes = rows * chunk->bytes,
                                   .row_bytes = chunk->bytes,
                                   .row_pitch = chunk->bytes,
                                   .to_pitch = pitch});
}

void mk_cta_combine(struct mk_cta *cta, const struct mk_combine *combine)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls) {
        calls->combine(cta, combine);
        return;
    }
    struct sim_cta *c = cta_of(cta);
    const struct mk_topo *topo = &c->rank->plan->problem.topo;
    int away = combine->space == MK_SPACE_HEAP && combine->local != mk_local_of(topo, topo->rank);
    struct sim_transfer t = {.kind = SIM_COMBINE,
                             .local = away ? combine->local : 0,
                             .id = combine->id,
                             .bytes = combine->elements * 2,
                             .combine = combine};
    cta_issue(c, &t, away ? MK_EV_COPY : MK_EV_REDUCE); /* to another rank it is its way, too */
}

void mk_cta_route(struct mk_cta *cta, const struct mk_route *route)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls) {
        calls->route(cta, route);
        return;
    }
    struct sim_cta *c = cta_of(cta);
    struct sim_transfer t = {.kind = SIM_ROUTE, .id = NO_ARGUMENT, .bytes = 16, .route = &c->route};
    c->route = *route;
    cta_issue(c, &t, MK_EV_REDUCE);
}

int mk_cta_overflow(struct mk_cta *cta, enum mk_route_over over, uint32_t rank, uint32_t count,
                    uint32_t room)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls) {
        calls->overflow(cta, over, rank, count, room);
        return 1;
    }
    struct sim_cta *c = cta_of(cta);
    struct mk_failure f = cta_about(c, MK_FAIL_OVERFLOW);
    failure_overflow(&f, over, rank, count, room);
    c->rank->fail(c->rank->context, &f);
    return 1;
}

uint32_t mk_cta_load(struct mk_cta *cta, uint64_t offset)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls)
        return *(const uint32_t *)calls->load(cta, offset);
    return *(const uint32_t *)(const void *)(cta_of(cta)->rank->spaces[MK_SPACE_HEAP] + offset);
}

uint64_t mk_cta_load64(struct mk_cta *cta, uint64_t offset)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls)
        return *(const uint64_t *)calls->load(cta, offset);
    return *(const uint64_t *)(const void *)(cta_of(cta)->rank->spaces[MK_SPACE_HEAP] + offset);
}

uint32_t mk_cta_load_argument(struct mk_cta *cta, enum mk_space space)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls)
        return calls->count(cta);
    return *(const uint32_t *)(const void *)cta_of(cta)->rank->spaces[space];
}

void mk_cta_norm(struct mk_cta *cta, const struct mk_norm *norm, uint32_t row)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls) {
        calls->norm(cta, norm);
        return;
    }
    struct sim_cta *c = cta_of(cta);
    uint8_t *const *spaces = c->rank->spaces;
    const uint64_t first = (uint64_t)row * norm->columns * 2;
    uint16_t *of = (uint16_t *)(void *)(spaces[norm->c] + first),
             *sum = norm->normed ? (uint16_t *)(void *)(spaces[norm->sum] + first) : of;
    const uint16_t *residual = (const uint16_t *)(const void *)(spaces[norm->residual] + first),
                   *weight =
                       norm->normed ? (const uint16_t *)(const void *)spaces[norm->weight] : NULL;
    uint8_t *codes = norm->rows ? spaces[norm->codes] + first / 2 : NULL;
    float *scales = (float *)(void *)spaces[norm->scales], squares = 0, block[MK_SCALE_BLOCK];
    coroutine_yield();
    const uint64_t start = c->rank->now(c->rank->context);
    for (uint32_t i = 0; i < norm->columns; i++) {
        sum[i] =
            mk_half_from_float(norm->element, mk_half_to_float(norm->element, of[i]) +
                                                  mk_half_to_float(norm->element, residual[i]));
        squares +=
            mk_half_to_float(norm->element, sum[i]) * mk_half_to_float(norm->element, sum[i]);
    }
    const float scale = 1 / sqrtf(squares / (float)norm->columns + norm->eps);
    for (uint32_t from = 0; norm->normed && from < norm->columns; from += MK_SCALE_BLOCK) {
        uint32_t count = norm->columns - from;
        count = count < MK_SCALE_BLOCK ? count : MK_SCALE_BLOCK;
        for (uint32_t i = from; i < from + count; i++) {
            const uint16_t normed =
                mk_half_from_float(norm->element, mk_half_to_float(norm->element, sum[i]) * scale *
                                                      mk_half_to_float(norm->element, weight[i]));
            block[i - from] = mk_half_to_float(norm->element, normed);
            if (!norm->rows)
                of[i] = normed;
        }
        if (norm->rows)
            scales[(uint64_t)(from / MK_SCALE_BLOCK) * norm->rows + row] =
                quantize_row_block(block, count, codes + from);
    }
    mk_track_add(&c->track, mk_event_what(MK_EV_REDUCE, MK_CAUSE_NONE, NO_ARGUMENT), start,
                 c->rank->now(c->rank->context));
}

void sim_cta_store(struct sim_cta *c, const struct sim_operands *o, const float *values)
{
    struct sim_rank *r = c->rank;
    struct sim_transfer t = {.kind = SIM_TILE,
                             .local = o->c_local,
                             .offset = o->c,
                             .bytes = (uint64_t)o->rows * o->cols * 2,
                             .start = r->now(r->context),
                             .values = values,
                             .cols = o->cols,
                             .pitch = o->c_pitch,
                             .number = o->c_number};
    if (!t.bytes)
        return;
    if (o->c_space != MK_SPACE_HEAP) {
        sim_store_part(&t, r->spaces[o->c_space] + o->c, 0, t.bytes);
        return;
    }
    c->issued++;
    if (r->transfer) {
        r->transfer(c, &t);
        return;
    }
    sim_transfer_land(r, &t);
    c->landed++;
}

static void cta_raise_flag(struct mk_cta *cta, enum sim_transfer_kind kind, uint32_t local,
                           uint32_t flag, uint64_t value)
{
    const struct sim_calls *calls = cta_calls(cta);
    struct sim_transfer t = {.kind = kind,
                             .local = local,
                             .id = flag,
                             .offset = (uint64_t)flag * 8,
                             .bytes = 8,
                             .value = value};
    if (calls)
        calls->raise(cta, kind == SIM_ADD, local, flag, value);
    else
        cta_issue(cta_of(cta), &t, MK_EV_SIGNAL);
}

void mk_cta_signal(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t value)
{
    cta_raise_flag(cta, SIM_SET, local, flag, value);
}

void mk_cta_add(struct mk_cta *cta, uint32_t local, uint32_t flag, uint64_t count)
{
    cta_raise_flag(cta, SIM_ADD, local, flag, count);
}

void mk_cta_add_each(struct mk_cta *cta, uint32_t ranks, uint32_t flag, uint64_t count)
{
    for (uint32_t local = 0; ranks >> local; local++)
        if (ranks >> local & 1)
            mk_cta_add(cta, local, flag, count);
}

static int cta_wait_landed(struct sim_cta *c)
{
    if (c->landed == c->issued)
        return 0;
    return cta_block(c, &c->landed, c->issued, NO_FLAG,
                     mk_event_what(MK_EV_COPY, MK_CAUSE_NONE, NO_ARGUMENT));
}

/* Where calls take time and move nothing, all that was asked for has been done. */
int mk_cta_settle(struct mk_cta *cta)
{
    return cta_calls(cta) ? 0 : cta_wait_landed(cta_of(cta));
}

static int cta_post(struct sim_cta *c, struct mk_command command)
{
    struct mk_ring *ring = c->ring;
    uint64_t room = ring->posted < ring->capacity ? 0 : ring->posted + 1 - ring->capacity;
    if (__atomic_load_n(&ring->seen, __ATOMIC_ACQUIRE) < room) {
        int result = cta_block(c, &ring->seen, room, NO_FLAG,
                               mk_event_what(MK_EV_WAIT, MK_CAUSE_BACKPRESSURE, NO_ARGUMENT));
        cta_record_wait(c);
        if (result)
            return 1;
    }
    if (mk_ring_post(ring, command)) {
        sim_cta_internal(c, "a command ring that was not full became full");
        return 1;
    }
    return 0;
}

static uint32_t cta_parity(const struct mk_ring *ring)
{
    return mk_ring_parity(ring->capacity, ring->posted);
}

int mk_cta_put(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk, uint32_t flag)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls)
        return calls->put(cta, rank, chunk, flag);
    struct sim_cta *c = cta_of(cta);
    struct sim_rank *r = c->rank;
    if (!c->ring) {
        sim_cta_internal(c, "a put by a CTA without a command ring");
        return 1;
    }
    if (cta_wait_landed(c))
        return 1;
    if (!c->begun && cta_post(c, mk_command_begin(r->plan->id, r->epoch, cta_parity(c->ring))))
        return 1;
    c->begun = 1;
    coroutine_yield();
    uint64_t start = r->now(r->context), sequence = c->ring->posted;
    if (cta_post(c, mk_command_put(rank, chunk->source, chunk->destination, chunk->bytes, flag,
                                   cta_parity(c->ring))))
        return 1;
    uint32_t what = mk_event_what(MK_EV_COMMAND, MK_CAUSE_NONE, sequence);
    cta_set_progress(c, what);
    mk_track_add(&c->track, what, start, r->now(r->context));
    return 0;
}

int mk_cta_drain(struct mk_cta *cta)
{
    const struct sim_calls *calls = cta_calls(cta);
    if (calls)
        return calls->drain(cta);
    struct sim_cta *c = cta_of(cta);
    if (!c->ring)
        return 0;
    int result = cta_block(c, &c->ring->completed, c->ring->posted, NO_FLAG,
                           mk_event_what(MK_EV_WAIT, MK_CAUSE_NETWORK, NO_ARGUMENT));
    cta_record_wait(c);
    return result;
}

/* Waits for all that a tile is made of. 1: the launch is ending. */
static int cta_before(struct sim_cta *c, const struct mk_tile *tile, uint32_t slices)
{
    const struct sim_rank *r = c->rank;
    for (uint32_t slice = 0; r->op->before && slice < slices; slice++)
        if (r->op->before(r->plan, &c->cta, tile, slice))
            return 1;
    return r->failed(r->context);
}

/* The compute role: the op's tile source drained in a loop. */
static int cta_compute(struct sim_cta *c)
{
    struct sim_rank *r = c->rank;
    struct mk_pipeline pipeline;
    plan_pipeline(r->plan, &pipeline);
    if (r->op->open && r->op->open(r->plan, &c->cta))
        return 1;
    for (uint32_t t = c->cta.index; t < r->plan->tiles; t += c->cta.count) {
        struct mk_tile tile;
        if (!r->op->tile(r->plan, &c->cta, t, &tile))
            continue;
        if (cta_before(c, &tile, pipeline.slices))
            return 1;
        uint32_t what = mk_event_what(MK_EV_TILE, MK_CAUSE_NONE, tile.id);
        cta_set_progress(c, what);
        uint64_t start = r->now(r->context);
        r->math(c, &tile);
        mk_track_add(&c->track, what, start, r->now(r->context));
        coroutine_yield();
        if (r->op->publish && r->op->publish(r->plan, &c->cta, &tile, 0, tile.rows, MK_TILE_PARTS))
            return 1;
    }
    return r->op->close ? r->op->close(r->plan, &c->cta) : 0;
}

static void cta_main(void *argument)
{
    struct sim_cta *c = argument;
    struct sim_rank *r = c->rank;
    uint64_t now = r->now(r->context);
    mk_track_add(&c->track, mk_event_what(MK_EV_LAUNCH, r->plan->id & 15, r->epoch), now, now);
    c->result = c->cta.role == MK_COMPUTE ? cta_compute(c) : r->op->run(r->plan, &c->cta);
    if (!c->result)
        c->result = cta_wait_landed(c); /* a kernel ends once its stores have landed */
    cta_set_progress(c, 0);
    c->ended = 1;
}

void sim_cta_begin(struct sim_cta *c, struct sim_rank *rank, uint32_t grid)
{
    const uint32_t *ctas = rank->plan->problem.tuning.split.ctas;
    uint32_t role = 0, index = grid;
    while (index >= ctas[role])
        index -= ctas[role++];
    c->cta =
        (struct mk_cta){.role = role, .index = index, .count = ctas[role], .epoch = rank->epoch};
    c->rank = rank;
    c->grid = grid;
    /* Ring i belongs to the i-th CTA that may post. */
    c->ring =
        role >= MK_INTER_SEND ? rank->rings[grid - ctas[MK_COMPUTE] - ctas[MK_INTRA_COMM]] : NULL;
    c->begun = c->ended = c->result = 0;
    c->issued = c->landed = 0;
    c->word = NULL;
    c->ready = 0;
    coroutine_start(c->coroutine, cta_main, c);
}
