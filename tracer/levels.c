#include "tracer/levels.h"
#include "core/base/grow.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STATES (TRACE_STATES - 1)
#define MIN_BUCKETS 64
#define MAX_BUCKETS 32768
#define MIN_FINE 2048 /* ranks and roles: a screen's width may show a tenth of the run */
/* A bucket of 200 ranks and roles is then 100 bytes: 200 * 16384 * 100 = 330 MB at most. */
#define MAX_FINE 16384

typedef uint64_t dense[STATES];

static void levels_choose_zoom(struct levels *out, const struct trace_data *d)
{
    uint64_t tracks = 0, groups = (uint64_t)d->ranks * MK_ROLES;
    for (uint32_t i = 0; i < d->leaf_count; i++)
        tracks += d->nodes[d->leaves[i]].count > 0;
    uint64_t want = d->events / (tracks ? tracks : 1) / LEVEL_EVENTS, ns = 1;
    want = want < MIN_BUCKETS ? MIN_BUCKETS : want > MAX_BUCKETS ? MAX_BUCKETS : want;
    uint64_t fine = d->events / groups / LEVEL_EVENTS;
    fine = fine < MIN_FINE ? MIN_FINE : fine > MAX_FINE ? MAX_FINE : fine;
    fine = fine < want ? want : fine;
    while (ns * fine <= (uint64_t)d->duration)
        ns *= 2;
    do {
        struct level *l = &out->at[out->count++];
        l->ns = ns;
        l->buckets = (uint32_t)((uint64_t)d->duration / ns + 1);
        if (2 * (uint64_t)l->buckets >=
            want) /* levels are a factor apart: the nearest, else rows outnumber events */
            out->leaf_from = out->count - 1;
        ns *= LEVEL_FACTOR;
    } while (out->count < LEVEL_MAX && out->at[out->count - 1].buckets > 32);
}

static void levels_fill(dense *buckets, uint64_t width, const struct trace_node *n)
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

static int levels_add_row(struct level *l, uint32_t bucket, const uint64_t *ns, uint32_t leaves)
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
    if (mk_grow(&l->rows, l->count, sizeof *l->rows))
        return -ENOMEM;
    struct level_row *r = &l->rows[l->count++];
    r->bucket = bucket;
    r->busiest = (uint32_t)busiest;
    memcpy(r->ns, ns, sizeof r->ns);
    return 0;
}

/* Buckets of one level become buckets of the next. */
static void levels_fold(dense *buckets, uint32_t count)
{
    for (uint32_t b = 0; b < count; b++) { /* b / LEVEL_FACTOR is never ahead of b */
        dense sum;
        memcpy(sum, buckets[b], sizeof sum);
        memset(buckets[b], 0, sizeof sum);
        for (uint32_t s = 0; s < STATES; s++)
            buckets[b / LEVEL_FACTOR][s] += sum[s];
    }
}

/* Writes a node's rows of every level from `from` on, which `buckets` holds. Folds them on the
 * way. */
static int levels_emit(struct levels *out, const struct trace_node *n, dense *buckets,
                       uint32_t from)
{
    for (uint32_t i = from; i < out->count; i++) {
        struct level *l = &out->at[i];
        uint64_t first = l->count;
        for (uint32_t b = 0; b < l->buckets; b++)
            if (levels_add_row(l, b, buckets[b], n->leaves))
                return -ENOMEM;
        l->runs[n->id - 1] = (struct level_run){first, (uint32_t)(l->count - first)};
        if (i + 1 < out->count)
            levels_fold(buckets, l->buckets);
    }
    return 0;
}

/* The buckets of the nodes on the way from a rank to the node at hand. */
struct path {
    dense *buckets[4]; /* rank, role, CTA, warp */
    uint32_t from[4];  /* the level that they hold */
    uint32_t depth;
};

/* A node and all below it. Each event goes straight into the buckets of its leaf and of all above.
 * Returns the index after the last node below, or -ENOMEM. */
static int64_t levels_descend(struct levels *out, const struct trace_data *d, uint32_t i,
                              struct path *path)
{
    const struct trace_node *n = &d->nodes[i];
    uint32_t from = n->kind == TRACE_NODE_RANK || n->kind == TRACE_NODE_ROLE ? 0 : out->leaf_from;
    dense *mine = path->buckets[path->depth];
    memset(mine, 0, out->at[from].buckets * sizeof *mine);
    path->from[path->depth++] = from;
    int64_t next = i + 1;
    for (uint32_t k = 0; n->leaf && k < path->depth; k++)
        levels_fill(path->buckets[k], out->at[path->from[k]].ns, n);
    while (next >= 0 && next < d->node_count && d->nodes[next].parent == n->id)
        next = levels_descend(out, d, (uint32_t)next, path);
    path->depth--;
    return next < 0 || levels_emit(out, n, mine, from) ? -ENOMEM : next;
}

int levels_make(struct levels *out, const struct trace_data *d)
{
    memset(out, 0, sizeof *out);
    levels_choose_zoom(out, d);
    struct path path = {.depth = 0};
    MK_FREED dense *space = malloc(4 * (size_t)out->at[0].buckets * sizeof *space);
    for (uint32_t i = 0; space && i < 4; i++)
        path.buckets[i] = space + (size_t)i * out->at[0].buckets;
    int64_t next = space ? 0 : -ENOMEM;
    for (uint32_t i = 0; next >= 0 && i < out->count; i++) {
        out->at[i].runs = calloc(d->node_count + 1, sizeof *out->at[i].runs);
        if (!out->at[i].runs)
            next = -ENOMEM;
    }
    while (next >= 0 && next < d->node_count)
        next = levels_descend(out, d, (uint32_t)next, &path);
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
