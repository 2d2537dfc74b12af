#include "tracer/flow.h"
#include "core/base/sorted.h"
#include "core/base/grow.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int flow_add(struct flow_link *l, int64_t start, int64_t end, uint64_t bytes, uint32_t peer)
{
    if (mk_grow(&l->transfers, l->count, sizeof *l->transfers))
        return -ENOMEM;
    l->transfers[l->count++] = (struct flow_transfer){start, end, bytes, peer};
    l->bytes += bytes;
    return 0;
}

static int flow_add_both(struct flow *f, enum flow_kind kind, uint32_t from, uint32_t to,
                         int64_t start, int64_t end, uint64_t bytes)
{
    int rc = flow_add(flow_link(f, from, kind, 0), start, end, bytes, to);
    return rc ? rc : flow_add(flow_link(f, to, kind, 1), start, end, bytes, from);
}

static int flow_add_copies(struct flow *f, const struct trace_data *d, const struct trace_node *n)
{
    for (uint64_t j = 0; j < n->count; j++) {
        const struct trace_event *e = &n->events[j];
        if (event_kind(e) != MK_EV_COPY)
            continue;
        uint32_t to = data_destination(d, n->rank, e), chunk = event_argument(e);
        const struct trace_plan *p =
            e->launch ? data_plan(d, 0, d->launches[e->launch - 1].plan) : NULL;
        if (to == n->rank || !p || !p->chunks || chunk >= p->chunk_count)
            continue;
        uint64_t bytes =
            p->chunks[chunk].bytes / (p->problem.tuning.pieces ? p->problem.tuning.pieces : 1);
        if (flow_add_both(f, FLOW_NVLINK, n->rank, to, e->start, event_end(e), bytes))
            return -ENOMEM;
    }
    return 0;
}

static int flow_compare_start(const void *x, const void *y)
{
    const struct flow_transfer *a = x, *b = y;
    return MK_ORDER(a->start, b->start);
}

static int flow_compare_peer(const void *x, const void *y)
{
    const struct flow_transfer *a = x, *b = y;
    return MK_ORDER(a->peer, b->peer) ?: flow_compare_start(x, y);
}

uint64_t flow_busy(const struct flow_transfer *t, uint64_t count)
{
    uint64_t busy = 0;
    int64_t until = INT64_MIN;
    for (uint64_t i = 0; i < count; i++) {
        int64_t from = t[i].start > until ? t[i].start : until;
        if (t[i].end > from)
            busy += (uint64_t)(t[i].end - from);
        until = t[i].end > until ? t[i].end : until;
    }
    return busy;
}

struct end {
    int64_t time;
    uint64_t bytes;
};

/* The most bytes under way at once, of transfers in order of start. */
static int flow_find_peak(struct flow_link *l)
{
    MK_FREED struct end *ends = malloc((l->count + 1) * sizeof *ends);
    if (!ends)
        return -ENOMEM;
    for (uint64_t i = 0; i < l->count; i++)
        ends[i] = (struct end){l->transfers[i].end, l->transfers[i].bytes};
    qsort(ends, l->count, sizeof *ends, mk_order_times);
    uint64_t now = 0;
    for (uint64_t i = 0, j = 0; i < l->count; i++) {
        for (; j < l->count && ends[j].time <= l->transfers[i].start; j++)
            now -= ends[j].bytes < now ? ends[j].bytes : now;
        now += l->transfers[i].bytes;
        l->peak = now > l->peak ? now : l->peak;
    }
    return 0;
}

int flow_make(struct flow *f, const struct trace_data *d)
{
    *f = (struct flow){.ranks = d->ranks};
    f->links = calloc((size_t)d->ranks * FLOW_KINDS * 2, sizeof *f->links);
    int rc = f->links ? 0 : -ENOMEM;
    for (uint32_t i = 0; !rc && i < d->leaf_count; i++)
        rc = flow_add_copies(f, d, &d->nodes[d->leaves[i]]);
    for (uint64_t i = 0; !rc && i < d->put_count; i++) {
        int64_t start, end;
        data_put_time(&d->puts[i], &start, &end);
        if (end > start && d->puts[i].m.bytes)
            rc = flow_add_both(f, FLOW_NETWORK, d->puts[i].rank, d->puts[i].m.peer, start, end,
                               d->puts[i].m.bytes);
    }
    for (size_t i = 0; !rc && i < (size_t)d->ranks * FLOW_KINDS * 2; i++) {
        struct flow_link *l = &f->links[i];
        if (!l->count)
            continue;
        qsort(l->transfers, l->count, sizeof *l->transfers, flow_compare_start);
        l->busy = flow_busy(l->transfers, l->count);
        rc = flow_find_peak(l);
        qsort(l->transfers, l->count, sizeof *l->transfers, flow_compare_peer);
    }
    if (rc)
        flow_free(f);
    return rc;
}

void flow_free(struct flow *f)
{
    for (size_t i = 0; f->links && i < (size_t)f->ranks * FLOW_KINDS * 2; i++)
        free(f->links[i].transfers);
    free(f->links);
    memset(f, 0, sizeof *f);
}

void flow_fill(const struct flow_link *l, uint64_t ns, uint32_t buckets, double *moved,
               double *in_flight)
{
    memset(moved, 0, buckets * sizeof *moved);
    memset(in_flight, 0, buckets * sizeof *in_flight);
    for (uint64_t i = 0; i < l->count; i++) {
        const struct flow_transfer *t = &l->transfers[i];
        uint64_t at = (uint64_t)t->start, end = (uint64_t)t->end;
        double bytes = (double)t->bytes, length = (double)(end - at);
        if (at == end)
            moved[at / ns] += bytes;
        while (at < end) {
            uint64_t bucket = at / ns, next = (bucket + 1) * ns,
                     part = (next < end ? next : end) - at;
            moved[bucket] += bytes * (double)part / length;
            in_flight[bucket] += bytes * (double)part / (double)ns;
            at = next;
        }
    }
}
