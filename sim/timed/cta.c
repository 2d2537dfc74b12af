/* The CTA interface of the timed executor. A call adds its duration to the CTA's own time, which
 * may be ahead of the event queue's: flags only grow, so a CTA that finds its flag raised goes on
 * without an event. Before it touches shared state (a link, the proxy's queue), it waits until the
 * queue's time is its own. */
#include "core/comm/failure.h"
#include "sim/route.h"
#include "sim/timed/state.h"

#include <errno.h>
#include <math.h>

void timed_record(struct timed_cta *c, uint32_t what, uint64_t start)
{
    if (c->track)
        mk_track_add(c->track, what, start, c->at);
}

void timed_spend(struct timed_cta *c, enum timed_part part, double ns)
{
    uint64_t whole = ns > 0 ? (uint64_t)llround(ns) : 0;
    c->at += whole;
    c->path.parts[part] += (float)whole;
    c->path.roles[c->cta.role] += (float)whole;
}

void timed_sync(struct timed_cta *c)
{
    struct timed_world *w = timed_rank_of(c)->world;
    timed_line_flush(c);
    if (c->at <= w->queue.now)
        return;
    timed_queue_put(&w->queue, c->number, c->at);
    c->state = TIMED_SLEEPS;
    coroutine_yield();
}

void timed_stand(struct timed_cta *c)
{
    c->state = TIMED_STANDS;
    coroutine_yield();
}

void timed_resume(struct timed_world *w, struct timed_cta *c)
{
    if (c->at < w->queue.now)
        c->at = w->queue.now;
    c->state = TIMED_SLEEPS;
    if (coroutine_resume(c->coroutine))
        return;
    struct timed_rank *r = timed_rank_of(c);
    c->state = TIMED_ENDED;
    if (c->at >= r->ended) {
        r->ended = c->at;
        r->path = c->path;
    }
    if (--r->running)
        return;
    timed_queue_put(&w->queue, r->event, r->ended);
}

void timed_wake(struct timed_cta *c)
{
    struct timed_world *w = timed_rank_of(c)->world;
    c->state = TIMED_SLEEPS;
    timed_queue_put(&w->queue, c->number, c->at);
}

/* ---- flags ---- */

/* The first flag not raised of those that a CTA waits for; its last flag, if all are raised. */
static int timed_all_raised(const struct timed_rank *r, struct timed_cta *c)
{
    while (r->flags[c->flag] >= c->target) {
        if (c->flag == c->last_flag)
            return 1;
        c->flag++;
    }
    return 0;
}

static void timed_await(struct timed_rank *r, struct timed_cta *c)
{
    uint32_t *bucket = &r->waiting[c->flag % TIMED_BUCKETS];
    c->next = *bucket;
    *bucket = c->number;
    c->state = TIMED_WAITS;
}

void timed_waited(struct timed_cta *c, uint32_t flag, enum mk_cause cause)
{
    uint64_t start = c->at;
    c->goes_on = 0;
    timed_spend(c, TIMED_FLAG, timed_rank_of(c)->world->machine->wait);
    timed_record(c, mk_event_what(MK_EV_WAIT, cause, flag), start);
}

/* Polling several flags costs as much as polling one. An engine pays only if it has to wait,
 * because its producer polls ahead. The trace names the flag that was raised last. */
