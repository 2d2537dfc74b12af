/* Puts the parts of all ranks on one clock and into one tree of tracks. */
#include "tracer/align.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct trace_plan *data_plan(const struct trace_data *d, uint32_t rank, uint32_t id)
{
    const struct trace_part *p = &d->parts[rank];
    for (uint32_t i = 0; i < p->plan_count; i++)
        if (p->plans[i].id == id)
            return &p->plans[i];
    return NULL;
}

const struct trace_plan *data_launch_plan(const struct trace_data *d, uint32_t rank,
                                          uint32_t launch)
{
    return launch ? data_plan(d, rank, d->launches[launch - 1].plan) : NULL;
}

static int merge_compare_leaf(const void *x, const void *y)
{
    const struct leaf *a = x, *b = y;
    return MK_ORDER(a->role, b->role) ?: MK_ORDER(a->cta, b->cta) ?: MK_ORDER(a->warp, b->warp);
}

static struct trace_node *merge_add_node(struct trace_data *d, enum trace_node_kind kind,
                                         uint32_t parent, uint32_t rank, const struct leaf *l)
{
    struct trace_node *n = &d->nodes[d->node_count++];
    *n = (struct trace_node){
        .kind = kind, .id = d->node_count, .parent = parent, .rank = rank, .start = TRACE_NO_TIME};
    n->end = TRACE_NO_TIME;
    if (l)
        n->role = l->role, n->cta = l->cta, n->warp = l->warp;
    return n;
}

/* Adds a leaf's totals to itself and all above it. */
static void merge_add_leaf(struct trace_data *d, struct trace_node *n, const struct leaf *l)
{
    uint64_t longest = 0;
    int64_t end = TRACE_NO_TIME;
    for (uint64_t i = 0; i < l->count; i++) {
        longest = l->events[i].ns > longest ? l->events[i].ns : longest;
        end = event_end(&l->events[i]) > end ? event_end(&l->events[i]) : end;
    }
    n->leaf = 1;
    n->events = l->events;
    n->count = l->count;
    n->first_event = (int64_t)d->events + 1;
    d->events += l->count;
    d->dropped += l->dropped;
    for (struct trace_node *up = n;; up = &d->nodes[up->parent - 1]) {
        up->leaves++;
        up->total += l->count;
        up->dropped += l->dropped;
        up->longest = longest > up->longest ? longest : up->longest;
        if (l->count) {
            int64_t start = l->events[0].start;
            up->start = up->start == TRACE_NO_TIME || start < up->start ? start : up->start;
            up->end = end > up->end ? end : up->end;
        }
        if (!up->parent)
            break;
    }
}

/* Whether leaf i is not its CTA's only one: then the CTA is a row above its warps. */
static int merge_shares_cta(const struct leaf *l, uint32_t count, uint32_t i)
{
    return (i > 0 && l[i - 1].role == l[i].role && l[i - 1].cta == l[i].cta) ||
           (i + 1 < count && l[i + 1].role == l[i].role && l[i + 1].cta == l[i].cta);
}

static int merge_add_rank(struct trace_data *d, uint32_t rank,
                          const struct align_launches *launches)
{
    const struct trace_part *p = &d->parts[rank];
    MK_FREED struct leaf *leaves = calloc((size_t)p->track_count * MK_ROLES + 1, sizeof *leaves);
    uint32_t count = 0;
    int rc = leaves ? 0 : -ENOMEM;
    for (uint32_t t = 0; !rc && t < p->track_count; t++)
        rc = align_track(d, rank, t, launches, leaves, &count);
    struct trace_node *more =
        rc ? NULL : realloc(d->nodes, (d->node_count + 3 * (size_t)count + 1) * sizeof *more);
    if (!more) {
        for (uint32_t i = 0; i < count; i++)
            free(leaves[i].events);
        return -ENOMEM;
    }
    d->nodes = more;
    qsort(leaves, count, sizeof *leaves, merge_compare_leaf);
    uint32_t top = merge_add_node(d, TRACE_NODE_RANK, 0, rank, NULL)->id, role = 0, cta = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct leaf *l = &leaves[i];
        int new_role = i == 0 || leaves[i - 1].role != l->role;
        if (new_role)
            role = merge_add_node(d, TRACE_NODE_ROLE, top, rank, l)->id;
        if (new_role || leaves[i - 1].cta != l->cta)
            cta = merge_add_node(d, TRACE_NODE_CTA, role, rank, l)->id;
        struct trace_node *n = &d->nodes[cta - 1];
        if (merge_shares_cta(leaves, count, i))
            n = merge_add_node(d, TRACE_NODE_WARP, cta, rank, l);
        merge_add_leaf(d, n, l);
    }
    return 0;
}

