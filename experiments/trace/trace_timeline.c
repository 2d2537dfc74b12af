/* `mkernel trace plot`: what the CTAs of each role did over time, and what each NIC had under way.
 * A row is a role of a rank or a NIC's direction; a column is a stack whose heights are the states'
 * shares of the role's CTAs. Time begins at zero with the first launch, and what lies between
 * launches is cut out. */
#include "experiments/trace/trace_plot.h"
#include "core/scoped.h"
#include "core/sorted.h"
#include "experiments/common/gnuplot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 600
#define MAX_ROWS 256 /* a taller picture is no picture; 64 ranks of 4 roles */
#define MARKS 60     /* launches marked at most */

enum { STATE_NIC = TRACE_STATES, STATES };

/* Colours that also differ in grey and for colour-blind readers (Okabe and Ito, 2008). */
static const struct {
    const char *name, *colour;
} states[STATES] = {
    [TRACE_IDLE] = {"idle", "#ffffff"},
    [TRACE_TILE] = {"tile", "#0072b2"},
    [TRACE_COPY] = {"copy", "#009e73"},
    [TRACE_COMMAND] = {"command", "#56b4e9"},
    [TRACE_REDUCE] = {"reduce", "#cc79a7"},
    [TRACE_WAIT_DATA] = {"wait data", "#f0e442"},
    [TRACE_WAIT_BACKPRESSURE] = {"wait back-pressure", "#999999"},
    [TRACE_WAIT_NETWORK] = {"wait network", "#d55e00"},
    [STATE_NIC] = {"NIC: bytes under way", "#333333"},
};

/* ---- the axis ---- */

struct piece {
    int64_t from, to;
    double at; /* where `from` is drawn */
};

struct axis {
    struct piece *pieces;
    int64_t count;
    double gap, length, width; /* of a cut, of all, of a column; ns */
    double unit;               /* ns of what the axis counts in */
};

/* The launches' time in pieces, which follow each other with a small gap. A gap that is drawn as
 * wide as it is, is not cut. */
static int trace_timeline_make_axis(struct axis *a, sqlite3 *db, const struct trace_plot_part *part)
{
    int64_t room = query_integer(db, 0, "SELECT count(*) FROM launches", ""), n = 0;
    double sum = 0;
    *a = (struct axis){.pieces = malloc((size_t)(room + 1) * sizeof *a->pieces)};
    if (!a->pieces)
        return -ENOMEM;
    long long from, to;
    QUERY q = query_ask(
        db, "SELECT start, end + 1 FROM launches WHERE ?1 = 0 OR launch = ?1 ORDER BY start", "i",
        (int64_t)part->launch);
    while (n < room && query_row(q, "ii", &from, &to)) {
        struct piece *now = &a->pieces[n];
        *now = (struct piece){from, to, 0};
        if ((uint64_t)now->from < part->from)
            now->from = (int64_t)part->from;
        if ((uint64_t)now->to > part->to)
            now->to = (int64_t)part->to;
        if (now->to <= now->from)
            continue;
        sum += (double)(a->pieces[n].to - a->pieces[n].from);
        n++;
    }
    if (!n && (part->from || part->to != UINT64_MAX)) {
        free(a->pieces);
        return -ERANGE;
    }
    if (!n)
        a->pieces[n++] =
            (struct piece){0, query_integer(db, 0, "SELECT duration_ns FROM run", "") + 1, 0};
    a->gap = n > 10 ? 0.1 * sum / (double)n : 0.01 * sum;
    for (int64_t i = 0; i < n; i++) {
        struct piece *last = a->count ? &a->pieces[a->count - 1] : NULL, now = a->pieces[i];
        if (last && (double)(now.from - last->to) <= a->gap)
            last->to = now.to > last->to ? now.to : last->to;
        else
            a->pieces[a->count++] = now;
    }
    for (int64_t i = 0; i < a->count; i++) {
        struct piece *p = &a->pieces[i];
        p->at = a->length + (i ? a->gap : 0);
        a->length = p->at + (double)(p->to - p->from);
    }
    a->width = a->length / COLUMNS;
    a->unit = a->length < 2e4 ? 1 : a->length < 2e7 ? 1e3 : a->length < 2e10 ? 1e6 : 1e9;
    return 0;
}

