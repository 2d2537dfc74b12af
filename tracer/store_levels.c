/* Tables of aggregates, for views of a whole run: zoom, level, link, flow, traffic. */
#include "tracer/store.h"
#include "core/base/scoped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tracer/flow.h"

static void store_rows(struct insert *in, const struct trace_data *d, const struct levels *l)
{
    insert_table(in, "zoom", 4);
    for (uint32_t i = 0; i < l->count; i++)
        INSERT_INTEGERS(in, i, l->at[i].ns, l->at[i].buckets, i >= l->leaf_from);
    insert_table(in, "level", 12);
    for (uint32_t i = 0; i < l->count; i++)
        for (uint32_t n = 0; n < d->node_count && in->rc == SQLITE_OK; n++) {
            const struct level_run *run = &l->at[i].runs[n];
            for (uint64_t k = run->first; k < run->first + run->count; k++) {
                const struct level_row *r = &l->at[i].rows[k];
                INSERT_INTEGERS(in, i, d->nodes[n].id, r->bucket, r->busiest);
                for (int s = 0; s < TRACE_STATES - 1; s++)
                    insert_integer(in, (int64_t)r->ns[s]);
            }
        }
}

static void store_overlap(struct insert *in, const struct trace_data *d, const struct levels *l)
{
    MK_FREED uint64_t(*out)[3] = malloc(l->at[0].buckets * sizeof *out);
    if (!out)
        return insert_fail(in);
    insert_table(in, "overlap_level", 6);
    for (uint32_t i = 0; i < l->count; i++)
        for (uint32_t r = 0; r < d->ranks; r++) {
            data_overlap_fill(d, r, l->at[i].ns, l->at[i].buckets, out);
            for (uint32_t b = 0; b < l->at[i].buckets; b++) {
                if (!out[b][0] && !out[b][1] && !out[b][2])
                    continue;
                INSERT_INTEGERS(in, i, r, b);
                for (int k = 0; k < 3; k++)
                    insert_integer(in, (int64_t)out[b][k]);
            }
        }
}

static const char *const kind_names[FLOW_KINDS] = {"nvlink", "network"};

/* A link's id: 1, 2, ... in order of rank, kind, direction. */
static int64_t store_levels_link_id(const struct flow *f, const struct flow_link *l)
{
    return l - f->links + 1;
}

static void store_links(struct insert *in, const struct flow *f)
{
    insert_table(in, "link", 9);
    for (uint32_t r = 0; r < f->ranks; r++)
        for (int kind = 0; kind < FLOW_KINDS; kind++)
            for (int side = 0; side < 2; side++) {
                const struct flow_link *l = flow_link(f, r, kind, side);
                char name[64];
                snprintf(name, sizeof name, "%s %s", kind ? "network" : "NVLink",
                         side ? "in" : "out");
                INSERT_INTEGERS(in, store_levels_link_id(f, l), r);
                insert_text(in, kind_names[kind]);
                insert_text(in, side ? "in" : "out");
                insert_text(in, name);
                INSERT_INTEGERS(in, l->count, l->bytes, l->busy, l->peak);
            }
}

static void store_flow(struct insert *in, const struct flow *f, const struct levels *l)
{
    MK_FREED double *moved = malloc(l->at[0].buckets * sizeof *moved),
                    *in_flight = malloc(l->at[0].buckets * sizeof *in_flight);
    insert_table(in, "flow", 5);
    if (!moved || !in_flight)
        return insert_fail(in);
    for (uint32_t i = 0; i < l->count; i++)
        for (uint32_t k = 0; k < f->ranks * FLOW_KINDS * 2; k++) {
            const struct flow_link *link = &f->links[k];
            if (!link->count)
                continue;
            flow_fill(link, l->at[i].ns, l->at[i].buckets, moved, in_flight);
            for (uint32_t b = 0; b < l->at[i].buckets; b++) {
                if (moved[b] <= 0)
                    continue;
                INSERT_INTEGERS(in, i, store_levels_link_id(f, link), b, llround(moved[b]),
                                llround(in_flight[b]));
            }
        }
}

static void store_traffic(struct insert *in, const struct flow *f)
{
    insert_table(in, "traffic", 6);
    for (int kind = 0; kind < FLOW_KINDS; kind++)
        for (uint32_t r = 0; r < f->ranks; r++) {
            const struct flow_link *l = flow_link(f, r, kind, 0);
            for (uint64_t i = 0, end; i < l->count; i = end) {
                uint64_t bytes = 0;
                for (end = i; end < l->count && l->transfers[end].peer == l->transfers[i].peer;
                     end++)
                    bytes += l->transfers[end].bytes;
                insert_text(in, kind_names[kind]);
                INSERT_INTEGERS(in, r, l->transfers[i].peer, (int64_t)(end - i), bytes,
                                (int64_t)flow_busy(&l->transfers[i], end - i));
            }
        }
}

void store_levels(struct insert *in, const struct trace_data *d)
{
    struct levels levels;
    struct flow flow;
    if (levels_make(&levels, d))
        return insert_fail(in);
    store_rows(in, d, &levels);
    store_overlap(in, d, &levels);
    if (flow_make(&flow, d)) {
        levels_free(&levels);
        return insert_fail(in);
    }
    store_links(in, &flow);
    store_flow(in, &flow, &levels);
    store_traffic(in, &flow);
    flow_free(&flow);
    levels_free(&levels);
}
