/* Joins what different ranks recorded: a put with the command that asked for it and the wait that
 * saw it, and every wait with what ended it. */
#include "tracer/data.h"
#include "core/base/grow.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <stdlib.h>

#define NO_FLAG 0xffffff /* argument of a wait that is not for a flag */
#define SLACK 64         /* ns: two ticks of %globaltimer */

/* A signal or command, as the joins look for it. */
struct mark {
    uint64_t key; /* signal: destination rank << 32 | flag; command: rank << 32 | ring */
    int64_t time;
    int64_t event;
    uint64_t number; /* signal: launch; command: sequence */
};

struct marks {
    struct mark *m;
    uint64_t count;
};

static int join_compare_mark(const void *x, const void *y)
{
    const struct mark *a = x, *b = y;
    return MK_ORDER(a->key, b->key) ?: MK_ORDER(a->time, b->time) ?: MK_ORDER(a->event, b->event);
}

static uint64_t join_ring_key(uint32_t rank, uint32_t ring)
{
    return (uint64_t)rank << 32 | ring;
}

/* Ring i belongs to the i-th CTA that may post: those after compute and intra_comm. UINT32_MAX:
 * none. */
static uint32_t join_ring_of(const struct trace_data *d, const struct trace_node *n,
                             const struct trace_event *e)
{
    const struct trace_plan *p = data_launch_plan(d, n->rank, e->launch);
    uint32_t first =
        p ? p->problem.tuning.split.ctas[MK_COMPUTE] + p->problem.tuning.split.ctas[MK_INTRA_COMM]
          : 0;
    return n->cta < first ? UINT32_MAX : n->cta - first;
}

/* All events of one kind, sorted by key and time. */
static int join_collect(const struct trace_data *d, uint32_t kind, struct marks *out)
{
    *out = (struct marks){0};
    for (uint32_t i = 0; i < d->leaf_count; i++) {
        const struct trace_node *n = &d->nodes[d->leaves[i]];
        for (uint64_t j = 0; j < n->count; j++) {
            const struct trace_event *e = &n->events[j];
            if (event_kind(e) != kind)
                continue;
            if (mk_grow(&out->m, out->count, sizeof *out->m))
                return -ENOMEM;
            struct mark *m = &out->m[out->count];
            m->event = n->first_event + (int64_t)j;
            m->time = event_end(e);
            if (kind == MK_EV_SIGNAL) {
                m->key = (uint64_t)data_destination(d, n->rank, e) << 32 | event_argument(e);
                m->number = e->launch;
            } else {
                uint32_t ring = join_ring_of(d, n, e);
                if (ring == UINT32_MAX)
                    continue;
                m->key = join_ring_key(n->rank, ring);
                m->number = event_argument(e);
            }
            out->count++;
        }
    }
    if (out->count)
        qsort(out->m, out->count, sizeof *out->m, join_compare_mark);
    return 0;
}

/* The first mark whose (key, time) is above the given. */
static uint64_t join_above(const struct marks *s, uint64_t key, int64_t time)
{
    return MK_BISECT(i, s->count,
                     s->m[i].key < key || (s->m[i].key == key && s->m[i].time <= time));
}

static int join_compare_put(const void *x, const void *y, void *context)
{
    const struct trace_put *puts = context, *a = &puts[*(const uint32_t *)x],
                           *b = &puts[*(const uint32_t *)y];
    int order = MK_ORDER(a->rank, b->rank) ?: MK_ORDER(a->m.ring, b->m.ring);
    return order ?: MK_ORDER(a->m.sequence, b->m.sequence);
}

/* Commands carry 24 bits of their sequence, and a track may have dropped its last ones: within a
 * ring both sides are in order, so a merge pairs them. */
static int join_commands(struct trace_data *d)
{
    struct marks commands = {0};
    MK_FREED uint32_t *order = malloc((d->put_count + 1) * sizeof *order);
    int rc = order ? join_collect(d, MK_EV_COMMAND, &commands) : -ENOMEM;
    for (uint32_t i = 0; order && i < d->put_count; i++)
        order[i] = i;
    if (!rc)
        qsort_r(order, d->put_count, sizeof *order, join_compare_put, d->puts);
    uint64_t c = 0, last_key = UINT64_MAX, before = 0;
    for (uint64_t i = 0; !rc && i < d->put_count; i++) {
        struct trace_put *p = &d->puts[order[i]];
        uint64_t key = join_ring_key(p->rank, p->m.ring);
        if (key != last_key) {
            while (c < commands.count && commands.m[c].key < key)
                c++;
            before = p->m.sequence;
            last_key = key;
        }
        for (; c < commands.count && commands.m[c].key == key; c++) {
            uint64_t sequence = (before & ~(uint64_t)0xffffff) | commands.m[c].number;
            if (sequence + 0x800000 < before)
                sequence += 0x1000000;
            else if (sequence > before + 0x800000 && sequence >= 0x1000000)
                sequence -= 0x1000000;
            if (sequence > p->m.sequence)
                break;
            before = sequence;
            if (sequence == p->m.sequence) {
                p->commanded = commands.m[c].time;
                p->command_event = commands.m[c].event;
                c++;
                break;
            }
        }
    }
    free(commands.m);
    return rc;
}

