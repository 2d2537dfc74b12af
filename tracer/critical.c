/* The critical path of each launch: from its last event back to its start, stepping over each wait
 * to what ended it.
 *
 * At any time the walk stands on a CTA. The newest thing that the CTA began before is what it then
 * was busy with; work goes on the path and the walk goes to its start. A wait whose end is
 * explained by an edge (join.c) does not go on the path: the walk moves to the CTA that raised the
 * flag, and where the network carried it the message goes on the path. So what is on the path is
 * what would have to be faster for the launch to end earlier. */
#include "tracer/data.h"
#include "core/base/grow.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <stdlib.h>

#define MAX_STEPS 65536 /* of one launch: bounds the walk whatever the records say */

struct walk {
    const struct trace_data *d;
    struct trace_step *steps;
    uint64_t count;
    uint32_t launch;
};

static int critical_add_step(struct walk *w, const struct trace_node *n, const char *what,
                             int64_t start, int64_t end, int64_t event, int64_t message)
{
    if (end <= start)
        return 0;
    if (mk_grow(&w->steps, w->count, sizeof *w->steps))
        return -ENOMEM;
    w->steps[w->count++] = (struct trace_step){
        .launch = w->launch,
        .rank = n->rank,
        .node = n->id,
        .what = what,
        .start = start,
        .ns = (uint64_t)(end - start),
        .event = event,
        .message = message,
    };
    return 0;
}

/* The newest event of a leaf that began before t and took time; count where there is none. */
static uint64_t critical_newest(const struct trace_node *n, int64_t t)
{
    uint64_t at = MK_BISECT(i, n->count, n->events[i].start < t);
    while (at > 0 && n->events[at - 1].ns == 0)
        at--;
    return at ? at - 1 : n->count;
}

/* The same over all warps of the leaf's CTA: a wait of the load warp explains the math warp's next
 * tile. */
static const struct trace_node *
critical_newest_of_cta(const struct walk *w, const struct trace_node *n, int64_t t, uint64_t *index)
{
    const struct trace_node *best = NULL;
    /* index of the first candidate */
    uint32_t first = n->kind == TRACE_NODE_WARP ? n->parent : n->id - 1;
    for (uint32_t i = first; i < w->d->node_count; i++) {
        const struct trace_node *c = &w->d->nodes[i];
        if (c->rank != n->rank || c->role != n->role || c->cta != n->cta)
            break;
        uint64_t j = critical_newest(c, t);
        if (j == c->count || c->events[j].launch != w->launch)
            continue;
        if (!best || c->events[j].start > best->events[*index].start) {
            best = c;
            *index = j;
        }
    }
    return best;
}

static const struct trace_edge *critical_find_edge(const struct trace_data *d, int64_t event)
{
    uint64_t at = MK_BISECT(i, d->edge_count, d->edges[i].event < event);
    return at < d->edge_count && d->edges[at].event == event ? &d->edges[at] : NULL;
}

/* When what an edge names was done: the signal raised, the command posted. TRACE_NO_TIME: not
 * known. */
static int64_t critical_producer_time(const struct trace_data *d, const struct trace_edge *edge)
{
    if (edge->producer != TRACE_NO_EVENT) {
        const struct trace_node *from = data_leaf(d, edge->producer);
        return event_end(data_event(from, edge->producer));
    }
    const struct trace_put *put = &d->puts[edge->message - 1];
    return put->seen != TRACE_NO_TIME ? put->seen : put->posted;
}

/* Whether the flag can have been raised while wait `e` of rank `rank` lasted. Where it was there
 * before, the wait's time is the executor's own (a poll's latency, a coroutine that was not
 * scheduled), and the walk stays on the CTA. */
static int critical_was_waited_for(const struct trace_data *d, const struct trace_edge *edge,
                                   uint32_t rank, const struct trace_event *e)
{
    const struct trace_put *put = edge->message ? &d->puts[edge->message - 1] : NULL;
    uint32_t from = put ? put->rank : data_leaf(d, edge->producer)->rank;
    int64_t slack = (int64_t)(d->clocks[rank].residual + d->clocks[from].residual);
    int64_t there = put ? put->completed : critical_producer_time(d, edge);
    return there == TRACE_NO_TIME || there + slack >= e->start;
}

/* From a wait to what ended it. Moves *n and *t back, strictly, so that the walk ends. */
static int critical_follow(struct walk *w, const struct trace_edge *edge,
                           const struct trace_node **n, int64_t *t)
{
    int64_t began = critical_producer_time(w->d, edge);
    if (began == TRACE_NO_TIME || began >= *t)
        began = *t - 1;
    int rc = critical_add_step(w, *n, edge->message ? "message" : "signal", began, *t,
                               edge->producer, edge->message);
    *t = began;
    *n = edge->producer == TRACE_NO_EVENT ? NULL : data_leaf(w->d, edge->producer);
    return rc;
}

static int critical_walk_launch(struct walk *w)
{
    const struct trace_data *d = w->d;
    const struct trace_node *n = NULL;
    int64_t t = TRACE_NO_TIME;
    for (uint32_t i = 0; i < d->leaf_count; i++) { /* where the launch ended last */
        const struct trace_node *leaf = &d->nodes[d->leaves[i]];
        const struct trace_span *s = &d->spans[(size_t)(w->launch - 1) * d->ranks + leaf->rank];
        if (s->end == TRACE_NO_TIME || s->end < t)
            continue;
        for (uint64_t j = critical_newest(leaf, s->end); j < leaf->count;
             j = j ? j - 1 : leaf->count) {
            const struct trace_event *e = &leaf->events[j];
            if (e->launch == w->launch && e->ns && event_end(e) > t)
                t = event_end(e), n = leaf;
            if (e->launch < w->launch || event_end(e) + (int64_t)leaf->longest < t)
                break;
        }
    }
    int rc = 0;
    for (uint32_t step = 0; !rc && n && step < MAX_STEPS; step++) {
        uint64_t j = 0;
        const struct trace_node *at = critical_newest_of_cta(w, n, t, &j);
        if (!at)
            break;
        const struct trace_event *e = &at->events[j];
        int64_t id = at->first_event + (int64_t)j, end = event_end(e) < t ? event_end(e) : t;
        const struct trace_edge *edge =
            event_kind(e) == MK_EV_WAIT ? critical_find_edge(d, id) : NULL;
        static const char *const names[MK_EV_KINDS] = {"none", "launch", "tile",    "wait",
                                                       "copy", "signal", "command", "reduce"};
        if (end < t)
            rc = critical_add_step(w, at, "gap", end, t, TRACE_NO_EVENT, 0);
        n = at;
        t = end;
        if (!rc && edge && critical_was_waited_for(d, edge, at->rank, e)) {
            rc = critical_follow(w, edge, &n, &t);
        } else if (!rc) {
            rc = critical_add_step(w, at, names[event_kind(e)], e->start, t, id, 0);
            t = e->start;
        }
    }
    return rc;
}

int data_critical(const struct trace_data *d, struct trace_step **steps, uint64_t *count)
{
    struct walk w = {.d = d};
    int rc = 0;
    for (w.launch = 1; !rc && w.launch <= d->launch_count; w.launch++)
        rc = critical_walk_launch(&w);
    if (rc) {
        free(w.steps);
        return rc;
    }
    *steps = w.steps;
    *count = w.count;
    return 0;
}
