/* Copies and sums of a CTA, and the flags that it raises after them. A move is two events: its
 * bytes join a flow, and the flow ends. Neither needs the CTA's coroutine. So intra_comm, which
 * does little else, runs ahead: its coroutine queues its next moves in a line, the line is done
 * step by step, and the coroutine goes on after the last. It may pass a flag that is raised, since
 * that stays raised; before it waits for any other flag it waits until the line is done. */
#include "sim/timed/state.h"

#include <math.h>

/* About how long the engine in a co-resident warp's block will go on multiplying. */
static double moves_products_left(const struct timed_cta *c)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct timed_world *w = r->world;
    if (c->beside == TIMED_NONE)
        return 0;
    const struct timed_cta *engine = &w->ctas[c->beside];
    if (engine->state == TIMED_ENDED)
        return 0;
    double left = engine->at > w->queue.now ? (double)(engine->at - w->queue.now) : 0;
    const struct timed_engine *e = &r->engines[engine->grid];
    return w->by_hand ? left : left + e->left * e->tile;
}

/* The factor by which a warp's work of `ns`, begun now, takes longer: it is 1 + under as long as
 * the engine beside it multiplies. */
static double moves_slowed(const struct timed_cta *c, double ns)
{
    double left = moves_products_left(c), factor = 1 + timed_rank_of(c)->world->machine->under;
    if (left <= 0 || ns <= 0)
        return 1;
    return ns * factor <= left ? factor : 1 + left * (1 - 1 / factor) / ns;
}

static const struct machine_rate *moves_rate(const struct timed_cta *c)
{
    const struct timed_world *w = timed_rank_of(c)->world;
    return &w->machine->movers[c->kind == TIMED_SENDS ? w->sends : c->kind];
}

/* ns of a warp's or block's copy to a peer, whose flow took `moved` ns. */
static double moves_peer_ns(const struct timed_cta *c, double moved, double slowed)
{
    const struct timed_world *w = timed_rank_of(c)->world;
    const struct machine_rate *rate = moves_rate(c);
    double start = c->goes_on ? 0 : rate->start, bytes = (double)c->bytes;
    double alone = (start + (rate->peer > 0 ? bytes / rate->peer : 0)) * slowed;
    if (c->kind == TIMED_SENDS && w->machine->send > 0 && !w->pipeline.direct_store)
        alone = machine_send_ns(w->machine, moves_products_left(c) > 0, bytes) /
                timed_rank_of(c)->slow.gpu;
    if (w->pace_rate > 0 && (c->kind == TIMED_SENDS || c->kind == MACHINE_WARP))
        moved += rate->start + w->machine->paced;
    return moved > alone ? moved : alone;
}

/* Local rank `local` of its node. */
static uint32_t moves_rank(const struct timed_cta *c, uint32_t local)
{
    const struct mk_topo *t = &timed_rank_of(c)->plan.problem.topo;
    return t->rank - mk_local_of(t, t->rank) + local;
}

static int moves_to_peer(const struct timed_cta *c)
{
    const struct mk_topo *t = &timed_rank_of(c)->plan.problem.topo;
    return c->local != mk_local_of(t, t->rank);
}

void timed_move_begins(struct timed_cta *c)
{
    const struct timed_rank *r = timed_rank_of(c);
    const struct machine_rate *rate = moves_rate(c);
    int remote = moves_to_peer(c);
    double alone = c->sum   ? rate->add
                   : remote ? rate->peer
                            : rate->own,
           bytes = (double)c->bytes, first = c->goes_on ? 0 : rate->start;
    c->slowed = (float)moves_slowed(c, first + (alone > 0 ? bytes / alone : 0));
    c->moves = c->at;
    timed_flow_begin(r->world, c, moves_rank(c, c->local), c->kind, c->sum,
                     bytes * (remote ? 1 : (double)c->slowed));
}

/* Called when the queue's time is the CTA's. */
static void moves_go(struct timed_cta *c, const struct timed_move *m)
{
    struct timed_world *w = timed_rank_of(c)->world;
    c->bytes = m->bytes;
    c->local = (uint8_t)m->local;
    c->kind = (uint8_t)m->kind;
    c->sum = m->sum != 0;
    if (c->at <= w->queue.now) {
        timed_move_begins(c);
        return;
    }
    c->state = TIMED_BEGINS;
    timed_queue_put(&w->queue, c->number, c->at);
}

/* The rest of a move after its flow has ended. */
static void moves_end(struct timed_cta *c)
{
    const struct timed_rank *r = timed_rank_of(c);
    int remote = moves_to_peer(c);
    enum timed_part part = remote ? TIMED_NVLINK : TIMED_MEMORY;
    double moved = (double)(c->at - c->moves), all = moved, slowed = (double)c->slowed;
    if (!remote || c->kind == MACHINE_TMA)
        all += (c->goes_on ? 0 : moves_rate(c)->start) * slowed / r->slow.gpu;
    else
        all = moves_peer_ns(c, moved, slowed / r->slow.gpu);
    c->path.parts[part] += (float)moved;
    c->path.roles[c->cta.role] += (float)moved;
    timed_spend(c, part, all - moved);
    if (remote) {
        c->sends = 1;
        r->world->ranks[moves_rank(c, c->local)].nvlink_in += (double)c->bytes;
    }
}

