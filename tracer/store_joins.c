/* Tables of what belongs together: launches, messages with their stages, what ended each wait, the
 * critical paths. */
#include "tracer/store.h"
#include "core/base/scoped.h"

static int64_t store_joins_id_or_null(int64_t id)
{
    return id > 0 ? id : INSERT_NULL;
}

static void store_launches(struct insert *in, const struct trace_data *d)
{
    insert_table(in, "launch", 3);
    for (uint32_t i = 0; i < d->launch_count; i++)
        INSERT_INTEGERS(in, i + 1, store_joins_id_or_null(d->launches[i].plan),
                        d->launches[i].epoch);
    insert_table(in, "launch_rank", 10);
    for (uint32_t i = 0; i < d->launch_count; i++)
        for (uint32_t r = 0; r < d->ranks; r++) {
            const struct trace_span *s = &d->spans[(size_t)i * d->ranks + r];
            if (s->start == TRACE_NO_TIME)
                continue;
            INSERT_INTEGERS(in, i + 1, r, s->start, s->end, s->compute_only, s->comm_only, s->both,
                            s->idle, s->tile_ns, s->compute_tracks);
        }
}

/* First known stage to last known stage. An arrival that no CTA waited for may have been seen much
 * later than it came. */
static int64_t store_joins_whole(const struct trace_put *p)
{
    int64_t arrived = p->waited || p->completed == TRACE_NO_TIME ? p->arrived : TRACE_NO_TIME;
    int64_t stages[] = {p->commanded, p->seen, p->posted, p->completed, arrived};
    int64_t first = TRACE_NO_TIME, last = TRACE_NO_TIME;
    for (int i = 0; i < 5; i++) {
        if (stages[i] == TRACE_NO_TIME)
            continue;
        first = first == TRACE_NO_TIME ? stages[i] : first;
        last = stages[i] > last ? stages[i] : last;
    }
    return first == TRACE_NO_TIME || last < first ? INSERT_NULL : last - first;
}

static void store_messages(struct insert *in, const struct trace_data *d)
{
    insert_table(in, "message", 20);
    for (uint64_t i = 0; i < d->put_count; i++) {
        const struct trace_put *p = &d->puts[i];
        INSERT_INTEGERS(in, (int64_t)i + 1, p->m.plan, store_joins_id_or_null(p->launch),
                        p->m.epoch, p->rank, p->m.peer, p->m.ring, p->m.sequence, p->m.flag,
                        p->chunk == UINT32_MAX ? INSERT_NULL : p->chunk, p->m.bytes, p->commanded,
                        p->seen, p->posted, p->completed, p->arrived,
                        p->arrived == TRACE_NO_TIME ? INSERT_NULL : p->waited, store_joins_whole(p),
                        store_joins_id_or_null(p->command_event),
                        store_joins_id_or_null(p->arrival_event));
    }
}

/* Of the stages of messages, as they lie in the file by now. */
static void store_stages(struct insert *in)
{
    insert_sql(
        in,
        "WITH s(id, name) AS (VALUES (1, 'command-seen'), (2, 'seen-posted'), (3, "
        "'posted-completed'), (4, 'posted-arrived'), (5, 'whole')), "
        "t(id, ns) AS (SELECT 1, seen - commanded FROM message UNION ALL SELECT 2, posted - seen "
        "FROM message UNION ALL SELECT 3, completed - posted FROM message UNION ALL SELECT 4, "
        "arrived - posted FROM message WHERE waited UNION ALL SELECT 5, ns FROM message), "
        "r AS (SELECT id, ns, row_number() OVER (PARTITION BY id ORDER BY ns) - 1 AS place, "
        "count(*) OVER (PARTITION BY id) AS n FROM t WHERE ns IS NOT NULL) "
        "INSERT INTO stage SELECT s.id, s.name, coalesce(max(n), 0), max(ns) FILTER (WHERE place = "
        "n / 2), max(ns) FILTER (WHERE place = n * 99 / 100), max(ns) FROM s LEFT JOIN r USING "
        "(id) GROUP BY s.id");
}

static void store_edges(struct insert *in, const struct trace_data *d)
{
    insert_table(in, "edge", 3);
    for (uint64_t i = 0; i < d->edge_count; i++)
        INSERT_INTEGERS(in, d->edges[i].event, store_joins_id_or_null(d->edges[i].producer),
                        store_joins_id_or_null(d->edges[i].message));
}

static void store_critical(struct insert *in, const struct trace_data *d)
{
    MK_FREED struct trace_step *steps = NULL;
    uint64_t count = 0;
    if (data_critical(d, &steps, &count))
        return insert_fail(in);
    insert_table(in, "critical", 9);
    for (uint64_t i = 0, end; i < count; i = end) { /* a launch's steps were found backwards */
        for (end = i; end < count && steps[end].launch == steps[i].launch; end++)
            ;
        for (uint64_t k = end; k-- > i;) {
            INSERT_INTEGERS(in, steps[k].launch, (int64_t)(end - 1 - k), steps[k].rank,
                            store_joins_id_or_null(steps[k].node));
            insert_text(in, steps[k].what);
            INSERT_INTEGERS(in, steps[k].start, steps[k].ns, store_joins_id_or_null(steps[k].event),
                            store_joins_id_or_null(steps[k].message));
        }
    }
}

void store_joins(struct insert *in, const struct trace_data *d)
{
    store_launches(in, d);
    store_messages(in, d);
    store_stages(in);
    store_edges(in, d);
    store_critical(in, d);
}
