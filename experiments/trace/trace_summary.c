/* `mkernel trace summary`: one screenful. Every figure comes from a view or an aggregate, so it
 * takes as long for ten million events as for ten thousand. */
#include "experiments/common/json_write.h"
#include "core/sentence.h"
#include "experiments/trace/trace_cli.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define RANKS_SHOWN 8
#define BAR 32
#define MOST_FIGURES 256

static const char *trace_summary_time(char text[24], double ns)
{
    return isnan(ns) ? "-" : trace_time(text, ns);
}

static void trace_summary_print_run(sqlite3 *db, FILE *out)
{
    char duration[24], residual[24];
    const char *op, *shape, *source, *executor, *fabric, *nic, *engine;
    long long nodes, gpus, events, messages, dropped, launches;
    double ns, within;
    QUERY q = query_ask(db,
                        "SELECT op, shape, source, executor, nodes, gpus, fabric, nic, "
                        "events, messages, duration_ns, dropped, residual_ns, (SELECT "
                        "count(*) FROM launch), " TRACE_ENGINE " FROM run",
                        "");
    if (query_row(q, "ttttiittiididit", &op, &shape, &source, &executor, &nodes, &gpus, &fabric,
                  &nic, &events, &messages, &ns, &dropped, &within, &launches, &engine)) {
        fprintf(out, "%s %s: %s, %s executor%s%s, %lld node%s x %lld rank%s", op, shape, source,
                executor, *engine ? ", engine " : "", engine, nodes, trace_plural(nodes), gpus,
                trace_plural(gpus));
        if (*fabric)
            fprintf(out, ", %s%s%s", fabric, *nic ? " on " : "", nic);
        fprintf(out, "\n%lld launch%s, %lld event%s, %lld message%s in %s; ", launches,
                launches == 1 ? "" : "es", events, trace_plural(events), messages,
                trace_plural(messages), trace_time(duration, isnan(ns) ? 0 : ns));
        if (dropped)
            fprintf(out, "%lld DROPPED (figures are of what was kept); ", dropped);
        else
            fprintf(out, "nothing dropped; ");
        fprintf(out, "clocks within %s\n", trace_time(residual, isnan(within) ? 0 : within));
    }
}

/* A figure by its name (view figures); NAN where there is none. */
static double trace_summary_figure(const struct trace_figure *f, int count, const char *section,
                                   const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(f[i].section, section) && !strcmp(f[i].name, name))
            return f[i].value[0];
    return NAN;
}

/* The ideal's share of the median launch, with its range over launches; a share that is smaller
 * than what launches differ by is none (view launch_spread). */
static void trace_summary_print_share(sqlite3 *db, double ns, double share, FILE *out)
{
    char least[24], most[24];
    long long count = 0, told = 0;
    double from = 0, to = 0, low = 0, high = 0;
    QUERY q = query_ask(db,
                        "SELECT count, least_ns, most_ns, least_share, most_share, told "
                        "FROM launch_spread",
                        "");
    if (!query_row(q, "iddddi", &count, &from, &to, &low, &high, &told) || count == 1)
        fprintf(out, ", ideal / slowest rank %.1f %% (of one launch)\n", share);
    else if (told)
        fprintf(out, ", ideal / slowest rank %.1f %%\n  %.1f to %.1f %% over %lld launches\n",
                share, low, high, count);
    else
        fprintf(out,
                "\n  their ratio says nothing, as launches differ by more: %s to %s over %lld "
                "launches\n",
                trace_time_like(least, from, ns), trace_time_like(most, to, ns), count);
}