/* The first piece that ends after a time. */
static int64_t trace_timeline_piece_after(const struct axis *a, int64_t time)
{
    return (int64_t)MK_BISECT(i, (uint64_t)a->count, a->pieces[i].to <= time);
}

typedef double columns[COLUMNS][STATES]; /* ns by state */

static void trace_timeline_add(const struct axis *a, columns c, int64_t start, int64_t end,
                               int state, double weight)
{
    for (int64_t i = trace_timeline_piece_after(a, start); i < a->count && a->pieces[i].from < end;
         i++) {
        const struct piece *p = &a->pieces[i];
        double from = p->at + (double)((start > p->from ? start : p->from) - p->from);
        double to = p->at + (double)((end < p->to ? end : p->to) - p->from);
        for (int column = (int)(from / a->width); column < COLUMNS && from < to; column++) {
            double stop = a->width * (column + 1) < to ? a->width * (column + 1) : to;
            c[column][state] += stop > from ? (stop - from) * weight : 0;
            from = stop > from ? stop : from;
        }
    }
}

/* ---- rows ---- */

/* The coarsest level that is still finer than a column; -1: none, in a short piece of a long
 * run. */
static int64_t trace_timeline_level_for(sqlite3 *db, const struct axis *a, int64_t *ns)
{
    long long level = -1, wide = 1;
    QUERY z = query_ask(db, "SELECT level, ns FROM zoom WHERE ns <= ?1 ORDER BY level DESC LIMIT 1",
                        "i", (int64_t)(a->width / 2));
    query_row(z, "ii", &level, &wide);
    *ns = wide;
    return level;
}

static int trace_timeline_fill_from_level(sqlite3 *db, const struct axis *a, int64_t role,
                                          columns c)
{
    int64_t ns, level = trace_timeline_level_for(db, a, &ns);
    if (level < 0 || ns < 1)
        return 0;
    double in[TRACE_STATES];
    long long at;
    QUERY q = query_ask(db,
                        "SELECT bucket * ?3, tile, copy, command, reduce, wait_data + "
                        "wait_credit, wait_backpressure, 0, wait_network"
                        " FROM level WHERE level = ?1 AND track = ?2",
                        "iii", level, role, ns);
    while (query_row(q, "idddddddd", &at, &in[1], &in[2], &in[3], &in[4], &in[5], &in[6], &in[7],
                     &in[8]))
        for (int s = 1; s < TRACE_STATES; s++)
            if (in[s] > 0)
                trace_timeline_add(a, c, at, at + ns, s, in[s] / (double)ns);
    return 1;
}

/* From the events themselves, which for a short piece are few. */
static void trace_timeline_fill_from_events(sqlite3 *db, const struct axis *a, int64_t role,
                                            columns c)
{
    long long start, end, kind, cause;
    QUERY q = query_ask(
        db,
        "WITH leaf AS (SELECT id, longest_ns FROM track WHERE first_event IS NOT NULL AND (id "
        "= ?1 OR parent = ?1 OR"
        " parent IN (SELECT id FROM track WHERE parent = ?1))) SELECT e.start, e.start + "
        "e.ns, e.kind, e.cause FROM leaf"
        " CROSS JOIN event e ON e.track = leaf.id AND e.start BETWEEN ?2 - leaf.longest_ns "
        "AND ?3 WHERE e.ns > 0",
        "iii", role, a->pieces[0].from, a->pieces[a->count - 1].to);
    while (query_row(q, "iiii", &start, &end, &kind, &cause)) {
        int state = trace_state_of((uint32_t)kind, (uint32_t)cause);
        if (state != TRACE_IDLE)
            trace_timeline_add(a, c, start, end, state, 1);
    }
}

