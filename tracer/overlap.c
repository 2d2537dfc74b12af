/* What each rank did in each launch: time with a tile under way, with a transfer under way, with
 * both, with neither. */
#include "tracer/data.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Adds every tile (or copy and reduce) of a rank to a set. A copy to itself stages a chunk: that is
 * communication too. */
static int overlap_add_events(const struct trace_data *d, uint32_t rank, int tiles,
                              struct intervals *set)
{
    int rc = 0;
    for (uint32_t i = d->rank_node[rank]; !rc && i < d->rank_node[rank + 1]; i++) {
        const struct trace_node *n = &d->nodes[i];
        for (uint64_t j = 0; !rc && j < n->count; j++) {
            const struct trace_event *e = &n->events[j];
            uint32_t kind = event_kind(e);
            int wanted = tiles ? kind == MK_EV_TILE : kind == MK_EV_COPY || kind == MK_EV_REDUCE;
            if (wanted && e->ns)
                rc = intervals_add(set, e->start, event_end(e));
        }
        rc = rc ? rc : intervals_end_run(set);
    }
    return rc;
}

void data_put_time(const struct trace_put *p, int64_t *start, int64_t *end)
{
    *start = p->posted != TRACE_NO_TIME ? p->posted : p->seen;
    *end = p->arrived != TRACE_NO_TIME && p->waited ? p->arrived : p->completed;
    if (*end == TRACE_NO_TIME)
        *end = p->arrived;
    if (*start == TRACE_NO_TIME || *end == TRACE_NO_TIME || *end < *start)
        *start = *end = 0;
}

/* Adds a rank's puts under way, in and out; `head` and `next` list the puts by rank and by peer. */
static int overlap_add_puts(const struct trace_data *d, uint32_t rank, const uint32_t *head,
                            const uint32_t *next, struct intervals *set)
{
    int rc = 0;
    for (uint32_t side = 0; side < 2; side++) {
        for (uint32_t i = head[2 * rank + side]; !rc && i; i = next[2 * (size_t)(i - 1) + side]) {
            int64_t start, end;
            data_put_time(&d->puts[i - 1], &start, &end);
            if (end > start && d->puts[i - 1].m.bytes)
                rc = intervals_add(set, start, end);
        }
        rc = rc ? rc : intervals_end_run(set);
    }
    return rc;
}

/* How much of two disjoint sorted sets lies inside from .. to, alone and together. i and j move on
 * with the launches. */
static void overlap_sweep(const struct intervals *a, const struct intervals *b,
                          struct trace_span *s)
{
    uint64_t in_a = intervals_within(a, s->start, s->end),
             in_b = intervals_within(b, s->start, s->end), both = 0;
    uint64_t i = intervals_find(a, s->start), j = intervals_find(b, s->start);
    while (i < a->count && j < b->count && a->at[i].start < s->end && b->at[j].start < s->end) {
        int64_t from = a->at[i].start > b->at[j].start ? a->at[i].start : b->at[j].start;
        int64_t to = a->at[i].end < b->at[j].end ? a->at[i].end : b->at[j].end;
        from = from > s->start ? from : s->start;
        to = to < s->end ? to : s->end;
        if (to > from)
            both += (uint64_t)(to - from);
        if (a->at[i].end < b->at[j].end)
            i++;
        else
            j++;
    }
    s->both = both;
    s->compute_only = in_a - both;
    s->comm_only = in_b - both;
    s->idle = (uint64_t)(s->end - s->start) - in_a - in_b + both;
}

static int overlap_rank(struct trace_data *d, uint32_t r, const uint32_t *head,
                        const uint32_t *next)
{
    struct intervals *compute = &d->compute[r], *comm = &d->comm[r];
    int rc = overlap_add_events(d, r, 1, compute);
    rc = rc ? rc : overlap_add_events(d, r, 0, comm);
    rc = rc ? rc : overlap_add_puts(d, r, head, next, comm);
    rc = rc ? rc : intervals_unite(compute);
    rc = rc ? rc : intervals_unite(comm);
    for (uint32_t l = 0; !rc && l < d->launch_count; l++) {
        struct trace_span *s = &d->spans[(size_t)l * d->ranks + r];
        if (s->start != TRACE_NO_TIME)
            overlap_sweep(compute, comm, s);
    }
    return rc;
}

int data_overlap(struct trace_data *d)
{
    MK_FREED uint32_t *head = calloc(2 * (size_t)d->ranks, sizeof *head),
                      *next = malloc((2 * d->put_count + 1) * sizeof *next);
    d->compute = calloc(d->ranks, sizeof *d->compute);
    d->comm = calloc(d->ranks, sizeof *d->comm);
    int rc = head && next && d->compute && d->comm ? 0 : -ENOMEM;
    for (uint64_t i = d->put_count; !rc && i-- > 0;) {
        uint32_t out = 2 * d->puts[i].rank, in = 2 * d->puts[i].m.peer + 1;
        next[2 * i] = head[out], head[out] = (uint32_t)i + 1;
        next[2 * i + 1] = head[in], head[in] = (uint32_t)i + 1;
    }
    for (uint32_t r = 0; !rc && r < d->ranks; r++)
        rc = overlap_rank(d, r, head, next);
    return rc;
}

/* Adds a set's time, bucket by bucket, to column `column`. */
static void overlap_fill(const struct intervals *s, uint64_t ns, uint64_t (*out)[3], int column)
{
    for (uint64_t i = 0; i < s->count; i++)
        for (uint64_t at = (uint64_t)s->at[i].start, end = (uint64_t)s->at[i].end; at < end;) {
            uint64_t next = (at / ns + 1) * ns, to = next < end ? next : end;
            out[at / ns][column] += to - at;
            at = to;
        }
}

void data_overlap_fill(const struct trace_data *d, uint32_t rank, uint64_t ns, uint32_t buckets,
                       uint64_t (*out)[3])
{
    const struct intervals *a = &d->compute[rank], *b = &d->comm[rank];
    memset(out, 0, buckets * sizeof *out);
    overlap_fill(a, ns, out, 0);
    overlap_fill(b, ns, out, 1);
    for (uint64_t i = 0, j = 0; i < a->count && j < b->count;) {
        struct interval part = {a->at[i].start > b->at[j].start ? a->at[i].start : b->at[j].start,
                                a->at[i].end < b->at[j].end ? a->at[i].end : b->at[j].end};
        const struct intervals both = {.at = &part, .count = part.end > part.start};
        overlap_fill(&both, ns, out, 2);
        if (a->at[i].end < b->at[j].end)
            i++;
        else
            j++;
    }
    for (uint32_t k = 0; k < buckets; k++) {
        out[k][0] -= out[k][2];
        out[k][1] -= out[k][2];
    }
}