/* Completions of puts, by rank and ring: what a drain waits for. `event` is the put's index + 1. */
static int join_collect_completions(const struct trace_data *d, struct marks *out)
{
    out->count = 0;
    out->m = malloc((d->put_count + 1) * sizeof *out->m);
    if (!out->m)
        return -ENOMEM;
    for (uint64_t i = 0; i < d->put_count; i++) {
        const struct trace_put *p = &d->puts[i];
        if (p->completed != TRACE_NO_TIME)
            out->m[out->count++] =
                (struct mark){join_ring_key(p->rank, p->m.ring), p->completed, (int64_t)i + 1, 0};
    }
    qsort(out->m, out->count, sizeof *out->m, join_compare_mark);
    return 0;
}

/* A put by what its receiver knows: 12 bits of rank, 24 of flag, 28 of launch. */
static uint64_t join_put_key(uint32_t peer, uint32_t flag, uint32_t launch)
{
    return (uint64_t)peer << 52 | (uint64_t)(flag & 0xffffff) << 28 | (launch & 0xfffffff);
}

static uint64_t join_slack_of(const struct trace_data *d, uint32_t a, uint32_t b)
{
    return d->clocks[a].residual + d->clocks[b].residual + SLACK;
}

/* The newest signal of its launch that the end of a wait can have seen. */
static int64_t join_find_signal(const struct trace_data *d, const struct marks *signals,
                                uint32_t rank, const struct trace_event *e)
{
    uint64_t key = (uint64_t)rank << 32 | event_argument(e);
    int64_t latest = event_end(e) + (int64_t)(2 * d->residual + SLACK);
    uint64_t i = join_above(signals, key, latest);
    for (int tries = 0; i-- > 0 && tries < 64; tries++) {
        const struct mark *m = &signals->m[i];
        if (m->key != key)
            break;
        uint32_t from = data_leaf(d, m->event)->rank;
        if (m->time <= event_end(e) + (int64_t)join_slack_of(d, rank, from) &&
            m->number == e->launch)
            return m->event;
    }
    return TRACE_NO_EVENT;
}

static int join_add_edge(struct trace_data *d, struct trace_edge edge)
{
    if (mk_grow(&d->edges, d->edge_count, sizeof *d->edges))
        return -ENOMEM;
    d->edges[d->edge_count++] = edge;
    return 0;
}

/* A drain ends with the completion of the ring's last put: the newest before it. */
static int join_drain(struct trace_data *d, const struct marks *completions,
                      const struct trace_node *n, const struct trace_event *e, int64_t id)
{
    uint64_t key = join_ring_key(n->rank, join_ring_of(d, n, e));
    uint64_t i =
        join_above(completions, key, event_end(e) + (int64_t)join_slack_of(d, n->rank, n->rank));
    if (!e->ns || !i || completions->m[i - 1].key != key || completions->m[i - 1].time < e->start)
        return 0;
    int64_t put = completions->m[i - 1].event;
    return join_add_edge(d, (struct trace_edge){id, d->puts[put - 1].command_event, put});
}

/* One wait: the arrival of its put, and its edge. A wait that began after the put had completed
 * found the flag there, whatever time it took (a coroutine yields once, a poll has a latency): it
 * says nothing of when the flag came. */
static int join_wait(struct trace_data *d, const struct map *puts, const struct marks *signals,
                     const struct marks *completions, const struct trace_node *n, uint64_t j)
{
    const struct trace_event *e = &n->events[j];
    int64_t id = n->first_event + (int64_t)j;
    if (event_cause(e) == MK_CAUSE_BACKPRESSURE)
        return 0; /* room in a ring, no flag */
    if (event_cause(e) == MK_CAUSE_NETWORK && event_argument(e) == NO_FLAG)
        return join_drain(d, completions, n, e, id);
    /* index + 1; 0: none */
    uint32_t put = map_get(puts, join_put_key(n->rank, event_argument(e), e->launch), 0);
    if (put) {
        struct trace_put *p = &d->puts[put - 1];
        if (p->arrived == TRACE_NO_TIME || event_end(e) < p->arrived) {
            p->arrived = event_end(e);
            p->arrival_event = id;
            p->waited = e->ns > 0 &&
                        (p->completed == TRACE_NO_TIME ||
                         p->completed + (int64_t)join_slack_of(d, n->rank, p->rank) >= e->start);
        }
        return e->ns ? join_add_edge(d, (struct trace_edge){id, p->command_event, put}) : 0;
    }
    int64_t signal = e->ns ? join_find_signal(d, signals, n->rank, e) : TRACE_NO_EVENT;
    return signal == TRACE_NO_EVENT ? 0 : join_add_edge(d, (struct trace_edge){id, signal, 0});
}

int data_join(struct trace_data *d)
{
    struct marks signals = {0}, completions = {0};
    struct map puts = {0};
    int rc = join_commands(d);
    rc = rc ? rc : join_collect(d, MK_EV_SIGNAL, &signals);
    rc = rc ? rc : join_collect_completions(d, &completions);
    rc = rc ? rc : map_reserve(&puts, d->put_count);
    for (uint64_t i = 0; !rc && i < d->put_count; i++)
        rc = map_set(&puts, join_put_key(d->puts[i].m.peer, d->puts[i].m.flag, d->puts[i].launch),
                     (uint32_t)i + 1);
    for (uint32_t i = 0; !rc && i < d->leaf_count; i++) {
        const struct trace_node *n = &d->nodes[d->leaves[i]];
        for (uint64_t j = 0; !rc && j < n->count; j++)
            if (event_kind(&n->events[j]) == MK_EV_WAIT)
                rc = join_wait(d, &puts, &signals, &completions, n, j);
    }
    free(signals.m);
    free(completions.m);
    map_free(&puts);
    return rc;
}