/* A sum or a copy. */
int timed_transfer(struct timed_cta *c, uint32_t local, uint64_t bytes, int kind, int sum)
{
    const struct timed_move m = {.bytes = bytes, .local = local, .kind = kind, .sum = sum};
    timed_line_flush(c);
    moves_go(c, &m);
    coroutine_yield();
    return timed_rank_of(c)->world->error != 0;
}

/* Spends the time to deliver C, if tiles leave through an outbox. */
static void moves_deliver(struct timed_cta *c, uint32_t local)
{
    const struct timed_rank *r = timed_rank_of(c);
    if (r->world->senders && c->cta.role == MK_INTRA_COMM &&
        local == mk_local_of(&r->plan.problem.topo, r->plan.problem.topo.rank))
        timed_spend(c, TIMED_MEMORY, r->world->machine->deliver / r->slow.gpu);
}

static void moves_raise(struct timed_cta *c, int add, uint32_t local, uint32_t flag, uint64_t value)
{
    const struct timed_rank *r = timed_rank_of(c);
    struct timed_world *w = r->world;
    uint32_t own = mk_local_of(&r->plan.problem.topo, r->plan.problem.topo.rank);
    if (c->sends) { /* the flag comes after the bytes moved since the last flag are in memory */
        timed_spend(c, TIMED_FLAG, w->machine->settle);
        c->sends = 0;
    }
    c->goes_on = 0;
    double flight = local == own ? w->machine->flag_own : w->machine->flag;
    struct timed_flight f = {.rank = moves_rank(c, local),
                             .flag = flag,
                             .value = value,
                             .add = add,
                             .role = c->cta.role,
                             .poster = TIMED_NONE,
                             .path = c->path};
    f.path.parts[TIMED_FLAG] += (float)flight;
    f.path.roles[c->cta.role] += (float)flight;
    timed_raise(w, &f, c->at + (uint64_t)llround(flight));
    timed_record(c, mk_event_what(MK_EV_SIGNAL, local, flag), c->at);
}

/* ---- lines ---- */

/* The next free step; NULL: the CTA has no line. Waits if the line is full. */
static struct timed_step *line_next(struct timed_cta *c)
{
    if (c->line && c->count == TIMED_LINE)
        timed_line_flush(c);
    return c->line ? &c->line->steps[c->count] : NULL;
}

/* Does steps until a copy begins. 0: none is left. */
static int line_goes_on(struct timed_cta *c)
{
    for (; c->done < c->count; c->done++) {
        const struct timed_step *s = &c->line->steps[c->done];
        if (s->what == TIMED_STEP_COPY) {
            const struct timed_move m = {.bytes = s->value, .local = s->local, .kind = c->mover};
            if (c->track)
                c->line->began = c->at;
            moves_deliver(c, s->local);
            moves_go(c, &m);
            return 1;
        }
        if (s->what == TIMED_STEP_WAITED)
            timed_waited(c, s->flag, (enum mk_cause)s->local);
        else
            moves_raise(c, s->what == TIMED_STEP_ADD, s->local, s->flag, s->value);
    }
    c->done = c->count = 0;
    return 0;
}

void timed_line_flush(struct timed_cta *c)
{
    if (c->count && line_goes_on(c))
        coroutine_yield();
}

/* Adds a step after a copy. 0: the line has no copy. */
static int line_add(struct timed_cta *c, enum timed_step_kind what, uint32_t local, uint32_t flag,
                    uint64_t value)
{
    struct timed_step *s = c->count ? line_next(c) : NULL;
    if (!c->count)
        return 0;
    *s = (struct timed_step){
        .what = (uint8_t)what, .local = (uint8_t)local, .flag = flag, .value = value};
    c->count++;
    return 1;
}

int timed_line_waited(struct timed_cta *c, uint32_t flag, enum mk_cause cause)
{
    return line_add(c, TIMED_STEP_WAITED, (uint32_t)cause, flag, 0);
}

void timed_moved(struct timed_world *w, struct timed_cta *c)
{
    if (c->at < w->queue.now)
        c->at = w->queue.now;
    c->state = TIMED_SLEEPS;
    moves_end(c);
    if (c->count) {
        const struct timed_step *s = &c->line->steps[c->done++];
        if (c->track)
            timed_record(c, mk_event_what(MK_EV_COPY, s->local, s->flag), c->line->began);
        if (line_goes_on(c))
            return;
    }
    timed_resume(w, c);
}

/* ---- calls ---- */

void timed_copy_now(struct timed_cta *c, uint32_t local, uint32_t id, uint64_t bytes)
{
    timed_line_flush(c);
    uint64_t start = c->at;
    moves_deliver(c, local);
    timed_transfer(c, local, bytes, c->mover, 0);
    timed_record(c, mk_event_what(MK_EV_COPY, local, id), start);
}

void timed_copy(struct mk_cta *cta, uint32_t local, uint32_t id, uint64_t bytes)
{
    struct timed_cta *c = timed_cta_of(cta);
    struct timed_step *s = line_next(c);
    if (!s) {
        timed_copy_now(c, local, id, bytes);
        return;
    }
    *s = (struct timed_step){
        .what = TIMED_STEP_COPY, .local = (uint8_t)local, .flag = id, .value = bytes};
    c->count++;
}

void timed_signal(struct mk_cta *cta, int add, uint32_t local, uint32_t flag, uint64_t value)
{
    struct timed_cta *c = timed_cta_of(cta);
    if (!line_add(c, add ? TIMED_STEP_ADD : TIMED_STEP_RAISE, local, flag, value))
        moves_raise(c, add, local, flag, value);
}
