#include "tracer/levels.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STATES (TRACE_STATES - 1)
#define MIN_BUCKETS 256
#define MAX_BUCKETS 32768

typedef uint64_t dense[STATES];

static void choose_zoom(struct levels *out, const struct trace_data *d)
{
    uint64_t tracks = 0;
    for (uint32_t i = 0; i < d->leaf_count; i++)
        tracks += d->nodes[d->leaves[i]].count > 0;
    uint64_t want = d->events / (tracks ? tracks : 1) / LEVEL_EVENTS, ns = 1;
    want = want < MIN_BUCKETS ? MIN_BUCKETS : want > MAX_BUCKETS ? MAX_BUCKETS : want;
    while (ns * want <= (uint64_t)d->duration)
        ns *= 2;
    do {
        struct level *l = &out->at[out->count++];
        l->ns = ns;
        l->buckets = (uint32_t)((uint64_t)d->duration / ns + 1);
        ns *= LEVEL_FACTOR;
    } while (out->count < LEVEL_MAX && out->at[out->count - 1].buckets > 32);
}

static void fill(dense *buckets, uint64_t width, const struct trace_node *n)
{
    for (uint64_t j = 0; j < n->count; j++) {
        const struct trace_event *e = &n->events[j];
        enum trace_state state = trace_state_of(event_kind(e), event_cause(e));
        if (state == TRACE_IDLE)
            continue;
        uint64_t at = (uint64_t)e->start, end = at + e->ns;
        while (at < end) {
            uint64_t bucket = at / width, next = (bucket + 1) * width;
            buckets[bucket][state - 1] += (next < end ? next : end) - at;
            at = next;
        }
    }
}

static int add_row(struct level *l, uint32_t bucket, const uint64_t *ns, uint32_t leaves)
{
    uint64_t sum = 0, most = 0, busiest = TRACE_IDLE;
    for (uint32_t s = 0; s < STATES; s++) {
        sum += ns[s];
        if (ns[s] > most)
            most = ns[s], busiest = s + 1;
    }
    if (!sum)
        return 0;
    if (l->ns * leaves > sum && l->ns * leaves - sum > most)
        busiest = TRACE_IDLE;
    if (l->count == l->capacity) {
        uint64_t capacity = 2 * l->capacity + 1024;
        struct level_row *more = realloc(l->rows, capacity * sizeof *more);
        if (!more)
            return -ENOMEM;
        l->rows = more;
        l->capacity = capacity;
    }
    struct level_row *r = &l->rows[l->count++];
    r->bucket = bucket;
    r->busiest = (uint32_t)busiest;
    memcpy(r->ns, ns, sizeof r->ns);
    return 0;
}

/* Writes a node's rows of every level. Folds `buckets` on the way. */
static int emit(struct levels *out, const struct trace_node *n, dense *buckets)
{
    for (uint32_t i = 0; i < out->count; i++) {
        struct level *l = &out->at[i];
        uint64_t first = l->count;
        for (uint32_t b = 0; b < l->buckets; b++)
            if (add_row(l, b, buckets[b], n->leaves))
                return -ENOMEM;
        l->runs[n->id - 1] = (struct level_run){first, (uint32_t)(l->count - first)};
        if (i + 1 == out->count)
            break;
        for (uint32_t b = 0; b < l->buckets; b++) { /* b / LEVEL_FACTOR is never ahead of b */
            dense sum;
            memcpy(sum, buckets[b], sizeof sum);
            memset(buckets[b], 0, sizeof sum);
            for (uint32_t s = 0; s < STATES; s++)
                buckets[b / LEVEL_FACTOR][s] += sum[s];
        }
    }
    return 0;
}

/* A node and all below it; adds its buckets to `above` (NULL: nobody's). Returns the index after the last
 * node below, or -ENOMEM. `space` has room for the rest of the depth. */
static int64_t descend(struct levels *out, const struct trace_data *d, uint32_t i, dense *above, dense *space)
{
    const struct trace_node *n = &d->nodes[i];
    const struct level *l = &out->at[0];
    memset(space, 0, l->buckets * sizeof *space);
    int64_t next = i + 1;
    if (n->leaf)
        fill(space, l->ns, n);
    while (next >= 0 && next < d->node_count && d->nodes[next].parent == n->id)
        next = descend(out, d, (uint32_t)next, space, space + l->buckets);
    if (next < 0)
        return next;
    for (uint32_t b = 0; above && b < l->buckets; b++)
        for (uint32_t s = 0; s < STATES; s++)
            above[b][s] += space[b][s];
    return emit(out, n, space) ? -ENOMEM : next;
}

int levels_make(struct levels *out, const struct trace_data *d)
{
    memset(out, 0, sizeof *out);
    choose_zoom(out, d);
    dense *space = malloc(4 * (size_t)out->at[0].buckets * sizeof *space); /* rank, role, CTA, warp */
    int64_t next = space ? 0 : -ENOMEM;
    for (uint32_t i = 0; next >= 0 && i < out->count; i++) {
        out->at[i].runs = calloc(d->node_count + 1, sizeof *out->at[i].runs);
        if (!out->at[i].runs)
            next = -ENOMEM;
    }
    while (next >= 0 && next < d->node_count)
        next = descend(out, d, (uint32_t)next, NULL, space);
    free(space);
    if (next >= 0)
        return 0;
    levels_free(out);
    return -ENOMEM;
}

void levels_free(struct levels *l)
{
    for (uint32_t i = 0; i < l->count; i++) {
        free(l->at[i].rows);
        free(l->at[i].runs);
    }
    memset(l, 0, sizeof *l);
}
