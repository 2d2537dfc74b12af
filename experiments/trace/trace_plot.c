/* `mkernel trace plot`: what trace_plot.py draws. A timeline has a row for each role of a rank and
 * each direction of a NIC; its cells say from when to when how many of the role's CTAs were in a
 * state, or which share of the most bytes that any NIC had were under way. */
#include "core/base/sentence.h"
#include "experiments/common/json_write.h"
#include "experiments/common/picture.h"
#include "experiments/trace/trace_cli.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define COLUMNS 600  /* of a timeline: what is finer is not seen */
#define MAX_ROWS 256 /* a taller picture is no picture; 64 ranks of 4 roles */
#define STATE_NIC TRACE_STATES

extern const char trace_plot_python[];
__asm__(".section .rodata\n.global trace_plot_python\ntrace_plot_python:\n"
        ".incbin \"experiments/trace/trace_plot.py\"\n.byte 0\n"
        ".size trace_plot_python, . - trace_plot_python\n.type trace_plot_python, @object\n"
        ".previous\n");

struct trace_picture {
    sqlite3 *db;
    enum trace_plot_kind kind;
    struct trace_plot_part part;
    FILE *out;
    int64_t from, to;  /* of all launches that are drawn */
    int64_t level, ns; /* of the zoom that is as fine as the picture; level -1: none is, ns 1 */
    int cells;         /* of this row */
};

static void trace_plot_head(const struct trace_picture *p)
{
    const char *run = "";
    QUERY q = query_ask(p->db,
                        "SELECT op || ' ' || shape || ', ' || source || ', ' || nodes || "
                        "' x ' || gpus || ' ranks' FROM run",
                        "");
    query_row(q, "t", &run);
    fprintf(p->out, "{\n");
    json_text(p->out, "kind", trace_plots[p->kind]);
    json_text(p->out, "run", run);
}

static int trace_plot_overlap(const struct trace_picture *p)
{
    QUERY q =
        query_ask(p->db,
                  "SELECT rank, sum(compute_only), sum(both), sum(comm_only), sum(idle), max(1, "
                  "sum(end - start)) FROM launch_rank WHERE (?1 = 0 OR launch = ?1) AND (?2 < 0 "
                  "OR rank = ?2) GROUP BY rank ORDER BY rank",
                  "ii", (int64_t)p->part.launch, p->part.rank);
    double v[4], whole;
    int rank, rows = 0;
    fprintf(p->out, "  \"ranks\": [");
    for (; query_row(q, "nddddd", &rank, &v[0], &v[1], &v[2], &v[3], &whole); rows++) {
        fprintf(p->out, "%s[%d", rows ? ",\n" : "\n", rank);
        for (int i = 0; i < 4; i++)
            fprintf(p->out, ", %.4f", isfinite(v[i]) ? 100 * v[i] / whole : 0);
        fputc(']', p->out);
    }
    fprintf(p->out, "]\n}\n");
    return rows ? 0 : -ENODATA;
}

/* Launches, each with the part of its time that is drawn. Without any, the whole run's time. */
static int trace_plot_launches(struct trace_picture *p)
{
    static const char sql[] =
        "SELECT launch, start, max(start, ?2) AS a, min(end + 1, ?3) AS b FROM launches WHERE "
        "(?1 = 0 OR launch = ?1) AND b > a ORDER BY start";
    int64_t last = p->part.to < INT64_MAX ? (int64_t)p->part.to : INT64_MAX, length = 0;
    long long launch, start, from, to, level, ns;
    int count = 0;
    QUERY q = query_ask(p->db, sql, "iii", (int64_t)p->part.launch, (int64_t)p->part.from, last);
    fprintf(p->out, "  \"launches\": [");
    for (; query_row(q, "iiii", &launch, &start, &from, &to); count++) {
        p->from = count && p->from < from ? p->from : from;
        p->to = count && p->to > to ? p->to : to;
        length += to - from;
        fprintf(p->out, "%s[%lld, %lld, %lld, %lld]", count ? ",\n" : "", launch, start, from, to);
    }
    if (!count) {
        if (p->part.from || p->part.to != UINT64_MAX)
            return -ERANGE;
        p->from = 0;
        p->to = length = query_integer(p->db, 0, "SELECT duration_ns FROM run", "") + 1;
        fprintf(p->out, "[0, -1, 0, %ld]", p->to);
    }
    length += count > 10 ? length / 10
                         : length / 100 * (count ? count - 1 : 0); /* the cuts between them */
    fprintf(p->out, "],\n");
    QUERY z = query_ask(p->db, "SELECT level, ns FROM zoom WHERE ns <= ?1 ORDER BY level DESC", "i",
                        length / (2 * COLUMNS));
    int some = query_row(z, "ii", &level, &ns) && ns > 0;
    p->level = some ? level : -1;
    p->ns = some ? ns : 1;
    return 0;
}

