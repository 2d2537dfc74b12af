/* `mkernel trace diff`: two runs, figure by figure. Launches are aligned by their number, the rest by name.
 */
#include "experiments/trace_cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum unit { UNIT_NS, UNIT_PERCENT, UNIT_COUNT };

static const char *value_text(char text[24], enum unit unit, double value)
{
    if (isnan(value))
        snprintf(text, 24, "-");
    else if (unit == UNIT_NS)
        return trace_time(text, value);
    else
        snprintf(text, 24, unit == UNIT_PERCENT ? "%.1f %%" : "%.0f", value);
    return text;
}

static void print_row(FILE *out, const char *name, enum unit unit, double a, double b)
{
    char one[24], two[24], change[24] = "-";
    if (!isnan(a) && !isnan(b)) {
        if (unit == UNIT_PERCENT)
            snprintf(change, sizeof change, "%+.1f pp", b - a);
        else if (a != 0)
            snprintf(change, sizeof change, "%+.1f %%", 100 * (b - a) / a);
        else
            snprintf(change, sizeof change, b != 0 ? "new" : "same");
    }
    fprintf(out, "  %-36s %12s %12s %12s\n", name, value_text(one, unit, a), value_text(two, unit, b),
            change);
}

static void compare(FILE *out, sqlite3 *a, sqlite3 *b, const char *name, enum unit unit, const char *sql)
{
    print_row(out, name, unit, trace_real(a, sql, NAN), trace_real(b, sql, NAN));
}

/* A named list of figures on both sides: every name of either. `sql` gives (name, value) in order of
 * interest. */
static void compare_list(FILE *out, sqlite3 *a, sqlite3 *b, enum unit unit, const char *sql)
{
    struct item {
        char name[64];
        double value[2];
    } items[64];
    int count = 0;
    for (int side = 0; side < 2; side++) {
        sqlite3_stmt *q = trace_query(side ? b : a, sql, 0, 0);
        while (sqlite3_step(q) == SQLITE_ROW) {
            const char *name = (const char *)sqlite3_column_text(q, 0);
            int i = 0;
            while (i < count && strcmp(items[i].name, name ? name : ""))
                i++;
            if (i == count) {
                if (count == 64)
                    break;
                snprintf(items[count].name, sizeof items[count].name, "%s", name ? name : "");
                items[count].value[0] = items[count].value[1] = NAN;
                count++;
            }
            items[i].value[side] = sqlite3_column_double(q, 1);
        }
        sqlite3_finalize(q);
    }
    for (int i = 0; i < count; i++)
        print_row(out, items[i].name, unit, items[i].value[0], items[i].value[1]);
}

static void print_run(FILE *out, const char *side, sqlite3 *db)
{
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT op || ' ' || shape || ': ' || source || ', ' || executor || ' executor, ' || nodes ||"
        " CASE nodes WHEN 1 THEN ' node x ' ELSE ' nodes x ' END || gpus || CASE gpus WHEN 1 THEN ' rank' ELSE ' ranks' END || CASE WHEN dropped THEN ', ' || dropped || ' DROPPED'"
        " ELSE '' END FROM run",
        0, 0);
    if (sqlite3_step(q) == SQLITE_ROW)
        fprintf(out, "%s  %s\n", side, (const char *)sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
}