static int timed_wait(struct mk_cta *cta, uint32_t flag, uint32_t count, uint64_t target,
                      enum mk_cause cause)
{
    struct timed_cta *c = timed_cta_of(cta);
    struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    c->flag = flag;
    c->last_flag = flag + count - 1;
    c->target = target;
    if (timed_all_raised(r, c) && timed_line_waited(c, c->flag, cause))
        return w->error != 0;
    timed_line_flush(c);
    uint64_t start = c->at;
    c->goes_on = 0;
    /* rows and sums of a MoE are waited for side by side, each by a lane */
    const int beside = w->op->routes && c->waited == c->at && timed_all_raised(r, c);
    if (cta->role != MK_COMPUTE && !beside)
        timed_spend(c, TIMED_FLAG, w->machine->wait);
    if (!timed_all_raised(r, c)) {
        timed_await(r, c);
        coroutine_yield();
        if (cta->role == MK_COMPUTE)
            timed_spend(c, TIMED_FLAG, w->machine->wait);
        if (c->at - start > r->plan.problem.timeout_ns) {
            struct mk_flag_meaning meaning;
            plan_describe_flag(&r->plan, c->flag, &meaning);
            timed_error(w, -ETIMEDOUT, "rank %u CTA %u (%s) waited %.1f s for %s",
                        r->plan.problem.topo.rank, c->grid, plan_role_name(cta->role),
                        (double)(c->at - start) / 1e9, meaning.text);
        }
    }
    timed_record(c, mk_event_what(MK_EV_WAIT, cause, c->flag), start);
    c->waited = c->at;
    return w->error != 0;
}

void timed_raise_now(struct timed_world *w, const struct timed_flight *f)
{
    struct timed_rank *r = &w->ranks[f->rank];
    uint64_t *word = &r->flags[f->flag];
    if (f->add)
        *word += f->value;
    else if (*word < f->value)
        *word = f->value;
    uint32_t *link = &r->waiting[f->flag % TIMED_BUCKETS], woken = TIMED_NONE, again = TIMED_NONE;
    while (*link != TIMED_NONE) {
        struct timed_cta *c = &w->ctas[*link];
        if (c->flag != f->flag || c->target > *word) {
            link = &c->next;
            continue;
        }
        uint32_t number = *link;
        *link = c->next;
        if (c->at <= w->queue.now) /* else it was late itself */
            c->path = f->path;
        if (!timed_all_raised(r, c)) { /* it waits for another, which may be in this list */
            c->next = again;
            again = number;
            continue;
        }
        c->next = woken;
        woken = number;
    }
    while (again != TIMED_NONE) {
        struct timed_cta *c = &w->ctas[again];
        again = c->next;
        timed_await(r, c);
    }
    while (woken != TIMED_NONE) {
        struct timed_cta *c = &w->ctas[woken];
        woken = c->next;
        if (c->at > w->queue.now)
            timed_wake(c);
        else
            timed_resume(w, c);
    }
}

/* ---- bytes ---- */

/* Whose rates a CTA has that adds. */
static int timed_adder(const struct timed_cta *c)
{
    return c->mover == TIMED_SENDS ? timed_rank_of(c)->world->sends : c->mover;
}

static void timed_add(struct timed_cta *c, uint32_t id, uint64_t bytes, int mover)
{
    const struct timed_rank *r = timed_rank_of(c);
    timed_line_flush(c);
    uint64_t start = c->at;
    timed_transfer(c, mk_local_of(&r->plan.problem.topo, r->plan.problem.topo.rank), bytes, mover,
                   1);
    timed_record(c, mk_event_what(MK_EV_REDUCE, MK_CAUSE_NONE, id), start);
}

/* The warps of a block take tokens in turn, so only the first token's bytes are waited for. A MoE's
 * terms are loaded ahead by TMA. */
static void timed_combine(struct mk_cta *cta, const struct mk_combine *s)
{
    struct timed_cta *c = timed_cta_of(cta);
    const struct timed_rank *r = timed_rank_of(c);
    const struct mk_topo *topo = &r->plan.problem.topo;
    const uint64_t records = (uint64_t)__builtin_popcount(s->records),
                   sum = mk_combine_bytes(s->elements, s->to);
    const int leaves = s->space == MK_SPACE_HEAP && s->local != mk_local_of(topo, topo->rank),
              ahead = r->world->op->routes && c->mover == MACHINE_BLOCK;
    timed_add(c, s->id,
              (s->count - records) * mk_combine_bytes(s->elements, s->from) +
                  records * mk_combine_bytes(s->elements, MK_E4M3) + (ahead && !leaves ? sum : 0),
              ahead ? MACHINE_TMA : timed_adder(c));
    if (leaves)
        timed_copy_now(c, s->local, s->id, sum);
    c->goes_on = 1;
}

