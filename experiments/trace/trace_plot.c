/* `mkernel trace plot`: pictures by gnuplot. The script carries its data, so it can be kept and
 * changed. */
#include "experiments/trace/trace_plot.h"
#include "core/sentence.h"
#include "experiments/common/picture.h"

#include <errno.h>

void trace_plot_head(const struct trace_picture *p, const char *title, int height)
{
    char text[256] = "";
    const char *run;
    QUERY q = query_ask(p->db,
                        "SELECT op || ' ' || shape || ', ' || source || ', ' || nodes || "
                        "' x ' || gpus || ' ranks' FROM run",
                        "");
    if (query_row(q, "t", &run))
        snprintf(text, sizeof text, "%s: %s", title, run);
    picture_head(p->out, p->path, p->named, text, 1200, height);
}

static int trace_plot_overlap(const struct trace_picture *p)
{
    FILE *out = p->out;
    static const char *const names[] = {"compute only", "both", "communication only", "idle"};
    static const char *const colours[] = {"#0072b2", "#009e73", "#d55e00", "#dddddd"};
    QUERY q =
        query_ask(p->db,
                  "SELECT rank, sum(compute_only), sum(both), sum(comm_only), sum(idle), max(1, "
                  "sum(end - start)) FROM launch_rank WHERE (?1 = 0 OR launch = ?1) AND (?2 < 0 "
                  "OR rank = ?2) GROUP BY rank ORDER BY rank",
                  "ii", (int64_t)p->part.launch, p->part.rank);
    double v[4], whole;
    int rank, rows = 0;
    for (; query_row(q, "nddddd", &rank, &v[0], &v[1], &v[2], &v[3], &whole); rows++) {
        if (!rows) {
            trace_plot_head(p, "Overlap per rank", 500);
            fputs("set style data histograms\nset style histogram rowstacked\nset style fill solid "
                  "noborder\nset boxwidth 0.8\n"
                  "set yrange [0:100]\nset ylabel '% of launch time'\nset xlabel 'rank'\nset key "
                  "below\n$data << END\n",
                  out);
        }
        fprintf(out, "%d %.2f %.2f %.2f %.2f\n", rank, 100 * v[0] / whole, 100 * v[1] / whole,
                100 * v[2] / whole, 100 * v[3] / whole);
    }
    if (!rows)
        return -ENODATA;
    fputs("END\nplot ", out);
    for (int i = 0; i < 4; i++)
        fprintf(out, "%s$data using %d%s lc rgb '%s' title '%s'", i ? ", " : "", i + 2,
                i ? "" : ":xtic(1)", colours[i], names[i]);
    fputc('\n', out);
    return 0;
}

static int trace_plot_write_script(FILE *out, void *context, char *error, size_t size)
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
    int rc = p->kind == TRACE_PLOT_OVERLAP ? trace_plot_overlap(p) : trace_plot_timeline(p);
    if (trace_damage())
        return mk_fail(-EBADMSG, error, size, "the trace is damaged: %s", trace_damage());
    if (rc == -ENOMEM)
        snprintf(error, size, "out of memory");
    else if (rc == -ERANGE)
        snprintf(error, size, "the trace has no such role, or no launch in that time");
    else if (rc)
        snprintf(error, size, "the trace has nothing to plot: no launches were recorded");
    return rc;
}

int trace_plot_script(sqlite3 *db, enum trace_plot_kind kind, const struct trace_plot_part *part,
                      const char *path, FILE *out, char *error, size_t size)
{
    struct trace_picture p = {db, kind, NULL, path, 1, *part};
    return trace_plot_write_script(out, &p, error, size);
}

int trace_plot(sqlite3 *db, enum trace_plot_kind kind, const struct trace_plot_part *part,
               const char *path, char *error, size_t size)
{
    struct trace_picture p = {db, kind, NULL, path, 0, *part};
    return picture_draw(path, trace_plot_write_script, &p, error, size);
}