/* Bytes under way as a share of `peak`; at the finest level where no column is as wide. */
static void trace_timeline_fill_from_flow(sqlite3 *db, const struct axis *a, int64_t link,
                                          double peak, columns c)
{
    int64_t ns, level = trace_timeline_level_for(db, a, &ns);
    if (level < 0)
        ns = query_integer(db, 1, "SELECT ns FROM zoom WHERE level = 0", "");
    long long at;
    double bytes;
    QUERY q =
        query_ask(db, "SELECT bucket * ?3, in_flight FROM flow WHERE level = ?1 AND link = ?2",
                  "iii", level < 0 ? 0 : level, link, ns);
    while (query_row(q, "id", &at, &bytes))
        trace_timeline_add(a, c, at, at + ns, STATE_NIC, bytes / peak);
}

/* One row's boxes: state, begin, end, bottom, top. Rows are numbered from the top. A CTA may wait
 * while its copies are under way: what adds up to more than its time is drawn in proportion. */
static void trace_timeline_put_boxes(FILE *out, const struct axis *a, columns c, double row,
                                     double leaves)
{
    for (int column = 0; column < COLUMNS; column++) {
        double y = row + 0.95, at = column * a->width, whole = a->width * leaves, sum = 0;
        for (int s = 1; s < STATES; s++)
            sum += c[column][s];
        whole = sum > whole ? sum : whole;
        for (int s = 1; s < STATES; s++) {
            double share = 0.9 * c[column][s] / whole;
            if (share > 1e-4) /* a little wider than the column: no seams */
                fprintf(out, "%d %.4f %.4f %.4f %.4f\n", s, at / a->unit,
                        (at + 1.3 * a->width) / a->unit, y, y - share);
            y -= share;
        }
    }
}

/* ---- marks ---- */

static void trace_timeline_mark_cuts(FILE *out, const struct axis *a)
{
    for (int64_t i = 1; i < a->count; i++)
        fprintf(out,
                "set object rectangle from first %.4f, graph 0 to first %.4f, graph 1 behind "
                "fillcolor rgb '#dddddd' fillstyle solid noborder\n",
                (a->pieces[i].at - a->gap) / a->unit, a->pieces[i].at / a->unit);
}

/* A line where a launch begins, and its number above it where there is room. Of many launches every
 * so manieth. */
static void trace_timeline_mark_launches(const struct trace_picture *p, const struct axis *a)
{
    int64_t count =
                p->part.launch ? 1 : query_integer(p->db, 0, "SELECT count(*) FROM launches", ""),
            every = (count + MARKS - 1) / MARKS, n = 0;
    double named = -a->length;
    long long launch, start;
    QUERY q = query_ask(
        p->db, "SELECT launch, start FROM launches WHERE ?1 = 0 OR launch = ?1 ORDER BY start", "i",
        (int64_t)p->part.launch);
    for (; query_row(q, "ii", &launch, &start); n++) {
        int64_t i = trace_timeline_piece_after(a, start);
        if (n % every || i == a->count || start < a->pieces[i].from)
            continue;
        double at = a->pieces[i].at + (double)(start - a->pieces[i].from);
        fprintf(
            p->out,
            "set arrow from first %.4f, graph 0 to first %.4f, graph 1 nohead front linewidth 1 "
            "linecolor rgb '#000000' dashtype 3\n",
            at / a->unit, at / a->unit);
        if (at - named < 0.1 * a->length)
            continue;
        fprintf(p->out, "set label 'launch %lld' at first %.4f, graph 1.0 offset 0,0.6 front\n",
                launch, at / a->unit);
        named = at;
    }
}

