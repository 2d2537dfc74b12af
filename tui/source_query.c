/* What the viewer asks while it runs: occupancy of a window, events under the cursor, the next
 * event that fits. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/sorted.h"
#include "tui/source.h"

/* Per row: up to so many, a window finer than the levels is counted from single events. */
#define EXACT_EVENTS 3000
#define SEARCH_NS 30000000 /* one answer of source_find: leaves room in 50 ms for drawing */

static int source_query_track_index(const struct source *s, int64_t id)
{
    /* Files number tracks in display order, so that ids rise with the index; where they do not,
     * look everywhere. */
    int low = (int)MK_BISECT(i, (uint64_t)s->info.tracks, s->tracks[i].id < id);
    if (low < s->info.tracks && s->tracks[low].id == id)
        return low;
    for (int i = 0; i < s->info.tracks; i++)
        if (s->tracks[i].id == id)
            return i;
    return -1;
}

static void source_query_leaves_of(const struct source *s, struct source_group g, int *first,
                                   int *end)
{
    *first = *end = 0;
    if (g.track >= 0) {
        *first = g.track;
        *end = g.track + 1;
        return;
    }
    for (int i = 0; i < s->info.tracks; i++) {
        const struct source_track *t = &s->tracks[i];
        if ((g.rank >= 0 && t->rank != g.rank) || (g.role >= 0 && t->role != g.role))
            continue;
        if (*end == 0)
            *first = i;
        *end = i + 1;
    }
}

int source_read_event(const struct source *s, sqlite3_stmt *q, struct source_event *e)
{
    long long id, track, argument, launch, peer;
    double start, ns;
    int kind, cause;
    if (!query_row(q, "iiddnnioo", &id, &track, &start, &ns, &kind, &cause, &argument, &launch,
                   &peer))
        return 0;
    *e = (struct source_event){.id = id,
                               .track = source_query_track_index(s, track),
                               .start = start,
                               .end = start + ns,
                               .kind = kind,
                               .cause = cause,
                               .argument = argument,
                               .launch = launch == QUERY_NONE ? -1 : launch,
                               .epoch = -1,
                               .plan = -1,
                               .peer = peer == QUERY_NONE ? -1 : (int)peer};
    for (int i = 0; i < s->info.launches; i++)
        if (e->launch >= 0 && s->launch_id[i] == e->launch) {
            e->epoch = s->launches[i].epoch;
            e->plan = s->launch_plan[i];
        }
    return 1;
}

/* Adds `value` ns of [a, b), spread evenly, to the columns that it touches. */
static void source_query_spread(float *out, int stride, int columns, double t0, double step,
                                double a, double b, double value)
{
    if (b <= a || value <= 0)
        return;
    double from = floor((a - t0) / step), to = ceil((b - t0) / step); /* may be far outside */
    int end = to < columns ? (int)fmax(to, 0) : columns;
    for (int c = from < 0 ? 0 : (int)fmin(from, columns); c < end; c++) {
        double left = t0 + c * step, right = left + step;
        double part = (b < right ? b : right) - (a > left ? a : left);
        if (part > 0)
            out[c * stride] += (float)(value * part / (b - a));
    }
}

/* The coarsest level that is no coarser than a column: at most a few buckets a column are read. */
static int source_query_level_for(const struct source *s, double step, int finest)
{
    int level = finest;
    while (level + 1 < s->levels && s->level_ns[level + 1] <= step)
        level++;
    return level;
}

/* Runs one of the level statements over a window. Values are ns (or a mean, made ns by the caller's
 * scale). */
static int source_query_add_level(struct source *s, sqlite3_stmt *q, int level, int64_t id,
                                  double t0, double step, int columns, float *out, int stride,
                                  int values, double scale)
{
    if (level >= s->levels)
        return 0;
    double ns = s->level_ns[level];
    query_again(q, "iiii", (int64_t)level, id, (int64_t)floor(t0 / ns),
                (int64_t)floor((t0 + step * columns) / ns));
    double in[SPAN_CLASSES]; /* a bucket, then the values; the longest row has as many */
    const char *types = &"dddddddd"[SPAN_CLASSES - 1 - values];
    while (query_row(q, types, &in[0], &in[1], &in[2], &in[3], &in[4], &in[5], &in[6], &in[7])) {
        double a = in[0] * ns, b = a + ns;
        if (b > s->info.end && a < s->info.end)
            b = s->info.end; /* the last bucket ends with the run */
        for (int v = 0; v < values; v++)
            source_query_spread(out + v, stride, columns, t0, step, a, b,
                                scale > 0 ? in[1 + v] * scale * (b - a) : in[1 + v]);
    }
    return sqlite3_reset(q) ? -EIO : 0;
}