static int compare_double(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Launch i against launch i: the ratio's median and range say whether a difference is there in every launch.
 */
static int print_launches(FILE *out, sqlite3 *a, sqlite3 *b)
{
    int64_t room = trace_integer(a, "SELECT count(*) FROM launches", 0), n = 0;
    double *ratio = malloc((size_t)(room + 1) * sizeof *ratio);
    sqlite3_stmt *p = trace_query(a, "SELECT ns FROM launches ORDER BY launch", 0, 0);
    sqlite3_stmt *q = trace_query(b, "SELECT ns FROM launches ORDER BY launch", 0, 0);
    while (ratio && n < room && sqlite3_step(p) == SQLITE_ROW && sqlite3_step(q) == SQLITE_ROW)
        if (sqlite3_column_double(p, 0) > 0)
            ratio[n++] = sqlite3_column_double(q, 0) / sqlite3_column_double(p, 0);
    sqlite3_finalize(p);
    sqlite3_finalize(q);
    if (n) {
        qsort(ratio, (size_t)n, sizeof *ratio, compare_double);
        fprintf(out,
                "  launch i of B over launch i of A: median %.3f, from %.3f to %.3f over %lld launch%s\n",
                ratio[n / 2], ratio[0], ratio[n - 1], (long long)n, n == 1 ? "" : "es");
    }
    free(ratio);
    return ratio ? 0 : -ENOMEM;
}

int trace_report_diff(sqlite3 *a, sqlite3 *b, FILE *out, char *error, size_t size)
{
    const char *what = "SELECT op || ' ' || shape || ' on ' || nodes || ' x ' || gpus FROM run";
    sqlite3_stmt *p = trace_query(a, what, 0, 0), *q = trace_query(b, what, 0, 0);
    const char *one = sqlite3_step(p) == SQLITE_ROW ? (const char *)sqlite3_column_text(p, 0) : NULL;
    const char *two = sqlite3_step(q) == SQLITE_ROW ? (const char *)sqlite3_column_text(q, 0) : NULL;
    int same = one && two && !strcmp(one, two);
    sqlite3_finalize(p);
    sqlite3_finalize(q);
    print_run(out, "A", a);
    print_run(out, "B", b);
    if (!same)
        fprintf(out, "note: not the same op, shape and cluster; shares compare, times may not\n");
    fprintf(out, "\n  %-36s %12s %12s %12s\n", "", "A", "B", "change");
    compare(out, a, b, "launch, median", UNIT_NS,
            "SELECT ns FROM launches ORDER BY ns LIMIT 1 OFFSET (SELECT count(*) / 2 FROM launches)");
    compare(out, a, b, "efficiency, mean", UNIT_PERCENT, "SELECT avg(efficiency) FROM efficiency");
    int rc = print_launches(out, a, b);
    fprintf(out, "overlap, mean over ranks\n");
    compare(out, a, b, "compute only", UNIT_PERCENT, "SELECT avg(compute_only) FROM overlap");
    compare(out, a, b, "compute and communication", UNIT_PERCENT, "SELECT avg(both) FROM overlap");
    compare(out, a, b, "communication only", UNIT_PERCENT, "SELECT avg(comm_only) FROM overlap");
    compare(out, a, b, "idle", UNIT_PERCENT, "SELECT avg(idle) FROM overlap");
    compare(out, a, b, "exposed, of all communication", UNIT_PERCENT,
            "SELECT 100.0 * sum(exposed_ns) / nullif(sum(communication_ns), 0) FROM exposed");
    fprintf(out, "share of a role's time, mean over ranks\n");
    compare_list(
        out, a, b, UNIT_PERCENT,
        "SELECT role || ' ' || kind, avg(share) FROM role_time GROUP BY role, kind ORDER BY role, kind");
    fprintf(out, "waiting per launch and rank, by cause\n");
    compare_list(out, a, b, UNIT_NS,
                 "SELECT role || ' ' || cause, 1.0 * sum(ns) / max(1, (SELECT count(*) FROM launch_rank)) "
                 "FROM stalls GROUP BY "
                 "role, cause HAVING sum(ns) > 0 ORDER BY sum(ns) DESC");
    fprintf(out, "one tile, copy, reduction: mean\n");
    compare_list(out, a, b, UNIT_NS,
                 "SELECT k.name, 1.0 * sum(s.ns) / sum(s.count) FROM total s JOIN kind k ON k.id = s.kind "
                 "WHERE s.kind IN (2, 4, 7) "
                 "GROUP BY s.kind");
    fprintf(out, "messages by stage: median\n");
    compare_list(out, a, b, UNIT_NS, "SELECT name, median_ns FROM stage WHERE count > 0");
    if (rc)
        snprintf(error, size, "out of memory");
    else if (fflush(out) != 0) {
        snprintf(error, size, "cannot write the comparison: %s", strerror(errno));
        rc = -EIO;
    }
    return rc;
}
