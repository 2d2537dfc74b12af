#include "tracer/why.h"
#include "core/base/grow.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "core/base/sorted.h"
#include "tracer/query.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

const char *trace_why_name(enum trace_why_part part)
{
    static const char *const names[TRACE_WHY_PARTS] = {
        [TRACE_WHY_LAUNCH] = "launch",
        [TRACE_WHY_PROLOGUE] = "prologue",
        [TRACE_WHY_PRODUCTS] = "products at full rate",
        [TRACE_WHY_SLOWED] = "products slowed",
        [TRACE_WHY_DATA] = "waits for data",
        [TRACE_WHY_BACKPRESSURE] = "waits for back-pressure",
        [TRACE_WHY_NETWORK] = "waits for the network",
        [TRACE_WHY_OWN] = "own copies and sums",
        [TRACE_WHY_BETWEEN] = "between products",
        [TRACE_WHY_TAIL] = "tail of the last wave",
        [TRACE_WHY_EXCHANGE_WAITS] = "after the last: waits",
        [TRACE_WHY_EXCHANGE_OWN] = "after the last: copies, sums",
        [TRACE_WHY_EXCHANGE] = "after the last: nothing to do",
    };
    return names[part];
}

const char *trace_why_key(enum trace_why_part part, char key[TRACE_WHY_KEY])
{
    size_t n = 0;
    for (const char *c = trace_why_name(part); *c && n < TRACE_WHY_KEY - 1; c++)
        if (*c != ':' && *c != ',')
            key[n++] = *c == ' ' || *c == '-' ? '_' : *c;
    key[n] = 0;
    return key;
}

/* What a CTA does; the first that is under way counts. */
enum why_kind { WHY_TILE, WHY_DATA, WHY_BACKPRESSURE, WHY_NETWORK, WHY_OWN, WHY_KINDS };

/* An interval of a CTA that begins or ends. */
struct why_edge {
    int64_t at;
    enum why_kind kind;
    int step;    /* 1: begins; -1: ends */
    double full; /* of a tile that begins: the share of its time that it takes at full rate */
};

struct why_cta {
    struct why_edge *edges;
    uint32_t count;
    int64_t launch, first, last; /* its warps have begun; its first tile begins; its last ends */
};

static int why_add(struct why_cta *c, enum why_kind kind, int64_t start, int64_t end, double full)
{
    if (end <= start)
        return 0;
    const struct why_edge both[] = {{start, kind, 1, full}, {end, kind, -1, 0}};
    for (int i = 0; i < 2; i++) {
        if (mk_grow(&c->edges, c->count, sizeof *c->edges))
            return -ENOMEM;
        c->edges[c->count++] = both[i];
    }
    return 0;
}

static int why_compare(const void *a, const void *b)
{
    const struct why_edge *x = a, *y = b;
    return MK_ORDER(x->at, y->at) ?: x->step - y->step; /* one ends before the next begins */
}

/* The sweep over a CTA's time. */
struct why_sweep {
    int64_t at, last; /* last: the rank's last tile ends */
    int open[WHY_KINDS];
    double tile, full, waits[WHY_KINDS]; /* of the tile under way: ns so far, the share at full
                                          * rate, and ns in which the load warp waited */
    double *ns;
};

static const enum trace_why_part why_parts[WHY_KINDS] = {
    TRACE_WHY_PRODUCTS, TRACE_WHY_DATA, TRACE_WHY_BACKPRESSURE, TRACE_WHY_NETWORK, TRACE_WHY_OWN};

static enum trace_why_part why_part_of(const struct why_cta *c, const struct why_sweep *s)
{
    int kind = 0;
    while (kind < WHY_KINDS && s->open[kind] <= 0)
        kind++;
    if (s->at >= s->last)
        return kind == WHY_KINDS ? TRACE_WHY_EXCHANGE
               : kind == WHY_OWN ? TRACE_WHY_EXCHANGE_OWN
                                 : TRACE_WHY_EXCHANGE_WAITS;
    if (kind < WHY_KINDS)
        return why_parts[kind];
    return s->at < c->launch  ? TRACE_WHY_LAUNCH
           : s->at < c->first ? TRACE_WHY_PROLOGUE
           : s->at < c->last  ? TRACE_WHY_BETWEEN
                              : TRACE_WHY_TAIL;
}

