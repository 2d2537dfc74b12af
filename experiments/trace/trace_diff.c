/* `mkernel trace diff`: two runs, figure by figure. Launches are aligned by their number, the rest
 * by name. */
#include "experiments/trace/trace_cli.h"
#include "core/base/scoped.h"
#include "core/base/sorted.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FIGURES = 256 };

/* What stands above the figures of a section; of the first nothing. */
static const struct {
    const char *section, *title;
} titles[] = {
    {"overlap", "overlap, of all ranks' time in launches"},
    {"role", "share of the time of a role's CTAs in launches"},
    {"wait", "waiting per launch and rank, its CTAs together"},
    {"work", "one tile, wait, copy, reduction"},
    {"message", "messages by stage"},
};

static const char *trace_diff_value_text(char text[24], int percent, double value)
{
    if (isnan(value))
        snprintf(text, 24, "-");
    else if (!percent)
        return trace_time(text, value);
    else
        snprintf(text, 24, "%.1f %%", value);
    return text;
}

static void trace_diff_print_row(FILE *out, const struct trace_figure *f)
{
    char one[24], two[24], change[24] = "-";
    double a = f->value[0], b = f->value[1];
    int percent = !strcmp(f->unit, "%");
    if (!isnan(a) && !isnan(b)) {
        if (percent)
            snprintf(change, sizeof change, "%+.1f pp", b - a);
        else if (a != 0)
            snprintf(change, sizeof change, "%+.1f %%", 100 * (b - a) / a);
        else
            snprintf(change, sizeof change, b != 0 ? "new" : "same");
    }
    fprintf(out, "  %-38s %12s %12s %12s\n", f->name, trace_diff_value_text(one, percent, a),
            trace_diff_value_text(two, percent, b), change);
}

static void trace_diff_print_run(FILE *out, const char *side, sqlite3 *db)
{
    QUERY q =
        query_ask(db,
                  "SELECT op || ' ' || shape || ': ' || source || ', ' || executor || ' "
                  "executor, ' || nodes ||"
                  " CASE nodes WHEN 1 THEN ' node x ' ELSE ' nodes x ' END || gpus || CASE gpus "
                  "WHEN 1 THEN ' rank' "
                  "ELSE ' ranks' END || CASE WHEN dropped THEN ', ' || dropped || ' DROPPED'"
                  " ELSE '' END FROM run",
                  "");
    const char *run;
    if (query_row(q, "t", &run))
        fprintf(out, "%s  %s\n", side, run);
}

/* Launch i against launch i: the ratio's median and range say whether a difference is there in
 * every launch. */
static int trace_diff_print_launches(FILE *out, sqlite3 *a, sqlite3 *b)
{
    int64_t room = query_integer(a, 0, "SELECT count(*) FROM launches", ""), n = 0;
    MK_FREED double *ratio = malloc((size_t)(room + 1) * sizeof *ratio);
    QUERY p = query_ask(a, "SELECT slowest_ns FROM launches ORDER BY launch", "");
    QUERY q = query_ask(b, "SELECT slowest_ns FROM launches ORDER BY launch", "");
    double one, two;
    while (ratio && n < room && query_row(p, "d", &one) && query_row(q, "d", &two))
        if (one > 0)
            ratio[n++] = two / one;
    if (n) {
        mk_sort(ratio, (size_t)n);
        fprintf(out,
                "  slowest rank of launch i of B over that of A: median %.3f, from %.3f to %.3f "
                "over %ld launch%s\n",
                ratio[n / 2], ratio[0], ratio[n - 1], n, n == 1 ? "" : "es");
    }
    return ratio ? 0 : -ENOMEM;
}

int trace_report_diff(sqlite3 *a, sqlite3 *b, FILE *out, char *error, size_t size)
{
    const char *what = "SELECT op || ' ' || shape || ' on ' || nodes || ' x ' || gpus FROM run";
    QUERY p = query_ask(a, what, "");
    QUERY q = query_ask(b, what, "");
    const char *one, *two;
    int same = query_row(p, "t", &one) && query_row(q, "t", &two) && !strcmp(one, two);
    trace_diff_print_run(out, "A", a);
    trace_diff_print_run(out, "B", b);
    if (!same)
        fprintf(out, "note: not the same op, shape and cluster; shares compare, times may not\n");
    fprintf(out, "\n  %-38s %12s %12s %12s\n", "", "A", "B", "change");
    MK_FREED struct trace_figure *figures = malloc(MOST_FIGURES * sizeof *figures);
    int count = figures ? trace_figures(a, b, figures, MOST_FIGURES) : 0,
        rc = figures ? 0 : -ENOMEM;
    for (int i = 0; i < count && !rc; i++) {
        const char *before = i ? figures[i - 1].section : "launch";
        if (strcmp(before, figures[i].section)) {
            if (!strcmp(before, "launch"))
                rc = trace_diff_print_launches(out, a, b);
            for (size_t k = 0; k < sizeof titles / sizeof *titles; k++)
                if (!strcmp(titles[k].section, figures[i].section))
                    fprintf(out, "%s\n", titles[k].title);
        }
        trace_diff_print_row(out, &figures[i]);
    }
    if (rc)
        snprintf(error, size, "out of memory");
    else if (fflush(out) != 0)
        rc = mk_fail(-EIO, error, size, "cannot write the comparison: %s", strerror(errno));
    return rc;
}