/* Tokens of other ranks that have arrived here, over the rail or within the node. */
static uint64_t timed_landed(const struct timed_rank *r, const struct mk_route *route)
{
    const struct mk_topo *t = &route->topo;
    const uint32_t *words = (const uint32_t *)(const void *)r->heap, last = t->nodes - 1;
    uint64_t tokens = 0;
    for (uint32_t node = 0; node < t->nodes; node++)
        tokens += node == mk_node_of(t, t->rank) ? 0 : words[route->came_count / 4 + node];
    for (uint32_t local = 0; local < t->gpus && route->step == MK_ROUTE_LAY_OUT; local++) {
        uint32_t rank = mk_rank_at(t, mk_route_behind(t, last), local);
        if (local != mk_local_of(t, t->rank))
            tokens += (uint64_t)words[route->landed_first / 4 + rank] +
                      words[route->landed_count / 4 + rank];
    }
    return tokens;
}

static uint8_t *timed_heap_of(void *world, uint32_t rank)
{
    return ((struct timed_world *)world)->ranks[rank].heap;
}

static void timed_route(struct mk_cta *cta, const struct mk_route *route)
{
    struct timed_cta *c = timed_cta_of(cta);
    struct timed_rank *r = timed_rank_of(c);
    const struct mk_machine *m = r->world->machine;
    const int own = route->step <= MK_ROUTE_PLACE;
    if (timed_cache_open(r, route))
        timed_error(r->world, -ENOMEM, "no memory for what L2 holds");
    timed_line_flush(c);
    if (route->step != MK_ROUTE_KEEP) { /* drawn ids already leave out what is dropped */
        route_make(route, r->heap, timed_ids_of(r->world, r->launch, route->topo.rank), NULL,
                   r->summary);
        if (!route->part && (route->step == MK_ROUTE_PLACE || route->step == MK_ROUTE_RELAY))
            route_hand_over(route, timed_heap_of, r->world);
    }
    /* in each step each part reads its share of its own ids or of the records that have arrived */
    const double ids = (double)(own ? route->tokens : timed_landed(r, route)) * route->k /
                       route->parts * m->route_id;
    const uint64_t start = c->at;
    timed_spend(c, TIMED_MEMORY,
                (ids +
                 (route->step == MK_ROUTE_COUNT   ? m->route_count
                  : route->step == MK_ROUTE_PLACE ? m->route_place
                  : route->step != MK_ROUTE_KEEP  ? m->route_lay
                                                  : 0) +
                 (route->step == MK_ROUTE_LAY_OUT && route->columns ? m->route_order : 0)) /
                    r->slow.gpu);
    timed_record(c, mk_event_what(MK_EV_REDUCE, MK_CAUSE_NONE, 0xffffffu), start);
}

static void timed_overflow(struct mk_cta *cta, enum mk_route_over over, uint32_t rank,
                           uint32_t count, uint32_t room)
{
    const struct timed_rank *r = timed_rank_of(timed_cta_of(cta));
    struct mk_failure f = {
        .op = r->plan.problem.op, .rank = r->plan.problem.topo.rank, .epoch = r->launch};
    char text[512];
    failure_overflow(&f, over, rank, count, room);
    failure_sentence(&f, text, sizeof text);
    timed_error(r->world, -EOVERFLOW, "%s", text);
}

static const void *timed_load(struct mk_cta *cta, uint64_t offset)
{
    return timed_rank_of(timed_cta_of(cta))->heap + offset;
}

static uint32_t timed_count(struct mk_cta *cta)
{
    const struct timed_rank *r = timed_rank_of(timed_cta_of(cta));
    return (uint32_t)r->plan.problem.moe.tokens; /* always a full batch */
}