static int merge_compare_launch(const void *x, const void *y)
{
    const struct trace_launch *a = x, *b = y;
    int order = MK_ORDER(a->start, b->start) ?: MK_ORDER(a->epoch, b->epoch);
    return order ?: MK_ORDER(a->plan, b->plan);
}

/* Numbers launches in order of time; events were given their numbers in order of discovery. */
static int merge_order_launches(struct trace_data *d)
{
    MK_FREED uint32_t *number = calloc((size_t)d->launch_count + 1, sizeof *number);
    if (!number)
        return -ENOMEM;
    if (d->launch_count)
        qsort(d->launches, d->launch_count, sizeof *d->launches, merge_compare_launch);
    for (uint32_t i = 0; i < d->launch_count; i++) {
        number[d->launches[i].found] = i + 1;
        map_set(&d->launch_ids, launch_key(d->launches[i].plan, d->launches[i].epoch),
                i + 1); /* is there: no memory */
    }
    for (uint32_t i = 0; i < d->node_count; i++)
        for (uint64_t j = 0; j < d->nodes[i].count; j++)
            d->nodes[i].events[j].launch = number[d->nodes[i].events[j].launch];
    return 0;
}

static uint64_t merge_chunk_key(uint32_t plan, uint32_t rank, uint32_t number)
{
    return (uint64_t)plan << 40 | (uint64_t)(rank & 0xffff) << 24 | number;
}

static int merge_index_chunks(struct trace_data *d)
{
    int rc = 0;
    for (uint32_t i = 0; i < d->parts[0].plan_count; i++) {
        const struct trace_plan *p = &d->parts[0].plans[i];
        for (uint32_t c = 0; !rc && p->chunks && c < p->chunk_count; c++)
            rc = map_set(&d->chunk_ids,
                         merge_chunk_key(p->id, p->chunks[c].rank, p->chunks[c].number), c);
    }
    return rc;
}

uint32_t data_flag_chunk(const struct trace_data *d, const struct trace_plan *plan,
                         const struct mk_flag_meaning *flag)
{
    if (flag->chunk == UINT32_MAX)
        return UINT32_MAX;
    return map_get(&d->chunk_ids, merge_chunk_key(plan->id, flag->producer, flag->chunk),
                   UINT32_MAX);
}

/* Times of a message; 0 is a stage not reached. */
static int64_t merge_map_stage(const struct trace_data *d, uint32_t rank, uint64_t t)
{
    return t ? align_host(d, rank, t) : TRACE_NO_TIME;
}

static int merge_add_puts(struct trace_data *d)
{
    for (uint32_t r = 0; r < d->ranks; r++)
        d->put_count += d->parts[r].message_count, d->dropped += d->parts[r].messages_dropped;
    if (d->put_count >= UINT32_MAX)
        return -EOVERFLOW;
    struct trace_put *put = d->puts = malloc((d->put_count + 1) * sizeof *d->puts);
    if (!put)
        return -ENOMEM;
    for (uint32_t r = 0; r < d->ranks; r++)
        for (uint64_t i = 0; i < d->parts[r].message_count; i++) {
            const struct mk_message *m = &d->parts[r].messages[i];
            const struct trace_plan *plan = data_plan(d, r, m->plan);
            uint32_t n = plan ? m->flag - plan->flag_base : 0;
            *put++ = (struct trace_put){
                .m = *m,
                .rank = r,
                .launch = map_get(&d->launch_ids, launch_key(m->plan, m->epoch), 0),
                .chunk = plan && m->flag >= plan->flag_base && n < plan->flag_count
                             ? plan->flags[n].chunk
                             : UINT32_MAX,
                .commanded = TRACE_NO_TIME,
                .seen = merge_map_stage(d, r, m->seen),
                .posted = merge_map_stage(d, r, m->posted),
                .completed = merge_map_stage(d, r, m->completed),
                .arrived = TRACE_NO_TIME,
                .command_event = TRACE_NO_EVENT,
                .arrival_event = TRACE_NO_EVENT,
            };
        }
    return 0;
}

