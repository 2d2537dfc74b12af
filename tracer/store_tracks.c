/* Tables of what the CTAs did: track, event, and their totals. */
#include "tracer/store.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"

#include <stdio.h>
#include <stdlib.h>

_Static_assert(TRACE_NO_TIME == INSERT_NULL, "a time that is not known is stored as NULL");

#define LONGEST 256 /* kept of each kind on each rank */

static const char *store_tracks_node_name(const struct trace_data *d, const struct trace_node *n,
                                          char *text, size_t size)
{
    const struct mk_topo *t = &d->parts[0].topo;
    switch (n->kind) {
    case TRACE_NODE_RANK:
        snprintf(text, size, "rank %u (node %u)", n->rank, mk_node_of(t, n->rank));
        break;
    case TRACE_NODE_ROLE:
        snprintf(text, size, "%s", plan_role_name(n->role));
        break;
    case TRACE_NODE_CTA:
        snprintf(text, size, "CTA %u", n->cta);
        break;
    case TRACE_NODE_WARP:
        snprintf(text, size, "CTA %u warp %u", n->cta, n->warp);
        break;
    }
    return text;
}

static void store_nodes(struct insert *in, const struct trace_data *d)
{
    static const char *const kinds[] = {"rank", "role", "cta", "warp"};
    char name[64];
    insert_table(in, "track", 16);
    for (uint32_t i = 0; i < d->node_count; i++) {
        const struct trace_node *n = &d->nodes[i];
        int leaf = n->leaf && n->count > 0;
        INSERT_INTEGERS(in, n->id, n->parent ? (int64_t)n->parent : INSERT_NULL);
        insert_text(in, kinds[n->kind]);
        INSERT_INTEGERS(in, n->rank, n->kind >= TRACE_NODE_ROLE ? (int64_t)n->role : INSERT_NULL,
                        n->kind >= TRACE_NODE_CTA ? (int64_t)n->cta : INSERT_NULL,
                        n->leaf ? (int64_t)n->warp : INSERT_NULL);
        insert_text(in, store_tracks_node_name(d, n, name, sizeof name));
        INSERT_INTEGERS(in, n->leaves, n->total, n->dropped, leaf ? n->first_event : INSERT_NULL,
                        leaf ? n->first_event + (int64_t)n->count - 1 : INSERT_NULL, n->longest,
                        n->start, n->end);
    }
}

/* What a wait's `cause` column holds; other kinds use the bits otherwise. */
static uint32_t store_tracks_cause_of(const struct trace_event *e)
{
    uint32_t cause = event_cause(e);
    return event_kind(e) == MK_EV_WAIT && cause < MK_CAUSES ? cause : MK_CAUSE_NONE;
}

/* Which peer a command was for. */
struct pair {
    int64_t event;
    uint32_t peer;
};

static int store_tracks_compare_pair(const void *x, const void *y)
{
    const struct pair *a = x, *b = y;
    return MK_ORDER(a->event, b->event);
}

static struct pair *store_tracks_command_peers(const struct trace_data *d, uint64_t *count)
{
    struct pair *all = malloc((d->put_count + 1) * sizeof *all);
    *count = 0;
    for (uint64_t i = 0; all && i < d->put_count; i++)
        if (d->puts[i].command_event != TRACE_NO_EVENT)
            all[(*count)++] = (struct pair){d->puts[i].command_event, d->puts[i].m.peer};
    if (all)
        qsort(all, *count, sizeof *all, store_tracks_compare_pair);
    return all;
}

static void store_events(struct insert *in, const struct trace_data *d)
{
    uint64_t count = 0, next = 0;
    MK_FREED struct pair *peers = store_tracks_command_peers(d, &count);
    if (!peers)
        return insert_fail(in);
    insert_table(in, "event(track,launch,start,ns,kind,cause,argument,peer)", 8);
    for (uint32_t i = 0; i < d->leaf_count && in->rc == SQLITE_OK; i++) {
        const struct trace_node *n = &d->nodes[d->leaves[i]];
        for (uint64_t j = 0; j < n->count; j++) {
            const struct trace_event *e = &n->events[j];
            int64_t id = n->first_event + (int64_t)j, peer = INSERT_NULL;
            if (event_kind(e) == MK_EV_COPY || event_kind(e) == MK_EV_SIGNAL)
                peer = data_destination(d, n->rank, e);
            while (next < count && peers[next].event < id)
                next++;
            if (next < count && peers[next].event == id)
                peer = peers[next].peer;
            INSERT_INTEGERS(in, n->id, e->launch ? (int64_t)e->launch : INSERT_NULL, e->start,
                            e->ns, event_kind(e), store_tracks_cause_of(e), event_argument(e),
                            peer);
        }
    }
}

static void store_totals(struct insert *in, const struct trace_data *d)
{
    insert_table(in, "total", 6);
    for (uint32_t i = 0; i < d->leaf_count; i++) {
        const struct trace_node *n = &d->nodes[d->leaves[i]];
        uint64_t count[MK_EV_KINDS][MK_CAUSES] = {0}, ns[MK_EV_KINDS][MK_CAUSES] = {0},
                 most[MK_EV_KINDS][MK_CAUSES] = {0};
        for (uint64_t j = 0; j < n->count; j++) {
            const struct trace_event *e = &n->events[j];
            uint32_t k = event_kind(e), c = store_tracks_cause_of(e);
            count[k][c]++;
            ns[k][c] += e->ns;
            most[k][c] = e->ns > most[k][c] ? e->ns : most[k][c];
        }
        for (uint32_t k = 0; k < MK_EV_KINDS; k++)
            for (uint32_t c = 0; c < MK_CAUSES; c++)
                if (count[k][c])
                    INSERT_INTEGERS(in, n->id, k, c, count[k][c], ns[k][c], most[k][c]);
    }
}

/* The longest events seen so far, the longest first. */
struct best {
    struct {
        uint64_t ns;
        int64_t event;
    } at[LONGEST];
    uint32_t count;
};

static void store_tracks_keep(struct best *b, uint64_t ns, int64_t event)
{
    if (b->count == LONGEST && ns <= b->at[LONGEST - 1].ns)
        return;
    uint32_t i = b->count < LONGEST ? b->count++ : LONGEST - 1;
    for (; i && b->at[i - 1].ns < ns; i--)
        b->at[i] = b->at[i - 1];
    b->at[i].ns = ns;
    b->at[i].event = event;
}

static void store_longest(struct insert *in, const struct trace_data *d)
{
    MK_FREED struct best *best = malloc(MK_EV_KINDS * sizeof *best);
    if (!best)
        return insert_fail(in);
    insert_table(in, "longest", 3);
    for (uint32_t r = 0; r < d->ranks; r++) {
        for (uint32_t k = 0; k < MK_EV_KINDS; k++)
            best[k].count = 0;
        for (uint32_t i = d->rank_node[r]; i < d->rank_node[r + 1]; i++)
            for (uint64_t j = 0; j < d->nodes[i].count; j++) {
                const struct trace_event *e = &d->nodes[i].events[j];
                if (e->ns)
                    store_tracks_keep(&best[event_kind(e)], e->ns,
                                      d->nodes[i].first_event + (int64_t)j);
            }
        for (uint32_t k = 0; k < MK_EV_KINDS; k++)
            for (uint32_t i = 0; i < best[k].count; i++)
                INSERT_INTEGERS(in, k, best[k].at[i].ns, best[k].at[i].event);
    }
}

void store_tracks(struct insert *in, const struct trace_data *d)
{
    store_nodes(in, d);
    store_events(in, d);
    store_totals(in, d);
    store_longest(in, d);
}
