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

static const char *trace_summary_text_of(sqlite3_stmt *q, int column)
{
    const char *t = (const char *)sqlite3_column_text(q, column);
    return t ? t : "";
}

static const char *trace_summary_time_of(char text[24], sqlite3_stmt *q, int column)
{
    if (sqlite3_column_type(q, column) == SQLITE_NULL)
        return "-";
    return trace_time(text, sqlite3_column_double(q, column));
}

static void trace_summary_print_run(sqlite3 *db, FILE *out)
{
    char duration[24], residual[24];
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT op, shape, source, executor, nodes, gpus, fabric, nic, "
        "events, messages, duration_ns,"
        " dropped, residual_ns, (SELECT count(*) FROM launch), " TRACE_ENGINE " FROM run",
        0, 0);
    if (sqlite3_step(q) == SQLITE_ROW) {
        const char *engine = trace_summary_text_of(q, 14);
        fprintf(out, "%s %s: %s, %s executor%s%s, %d node%s x %d rank%s",
                trace_summary_text_of(q, 0), trace_summary_text_of(q, 1),
                trace_summary_text_of(q, 2), trace_summary_text_of(q, 3),
                *engine ? ", engine " : "", engine, sqlite3_column_int(q, 4),
                trace_plural(sqlite3_column_int64(q, 4)), sqlite3_column_int(q, 5),
                trace_plural(sqlite3_column_int64(q, 5)));
        if (*trace_summary_text_of(q, 6))
            fprintf(out, ", %s%s%s", trace_summary_text_of(q, 6),
                    *trace_summary_text_of(q, 7) ? " on " : "", trace_summary_text_of(q, 7));
        int64_t launches = sqlite3_column_int64(q, 13), events = sqlite3_column_int64(q, 8),
                messages = sqlite3_column_int64(q, 9);
        fprintf(out, "\n%lld launch%s, %lld event%s, %lld message%s in %s; ", (long long)launches,
                launches == 1 ? "" : "es", (long long)events, trace_plural(events),
                (long long)messages, trace_plural(messages),
                trace_time(duration, sqlite3_column_double(q, 10)));
        if (sqlite3_column_int64(q, 11))
            fprintf(out, "%lld DROPPED (figures are of what was kept); ",
                    (long long)sqlite3_column_int64(q, 11));
        else
            fprintf(out, "nothing dropped; ");
        fprintf(out, "clocks within %s\n", trace_time(residual, sqlite3_column_double(q, 12)));
    }
    sqlite3_finalize(q);
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
    sqlite3_stmt *q = trace_query(db,
                                  "SELECT count, least_ns, most_ns, least_share, most_share, told "
                                  "FROM launch_spread",
                                  0, 0);
    int one = sqlite3_step(q) != SQLITE_ROW || sqlite3_column_int64(q, 0) == 1;
    long long count = sqlite3_column_int64(q, 0);
    if (one)
        fprintf(out, ", ideal / slowest rank %.1f %% (of one launch)\n", share);
    else if (sqlite3_column_int(q, 5))
        fprintf(out, ", ideal / slowest rank %.1f %%\n  %.1f to %.1f %% over %lld launches\n",
                share, sqlite3_column_double(q, 3), sqlite3_column_double(q, 4), count);
    else
        fprintf(out,
                "\n  their ratio says nothing, as launches differ by more: %s to %s over %lld "
                "launches\n",
                trace_time_like(least, sqlite3_column_double(q, 1), ns),
                trace_time_like(most, sqlite3_column_double(q, 2), ns), count);
    sqlite3_finalize(q);
}

static void trace_summary_print_launches(sqlite3 *db, const struct trace_figure *f, int count,
                                         FILE *out)
{
    char slowest[24], ideal[24], whole[24], most[24];
    double ns = trace_summary_figure(f, count, "launch", "median launch: slowest rank");
    double longest = trace_summary_figure(f, count, "launch", "slowest launch: slowest rank");
    if (isnan(ns))
        return;
    const char *basis = trace_integer(db, "SELECT max(basis = 'peak') FROM launches", 0)
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
    int64_t ranks = trace_integer(db, "SELECT count(*) FROM overlap", 0);
    fprintf(out, "\noverlap, %% of launch time%s\n  rank  compute only   both  comm only   idle\n",
            ranks > RANKS_SHOWN ? " (ranks with the most exposed communication)" : "");
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT * FROM (SELECT rank, compute_only, both, comm_only, idle FROM overlap ORDER BY "
        "overlap.comm_only DESC LIMIT ?1) ORDER BY rank",
        RANKS_SHOWN, 0);
    while (sqlite3_step(q) == SQLITE_ROW) {
        double share[4];
        for (int i = 0; i < 4; i++)
            share[i] = sqlite3_column_double(q, i + 1);
        fprintf(out, "  %4d  %12.1f  %5.1f  %9.1f  %5.1f  ", sqlite3_column_int(q, 0), share[0],
                share[1], share[2], share[3]);
        trace_summary_print_bar(out, share);
    }
    sqlite3_finalize(q);
    double all[4],
        exposed = trace_summary_figure(f, figures, "overlap", "exposed, of all communication");
    static const char *const names[4] = {"compute only", "compute and communication",
                                         "communication only (exposed)", "idle"};
    for (int i = 0; i < 4; i++)
        all[i] = trace_summary_figure(f, figures, "overlap", names[i]);
    if (ranks > 1 && !isnan(all[0])) {
        fprintf(out, "   all  %12.1f  %5.1f  %9.1f  %5.1f  ", all[0], all[1], all[2], all[3]);
        trace_summary_print_bar(out, all);
    }
    if (!isnan(exposed))
        fprintf(out,
                "  exposed communication: %.1f %% of it, on the worst rank %.1f %%  (# compute, @ "
                "both, = communication)\n",
                exposed, trace_real(db, "SELECT max(exposed) FROM exposed", 0));
    else
        fprintf(out, "  no communication was recorded\n");
}

