/* `mkernel trace plot`: pictures by gnuplot. The script carries its data, so it can be kept and changed. */
#define _GNU_SOURCE
#include "experiments/trace_cli.h"
#include "experiments/trace_output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define COLUMNS 500  /* of a timeline */
#define MAX_ROWS 256 /* a taller picture is no picture; 64 ranks of 4 roles */

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

static int is_svg(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && !strcasecmp(dot, ".svg");
}

static void head(FILE *out, sqlite3 *db, const char *path, const char *title, int height)
{
    int svg = is_svg(path);
    fprintf(out, "set terminal %s size 1200,%d%s", svg ? "svg" : "pngcairo", height, svg ? " background '#ffffff'" : "");
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

/* What a role's CTAs did from .. to, in COLUMNS columns: ns by state. */
typedef double columns[COLUMNS][TRACE_STATES];

static void add(columns c, int64_t from, int64_t to, int64_t start, int64_t end, int state, double ns_per_ns)
{
    double width = (double)(to - from) / COLUMNS;
    start = start < from ? from : start, end = end > to ? to : end;
    while (start < end) {
        int column = (int)((double)(start - from) / width);
        column = column < COLUMNS ? column : COLUMNS - 1;
        int64_t next = from + (int64_t)(width * (column + 1)) + 1, stop = next < end ? next : end;
        c[column][state] += (double)(stop - start) * ns_per_ns;
        start = stop;
    }
}

/* From the coarsest level that is still finer than a column. Returns 0 where there is none: a short piece of
 * a long run. */
static int fill_from_level(sqlite3 *db, int64_t role, int64_t from, int64_t to, columns c)
{
    sqlite3_stmt *z = trace_query(db, "SELECT level, ns FROM zoom WHERE ns <= ?1 ORDER BY level DESC LIMIT 1",
                                  (to - from) / COLUMNS, 0);
    int found = sqlite3_step(z) == SQLITE_ROW;
    int64_t level = found ? sqlite3_column_int64(z, 0) : 0, ns = found ? sqlite3_column_int64(z, 1) : 1;
    sqlite3_finalize(z);
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT bucket, tile, copy, command, reduce, wait_data, wait_backpressure, wait_credit, wait_network"
        " FROM level WHERE level = ?1 AND track = ?2",
        level, role);
    while (found && sqlite3_step(q) == SQLITE_ROW) {
        int64_t at = sqlite3_column_int64(q, 0) * ns;
        for (int s = 1; s < TRACE_STATES; s++)
            if (sqlite3_column_int64(q, s))
                add(c, from, to, at, at + ns, s, sqlite3_column_double(q, s) / (double)ns);
    }
    sqlite3_finalize(q);
    return found;
}

/* From the events themselves, which for a short piece are few. */
static void fill_from_events(sqlite3 *db, int64_t role, int64_t from, int64_t to, columns c)
{
    sqlite3_stmt *q = NULL;
    sqlite3_prepare_v2(db,
                       "WITH leaf AS (SELECT id, longest_ns FROM track WHERE first_event IS NOT NULL AND (id "
                       "= ?1 OR parent = ?1 OR"
                       " parent IN (SELECT id FROM track WHERE parent = ?1))) SELECT e.start, e.start + "
                       "e.ns, e.kind, e.cause FROM leaf"
                       " CROSS JOIN event e ON e.track = leaf.id AND e.start BETWEEN ?2 - leaf.longest_ns "
                       "AND ?3 WHERE e.ns > 0",
                       -1, &q, NULL);
    sqlite3_bind_int64(q, 1, role);
    sqlite3_bind_int64(q, 2, from);
    sqlite3_bind_int64(q, 3, to);
    while (sqlite3_step(q) == SQLITE_ROW) {
        int state = trace_state_of((uint32_t)sqlite3_column_int(q, 2), (uint32_t)sqlite3_column_int(q, 3));
        if (state != TRACE_IDLE)
            add(c, from, to, sqlite3_column_int64(q, 0), sqlite3_column_int64(q, 1), state, 1);
    }
    sqlite3_finalize(q);
}