static void trace_plot_cell(struct trace_picture *p, int64_t start, int64_t end, int state,
                            double weight)
{
    if (weight > 0 && isfinite(weight))
        fprintf(p->out, "%s[%ld, %ld, %d, %.6g]", p->cells++ ? "," : "", start, end, state, weight);
}

static void trace_plot_from_level(struct trace_picture *p, int64_t role)
{
    double in[TRACE_STATES];
    long long at;
    QUERY q = query_ask(p->db,
                        "SELECT bucket * ?3, tile, copy, command, reduce, wait_data + "
                        "wait_credit, wait_backpressure, 0, wait_network FROM level WHERE level = "
                        "?1 AND track = ?2 AND bucket BETWEEN ?4 AND ?5",
                        "iiiii", p->level, role, p->ns, p->from / p->ns, p->to / p->ns);
    while (query_row(q, "idddddddd", &at, &in[1], &in[2], &in[3], &in[4], &in[5], &in[6], &in[7],
                     &in[8]))
        for (int s = 1; s < TRACE_STATES; s++)
            trace_plot_cell(p, at, at + p->ns, s, in[s] / (double)p->ns);
}

/* From the events themselves, which for a short piece are few. */
static void trace_plot_from_events(struct trace_picture *p, int64_t role)
{
    long long start, end, kind, cause;
    QUERY q = query_ask(
        p->db,
        "WITH leaf AS (SELECT id, longest_ns FROM track WHERE first_event IS NOT NULL AND (id "
        "= ?1 OR parent = ?1 OR"
        " parent IN (SELECT id FROM track WHERE parent = ?1))) SELECT e.start, e.start + "
        "e.ns, e.kind, e.cause FROM leaf"
        " CROSS JOIN event e ON e.track = leaf.id AND e.start BETWEEN ?2 - leaf.longest_ns "
        "AND ?3 WHERE e.ns > 0",
        "iii", role, p->from, p->to);
    while (query_row(q, "iiii", &start, &end, &kind, &cause)) {
        int state = trace_state_of((uint32_t)kind, (uint32_t)cause);
        if (state != TRACE_IDLE)
            trace_plot_cell(p, start, end, state, 1);
    }
}

/* Bytes under way as a share of `peak`; at the finest level where none is as fine as the picture. */
static void trace_plot_from_flow(struct trace_picture *p, int64_t link, double peak)
{
    int64_t level = p->level < 0 ? 0 : p->level, ns = p->ns;
    if (p->level < 0)
        ns = query_integer(p->db, 1, "SELECT ns FROM zoom WHERE level = 0", "");
    long long at;
    double bytes;
    QUERY q =
        query_ask(p->db,
                  "SELECT bucket * ?3, in_flight FROM flow WHERE level = ?1 AND link = ?2 "
                  "AND bucket BETWEEN ?4 AND ?5",
                  "iiiii", level, link, ns, p->from / (ns > 0 ? ns : 1), p->to / (ns > 0 ? ns : 1));
    while (query_row(q, "id", &at, &bytes))
        trace_plot_cell(p, at, at + ns, STATE_NIC, bytes / peak);
}