/* Occupancy from the events themselves, for windows finer than the finest level. */
static int source_query_add_events(struct source *s, int track, double t0, double step, int columns,
                                   float *out)
{
    sqlite3_stmt *q = s->events;
    query_again(q, "iiii", s->tracks[track].id, (int64_t)floor(t0 - s->longest[track]),
                (int64_t)ceil(t0 + step * columns), (int64_t)floor(t0));
    double a, ns;
    int kind, cause;
    while (query_row(q, "ddnn", &a, &ns, &kind, &cause)) {
        int state = span_class_of(kind, cause);
        if (state != SPAN_IDLE)
            source_query_spread(out + state, SPAN_CLASSES, columns, t0, step, a, a + ns, ns);
    }
    return sqlite3_reset(q) ? -EIO : 0;
}

/* CTAs of a group; a single track counts for one. */
static int source_query_group_ctas(const struct source *s, int first, int end)
{
    int ctas = 0;
    for (int i = first; i < end; i++) {
        const struct source_track *t = &s->tracks[i];
        ctas += i == first || t->cta != t[-1].cta || t->role != t[-1].role || t->rank != t[-1].rank;
    }
    return ctas;
}

/* ns of each class become shares. Warps of one CTA run side by side: what one of them does hides
 * another's wait, so waits get what work leaves. */
static void source_query_make_shares(float *share, double whole)
{
    static const int waits[] = {SPAN_WAIT_DATA, SPAN_WAIT_ROOM, SPAN_WAIT_NETWORK};
    double busy = 0, waiting = 0;
    for (int state = 1; state < SPAN_CLASSES; state++) {
        share[state] = whole > 0 ? (float)(share[state] / whole) : 0;
        busy += share[state];
    }
    for (int i = 0; i < 3; i++)
        waiting += share[waits[i]];
    if (busy > 1.0001 && waiting > 0) { /* beyond what rounding makes of a full cell */
        double room = 1 - (busy - waiting), part = room > 0 ? room / waiting : 0;
        for (int i = 0; i < 3; i++)
            share[waits[i]] *= (float)part;
    }
    share[0] = busy < 1 ? (float)(1 - busy) : 0;
}

int source_occupancy(struct source *s, struct source_group g, double t0, double step, int columns,
                     float *out)
{
    int first, end, rc = 0, finest = g.track >= 0 ? s->leaf_from : 0,
                    level = source_query_level_for(s, step, finest);
    memset(out, 0, sizeof *out * (size_t)columns * SPAN_CLASSES);
    source_query_leaves_of(s, g, &first, &end);
    double expected = 0;
    int exact = finest >= s->levels || s->level_ns[finest] > step;
    for (int i = first; exact && i < end; i++)
        expected += 4 + s->rate[i] * step * columns;
    if (finest >= s->levels || (exact && expected < EXACT_EVENTS)) {
        for (int i = first; i < end && !rc; i++)
            rc = source_query_add_events(s, i, t0, step, columns, out);
    } else {
        int64_t id = g.track >= 0  ? s->tracks[g.track].id
                     : g.role >= 0 ? s->role_track[g.rank * MK_ROLES + g.role]
                                   : s->rank_track[g.rank];
        rc = source_query_add_level(s, s->level, level, id, t0, step, columns, out + 1,
                                    SPAN_CLASSES, SPAN_CLASSES - 1, 0);
    }
    double whole = step * source_query_group_ctas(s, first, end);
    for (int c = 0; c < columns; c++)
        source_query_make_shares(&out[c * SPAN_CLASSES], whole);
    return rc;
}

int source_overlap(struct source *s, int rank, double t0, double step, int columns, float *out)
{
    memset(out, 0, sizeof *out * (size_t)columns * OVERLAP_CLASSES);
    int rc =
        source_query_add_level(s, s->overlap, source_query_level_for(s, step, 0), rank, t0, step,
                               columns, out + 1, OVERLAP_CLASSES, OVERLAP_CLASSES - 1, 0);
    for (int c = 0; c < columns; c++) {
        float *share = &out[c * OVERLAP_CLASSES], busy = 0;
        for (int state = 1; state < OVERLAP_CLASSES; state++) {
            share[state] = (float)(share[state] / step);
            busy += share[state];
        }
        share[0] = busy < 1 ? 1 - busy : 0;
    }
    return rc;
}