static void trace_summary_print_launches(sqlite3 *db, const struct trace_figure *f, int count,
                                         FILE *out)
{
    char slowest[24], ideal[24], whole[24], most[24];
    double ns = trace_summary_figure(f, count, "launch", "median launch: slowest rank");
    double longest = trace_summary_figure(f, count, "launch", "slowest launch: slowest rank");
    if (isnan(ns))
        return;
    const char *basis = query_integer(db, 0, "SELECT max(basis = 'peak') FROM launches", "")
                            ? "at the machine's peak rates"
                            : "if nothing ever waited";
    fprintf(out, "median launch: slowest rank %s, ideal %s (%s)", trace_time(slowest, ns),
            trace_time_like(
                ideal,
                trace_summary_figure(f, count, "launch", "median launch: ideal of that rank"), ns),
            basis);
    trace_summary_print_share(
        db, ns, trace_summary_figure(f, count, "launch", "median launch: ideal / slowest rank"),
        out);
    fprintf(out, "  first start to last end %s; slowest launch: slowest rank %s\n",
            trace_time_like(
                whole,
                trace_summary_figure(f, count, "launch", "median launch: first start to last end"),
                longest),
            trace_time(most, longest));
}

/* A share as a bar, in the viewer's letters: # compute only, @ both, = communication only, space
 * idle. */
static void trace_summary_print_bar(FILE *out, const double share[4])
{
    static const char glyphs[] = {'#', '@', '=', ' '};
    double sum = 0;
    int at = 0;
    fputc('|', out);
    for (int i = 0; i < 4; i++) {
        sum += share[i];
        for (; at < (int)(sum * BAR / 100 + 0.5) && at < BAR; at++)
            fputc(glyphs[i], out);
    }
    for (; at < BAR; at++)
        fputc(' ', out);
    fputs("|\n", out);
}

static void trace_summary_print_overlap(sqlite3 *db, const struct trace_figure *f, int figures,
                                        FILE *out)
{
    int64_t ranks = query_integer(db, 0, "SELECT count(*) FROM overlap", "");
    double share[4], exposed;
    int rank;
    fprintf(out, "\noverlap, %% of launch time%s\n  rank  compute only   both  comm only   idle\n",
            ranks > RANKS_SHOWN ? " (ranks with the most exposed communication)" : "");
    QUERY q = query_ask(
        db,
        "SELECT * FROM (SELECT rank, compute_only, both, comm_only, idle FROM overlap ORDER BY "
        "overlap.comm_only DESC LIMIT ?1) ORDER BY rank",
        "i", (int64_t)RANKS_SHOWN);
    while (query_row(q, "ndddd", &rank, &share[0], &share[1], &share[2], &share[3])) {
        fprintf(out, "  %4d  %12.1f  %5.1f  %9.1f  %5.1f  ", rank, share[0], share[1], share[2],
                share[3]);
        trace_summary_print_bar(out, share);
    }
    static const char *const names[4] = {"compute only", "compute and communication",
                                         "communication only (exposed)", "idle"};
    for (int i = 0; i < 4; i++)
        share[i] = trace_summary_figure(f, figures, "overlap", names[i]);
    exposed = trace_summary_figure(f, figures, "overlap", "exposed, of all communication");
    if (ranks > 1 && !isnan(share[0])) {
        fprintf(out, "   all  %12.1f  %5.1f  %9.1f  %5.1f  ", share[0], share[1], share[2],
                share[3]);
        trace_summary_print_bar(out, share);
    }
    if (!isnan(exposed))
        fprintf(out,
                "  exposed communication: %.1f %% of it, on the worst rank %.1f %%  (# compute, @ "
                "both, = communication)\n",
                exposed, query_real(db, 0, "SELECT max(exposed) FROM exposed"));
    else
        fprintf(out, "  no communication was recorded\n");
}

static void trace_summary_print_roles(sqlite3 *db, FILE *out)
{
    const char *role;
    double v[6];
    fprintf(out, "\nCTAs in launches, %%     tile   copy  reduce  command   wait   other\n");
    QUERY q = query_ask(
        db,
        "SELECT *, max(0, 100 - tile - copy - reduce - command - wait) FROM (SELECT role, "
        "coalesce(max(share) FILTER (WHERE kind = 'tile'), 0) AS tile, coalesce(max(share) FILTER "
        "(WHERE kind = 'copy'), 0) AS copy, coalesce(max(share) FILTER (WHERE kind = 'reduce'), 0) "
        "AS reduce, coalesce(max(share) FILTER (WHERE kind = 'command'), 0) AS command, "
        "coalesce(max(share) FILTER (WHERE kind = 'wait'), 0) AS wait FROM role_share GROUP BY "
        "role_id)",
        "");
    while (query_row(q, "tdddddd", &role, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5]))
        fprintf(out, "  %-18s  %7.1f %6.1f %7.1f %8.1f %6.1f %7.1f\n", role, v[0], v[1], v[2], v[3],
                v[4], v[5]);
}

