/* Tables of aggregates, for views of a whole run: zoom, level, link, flow, traffic. */
#include "tracer/store.h"
#include "core/scoped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tracer/flow.h"
#include "tracer/insert.h"

static int store_rows(sqlite3 *db, const struct trace_data *d, const struct levels *l)
{
    struct insert in;
    insert_begin(&in, db, "zoom", 4);
    for (uint32_t i = 0; i < l->count; i++)
        INSERT_INTEGERS(&in, i, l->at[i].ns, l->at[i].buckets, i >= l->leaf_from);
    int rc = insert_end(&in);
    if (rc)
        return rc;
    insert_begin(&in, db, "level", 12);
    for (uint32_t i = 0; i < l->count; i++)
        for (uint32_t n = 0; n < d->node_count && in.rc == SQLITE_OK; n++) {
            const struct level_run *run = &l->at[i].runs[n];
            for (uint64_t k = run->first; k < run->first + run->count; k++) {
                const struct level_row *r = &l->at[i].rows[k];
                INSERT_INTEGERS(&in, i, d->nodes[n].id, r->bucket, r->busiest);
                for (int s = 0; s < TRACE_STATES - 1; s++)
                    insert_integer(&in, (int64_t)r->ns[s]);
            }
        }
    return insert_end(&in);
}

static int store_overlap(sqlite3 *db, const struct trace_data *d, const struct levels *l)
{
    uint64_t(*out)[3] = malloc(l->at[0].buckets * sizeof *out);
    if (!out)
        return STORE_NOMEM;
    struct insert in;
    insert_begin(&in, db, "overlap_level", 6);
    for (uint32_t i = 0; i < l->count; i++)
        for (uint32_t r = 0; r < d->ranks; r++) {
            data_overlap_fill(d, r, l->at[i].ns, l->at[i].buckets, out);
            for (uint32_t b = 0; b < l->at[i].buckets; b++) {
                if (!out[b][0] && !out[b][1] && !out[b][2])
                    continue;
                INSERT_INTEGERS(&in, i, r, b);
                for (int k = 0; k < 3; k++)
                    insert_integer(&in, (int64_t)out[b][k]);
            }
        }
    free(out);
    return insert_end(&in);
}

static const char *const kind_names[FLOW_KINDS] = {"nvlink", "network"};

/* A link's id: 1, 2, ... in order of rank, kind, direction. */
static int64_t store_levels_link_id(const struct flow *f, const struct flow_link *l)
{
    return l - f->links + 1;
}

static int store_links(sqlite3 *db, const struct flow *f)
{
    struct insert in;
    insert_begin(&in, db, "link", 9);
    for (uint32_t r = 0; r < f->ranks; r++)
        for (int kind = 0; kind < FLOW_KINDS; kind++)
            for (int side = 0; side < 2; side++) {
                const struct flow_link *l = flow_link(f, r, kind, side);
                char name[64];
                snprintf(name, sizeof name, "%s %s", kind ? "network" : "NVLink",
                         side ? "in" : "out");
                INSERT_INTEGERS(&in, store_levels_link_id(f, l), r);
                insert_text(&in, kind_names[kind]);
                insert_text(&in, side ? "in" : "out");
                insert_text(&in, name);
                INSERT_INTEGERS(&in, l->count, l->bytes, l->busy, l->peak);
            }
    return insert_end(&in);
}

static int store_flow(sqlite3 *db, const struct flow *f, const struct levels *l)
{
    MK_FREED double *moved = malloc(l->at[0].buckets * sizeof *moved),
                    *in_flight = malloc(l->at[0].buckets * sizeof *in_flight);
    struct insert in;
    insert_begin(&in, db, "flow", 5);
    for (uint32_t i = 0; moved && in_flight && i < l->count; i++)
        for (uint32_t k = 0; k < f->ranks * FLOW_KINDS * 2; k++) {
            const struct flow_link *link = &f->links[k];
            if (!link->count)
                continue;
            flow_fill(link, l->at[i].ns, l->at[i].buckets, moved, in_flight);
            for (uint32_t b = 0; b < l->at[i].buckets; b++) {
                if (moved[b] <= 0)
                    continue;
                INSERT_INTEGERS(&in, i, store_levels_link_id(f, link), b, llround(moved[b]),
                                llround(in_flight[b]));
            }
        }
    int rc = moved && in_flight ? SQLITE_OK : STORE_NOMEM;
    return insert_end(&in) ? in.rc : rc;
}

static int store_traffic(sqlite3 *db, const struct flow *f)
{
    struct insert in;
    insert_begin(&in, db, "traffic", 6);
    for (int kind = 0; kind < FLOW_KINDS; kind++)
        for (uint32_t r = 0; r < f->ranks; r++) {
            const struct flow_link *l = flow_link(f, r, kind, 0);
            for (uint64_t i = 0, end; i < l->count; i = end) {
                uint64_t bytes = 0;
                for (end = i; end < l->count && l->transfers[end].peer == l->transfers[i].peer;
                     end++)
                    bytes += l->transfers[end].bytes;
                insert_text(&in, kind_names[kind]);
                INSERT_INTEGERS(&in, r, l->transfers[i].peer, (int64_t)(end - i), bytes,
                                (int64_t)flow_busy(&l->transfers[i], end - i));
            }
        }
    return insert_end(&in);
}

int store_levels(sqlite3 *db, const struct trace_data *d)
{
    struct levels levels;
    struct flow flow;
    if (levels_make(&levels, d))
        return STORE_NOMEM;
    if (flow_make(&flow, d)) {
        levels_free(&levels);
        return STORE_NOMEM;
    }
    int rc = store_rows(db, d, &levels);
    rc = rc ? rc : store_overlap(db, d, &levels);
    rc = rc ? rc : store_links(db, &flow);
    rc = rc ? rc : store_flow(db, &flow, &levels);
    rc = rc ? rc : store_traffic(db, &flow);
    flow_free(&flow);
    levels_free(&levels);
    return rc;
}