int source_bytes(struct source *s, int rank, enum source_link link, double t0, double step,
                 int columns, float *out, float *peak)
{
    const struct source_link_row *l = &s->link[rank * 2 + (link == LINK_NIC)];
    memset(out, 0, sizeof *out * (size_t)columns);
    *peak = (float)l->peak;
    if (!l->id)
        return 0;
    int rc = source_query_add_level(s, s->flow, source_query_level_for(s, step, 0), l->id, t0, step,
                                    columns, out, 1, 1, 1);
    for (int c = 0; c < columns; c++)
        out[c] = (float)(out[c] / step);
    return rc;
}

int source_event_at(struct source *s, int track, double time, struct source_event *out)
{
    sqlite3_stmt *q = s->at;
    struct source_event e;
    int found = 0;
    query_again(q, "ii", s->tracks[track].id, (int64_t)floor(time));
    while (source_read_event(s, q, &e)) {
        if (!found || e.end > time) {
            *out = e;
            found = 1;
        }
        if (e.end > time)
            break;
    }
    return sqlite3_reset(q) ? -EIO : found;
}

/* The conditions of a query as SQL over `event`. Numbers only: nothing typed reaches the text. */
static void source_query_conditions(const struct source *s, const struct query *q, char *sql,
                                    size_t size)
{
    static const char *const by_class[SPAN_CLASSES] = {
        "0",
        "kind = 2",
        "kind = 4",
        "kind = 6",
        "kind = 7",
        "(kind = 3 AND ns > 0 AND cause NOT IN (2, 4))",
        "(kind = 3 AND ns > 0 AND cause = 2)",
        "(kind = 3 AND ns > 0 AND cause = 4)"};
    size_t n = 0;
    sql[0] = 0;
#define ADD(...) (n += (size_t)snprintf(sql + n, n < size ? size - n : 0, __VA_ARGS__))
    if (q->classes || q->kinds) {
        ADD(" AND (0");
        for (int state = 1; state < SPAN_CLASSES; state++)
            if (q->classes >> state & 1)
                ADD(" OR %s", by_class[state]);
        if (q->kinds >> MK_EV_SIGNAL & 1)
            ADD(" OR kind = %d", MK_EV_SIGNAL);
        ADD(")");
    } else {
        ADD(" AND kind <> %d AND NOT (kind = %d AND ns = 0)", MK_EV_LAUNCH, MK_EV_WAIT);
    }
    if (q->tile >= 0)
        ADD(" AND kind = %d AND argument = %ld", MK_EV_TILE, q->tile);
    if (q->chunk >= 0)
        ADD(" AND kind IN (%d, %d) AND argument = %ld", MK_EV_COPY, MK_EV_REDUCE, q->chunk);
    if (q->flag >= 0)
        ADD(" AND kind IN (%d, %d) AND argument = %ld", MK_EV_WAIT, MK_EV_SIGNAL, q->flag);
    if (q->shortest > 0)
        ADD(" AND ns > %.0f", q->shortest);
    if (q->longest < INFINITY)
        ADD(" AND ns < %.0f", q->longest);
    if (q->epoch >= 0) {
        int64_t launch = -1;
        for (int i = 0; i < s->info.launches; i++)
            if (s->launches[i].epoch == q->epoch)
                launch = s->launch_id[i];
        ADD(" AND launch = %ld", launch);
    }
#undef ADD
}

/* One window of a search: starts in (near, far] in the direction's sense. */
struct search {
    sqlite3_stmt *q;
    struct source_group group;
    const struct query *want;
    const struct source_event
        *from; /* starts at near's edge: of its ns, only what comes after it in order; or NULL */
    int64_t near, far;
    uint64_t deadline;
    int direction;
};

/* The nearest fitting event of a window; of equal starts the first row's in the direction's
 * sense. */
static int source_query_find_in(struct source *s, struct search *w, struct source_event *best)
{
    int first, end, found = 0, forward = w->direction > 0;
    source_query_leaves_of(s, w->group, &first, &end);
    for (int n = 0; n < end - first; n++) {
        int i = forward ? first + n : end - 1 - n;
        const struct source_track *t = &s->tracks[i];
        if (!query_takes_track(w->want, t->rank, t->role, t->cta) ||
            (w->group.rank >= 0 && t->rank != w->group.rank) ||
            (w->group.role >= 0 && t->role != w->group.role))
            continue;
        if (mk_now_ns() > w->deadline)
            return -EAGAIN;
        int64_t near = w->near, low_id = -1, at = INT64_MIN;
        if (w->from && (forward ? i >= w->from->track : i <= w->from->track)) {
            near -= w->direction; /* this row's events of the same ns come after */
            if (i == w->from->track) {
                at = (int64_t)w->from->start;
                low_id = w->from->id;
            }
        }
        query_again(w->q, "iiiii", t->id, forward ? near + 1 : w->far, forward ? w->far : near - 1,
                    at, low_id);
        if (source_read_event(s, w->q, best)) {
            found = 1;
            w->far = (int64_t)best->start - w->direction;
        }
        if (sqlite3_reset(w->q))
            return -EIO;
    }
    return found;
}