static void trace_summary_print_stalls(sqlite3 *db, FILE *out)
{
    char text[2][24];
    const char *role, *cause;
    long long count;
    double total, longest;
    int rows = 0;
    fprintf(out, "\nstalls by role and cause          count       total    longest\n");
    QUERY q = query_ask(
        db,
        "SELECT role, cause, sum(count), sum(ns), max(longest_ns) FROM stalls GROUP BY role, cause"
        " HAVING sum(ns) > 0 ORDER BY sum(ns) DESC LIMIT 6",
        "");
    for (; query_row(q, "ttidd", &role, &cause, &count, &total, &longest); rows++)
        fprintf(out, "  %-12s  %-13s  %9lld  %10s %10s\n", role, cause, count,
                trace_summary_time(text[0], total), trace_summary_time(text[1], longest));
    if (!rows)
        fprintf(out, "  no CTA waited\n");
}

static void trace_summary_print_messages(sqlite3 *db, FILE *out)
{
    char text[3][24];
    const char *name;
    long long count;
    double median, p99, most;
    if (!query_integer(db, 0, "SELECT messages FROM run", "")) {
        fprintf(out, "\nmessages: none crossed the network\n");
        return;
    }
    fprintf(out, "\nmessages by stage                 count      median        p99    longest\n");
    QUERY q = query_ask(db, "SELECT name, count, median_ns, p99_ns, max_ns FROM stage", "");
    while (query_row(q, "tiddd", &name, &count, &median, &p99, &most))
        fprintf(out, "  %-26s  %10lld  %10s %10s %10s\n", name, count,
                trace_summary_time(text[0], median), trace_summary_time(text[1], p99),
                trace_summary_time(text[2], most));
}

static void trace_summary_print_worst(sqlite3 *db, FILE *out)
{
    char text[2][24];
    const char *role, *what, *cause;
    long long message;
    double start, ns;
    int rank, cta, rows = 0;
    fprintf(out, "\nworst stalls\n");
    QUERY q = query_ask(
        db,
        "SELECT start, ns, rank, role, cta, waited_for, cause, message FROM worst_stalls LIMIT 5",
        "");
    for (; query_row(q, "ddntntto", &start, &ns, &rank, &role, &cta, &what, &cause, &message);
         rows++) {
        fprintf(out, "  %9s at %9s  rank %d CTA %d (%s) for %s", trace_summary_time(text[0], ns),
                trace_summary_time(text[1], start), rank, cta, role, *what ? what : cause);
        if (message != QUERY_NONE)
            fprintf(out, ", message %lld", message);
        fputc('\n', out);
    }
    if (!rows)
        fprintf(out, "  none\n");
}

static void trace_summary_print_ways(sqlite3 *db, FILE *out)
{
    char text[2][24];
    const char *what, *role, *kind, *direction;
    double share, bytes, busy, rate;
    int rank, rows = 0;
    fprintf(out, "\ncritical path:");
    QUERY q = query_ask(db, "SELECT what, role, share FROM critical_share LIMIT 4", "");
    for (; query_row(q, "ttd", &what, &role, &share); rows++)
        fprintf(out, "%s %.1f %% %s (%s)", rows ? "," : "", share, what, role);
    fprintf(out, "%s\nbusiest link: ", rows ? "" : " none");
    QUERY busiest =
        query_ask(db,
                  "SELECT kind, rank, direction, bytes, busy, bytes * 1e9 / max(1, busy_ns) FROM "
                  "busiest_link LIMIT 1",
                  "");
    if (query_row(busiest, "tntddd", &kind, &rank, &direction, &bytes, &busy, &rate))
        fprintf(out, "%s %s of rank %d, %s, busy %.1f %% of the run, %s/s while busy\n", kind,
                direction, rank, trace_bytes(text[0], bytes), busy, trace_bytes(text[1], rate));
    else
        fprintf(out, "none was used\n");
}