/* By rank: its roles, then its NIC. */
static const char timeline_rows[] =
    "SELECT rank, 0 AS nic, id, name, leaves FROM track WHERE kind = 'role' AND (?1 < 0 OR rank = "
    "?1) AND (?2 < 0 OR role = ?2) UNION ALL"
    " SELECT rank, 1, id, 'NIC ' || direction, 1 FROM link WHERE kind = 'network' AND "
    "transfers > 0 AND (?1 < 0 OR rank = ?1) AND ?2 < 0 ORDER BY rank, nic, id";

static void trace_timeline_draw_rows(const struct trace_picture *p, const struct axis *a,
                                     int64_t rows, columns *c)
{
    QUERY t = query_ask(p->db, timeline_rows, "ii", p->part.rank, (int64_t)p->part.role);
    const char *text;
    long long id;
    int rank, nic;
    double leaves,
        peak = query_real(p->db, 1, "SELECT max(peak_bytes) FROM link WHERE kind = 'network'");
    fputs("set ytics (", p->out);
    for (int row = 0; row < rows && query_row(t, "n--t", &rank, &text); row++) {
        char name[96];
        snprintf(name, sizeof name, "rank %d %s", rank, text);
        fputs(row ? "," : "", p->out);
        gnuplot_quoted(p->out, name);
        fprintf(p->out, " %g", row + 0.5);
    }
    fputs(") noenhanced\n$data << END\n", p->out);
    sqlite3_reset(t);
    for (int row = 0; row < rows && query_row(t, "-ni-d", &nic, &id, &leaves); row++) {
        memset(c, 0, sizeof *c);
        if (nic)
            trace_timeline_fill_from_flow(p->db, a, id, peak > 0 ? peak : 1, *c);
        else if (!trace_timeline_fill_from_level(p->db, a, id, *c))
            trace_timeline_fill_from_events(p->db, a, id, *c);
        trace_timeline_put_boxes(p->out, a, *c, row, leaves);
    }
    fputs("END\n", p->out);
}

int trace_plot_timeline(const struct trace_picture *p)
{
    struct axis a = {0};
    int64_t rows = 0, nics = 0;
    QUERY q = query_ask(p->db, timeline_rows, "ii", p->part.rank, (int64_t)p->part.role);
    for (int nic; query_row(q, "-n", &nic); rows++)
        nics += nic;
    MK_FREED columns *c = malloc(sizeof *c);
    int rc = !c             ? -ENOMEM
             : rows == nics ? p->part.role < 0 ? -ENODATA : -ERANGE
                            : trace_timeline_make_axis(&a, p->db, &p->part);
    if (rc)
        return rc;
    const char *title =
        rows > MAX_ROWS ? "CTA roles over time (the first 256 rows)" : "CTA roles over time";
    rows = rows > MAX_ROWS ? MAX_ROWS : rows;
    trace_plot_head(p, title, (int)(200 + (rows < 60 ? rows : 60) * 36));
    fprintf(p->out,
            "set title offset 0,1\nset xlabel \"time, %s%s\\n\"\nset xrange [0:%.3f]\nset yrange "
            "[%ld:0]\nset style fill solid noborder\nset key below Left reverse\n",
            a.unit < 10    ? "ns"
            : a.unit < 1e4 ? "us"
            : a.unit < 1e7 ? "ms"
                           : "s",
            a.count > 1 ? " in launches: what lies between them is cut out (grey)" : "",
            a.length / a.unit, rows);
    trace_timeline_mark_cuts(p->out, &a);
    trace_timeline_mark_launches(p, &a);
    trace_timeline_draw_rows(p, &a, rows, c);
    fputs("plot ", p->out);
    for (int s = 1; s < (nics ? STATES : TRACE_STATES); s++)
        if (states[s].name)
            fprintf(p->out,
                    "%s$data using ($1==%d?($2+$3)/2:1/0):(($4+$5)/2):2:3:5:4 with boxxyerror lc "
                    "rgb '%s' title '%s'",
                    s > 1 ? ",\\\n " : "", s, states[s].colour, states[s].name);
    fputc('\n', p->out);
    free(a.pieces);
    return 0;
}