static void trace_summary_print_roles(sqlite3 *db, FILE *out)
{
    fprintf(out, "\nCTAs in launches, %%     tile   copy  reduce  command   wait   other\n");
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT role, max(share) FILTER (WHERE kind = 'tile'), max(share) FILTER (WHERE kind = "
        "'copy'), max(share) FILTER (WHERE kind = 'reduce'), max(share) FILTER (WHERE kind = "
        "'command'), max(share) FILTER (WHERE kind = 'wait') FROM role_share GROUP BY role_id",
        0, 0);
    while (sqlite3_step(q) == SQLITE_ROW) {
        double share[5], rest = 100;
        for (int i = 0; i < 5; i++)
            rest -= share[i] = sqlite3_column_double(q, i + 1);
        fprintf(out, "  %-18s  %7.1f %6.1f %7.1f %8.1f %6.1f %7.1f\n", trace_summary_text_of(q, 0),
                share[0], share[1], share[2], share[3], share[4], rest > 0 ? rest : 0);
    }
    sqlite3_finalize(q);
}

static void trace_summary_print_stalls(sqlite3 *db, FILE *out)
{
    char total[24], longest[24];
    fprintf(out, "\nstalls by role and cause          count       total    longest\n");
    sqlite3_stmt *q = trace_query(
        db,
        "SELECT role, cause, sum(count), sum(ns), max(longest_ns) FROM stalls GROUP BY role, cause"
        " HAVING sum(ns) > 0 ORDER BY sum(ns) DESC LIMIT 6",
        0, 0);
    int rows = 0;
    for (; sqlite3_step(q) == SQLITE_ROW; rows++)
        fprintf(out, "  %-12s  %-13s  %9lld  %10s %10s\n", trace_summary_text_of(q, 0),
                trace_summary_text_of(q, 1), (long long)sqlite3_column_int64(q, 2),
                trace_summary_time_of(total, q, 3), trace_summary_time_of(longest, q, 4));
    sqlite3_finalize(q);
    if (!rows)
        fprintf(out, "  no CTA waited\n");
}

static void trace_summary_print_messages(sqlite3 *db, FILE *out)
{
    char median[24], p99[24], most[24];
    if (!trace_integer(db, "SELECT messages FROM run", 0)) {
        fprintf(out, "\nmessages: none crossed the network\n");
        return;
    }
    fprintf(out, "\nmessages by stage                 count      median        p99    longest\n");
    sqlite3_stmt *q =
        trace_query(db, "SELECT name, count, median_ns, p99_ns, max_ns FROM stage", 0, 0);
    while (sqlite3_step(q) == SQLITE_ROW)
        fprintf(out, "  %-26s  %10lld  %10s %10s %10s\n", trace_summary_text_of(q, 0),
                (long long)sqlite3_column_int64(q, 1), trace_summary_time_of(median, q, 2),
                trace_summary_time_of(p99, q, 3), trace_summary_time_of(most, q, 4));
    sqlite3_finalize(q);
}

static void trace_summary_print_worst(sqlite3 *db, FILE *out)
{
    char at[24], ns[24];
    fprintf(out, "\nworst stalls\n");
    sqlite3_stmt *q = trace_query(db,
                                  "SELECT start, ns, rank, role, cta, waited_for, cause, message, "
                                  "producer FROM worst_stalls LIMIT 5",
                                  0, 0);
    int rows = 0;
    for (; sqlite3_step(q) == SQLITE_ROW; rows++) {
        fprintf(out, "  %9s at %9s  rank %d CTA %d (%s) for %s", trace_summary_time_of(ns, q, 1),
                trace_summary_time_of(at, q, 0), sqlite3_column_int(q, 2), sqlite3_column_int(q, 4),
                trace_summary_text_of(q, 3),
                *trace_summary_text_of(q, 5) ? trace_summary_text_of(q, 5)
                                             : trace_summary_text_of(q, 6));
        if (sqlite3_column_type(q, 7) != SQLITE_NULL)
            fprintf(out, ", message %lld", (long long)sqlite3_column_int64(q, 7));
        fputc('\n', out);
    }
    sqlite3_finalize(q);
    if (!rows)
        fprintf(out, "  none\n");
}

