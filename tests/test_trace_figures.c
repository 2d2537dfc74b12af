/* Each figure of a trace has one definition: `trace summary`, `trace diff` and the viewer's
 * comparison show the same numbers for the same two files, those of docs/TRACE.md as computed here
 * from the tables; a time, an ideal and their ratio fit each other. */
#include "tests/helpers/command.h"

#include <math.h>
#include <sqlite3.h>

#include "tests/helpers/folder.h"
#include "tests/helpers/generate.h"

enum { MOST = 4096, RANKS = 6 };

static struct command_run r;
static const char *const file[2] = {"a.db", "b.db"};

static const char *run(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    command_start(&r, line, NULL);
    command_finish(&r, 60);
    if (r.status || r.err_used)
        fail_msg("mkernel %s: status %d, \"%s\"", line, r.status, r.err_text);
    return r.out_text;
}

/* ---- what the figures are ---- */

struct want {
    double slowest, ideal, efficiency, whole, most;                 /* ns, ns, %, ns, ns */
    double compute, both, communication, idle, exposed, exposed_ns; /* %, but the last */
};

struct part {
    double start, end, ideal;
};

static int compare_double(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static void compute(const char *path, struct want *w)
{
    static struct part part[MOST][RANKS];
    static double time[MOST], ordered[MOST];
    double sum[5] = {0};
    int launches = 0, parts = 0;
    sqlite3 *db;
    sqlite3_stmt *q;
    memset(w, 0, sizeof *w);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(
        sqlite3_prepare_v2(
            db,
            "SELECT l.launch, l.rank, l.start, l.end, e.ideal_ns, l.compute_only, l.both, "
            "l.comm_only, l.idle"
            " FROM launch_rank l JOIN efficiency e ON e.launch = l.launch AND e.rank = l.rank",
            -1, &q, NULL),
        SQLITE_OK);
    while (sqlite3_step(q) == SQLITE_ROW) {
        int launch = sqlite3_column_int(q, 0) - 1, rank = sqlite3_column_int(q, 1);
        assert_true(launch >= 0 && launch < MOST && rank < RANKS);
        part[launch][rank] = (struct part){sqlite3_column_double(q, 2), sqlite3_column_double(q, 3),
                                           sqlite3_column_double(q, 4)};
        sum[4] += sqlite3_column_double(q, 3) - sqlite3_column_double(q, 2);
        for (int i = 0; i < 4; i++)
            sum[i] += sqlite3_column_double(q, 5 + i);
        launches = launch + 1 > launches ? launch + 1 : launches;
        parts++;
    }
    sqlite3_finalize(q);
    sqlite3_close(db);
    assert_true(launches >= 3 && parts == launches * RANKS);
    for (int i = 0; i < launches; i++) {
        time[i] = 0;
        for (int k = 0; k < RANKS; k++)
            time[i] = fmax(time[i], part[i][k].end - part[i][k].start);
        w->most = fmax(w->most, time[i]);
    }
    memcpy(ordered, time, sizeof ordered);
    qsort(ordered, (size_t)launches, sizeof *ordered, compare_double);
    w->slowest = ordered[launches / 2];
    for (int i = 0; i < launches && !w->ideal; i++) {
        double start = INFINITY, end = 0;
        if (time[i] != w->slowest)
            continue;
        for (int k = 0; k < RANKS; k++) {
            start = fmin(start, part[i][k].start);
            end = fmax(end, part[i][k].end);
            if (!w->ideal && part[i][k].end - part[i][k].start == w->slowest)
                w->ideal = part[i][k].ideal;
        }
        w->whole = end - start;
    }
    w->efficiency = 100 * w->ideal / w->slowest;
    w->compute = 100 * sum[0] / sum[4];
    w->both = 100 * sum[1] / sum[4];
    w->communication = 100 * sum[2] / sum[4];
    w->idle = 100 * sum[3] / sum[4];
    w->exposed = 100 * sum[2] / (sum[1] + sum[2]);
    w->exposed_ns = sum[2] / parts;
}

/* ---- what is printed ---- */

/* A number with its unit, in ns or %. Moves *at behind it. */
static double value(const char **at)
{
    static const struct {
        const char *unit;
        double ns;
    } units[] = {{" ns", 1}, {" us", 1e3}, {" µs", 1e3}, {" ms", 1e6}, {" s", 1e9}, {" %", 1}};
    char *end;
    double v = strtod(*at, &end);
    if (end == *at)
        return NAN;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strncmp(end, units[i].unit, strlen(units[i].unit))) {
            *at = end + strlen(units[i].unit);
            return v * units[i].ns;
        }
    *at = end;
    return v;
}

/* What stands behind `name` where a number does. */
static const char *behind(const char *text, const char *name)
{
    for (const char *at = text; (at = strstr(at, name)); at++) {
        const char *next = at + strlen(name) + strspn(at + strlen(name), " ");
        if (*next >= '0' && *next <= '9')
            return next;
    }
    fail_msg("no \"%s\" with a number in\n%s", name, text);
    return text;
}