/* One row's boxes: state, begin, end (us), bottom, top. Rows are numbered from the top. */
static void put_boxes(FILE *out, columns c, int64_t from, int64_t to, double row, double leaves)
{
    double width = (double)(to - from) / COLUMNS;
    for (int column = 0; column < COLUMNS; column++) {
        double y = row + 0.95, at = (double)from + column * width;
        for (int s = 1; s < TRACE_STATES; s++) {
            double share = 0.9 * c[column][s] / (width * leaves);
            if (share > 1e-4)
                fprintf(out, "%d %.4f %.4f %.4f %.4f\n", s, at / 1e3, (at + width) / 1e3, y, y - share);
            y -= share;
        }
    }
}

/* The piece of time to draw. -ERANGE: there is no such launch. */
static int piece(sqlite3 *db, uint64_t launch, int64_t *from, int64_t *to)
{
    *from = 0, *to = trace_integer(db, "SELECT duration_ns FROM run", 0) + 1;
    if (!launch)
        return 0;
    sqlite3_stmt *q =
        trace_query(db, "SELECT start, end + 1 FROM launches WHERE launch = ?1", (int64_t)launch, 0);
    int found = sqlite3_step(q) == SQLITE_ROW;
    if (found)
        *from = sqlite3_column_int64(q, 0), *to = sqlite3_column_int64(q, 1);
    sqlite3_finalize(q);
    return found ? 0 : -ERANGE;
}

