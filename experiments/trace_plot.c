/* `mkernel trace plot`: pictures by gnuplot. The script carries its data, so it can be kept and changed. */
#include "experiments/trace_cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

#define COLUMNS 400 /* of a timeline, at least: the level is chosen by it */

/* Colours that also differ in grey and for colour-blind readers (Okabe and Ito, 2008). */
static const struct {
    const char *name, *colour;
} states[TRACE_STATES] = {
    {"idle", "#ffffff"},
    {"tile", "#0072b2"},
    {"copy", "#009e73"},
    {"command", "#56b4e9"},
    {"reduce", "#cc79a7"},
    {"wait data", "#f0e442"},
    {"wait back-pressure", "#999999"},
    {"wait credit", "#e69f00"},
    {"wait network", "#d55e00"},
};

static void put_quoted(FILE *out, const char *text)
{
    fputc('\'', out);
    for (; *text; text++)
        fprintf(out, *text == '\'' ? "''" : "%c", *text);
    fputc('\'', out);
}

static void head(FILE *out, sqlite3 *db, const char *path, const char *title, int height)
{
    const char *dot = strrchr(path, '.');
    int svg = dot && !strcasecmp(dot, ".svg");
    fprintf(out, "set terminal %s size 1200,%d%s\nset output ", svg ? "svg" : "pngcairo", height,
            svg ? " background '#ffffff'" : "");
    put_quoted(out, path);
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT op || ' ' || shape || ', ' || source || ', ' || nodes || ' x ' || gpus || ' ranks' FROM run",
        0, 0);
    char text[256] = "";
    if (sqlite3_step(q) == SQLITE_ROW)
        snprintf(text, sizeof text, "%s: %s", title, (const char *)sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
    fputs("\nset title ", out);
    put_quoted(out, text);
    fputs(" noenhanced\n", out);
}

/* Rows are (rank, role); a bucket is a column of boxes whose heights are the states' shares of the role's
 * CTAs. */
static int timeline(sqlite3 *db, uint64_t launch, const char *path, FILE *out)
{
    int64_t from = 0, to = trace_integer(db, "SELECT duration_ns FROM run", 0) + 1;
    if (launch) {
        sqlite3_stmt *q =
            trace_query(db, "SELECT start, end FROM launches WHERE launch = ?1", (int64_t)launch, 0);
        int found = sqlite3_step(q) == SQLITE_ROW;
        from = found ? sqlite3_column_int64(q, 0) : 0, to = found ? sqlite3_column_int64(q, 1) + 1 : 0;
        sqlite3_finalize(q);
        if (!found)
            return -ERANGE;
    }
    sqlite3_stmt *z =
        trace_query(db, "SELECT level, ns FROM zoom WHERE ns <= max(1, ?1) ORDER BY level DESC LIMIT 1",
                    (to - from) / COLUMNS, 0);
    int64_t level = 0, ns = trace_integer(db, "SELECT ns FROM zoom WHERE level = 0", 1);
    if (sqlite3_step(z) == SQLITE_ROW)
        level = sqlite3_column_int64(z, 0), ns = sqlite3_column_int64(z, 1);
    sqlite3_finalize(z);
    int64_t rows = trace_integer(db, "SELECT count(*) FROM track WHERE kind = 'role'", 0), row = 0;
    if (!rows)
        return -ENODATA;
    head(out, db, path, "CTA roles over time", (int)(160 + (rows < 60 ? rows : 60) * 36));
    fprintf(out,
            "set xlabel 'time, us'\nset xrange [%.3f:%.3f]\nset yrange [%lld:0]\nset style fill solid "
            "noborder\nset key below\nset ytics (",
            (double)from / 1e3, (double)to / 1e3, (long long)rows);
    sqlite3_stmt *t =
        trace_query(db, "SELECT id, rank, name, leaves FROM track WHERE kind = 'role' ORDER BY id", 0, 0);
    for (row = 0; sqlite3_step(t) == SQLITE_ROW; row++)
        fprintf(out, "%s'rank %d %s' %g", row ? "," : "", sqlite3_column_int(t, 1),
                (const char *)sqlite3_column_text(t, 2), (double)row + 0.5);
    fputs(") noenhanced\n", out);
    sqlite3_reset(t);
    fputs("$data << END\n", out);
    for (row = 0; sqlite3_step(t) == SQLITE_ROW; row++) {
        double width = (double)ns * sqlite3_column_double(t, 3);
        sqlite3_stmt *q = trace_query(db,
                                      "SELECT bucket, tile, copy, command, reduce, wait_data, "
                                      "wait_backpressure, wait_credit, wait_network"
                                      " FROM level WHERE level = ?1 AND track = ?2",
                                      level, sqlite3_column_int64(t, 0));
        while (sqlite3_step(q) == SQLITE_ROW) {
            int64_t at = sqlite3_column_int64(q, 0) * ns;
            double y = (double)row + 0.95;
            if (at + ns <= from || at >= to)
                continue;
            for (int s = 1; s < TRACE_STATES; s++) {
                double share = 0.9 * sqlite3_column_double(q, s) / width;
                if (share > 0)
                    fprintf(out, "%d %.3f %.3f %.4f %.4f\n", s, (double)at / 1e3, (double)(at + ns) / 1e3, y,
                            y - share);
                y -= share;
            }
        }
        sqlite3_finalize(q);
    }
    sqlite3_finalize(t);
    fputs("END\nplot ", out);
    for (int s = 1; s < TRACE_STATES; s++)
        fprintf(
            out,
            "%s$data using ($1==%d?($2+$3)/2:1/0):(($4+$5)/2):2:3:5:4 with boxxyerror lc rgb '%s' title '%s'",
            s > 1 ? ",\\\n " : "", s, states[s].colour, states[s].name);
    fputc('\n', out);
    return 0;
}