static void trace_summary_print_losses(sqlite3 *db, FILE *out)
{
    char text[24],
        samples[48] = ""; /* a GPU's clock is mapped as it runs: its samples are not kept */
    const char *where;
    long long dropped;
    double residual;
    int rank, used, count;
    QUERY q = query_ask(
        db, "SELECT rank, \"where\", dropped FROM drops ORDER BY dropped DESC LIMIT 4", "");
    while (query_row(q, "nti", &rank, &where, &dropped))
        fprintf(out, "dropped: rank %d, %s: %lld\n", rank, where, dropped);
    QUERY clocks =
        query_ask(db,
                  "SELECT rank, domain, residual_ns, used, samples FROM clock_quality WHERE "
                  "residual_ns > 0 ORDER BY residual_ns DESC LIMIT 1",
                  "");
    if (query_row(clocks, "ntdnn", &rank, &where, &residual, &used, &count)) {
        if (count)
            snprintf(samples, sizeof samples, " (%d of %d samples)", used, count);
        fprintf(out,
                "worst clock: rank %d's %s clock, within %s%s; order inside that is not known\n",
                rank, where, trace_summary_time(text, residual), samples);
    }
}

int trace_report_summary(sqlite3 *db, FILE *out, char *error, size_t size)
{
    struct trace_figure figures[MOST_FIGURES];
    int count = trace_figures(db, NULL, figures, MOST_FIGURES);
    trace_summary_print_run(db, out);
    trace_summary_print_launches(db, figures, count, out);
    trace_summary_print_overlap(db, figures, count, out);
    trace_summary_print_roles(db, out);
    trace_summary_print_stalls(db, out);
    trace_summary_print_messages(db, out);
    trace_summary_print_worst(db, out);
    trace_summary_print_ways(db, out);
    trace_summary_print_losses(db, out);
    int rc = sqlite3_errcode(db);
    if (rc == SQLITE_CORRUPT || rc == SQLITE_IOERR || rc == SQLITE_ERROR)
        return mk_fail(-EBADMSG, error, size, "the trace is damaged: %s", sqlite3_errmsg(db));
    if (fflush(out) != 0)
        return mk_fail(-EIO, error, size, "cannot write the summary: %s", strerror(errno));
    return 0;
}

int trace_report_json(sqlite3 *db, FILE *out, char *error, size_t size)
{
    struct trace_figure figures[MOST_FIGURES];
    int count = trace_figures(db, NULL, figures, MOST_FIGURES);
    fputs("{\n", out);
    const char *text[5];
    double number[4];
    QUERY q = query_ask(db,
                        "SELECT op, shape, source, executor, " TRACE_ENGINE
                        " AS engine, nodes, gpus, events, dropped FROM run",
                        "");
    if (query_row(q, "tttttdddd", &text[0], &text[1], &text[2], &text[3], &text[4], &number[0],
                  &number[1], &number[2], &number[3]))
        for (int i = 0; i < 9; i++)
            i < 5 ? json_text(out, sqlite3_column_name(q, i), text[i])
                  : json_number(out, sqlite3_column_name(q, i), number[i - 5]);
    for (int i = 0; i < count; i++) {
        char name[sizeof figures->section + sizeof figures->name + sizeof figures->unit + 8];
        snprintf(name, sizeof name, "%s: %s%s%s", figures[i].section, figures[i].name,
                 *figures[i].unit ? ", " : "", figures[i].unit);
        json_number(out, name, figures[i].value[0]);
    }
    fprintf(out, "  \"launches\": %lld\n}\n",
            (long long)query_integer(db, 0, "SELECT count(*) FROM launch", ""));
    if (fflush(out) != 0)
        return mk_fail(-EIO, error, size, "cannot write the figures: %s", strerror(errno));
    return 0;
}