static void merge_widen_range(int64_t t, int64_t *first, int64_t *last)
{
    if (t == TRACE_NO_TIME)
        return;
    *first = t < *first ? t : *first;
    *last = t > *last ? t : *last;
}

static void merge_shift(int64_t *t, int64_t by)
{
    if (*t != TRACE_NO_TIME)
        *t -= by;
}

/* Moves every time so that the first is 0, and finds how uncertain each rank's are. */
static void merge_set_origin(struct trace_data *d)
{
    int64_t first = INT64_MAX, last = TRACE_NO_TIME;
    for (uint32_t i = 0; i < d->node_count; i++) {
        merge_widen_range(d->nodes[i].start, &first, &last);
        merge_widen_range(d->nodes[i].end, &first, &last);
    }
    for (uint64_t i = 0; i < d->put_count; i++) {
        merge_widen_range(d->puts[i].seen, &first, &last);
        merge_widen_range(d->puts[i].posted, &first, &last);
        merge_widen_range(d->puts[i].completed, &first, &last);
    }
    if (first == INT64_MAX)
        first = last = 0;
    d->origin = first;
    d->duration = last - first;
    for (uint32_t i = 0; i < d->node_count; i++) {
        merge_shift(&d->nodes[i].start, first);
        merge_shift(&d->nodes[i].end, first);
        for (uint64_t j = 0; j < d->nodes[i].count; j++)
            d->nodes[i].events[j].start -= first;
    }
    for (uint32_t i = 0; i < d->launch_count; i++)
        d->launches[i].start -= first;
    for (uint64_t i = 0; i < d->put_count; i++) {
        merge_shift(&d->puts[i].seen, first);
        merge_shift(&d->puts[i].posted, first);
        merge_shift(&d->puts[i].completed, first);
    }
    for (uint32_t r = 0; r < d->ranks; r++) {
        struct trace_rank_clock *c = &d->clocks[r];
        uint64_t from = (uint64_t)(first - c->host.offset), to = (uint64_t)(last - c->host.offset);
        c->residual = c->host.used ? clock_residual(&c->host, from, to) : 0;
        c->residual += d->parts[r].gpu_residual;
        if (c->gpu.used)
            c->residual += clock_residual(&c->gpu, from - (uint64_t)c->gpu.offset,
                                          to - (uint64_t)c->gpu.offset);
        /* nine years: more is as wrong, and does not fit into a time beside others */
        c->residual = c->residual < TRACE_MAX_TIME / 8 ? c->residual : TRACE_MAX_TIME / 8;
        d->residual = c->residual > d->residual ? c->residual : d->residual;
    }
}

static int merge_index_leaves(struct trace_data *d)
{
    d->leaves = malloc((d->node_count + 1) * sizeof *d->leaves);
    for (uint32_t i = 0; d->leaves && i < d->node_count; i++)
        if (d->nodes[i].leaf)
            d->leaves[d->leaf_count++] = i;
    return d->leaves ? 0 : -ENOMEM;
}