static int timed_put_chunk(struct mk_cta *cta, uint32_t rank, const struct mk_chunk *chunk,
                           uint32_t flag)
{
    struct timed_cta *c = timed_cta_of(cta);
    struct timed_world *w = timed_rank_of(c)->world;
    if (!c->post) {
        timed_error(w, -EINVAL, "%s posts a put without a command ring", plan_role_name(cta->role));
        return 1;
    }
    timed_line_flush(c);
    if (c->sends) {
        timed_spend(c, TIMED_FLAG, w->machine->settle);
        c->sends = 0;
    }
    timed_put(c, rank, chunk->bytes, flag);
    return w->error != 0;
}

static int timed_drain_puts(struct mk_cta *cta)
{
    struct timed_cta *c = timed_cta_of(cta);
    timed_line_flush(c);
    timed_drain(c);
    return timed_rank_of(c)->world->error != 0;
}

/* Reading and writing rows takes the memory's rate, shared by the CTAs that do it. */
static void timed_norm(struct mk_cta *cta, const struct mk_norm *norm)
{
    struct timed_cta *c = timed_cta_of(cta);
    const struct timed_rank *r = timed_rank_of(c);
    const double rate = r->world->machine->hbm_rate, rows = norm->rows ? 3.5 : norm->normed ? 4 : 3;
    if (rate > 0)
        timed_spend(c, TIMED_MEMORY, rows * norm->columns * 2 * cta->count / rate / r->slow.gpu);
}

const struct sim_calls timed_calls = {
    .wait = timed_wait,
    .copy = timed_copy,
    .combine = timed_combine,
    .route = timed_route,
    .overflow = timed_overflow,
    .count = timed_count,
    .norm = timed_norm,
    .load = timed_load,
    .raise = timed_signal,
    .put = timed_put_chunk,
    .drain = timed_drain_puts,
};

/* ---- a coroutine's life ---- */

static void timed_main(void *argument)
{
    struct timed_cta *c = argument;
    struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    uint32_t first = (uint32_t)(c - r->ctas), ctas = mk_total_ctas(&r->plan.problem.tuning.split);
    /* a cluster's first CTA records for all of it, and may be ahead of the others */
    uint32_t cluster = first < ctas && c->cta.role == MK_COMPUTE && !w->by_hand ? w->cluster : 1;
    for (uint32_t i = 0; i < cluster && c->cta.index % cluster == 0 && c->track; i++)
        mk_track_add(c[i].track, mk_event_what(MK_EV_LAUNCH, r->plan.id & 15, c->cta.epoch), c->at,
                     c->at);
    if (first >= ctas) {
        timed_send(c);
        return;
    }
    int (*role)(const struct mk_plan *, struct mk_cta *) =
        c->cta.role == MK_COMPUTE ? NULL : w->op->run;
    const int reduces = w->by_hand && w->op->units && c->cta.role == MK_INTER_REDUCE;
    if (reduces)
        role = NULL;
    int over = role ? role(&r->plan, &c->cta) : 0;
    timed_line_flush(c);
    c->line = NULL; /* tiles are done at once */
    /* in blocks with an engine only the engine takes tiles */
    int joins = w->by_hand &&
                !(c->cta.role == MK_INTRA_COMM && r->plan.problem.tuning.split.intra_comm_warps);
    if (!over && (!role || joins))
        over = timed_compute(c);
    if (!over && reduces && r->plan.problem.topo.nodes > 1)
        over = w->op->away(&r->plan, &c->cta);
    while (!over && w->by_hand && w->op->units) {
        timed_sync(c); /* whoever comes first takes the next */
        uint32_t unit = r->units++;
        if (unit >= w->op->units(&r->plan))
            break;
        over = w->op->unit(&r->plan, &c->cta, unit);
    }
}

void timed_cta_start(struct timed_cta *c)
{
    struct timed_rank *r = timed_rank_of(c);
    c->sends = 0;
    if (c->cta.role == MK_INTRA_COMM && c->mover != TIMED_SENDS)
        c->line = &r->lines[c->cta.index];
    coroutine_start(c->coroutine, timed_main, c);
}