int source_find(struct source *s, struct source_group g, const struct query *want, double time,
                const struct source_event *from, int direction, struct source_event *out,
                double *reached)
{
    char sql[1280], where[768];
    int forward = direction > 0;
    source_query_conditions(s, want, where, sizeof where);
    snprintf(sql, sizeof sql,
             "SELECT " EVENT_COLUMNS
             " FROM event WHERE track = ?1 AND start BETWEEN ?2 AND ?3 AND NOT "
             "(start = ?4 AND id %s ?5)%s ORDER BY start %s, id %s LIMIT 1",
             forward ? "<=" : ">=", where, forward ? "" : "DESC", forward ? "" : "DESC");
    struct search w = {.q = query_ask(s->db, sql, ""),
                       .group = g,
                       .want = want,
                       .direction = direction,
                       .deadline = mk_now_ns() + SEARCH_NS};
    if (!w.q)
        return -EIO;
    /* (near, far]: near itself is excluded */
    int64_t near = from      ? (int64_t)from->start
                   : forward ? (int64_t)floor(time)
                             : (int64_t)ceil(time);
    int64_t last = forward ? (int64_t)s->info.end + 1 : -1;
    /* windows grow: a near hit is found fast, a far one in few steps */
    double span = s->info.end / 4096 + 1;
    int rc = 0;
    w.from = from;
    while (rc == 0 && (forward ? near < last : near > last)) {
        double edge = (double)near + direction * span;
        w.near = near;
        w.far = forward ? (edge < (double)last ? (int64_t)edge : last)
                        : (edge > (double)last ? (int64_t)edge : last);
        int64_t far = w.far;
        rc = source_query_find_in(s, &w, out);
        if (rc == 0)
            near = far;
        w.from = NULL;
        span *= 2;
    }
    sqlite3_finalize(w.q);
    *reached = (double)near;
    return rc;
}

#define LONGEST_WAITS                                                                              \
    "SELECT e.id, e.track, e.start, e.ns, e.kind, e.cause, e.argument, e.launch, e.peer "          \
    "FROM longest x CROSS JOIN event e ON e.id = x.event WHERE x.kind = 3 AND x.ns > 0 ORDER BY "  \
    "x.ns DESC"

int source_worst_wait(struct source *s, const struct query *filter, int n, struct source_event *out)
{
    QUERY q = query_ask(s->db, LONGEST_WAITS, "");
    int found = 0;
    while (!found && source_read_event(s, q, out)) {
        if (out->track < 0)
            continue;
        const struct source_track *t = &s->tracks[out->track];
        int state = span_class_of(out->kind, out->cause);
        found = (!filter || (query_takes_track(filter, t->rank, t->role, t->cta) &&
                             (!filter->classes || filter->classes >> state & 1))) &&
                n-- == 0;
    }
    return found;
}

int source_longest_wait(struct source *s, struct source_group g, double t0, double t1,
                        struct source_event *out)
{
    /* The run's longest waits first; a window that has none of these is looked through. */
    QUERY q = query_ask(s->db, LONGEST_WAITS, "");
    struct source_event e;
    int found = 0;
    while (!found && source_read_event(s, q, &e)) {
        if (e.track < 0 || e.start >= t1 || e.end <= t0)
            continue;
        const struct source_track *t = &s->tracks[e.track];
        found = (g.rank < 0 || t->rank == g.rank) && (g.role < 0 || t->role == g.role) &&
                (g.track < 0 || e.track == g.track);
    }
    if (found) {
        *out = e;
        return 1;
    }
    QUERY events =
        query_ask(s->db,
                  "SELECT " EVENT_COLUMNS
                  " FROM event WHERE track = ? AND start BETWEEN ? AND ? AND kind = 3 AND ns > 0",
                  "");
    int first, end;
    uint64_t deadline = mk_now_ns() + SEARCH_NS;
    source_query_leaves_of(s, g, &first, &end);
    for (int i = first; events && i < end && mk_now_ns() < deadline; i++) {
        query_again(events, "iii", s->tracks[i].id, (int64_t)t0, (int64_t)t1);
        while (source_read_event(s, events, &e)) {
            if (!found || e.end - e.start > out->end - out->start) {
                *out = e;
                found = 1;
            }
        }
    }
    return found;
}