static void trace_summary_print_ways(sqlite3 *db, FILE *out)
{
    char bytes[24], rate[24];
    fprintf(out, "\ncritical path:");
    sqlite3_stmt *q = trace_query(db, "SELECT what, role, share FROM critical_share LIMIT 4", 0, 0);
    int rows = 0;
    for (; sqlite3_step(q) == SQLITE_ROW; rows++)
        fprintf(out, "%s %.1f %% %s (%s)", rows ? "," : "", sqlite3_column_double(q, 2),
                trace_summary_text_of(q, 0), trace_summary_text_of(q, 1));
    sqlite3_finalize(q);
    fprintf(out, "%s\nbusiest link: ", rows ? "" : " none");
    q = trace_query(db,
                    "SELECT kind, rank, direction, bytes, busy, bytes * 1e9 / max(1, busy_ns) FROM "
                    "busiest_link LIMIT 1",
                    0, 0);
    if (sqlite3_step(q) == SQLITE_ROW)
        fprintf(out, "%s %s of rank %d, %s, busy %.1f %% of the run, %s/s while busy\n",
                trace_summary_text_of(q, 0), trace_summary_text_of(q, 2), sqlite3_column_int(q, 1),
                trace_bytes(bytes, sqlite3_column_double(q, 3)), sqlite3_column_double(q, 4),
                trace_bytes(rate, sqlite3_column_double(q, 5)));
    else
        fprintf(out, "none was used\n");
    sqlite3_finalize(q);
}

static void trace_summary_print_losses(sqlite3 *db, FILE *out)
{
    sqlite3_stmt *q = trace_query(
        db, "SELECT rank, \"where\", dropped FROM drops ORDER BY dropped DESC LIMIT 4", 0, 0);
    while (sqlite3_step(q) == SQLITE_ROW)
        fprintf(out, "dropped: rank %d, %s: %lld\n", sqlite3_column_int(q, 0),
                trace_summary_text_of(q, 1), (long long)sqlite3_column_int64(q, 2));
    sqlite3_finalize(q);
    char residual[24];
    q = trace_query(db,
                    "SELECT rank, domain, residual_ns, used, samples FROM clock_quality WHERE "
                    "residual_ns > 0 ORDER BY residual_ns DESC LIMIT 1",
                    0, 0);
    if (sqlite3_step(q) == SQLITE_ROW) {
        char samples[48] = ""; /* a GPU's clock is mapped as it runs: its samples are not kept */
        if (sqlite3_column_int(q, 4))
            snprintf(samples, sizeof samples, " (%d of %d samples)", sqlite3_column_int(q, 3),
                     sqlite3_column_int(q, 4));
        fprintf(out,
                "worst clock: rank %d's %s clock, within %s%s; order inside that is not known\n",
                sqlite3_column_int(q, 0), trace_summary_text_of(q, 1),
                trace_summary_time_of(residual, q, 2), samples);
    }
    sqlite3_finalize(q);
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
    sqlite3_stmt *q = trace_query(db,
                                  "SELECT op, shape, source, executor, " TRACE_ENGINE
                                  " AS engine, nodes, gpus, events, dropped FROM run",
                                  0, 0);
    for (int i = 0, row = sqlite3_step(q) == SQLITE_ROW; row && i < sqlite3_column_count(q); i++)
        if (i < 5)
            json_text(out, sqlite3_column_name(q, i), trace_summary_text_of(q, i));
        else
            json_number(out, sqlite3_column_name(q, i), sqlite3_column_double(q, i));
    sqlite3_finalize(q);
    for (int i = 0; i < count; i++) {
        char name[sizeof figures->section + sizeof figures->name + sizeof figures->unit + 8];
        snprintf(name, sizeof name, "%s: %s%s%s", figures[i].section, figures[i].name,
                 *figures[i].unit ? ", " : "", figures[i].unit);
        json_number(out, name, figures[i].value[0]);
    }
    fprintf(out, "  \"launches\": %lld\n}\n",
            (long long)trace_integer(db, "SELECT count(*) FROM launch", 0));
    if (fflush(out) != 0)
        return mk_fail(-EIO, error, size, "cannot write the figures: %s", strerror(errno));
    return 0;
}