/* Three digits are printed, or tenths of a percent. */
static void same(const char *where, const char *name, double got, double want)
{
    double slack = strchr(name, '%') ? 0.051 : 0.006 * want + 0.51;
    if (!(fabs(got - want) <= slack))
        fail_msg("%s: %s is %g, not %g", where, name, got, want);
}

static void check_table(const char *where, const char *text, const struct want *w)
{
    const struct {
        const char *name, *label;
        size_t offset;
    } rows[] = {
        {"median launch: slowest rank", "", offsetof(struct want, slowest)},
        {"median launch: ideal of that rank", "", offsetof(struct want, ideal)},
        {"median launch: ideal / slowest rank", "%", offsetof(struct want, efficiency)},
        {"median launch: first start to last end", "", offsetof(struct want, whole)},
        {"slowest launch: slowest rank", "", offsetof(struct want, most)},
        {"compute only", "%", offsetof(struct want, compute)},
        {"compute and communication", "%", offsetof(struct want, both)},
        {"communication only (exposed)", "%", offsetof(struct want, communication)},
        {"idle", "%", offsetof(struct want, idle)},
        {"exposed, of all communication", "%", offsetof(struct want, exposed)},
        {"exposed, per launch and rank", "", offsetof(struct want, exposed_ns)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[64];
        const char *at = behind(text, rows[i].name);
        snprintf(name, sizeof name, "%s%s", rows[i].name, *rows[i].label ? ", %" : "");
        for (int side = 0; side < 2; side++)
            same(where, name, value(&at),
                 *(const double *)((const char *)&w[side] + rows[i].offset));
    }
}

static void check_summary(const char *text, const struct want *w)
{
    const char *at = behind(text, "median launch: slowest rank"), *all = behind(text, "   all"),
               *more;
    double slowest = value(&at);
    same("summary", "slowest rank", slowest, w->slowest);
    at = more = behind(at, ", ideal");
    double ideal = value(&more);
    same("summary", "ideal", ideal, w->ideal);
    at = behind(at, "ideal / slowest rank");
    double ratio = value(&at);
    same("summary", "ratio, %", ratio, w->efficiency);
    assert_true(fabs(100 * ideal / slowest - ratio) < 0.011 * ratio + 0.06); /* as printed */
    at = behind(text, "first start to last end");
    same("summary", "first start to last end", value(&at), w->whole);
    at = behind(text, "slowest launch: slowest rank");
    same("summary", "slowest launch", value(&at), w->most);
    same("summary", "compute only, %", value(&all), w->compute);
    same("summary", "both, %", value(&all), w->both);
    same("summary", "communication only, %", value(&all), w->communication);
    same("summary", "idle, %", value(&all), w->idle);
    at = behind(text, "exposed communication:");
    same("summary", "exposed, %", value(&at), w->exposed);
}

CASE(test_same_everywhere)
{
    struct want w[2];
    char path[2][96];
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", folder, file[i]);
        compute(path[i], &w[i]);
        check_summary(run("trace summary %s", path[i]), &w[i]);
    }
    /* The files differ in every figure that could be taken for another one. */
    for (int i = 0; i < 2; i++)
        assert_true(w[i].most > 1.05 * w[i].slowest && w[i].ideal < 0.95 * w[i].slowest &&
                    w[i].whole > w[i].slowest);
    assert_true(fabs(w[0].efficiency - w[1].efficiency) > 1);
    check_table("diff", run("trace diff %s %s", path[0], path[1]), w);
    check_table("tui", run("tui %s %s --dump-screen --size 120x90", path[0], path[1]), w);
}

/* Every other figure of the two is the same text but for the digits shown: role shares are the
 * diff's alone. */
CASE(test_rest)
{
    static const char *const names[] = {"tile, mean",           "tile, longest", "wait, longest",
                                        "command-seen, median", "whole, p99",    "compute network",
                                        "compute data"};
    char diff[16384];
    snprintf(diff, sizeof diff, "%s", run("trace diff %s/a.db %s/b.db", folder, folder));
    const char *screen = run("tui %s/a.db %s/b.db --dump-screen --size 120x90", folder, folder);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *one = behind(diff, names[i]), *two = behind(screen, names[i]);
        for (int side = 0; side < 2; side++)
            same("tui", names[i], value(&two), value(&one));
    }
}

static int set_up(void **state)
{
    static const struct generate_config config[2] = {
        {.events = 60000, .nodes = 2, .gpus = 3, .ctas = 24, .seed = 5},
        {.events = 40000, .nodes = 2, .gpus = 3, .ctas = 16, .seed = 7}};
    char error[256], path[256];
    int result = folder_make(state);
    for (int i = 0; i < 2 && !result; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, file[i]);
        result = trace_generate(&config[i], path, error, sizeof error);
    }
    return result;
}

FIXTURE(set_up, folder_remove)