/* Rows are (rank, role); a column is a stack whose heights are the states' shares of the role's CTAs. */
static int timeline(sqlite3 *db, uint64_t launch, const char *path, FILE *out)
{
    int64_t from, to, rows = trace_integer(db, "SELECT count(*) FROM track WHERE kind = 'role'", 0);
    columns *c = malloc(sizeof *c);
    int rc = !c ? -ENOMEM : !rows ? -ENODATA : piece(db, launch, &from, &to);
    if (rc) {
        free(c);
        return rc;
    }
    const char *title = rows > MAX_ROWS ? "CTA roles over time (the first 256 rows)" : "CTA roles over time";
    rows = rows > MAX_ROWS ? MAX_ROWS : rows;
    head(out, db, path, title, (int)(160 + (rows < 60 ? rows : 60) * 36));
    fprintf(out,
            "set xlabel 'time, us'\nset xrange [%.3f:%.3f]\nset yrange [%lld:0]\nset style fill solid "
            "noborder\nset key below\n"
            "set ytics (",
            (double)from / 1e3, (double)to / 1e3, (long long)rows);
    sqlite3_stmt *t =
        trace_query(db, "SELECT id, rank, name, leaves FROM track WHERE kind = 'role' ORDER BY id", 0, 0);
    for (int row = 0; row < rows && sqlite3_step(t) == SQLITE_ROW; row++)
        fprintf(out, "%s'rank %d %s' %g", row ? "," : "", sqlite3_column_int(t, 1),
                (const char *)sqlite3_column_text(t, 2), row + 0.5);
    fputs(") noenhanced\n$data << END\n", out);
    sqlite3_reset(t);
    for (int row = 0; row < rows && sqlite3_step(t) == SQLITE_ROW; row++) {
        memset(c, 0, sizeof *c);
        if (!fill_from_level(db, sqlite3_column_int64(t, 0), from, to, *c))
            fill_from_events(db, sqlite3_column_int64(t, 0), from, to, *c);
        put_boxes(out, *c, from, to, row, sqlite3_column_double(t, 3));
    }
    sqlite3_finalize(t);
    free(c);
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

/* `named`: the picture goes to `path`; else to gnuplot's standard output, and `path` says its form. */
static int write_script(sqlite3 *db, enum trace_plot_kind kind, uint64_t launch, const char *path, int named, FILE *out,
                        char *error, size_t size)
{
    if (named) {
        fputs("set output ", out);
        put_quoted(out, path);
        fputc('\n', out);
    }
    int rc = kind == TRACE_PLOT_OVERLAP ? overlap(db, launch, path, out) : timeline(db, launch, path, out);
    if (trace_damage()) {
        snprintf(error, size, "the trace is damaged: %s", trace_damage());
        return -EBADMSG;
    }
    if (rc == -ERANGE)
        snprintf(error, size, "there is no launch %llu; the trace has launches 1 to %lld",
                 (unsigned long long)launch, (long long)trace_integer(db, "SELECT count(*) FROM launch", 0));
    else if (rc == -ENOMEM)
        snprintf(error, size, "out of memory");
    else if (rc)
        snprintf(error, size, "the trace has nothing to plot: no launches were recorded");
    return rc;
}

int trace_plot_script(sqlite3 *db, enum trace_plot_kind kind, uint64_t launch, const char *path, FILE *out,
                      char *error, size_t size)
{
    return write_script(db, kind, launch, path, 1, out, error, size);
}

enum { END = 12 };

/* The last bytes of what comes in pieces. */
static void keep_end(char end[END], const char *piece, size_t n)
{
    size_t new = n < END ? n : END;
    memmove(end, end + new, END - new);
    memcpy(end + END - new, piece + n - new, new);
}

/* Whether a picture ends as one: in an empty chunk IEND with its checksum, or in the root's closing tag. */
static int is_whole(const char end[END], const char *path)
{
    if (is_svg(path))
        return memmem(end, END, "</svg>", 6) != NULL;
    return !memcmp(end, "\0\0\0\0IEND\xae\x42\x60\x82", END);
}

/* gnuplot's picture of a script, from a pipe: it does not notice itself where a disk is full. 0 or -errno with a sentence. */
static int run_gnuplot(int script, FILE *out, const char *path, char *error, size_t size)
{
    int picture[2], status = 0, rc = 0;
    char name[32], piece[65536], end[END] = "";
    snprintf(name, sizeof name, "/dev/fd/%d", script);
    pid_t child = pipe2(picture, O_CLOEXEC) ? -1 : fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR); /* its complaints are many lines */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (dup2(null, 0) < 0 || dup2(picture[1], 1) < 0 || dup2(null, 2) < 0)
            _exit(126);
        execlp("gnuplot", "gnuplot", name, (char *)NULL);
        _exit(127);
    }
    if (child < 0) {
        snprintf(error, size, "cannot start gnuplot: %s", strerror(errno));
        return -EIO;
    }
    close(picture[1]);
    for (ssize_t n; !rc && (n = read(picture[0], piece, sizeof piece)) > 0;) {
        if (fwrite(piece, 1, (size_t)n, out) < (size_t)n || fflush(out)) {
            rc = -errno;
            snprintf(error, size, "cannot write '%s': %s", path, strerror(errno));
        }
        keep_end(end, piece, (size_t)n);
    }
    close(picture[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (rc)
        return rc;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
        snprintf(error, size, "gnuplot is not installed (package gnuplot-nox)");
        rc = -ENOENT;
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) || !is_whole(end, path)) {
        snprintf(error, size, "gnuplot could not draw '%s'; --script prints what it was told", path);
        rc = -EIO;
    }
    return rc;
}

int trace_plot(sqlite3 *db, enum trace_plot_kind kind, uint64_t launch, const char *path, char *error,
               size_t size)
{
    struct trace_output o;
    int fd = memfd_create("plot", 0); /* gnuplot opens it by its number */
    FILE *script = fd < 0 ? NULL : fdopen(fd, "w");
    if (!script) {
        snprintf(error, size, "cannot write gnuplot's script: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return -EIO;
    }
    int rc = write_script(db, kind, launch, path, 0, script, error, size);
    if (!rc && (fflush(script) || ferror(script))) {
        snprintf(error, size, "cannot write gnuplot's script: %s", strerror(errno));
        rc = -EIO;
    }
    if (!rc && !(rc = trace_output_open(&o, path, 0, error, size))) {
        rc = run_gnuplot(fd, o.out, path, error, size);
        rc = trace_output_close(&o, rc, error, size);
    }
    fclose(script);
    return rc;
}