static int overlap(sqlite3 *db, uint64_t launch, const char *path, FILE *out)
{
    static const char *const names[] = {"compute only", "both", "communication only", "idle"};
    static const char *const colours[] = {"#0072b2", "#009e73", "#d55e00", "#dddddd"};
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT rank, sum(compute_only), sum(both), sum(comm_only), sum(idle), max(1, sum(end - start)) FROM"
        " launch_rank WHERE ?1 = 0 OR launch = ?1 GROUP BY rank ORDER BY rank",
        (int64_t)launch, 0);
    int rows = 0;
    for (; sqlite3_step(q) == SQLITE_ROW; rows++) {
        if (!rows) {
            head(out, db, path, "Overlap per rank", 500);
            fputs("set style data histograms\nset style histogram rowstacked\nset style fill solid "
                  "noborder\nset boxwidth 0.8\n"
                  "set yrange [0:100]\nset ylabel '% of launch time'\nset xlabel 'rank'\nset key "
                  "below\n$data << END\n",
                  out);
        }
        fprintf(out, "%d", sqlite3_column_int(q, 0));
        for (int i = 1; i <= 4; i++)
            fprintf(out, " %.2f", 100 * sqlite3_column_double(q, i) / sqlite3_column_double(q, 5));
        fputc('\n', out);
    }
    sqlite3_finalize(q);
    if (!rows)
        return launch ? -ERANGE : -ENODATA;
    fputs("END\nplot ", out);
    for (int i = 0; i < 4; i++)
        fprintf(out, "%s$data using %d%s lc rgb '%s' title '%s'", i ? ", " : "", i + 2, i ? "" : ":xtic(1)",
                colours[i], names[i]);
    fputc('\n', out);
    return 0;
}

int trace_plot_script(sqlite3 *db, enum trace_plot_kind kind, uint64_t launch, const char *path, FILE *out,
                      char *error, size_t size)
{
    int rc = kind == TRACE_PLOT_OVERLAP ? overlap(db, launch, path, out) : timeline(db, launch, path, out);
    if (rc == -ERANGE)
        snprintf(error, size, "there is no launch %llu; the trace has launches 1 to %lld",
                 (unsigned long long)launch, (long long)trace_integer(db, "SELECT count(*) FROM launch", 0));
    else if (rc)
        snprintf(error, size, "the trace has nothing to plot: no launches were recorded");
    return rc;
}

int trace_plot(sqlite3 *db, enum trace_plot_kind kind, uint64_t launch, const char *path, char *error,
               size_t size)
{
    char name[] = "/tmp/mkernel-plot.XXXXXX";
    int fd = mkstemp(name), status = 0;
    FILE *script = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!script) {
        snprintf(error, size, "cannot write gnuplot's script: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return -EIO;
    }
    int rc = trace_plot_script(db, kind, launch, path, script, error, size);
    if (fclose(script) != 0 && !rc) {
        snprintf(error, size, "cannot write gnuplot's script: %s", strerror(errno));
        rc = -EIO;
    }
    pid_t child = rc ? -1 : fork();
    if (child == 0) {
        execlp("gnuplot", "gnuplot", name, (char *)NULL);
        _exit(127);
    }
    if (!rc && (child < 0 || waitpid(child, &status, 0) != child)) {
        snprintf(error, size, "cannot start gnuplot: %s", strerror(errno));
        rc = -EIO;
    } else if (!rc && WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        snprintf(error, size, "gnuplot is not installed (package gnuplot-nox)");
        rc = -ENOENT;
    } else if (!rc && (!WIFEXITED(status) || WEXITSTATUS(status))) {
        snprintf(error, size, "gnuplot could not draw '%s'", path);
        rc = -EIO;
    }
    unlink(name);
    return rc;
}