/* By rank: its roles, then its NIC. Returns how many roles' rows, or -ENODATA. */
static int trace_plot_rows(struct trace_picture *p)
{
    QUERY t = query_ask(
        p->db,
        "SELECT rank, 0 AS nic, id, name, leaves FROM track WHERE kind = 'role' AND (?1 < 0 OR "
        "rank = ?1) AND (?2 < 0 OR role = ?2) UNION ALL"
        " SELECT rank, 1, id, 'NIC ' || direction, 1 FROM link WHERE kind = 'network' AND "
        "transfers > 0 AND (?1 < 0 OR rank = ?1) AND ?2 < 0 ORDER BY rank, nic, id",
        "ii", p->part.rank, (int64_t)p->part.role);
    const char *text;
    long long id;
    int rank, nic, rows = 0, nics = 0;
    double leaves,
        peak = query_real(p->db, 1, "SELECT max(peak_bytes) FROM link WHERE kind = 'network'");
    fprintf(p->out, "  \"rows\": [");
    for (; query_row(t, "nnitd", &rank, &nic, &id, &text, &leaves); rows++, nics += nic) {
        char name[96];
        if (rows >= MAX_ROWS)
            continue;
        snprintf(name, sizeof name, "rank %d %s", rank, text);
        fprintf(p->out, rows ? ",\n{" : "\n{");
        json_text(p->out, "name", name);
        fprintf(p->out, "  \"nic\": %d, \"leaves\": %g, \"cells\": [", nic,
                leaves > 0 && isfinite(leaves) ? leaves : 1);
        p->cells = 0;
        if (nic)
            trace_plot_from_flow(p, id, peak > 0 ? peak : 1);
        else if (p->level < 0)
            trace_plot_from_events(p, id);
        else
            trace_plot_from_level(p, id);
        fprintf(p->out, "]}");
    }
    fprintf(p->out, "],\n  \"left_out\": %d\n}\n", rows > MAX_ROWS ? rows - MAX_ROWS : 0);
    return rows > nics ? 0 : p->part.role < 0 ? -ENODATA : -ERANGE;
}

static int trace_plot_picture(FILE *out, void *context, char *error, size_t size)
{
    struct trace_picture *p = context;
    int64_t start, end;
    p->out = out;
    if (p->part.launch && trace_launch(p->db, p->part.launch, &start, &end, error, size))
        return trace_damage() ? -EBADMSG : -ERANGE;
    int64_t ranks = query_integer(p->db, 0, "SELECT count(*) FROM rank", "");
    if (p->part.rank >= ranks)
        return mk_fail(-ERANGE, error, size, "there is no rank %ld; the trace has ranks 0 to %ld",
                       p->part.rank, ranks - 1);
    trace_plot_head(p);
    int rc = p->kind == TRACE_PLOT_OVERLAP ? trace_plot_overlap(p) : trace_plot_launches(p);
    if (!rc && p->kind == TRACE_PLOT_TIMELINE)
        rc = trace_plot_rows(p);
    if (trace_damage())
        return mk_fail(-EBADMSG, error, size, "the trace is damaged: %s", trace_damage());
    if (rc == -ERANGE)
        snprintf(error, size, "the trace has no such role, or no launch in that time");
    else if (rc)
        snprintf(error, size, "the trace has nothing to plot: no launches were recorded");
    return rc;
}

int trace_plot_write(FILE *out, sqlite3 *db, enum trace_plot_kind kind,
                     const struct trace_plot_part *part, char *error, size_t size)
{
    struct trace_picture p = {.db = db, .kind = kind, .part = *part};
    return trace_plot_picture(out, &p, error, size);
}

int trace_plot(sqlite3 *db, enum trace_plot_kind kind, const struct trace_plot_part *part,
               const char *path, char *error, size_t size)
{
    struct trace_picture p = {.db = db, .kind = kind, .part = *part};
    const struct picture picture = {trace_plot_python, trace_plot_picture, &p};
    return picture_draw(&picture, path, error, size);
}