/* The sweep's time goes on to `to`. */
static void why_advance(const struct why_cta *c, struct why_sweep *s, int64_t to)
{
    while (s->at < to) {
        /* nothing is recorded of where a part begins: these times end one */
        const int64_t turns[] = {c->launch, c->last, s->last};
        int64_t next = to;
        for (size_t i = 0; i < sizeof turns / sizeof *turns; i++)
            if (turns[i] > s->at && turns[i] < next)
                next = turns[i];
        enum trace_why_part part = why_part_of(c, s);
        double ns = (double)(next - s->at);
        if (part == TRACE_WHY_PRODUCTS) {
            s->tile += ns;
            for (int kind = WHY_DATA; kind <= WHY_NETWORK; kind++)
                if (s->open[kind] > 0) {
                    s->waits[kind] += ns;
                    break;
                }
        } else {
            s->ns[part] += ns;
        }
        s->at = next;
    }
}

/* A tile has ended. */
static void why_end_tile(struct why_sweep *s)
{
    double over = s->tile * (1 - s->full);
    s->ns[TRACE_WHY_PRODUCTS] += s->tile * s->full;
    for (int kind = WHY_DATA; kind <= WHY_NETWORK; kind++) {
        double wait = s->waits[kind] < over ? s->waits[kind] : over;
        s->ns[why_parts[kind]] += wait;
        over -= wait;
        s->waits[kind] = 0;
    }
    s->ns[TRACE_WHY_SLOWED] += over;
    s->tile = 0;
}

/* Adds the CTA's time from `start` to `end` to the parts. */
static void why_sweep(struct why_cta *c, int64_t start, int64_t last, int64_t end, double *ns)
{
    struct why_sweep s = {.at = start, .last = last, .ns = ns};
    qsort(c->edges, c->count, sizeof *c->edges, why_compare);
    for (uint32_t i = 0; i < c->count; i++) {
        const struct why_edge *e = &c->edges[i];
        why_advance(c, &s, e->at < end ? e->at : end);
        s.open[e->kind] += e->step;
        if (e->kind != WHY_TILE)
            continue;
        if (e->step > 0)
            s.full = e->full;
        else if (!s.open[WHY_TILE])
            why_end_tile(&s);
    }
    why_advance(c, &s, end);
}

/* Which tiles take as long as another: of tile event e with its row i of table tile. */
#define WHY_ALIKE                                                                                  \
    "CASE WHEN (SELECT instr(shape, 'causal') FROM run) THEN e.argument"                           \
    " ELSE coalesce(i.rows * 65536 + i.cols, -1) END"
/* The rank's compute events, with their tiles. */
#define WHY_EVENTS                                                                                 \
    " FROM track t JOIN event e ON e.id BETWEEN t.first_event AND t.last_event"                    \
    " JOIN launch l ON l.id = e.launch"                                                            \
    " LEFT JOIN tile i ON i.plan = l.plan AND i.id = e.argument AND e.kind = 2"
#define WHY_OF_RANK " WHERE t.rank = ?2 AND t.role = 0 AND t.first_event IS NOT NULL"

/* An event of the rank's compute CTAs, with what a tile of its extents takes at full rate. The
 * tenth percentile is the row behind a tenth of them. */
static const char why_events[] =
    "WITH tiles AS MATERIALIZED (SELECT e.ns, " WHY_ALIKE " AS of" WHY_EVENTS WHY_OF_RANK
    " AND e.kind = 2), ordered AS (SELECT of, ns, row_number() OVER (PARTITION BY of ORDER BY ns) "
    "AS place, count(*) OVER (PARTITION BY of) AS count FROM tiles), full AS MATERIALIZED (SELECT "
    "of, ns FROM ordered WHERE place = 1 + (count - 1) / 10)"
    " SELECT t.cta, e.start, e.ns, e.kind, e.cause, f.ns" WHY_EVENTS
    " LEFT JOIN full f ON e.kind = 2 AND f.of = " WHY_ALIKE WHY_OF_RANK " AND e.launch = ?1";

struct why_event {
    long long start, ns, full; /* full: what a tile takes at full rate */
    int cta, kind, cause;
};

static int why_take(struct why_cta *c, struct trace_why *w, const struct why_event *e)
{
    int64_t start = e->start, end = start + e->ns, from = start > w->start ? start : w->start;
    switch (e->kind) {
    case MK_EV_LAUNCH:
        if (start > c->launch)
            c->launch = start;
        return 0;
    case MK_EV_TILE:
        w->tiles++;
        c->first = from < c->first ? from : c->first;
        c->last = end > c->last ? end : c->last;
        return why_add(c, WHY_TILE, from, end,
                       e->full < e->ns ? (double)e->full / (double)e->ns : 1);
    case MK_EV_WAIT:
        return why_add(c,
                       e->cause == MK_CAUSE_BACKPRESSURE ? WHY_BACKPRESSURE
                       : e->cause == MK_CAUSE_NETWORK    ? WHY_NETWORK
                                                         : WHY_DATA,
                       from, end, 0);
    case MK_EV_COPY:
    case MK_EV_REDUCE:
    case MK_EV_COMMAND:
        return why_add(c, WHY_OWN, from, end, 0);
    default:
        return 0;
    }
}