/* When each launch began and ended on each rank. */
static int merge_bound_spans(struct trace_data *d)
{
    d->spans = malloc(((size_t)d->launch_count * d->ranks + 1) * sizeof *d->spans);
    if (!d->spans)
        return -ENOMEM;
    for (size_t i = 0; i < (size_t)d->launch_count * d->ranks; i++)
        d->spans[i] = (struct trace_span){.start = TRACE_NO_TIME, .end = TRACE_NO_TIME};
    for (uint32_t i = 0; i < d->node_count; i++) {
        const struct trace_node *n = &d->nodes[i];
        uint32_t before = 0;
        for (uint64_t j = 0; j < n->count; j++) {
            const struct trace_event *e = &n->events[j];
            if (!e->launch)
                continue;
            struct trace_span *s = &d->spans[(size_t)(e->launch - 1) * d->ranks + n->rank];
            s->start = s->start == TRACE_NO_TIME || e->start < s->start ? e->start : s->start;
            s->end = event_end(e) > s->end ? event_end(e) : s->end;
            if (event_kind(e) == MK_EV_TILE)
                s->tile_ns += e->ns;
            s->compute_tracks += n->role == MK_COMPUTE && n->warp == 0 && e->launch != before;
            before = e->launch;
        }
    }
    return 0;
}

static int merge_check_parts(const struct trace_part *parts, uint32_t ranks, char *error,
                             size_t size)
{
    for (uint32_t r = 0; r < ranks; r++) {
        const struct mk_topo *t = &parts[r].topo;
        if (t->rank == r && t->nodes == parts[0].topo.nodes && t->gpus == parts[0].topo.gpus &&
            mk_world(t) == ranks)
            continue;
        return mk_fail(-EPROTO, error, size,
                       "trace: part %u says rank %u of %u x %u, the job has %u ranks", r, t->rank,
                       t->nodes, t->gpus, ranks);
    }
    return 0;
}

int data_merge(struct trace_data *d, const struct trace_part *parts, uint32_t ranks,
               const struct trace_run *run, char *error, size_t size)
{
    int rc = merge_check_parts(parts, ranks, error, size);
    struct align_launches launches = {0};
    *d = (struct trace_data){.run = run, .parts = parts, .ranks = ranks};
    if (rc)
        return rc;
    d->rank_node = calloc(ranks + 1, sizeof *d->rank_node);
    rc = d->rank_node ? align_clocks(d) : -ENOMEM;
    rc = rc ? rc : align_find_launches(d, &launches);
    for (uint32_t r = 0; !rc && r < ranks; r++) {
        d->rank_node[r] = d->node_count;
        rc = merge_add_rank(d, r, &launches);
        d->rank_node[r + 1] = d->node_count;
    }
    free(launches.known);
    rc = rc ? rc : merge_index_leaves(d);
    rc = rc ? rc : merge_order_launches(d);
    rc = rc ? rc : merge_index_chunks(d);
    rc = rc ? rc : merge_add_puts(d);
    if (!rc) {
        merge_set_origin(d);
        rc = merge_bound_spans(d);
    }
    if (rc) {
        snprintf(error, size, "trace: %s",
                 rc == -ENOMEM ? "not enough memory to merge the ranks' parts"
                               : "too many messages");
        data_free(d);
    }
    return rc;
}

void data_free(struct trace_data *d)
{
    for (uint32_t i = 0; i < d->node_count; i++)
        free(d->nodes[i].events);
    for (uint32_t r = 0; d->compute && d->comm && r < d->ranks; r++) {
        intervals_free(&d->compute[r]);
        intervals_free(&d->comm[r]);
    }
    free(d->compute);
    free(d->comm);
    for (uint32_t r = 0; d->clocks && r < d->ranks; r++) {
        free(d->clocks[r].host_used);
        free(d->clocks[r].gpu_used);
    }
    map_free(&d->launch_ids);
    map_free(&d->chunk_ids);
    free(d->clocks);
    free(d->nodes);
    free(d->leaves);
    free(d->rank_node);
    free(d->launches);
    free(d->spans);
    free(d->puts);
    free(d->edges);
    memset(d, 0, sizeof *d);
}

const struct trace_node *data_leaf(const struct trace_data *d, int64_t id)
{
    /* the last leaf whose first event is not above id: empty ones come before it */
    uint64_t above = MK_BISECT(i, d->leaf_count, d->nodes[d->leaves[i]].first_event <= id);
    return &d->nodes[d->leaves[above ? above - 1 : 0]];
}