/* The launch that was asked for, its slowest rank, and that rank's time. */
static int why_open(sqlite3 *db, struct trace_why *w, char *error, size_t size)
{
    static const char sql[] =
        "SELECT x.launch, x.slowest_rank, r.start, r.end,"
        " (SELECT max(b.end) FROM launch_rank b WHERE b.rank = r.rank AND b.launch < x.launch)"
        " FROM launches x JOIN launch_rank r ON r.launch = x.launch AND r.rank = x.slowest_rank"
        " WHERE ?1 = 0 OR x.launch = ?1 ORDER BY x.slowest_ns, x.launch"
        " LIMIT 1 OFFSET CASE WHEN ?1 = 0 THEN (SELECT count(*) / 2 FROM launches) ELSE 0 END";
    long long at, rank, start, end, before;
    QUERY q = query_ask(db, sql, "i", (int64_t)w->launch);
    if (!q)
        return mk_fail(-EBADMSG, error, size, "the trace is damaged: %s", sqlite3_errmsg(db));
    int found = query_row(q, "iiiio", &at, &rank, &start, &end, &before);
    if (found) {
        int late = before != QUERY_NONE && before > start && before < end;
        w->launch = (uint64_t)at;
        w->rank = (uint32_t)rank;
        w->start = late ? before : start;
        w->early = late ? before - start : 0;
        w->end = end;
    }
    if (!found && w->launch)
        snprintf(error, size, "there is no launch %lu in the trace", w->launch);
    else if (!found)
        snprintf(error, size, "no launches were recorded");
    return found ? 0 : w->launch ? -ERANGE : -ENODATA;
}

static int why_read(sqlite3 *db, struct trace_why *w, struct why_cta *ctas, uint32_t room,
                    char *error, size_t size)
{
    QUERY q = query_ask(db, why_events, "ii", (int64_t)w->launch, (int64_t)w->rank);
    struct why_event e;
    int result = 0;
    while (!result && query_row(q, "niinni", &e.cta, &e.start, &e.ns, &e.kind, &e.cause, &e.full))
        if ((uint32_t)e.cta < room)
            result = why_take(&ctas[e.cta], w, &e);
    if (result)
        snprintf(error, size, "out of memory");
    else if (!q || sqlite3_reset(q))
        result = mk_fail(-EBADMSG, error, size, "the trace is damaged: %s", sqlite3_errmsg(db));
    return result;
}

static void why_sum(struct trace_why *w, struct why_cta *ctas, uint32_t room)
{
    int64_t last = w->start;
    for (uint32_t i = 0; i < room; i++)
        last = ctas[i].last > last ? ctas[i].last : last;
    last = last < w->end ? last : w->end;
    for (uint32_t i = 0; i < room; i++) {
        struct why_cta *c = &ctas[i];
        if (c->launch == INT64_MIN && !c->count) /* a CTA of another role */
            continue;
        c->launch = c->launch < c->first ? c->launch : c->first; /* warps that begin later */
        w->ctas++;
        why_sweep(c, w->start, last, w->end, w->ns);
    }
    for (int i = 0; i < TRACE_WHY_PARTS; i++)
        w->ns[i] /= w->ctas ? w->ctas : 1;
}

int trace_why(sqlite3 *db, uint64_t launch, struct trace_why *out, char *error, size_t size)
{
    enum { MOST = 1 << 16 };
    *out = (struct trace_why){.launch = launch};
    int rc = why_open(db, out, error, size);
    if (rc)
        return rc;
    int64_t room =
        query_integer(db, 0, "SELECT max(cta) + 1 FROM track WHERE role = 0 AND rank = ?1", "i",
                      (int64_t)out->rank);
    room = room < 0 ? 0 : room < MOST ? room : MOST;
    MK_FREED struct why_cta *ctas = calloc((size_t)room + 1, sizeof *ctas);
    if (!ctas)
        return mk_fail(-ENOMEM, error, size, "out of memory");
    for (int64_t i = 0; i < room; i++) {
        ctas[i].launch = ctas[i].last = INT64_MIN;
        ctas[i].first = INT64_MAX;
    }
    rc = why_read(db, out, ctas, (uint32_t)room, error, size);
    if (!rc) {
        why_sum(out, ctas, (uint32_t)room);
        if (!out->tiles)
            rc = mk_fail(-ENODATA, error, size, "rank %u computed no tile in launch %lu", out->rank,
                         out->launch);
    }
    for (int64_t i = 0; i < room; i++)
        free(ctas[i].edges);
    return rc;
}
