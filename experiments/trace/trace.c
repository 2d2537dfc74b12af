/* `mkernel trace`: reports on a trace file. */
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "core/base/sentence.h"
#include "experiments/common/nearest.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "experiments/common/picture.h"
#include "experiments/trace/trace_cli.h"
#include "experiments/common/trace_output.h"
#include "tracer/bound.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* Everything that any subcommand takes. */
struct asked {
    const char *out;
    uint64_t from, to, rank, launch;
    int chrome, gzip, csv, kind, data, json, role;
};

#define AT(field) .offset = offsetof(struct asked, field)

const char *const trace_plots[] = {"timeline", "overlap"};

static const char *const roles[MK_ROLES] = {[MK_COMPUTE] = "compute",
                                            [MK_INTRA_COMM] = "intra_comm",
                                            [MK_INTER_SEND] = "inter_send",
                                            [MK_INTER_REDUCE] = "inter_reduce"};

/* Tables read by rows. */
/* clang-format off */
#define OUT_SPEC(help) {"out", OPTION_TEXT, AT(out), "FILE", help}
#define LAUNCH_SPEC(help) {"launch", OPTION_NUMBERS, AT(launch), "N", help, 1, UINT32_MAX}
#define JSON_SPEC(help) {"json", OPTION_FLAG, AT(json), NULL, help}
/* What of a trace: of export and plot alike. */
#define PART_SPECS \
    {"from", OPTION_SECONDS, AT(from), "TIME", "leave out what ended before. Default 0", 0,        \
     INT64_MAX},                                                                                   \
    {"to", OPTION_SECONDS, AT(to), "TIME", "leave out what began after. Default: the end", 0,      \
     INT64_MAX},                                                                                   \
    {"rank", OPTION_NUMBERS, AT(rank), "R", "this rank only", 0, MK_MAX_RANKS - 1}, \
    LAUNCH_SPEC("this launch only. Default: all")

static const struct option_spec export_specs[] = {
    {"chrome", OPTION_FLAG, AT(chrome), NULL,
     "the Trace Event Format's JSON (the default, and the only form)"},
    OUT_SPEC("the file to write; FILE.gz is compressed. Default: standard output, if no terminal"),
    PART_SPECS,
    {"gzip", OPTION_FLAG, AT(gzip), NULL,
     "compresses the output, as --out FILE.gz does. Perfetto opens it"},
};
static const struct option_spec summary_specs[] = {
    JSON_SPEC("its figures (view figures) as one object, times in ns"),
};
static const struct option_spec sql_specs[] = {
    {"csv", OPTION_FLAG, AT(csv), NULL, "commas and quotes instead of tabs"},
};
static const struct option_spec why_specs[] = {
    LAUNCH_SPEC("this launch. Default: the median one"),
    JSON_SPEC("one object, times in ns"),
};
static const struct option_spec plot_specs[] = {
    {"kind", OPTION_WORD, AT(kind), "timeline|overlap", "what to draw. Default timeline",
     .words = trace_plots, .word_count = 2},
    OUT_SPEC("a .png or .svg. Default trace.png"),
    PART_SPECS,
    {"role", OPTION_WORD, AT(role), "ROLE", "this role's CTAs only",
     .words = roles, .word_count = MK_ROLES},
    {"data", OPTION_FLAG, AT(data), NULL, "print what would be drawn, as JSON, instead of drawing"},
};
/* clang-format on */

#define SPECS(s) .specs = s, .count = sizeof s / sizeof *s
static const struct option_table summary_table = {
    .usage = "trace summary FILE [OPTIONS]",
    .about = "One screenful: overlap, exposed communication, efficiency, time by role, stalls, "
             "messages, drops, clocks.",
    SPECS(summary_specs),
    .examples = "  mkernel trace summary run.db\n  mkernel trace summary run.db --json\n"};
static const struct option_table why_table = {
    .usage = "trace why FILE [OPTIONS]",
    .about = "Where a launch's time goes on its slowest rank: launch, products, waits by cause, "
             "tail, exchange; the parts add up.",
    SPECS(why_specs),
    .examples = "  mkernel trace why run.db --launch 3\n"};
static const struct option_table diff_table = {
    .usage = "trace diff A B",
    .about = "Two runs, figure by figure: measured against simulated, or two role splits.",
    .examples = "  mkernel trace diff measured.db simulated.db\n"};
static const struct option_table export_table = {
    .usage = "trace export FILE [OPTIONS]",
    .about = "Writes JSON that ui.perfetto.dev and chrome://tracing open.",
    SPECS(export_specs),
    .examples = "  mkernel trace export run.db --out run.json.gz\n  mkernel trace export run.db "
                "--launch 3 --out launch.json\n"
                "  mkernel trace export run.db --from 1ms --to 2ms --rank 0 > part.json\n"};
static const struct option_table sql_table = {
    .usage = "trace sql FILE [QUERY]",
    .about =
        "Runs a query, or lists the tables and views that there are. docs/TRACE.md explains them.",
    SPECS(sql_specs),
    .examples = "  mkernel trace sql run.db\n  mkernel trace sql run.db 'SELECT * FROM "
                "worst_stalls LIMIT 10'\n"};
static const struct option_table plot_table = {
    .usage = "trace plot FILE [OPTIONS]",
    .about = "Draws role timelines or overlap bars.",
    SPECS(plot_specs),
    .examples =
        "  mkernel trace plot run.db --launch 3 --out timeline.svg\n  mkernel trace plot run.db "
        "--kind overlap --out overlap.png\n"};
/* 0, or -EBADMSG with a sentence where a query met damage: what it gave is not all. */
static int trace_check_damage(char *error, size_t size)
{
    if (!trace_damage())
        return 0;
    return mk_fail(-EBADMSG, error, size, "the trace is damaged, and this is not all of it: %s",
                   trace_damage());
}

static int trace_run_summary(sqlite3 *const db[2], struct asked *a, struct options_found *f,
                             char *error, size_t size)
{
    int rc = a->json ? trace_report_json(db[0], stdout, error, size)
                     : trace_report_summary(db[0], stdout, error, size);
    rc = rc ? rc : trace_check_damage(error, size);
    return rc ? STATUS_FAILED : STATUS_DONE;
}

static int trace_run_why(sqlite3 *const db[2], struct asked *a, struct options_found *f,
                         char *error, size_t size)
{
    int rc = trace_report_why(db[0], a->launch, a->json, stdout, error, size), none = rc == -ERANGE;
    rc = rc ? rc : trace_check_damage(error, size);
    return none ? STATUS_USAGE : rc ? STATUS_FAILED : STATUS_DONE;
}

static int trace_run_diff(sqlite3 *const db[2], struct asked *a, struct options_found *f,
                          char *error, size_t size)
{
    int rc = trace_report_diff(db[0], db[1], stdout, error, size);
    rc = rc ? rc : trace_check_damage(error, size);
    return rc ? STATUS_FAILED : STATUS_DONE;
}

static int trace_check_export(const struct asked *a, const struct options_found *f, char *error,
                              size_t size)
{
    if (options_given(&export_table, f, "to") && a->to < a->from)
        return mk_fail(STATUS_USAGE, error, size, "--to lies before --from");
    if (!a->out && isatty(STDOUT_FILENO))
        return mk_fail(STATUS_USAGE, error, size,
                       "it writes megabytes of JSON, and standard output is a "
                       "terminal: --out FILE, or a pipe");
    if (output_same(a->out, f->words[0]))
        return mk_fail(STATUS_USAGE, error, size, "--out %s is the trace itself", a->out);
    return trace_output_check(a->out, error, size) ? STATUS_USAGE : 0;
}

static int trace_run_export(sqlite3 *const db[2], struct asked *a, struct options_found *f,
                            char *error, size_t size)
{
    struct trace_export what = {.from = a->from,
                                .to = options_given(&export_table, f, "to") ? a->to : UINT64_MAX,
                                .rank =
                                    options_given(&export_table, f, "rank") ? (int64_t)a->rank : -1,
                                .launch = a->launch};
    int64_t begin, end;
    int64_t ranks = query_integer(db[0], 0, "SELECT count(*) FROM rank", "");
    if (what.rank >= ranks)
        return mk_fail(STATUS_USAGE, error, size,
                       "there is no rank %ld; the trace has ranks 0 to %ld", what.rank, ranks - 1);
    if (a->launch && trace_launch(db[0], a->launch, &begin, &end, error, size))
        return STATUS_USAGE;
    if (a->launch) { /* what it did lies in its time */
        what.from = (uint64_t)begin > what.from ? (uint64_t)begin : what.from;
        what.to = (uint64_t)end < what.to ? (uint64_t)end : what.to;
    }
    struct trace_output o;
    size_t length = a->out ? strlen(a->out) : 0;
    int gzip = a->gzip || (length > 3 && !strcmp(a->out + length - 3, ".gz"));
    int rc = trace_output_open(&o, a->out, gzip, error, size);
    if (!rc) {
        trace_export_chrome(db[0], &what, o.out);
        rc = trace_output_close(&o, trace_check_damage(error, size), error, size);
    }
    return rc ? STATUS_FAILED : STATUS_DONE;
}

static void trace_print_field(const char *text, int csv)
{
    if (!csv || !strpbrk(text, ",\"\n")) {
        fputs(text, stdout);
        return;
    }
    putchar('"');
    for (; *text; text++)
        printf(*text == '"' ? "\"\"" : "%c", *text);
    putchar('"');
}

static int trace_run_query(sqlite3 *db, const char *sql, int csv, char *error, size_t size)
{
    const char *rest = sql;
    while (*rest) {
        QUERY q = NULL;
        if (sqlite3_prepare_v2(db, rest, -1, &q, &rest) != SQLITE_OK)
            break;
        if (!q)
            continue; /* a comment or blanks */
        int columns = sqlite3_column_count(q);
        for (int i = 0; i < columns; i++) {
            fputs(i ? (csv ? "," : "\t") : "", stdout);
            trace_print_field(sqlite3_column_name(q, i), csv);
        }
        if (columns)
            putchar('\n');
        int rc;
        while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
            for (int i = 0; i < columns; i++) {
                const char *text = (const char *)sqlite3_column_text(q, i);
                fputs(i ? (csv ? "," : "\t") : "", stdout);
                trace_print_field(text ? text : "", csv);
            }
            putchar('\n');
        }
        if (rc != SQLITE_DONE)
            break;
    }
    if (sqlite3_errcode(db) == SQLITE_OK || sqlite3_errcode(db) == SQLITE_DONE)
        return 0;
    return mk_fail(-EINVAL, error, size, "%s", sqlite3_errmsg(db));
}

static int trace_check_sql(const struct asked *a, const struct options_found *f, char *error,
                           size_t size)
{
    if (f->word_count > 1 && !*f->words[1])
        return mk_fail(STATUS_USAGE, error, size, "the query is empty");
    return 0;
}

static int trace_run_sql(sqlite3 *const db[2], struct asked *a, struct options_found *f,
                         char *error, size_t size)
{
    const char *list =
        "SELECT type, name, (SELECT group_concat(name, ' ') FROM pragma_table_info(m.name)) AS "
        "columns FROM"
        " (SELECT type, name FROM sqlite_master UNION SELECT type, name FROM sqlite_temp_master) m"
        " WHERE type IN ('table', 'view') ORDER BY type DESC, name";
    if (f->word_count > 1)
        bound_end(db[0]);
    int rc = trace_run_query(db[0], f->word_count > 1 ? f->words[1] : list, a->csv, error, size);
    return rc ? STATUS_USAGE : STATUS_DONE;
}

static const char *trace_plot_out(const struct asked *a)
{
    return a->out ? a->out : "trace.png";
}

static int trace_check_plot(const struct asked *a, const struct options_found *f, char *error,
                            size_t size)
{
    const struct option_table *t = &plot_table;
    if (picture_check_path("--out", trace_plot_out(a), error, size))
        return STATUS_USAGE;
    if (options_given(t, f, "to") && a->to <= a->from)
        return mk_fail(STATUS_USAGE, error, size, "--to does not lie behind --from");
    if (a->kind == TRACE_PLOT_OVERLAP &&
        (options_given(t, f, "role") || a->from || options_given(t, f, "to")))
        return mk_fail(STATUS_USAGE, error, size,
                       "--role, --from and --to go with --kind timeline");
    return !a->data && trace_output_check(trace_plot_out(a), error, size) ? STATUS_USAGE : 0;
}

static int trace_run_plot(sqlite3 *const db[2], struct asked *a, struct options_found *f,
                          char *error, size_t size)
{
    const struct option_table *t = &plot_table;
    const struct trace_plot_part part = {
        .launch = a->launch,
        .rank = options_given(t, f, "rank") ? (int64_t)a->rank : -1,
        .role = options_given(t, f, "role") ? a->role : -1,
        .from = a->from,
        .to = options_given(t, f, "to") ? a->to : UINT64_MAX,
    };
    int rc = trace_plot(db[0], a->kind, &part, a->data ? NULL : trace_plot_out(a), error, size);
    if (rc == -ERANGE)
        return STATUS_USAGE;
    return rc ? STATUS_FAILED : STATUS_DONE;
}

static const struct {
    const char *name;
    const struct option_table *table;
    int files, most; /* words that it takes besides options: files, and perhaps another */
    const char *missing;
    int (*run)(sqlite3 *const db[2], struct asked *a, struct options_found *f, char *error,
               size_t size);
    /* what can be said before a file is opened; NULL: nothing */
    int (*check)(const struct asked *a, const struct options_found *f, char *error, size_t size);
} commands[] = {
    {"summary", &summary_table, 1, 1, "one trace file", trace_run_summary, NULL},
    {"why", &why_table, 1, 1, "one trace file", trace_run_why, NULL},
    {"diff", &diff_table, 2, 2, "two trace files", trace_run_diff, NULL},
    {"export", &export_table, 1, 1, "one trace file", trace_run_export, trace_check_export},
    {"sql", &sql_table, 1, 2, "one trace file, and at most one query", trace_run_sql,
     trace_check_sql},
    {"plot", &plot_table, 1, 1, "one trace file", trace_run_plot, trace_check_plot},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void trace_print_help(void)
{
    printf("mkernel trace: summarise, compare, query, plot or export a trace file\n\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  mkernel %-32s %s\n", commands[i].table->usage, commands[i].table->about);
    printf("\nexamples:\n");
    for (int i = 0; i < COMMANDS; i++)
        fputs(commands[i].table->examples, stdout);
    printf("\nA trace is made by `mkernel run OP --trace FILE`. `mkernel trace COMMAND --help` "
           "tells more.\n");
}

int command_trace(int argc, char **argv)
{
    const char *names[COMMANDS];
    char error[512] = "", name[32], near[NEAREST_TEXT];
    trace_watch_damage();
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of write */
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        trace_print_help();
        return STATUS_DONE;
    }
    for (int i = 0; argc > 1 && i < COMMANDS; i++) {
        struct asked a = {0};
        struct options_found f = {0};
        names[i] = commands[i].name;
        if (strcmp(argv[1], names[i]))
            continue;
        snprintf(name, sizeof name, "trace %s", names[i]);
        int ends = command_options(name, commands[i].table, 8, argc - 1, argv + 1, &a, &f);
        if (ends >= 0)
            return ends;
        if (f.word_count < commands[i].files || f.word_count > commands[i].most)
            return command_refuse(name, "it takes %s", commands[i].missing);
        sqlite3 *db[2] = {NULL};
        int status = commands[i].check ? commands[i].check(&a, &f, error, sizeof error) : 0;
        for (int file = 0; file < commands[i].files && !status; file++)
            status = trace_open(&db[file], f.words[file], error, sizeof error) ? STATUS_USAGE : 0;
        status = status ? status : commands[i].run(db, &a, &f, error, sizeof error);
        sqlite3_close(db[0]);
        sqlite3_close(db[1]);
        return status ? command_say(name, status, "%s", error) : status;
    }
    if (argc < 2)
        return command_refuse("trace", "which report? summary, why, diff, export, sql or plot");
    return command_say("trace", STATUS_USAGE,
                       "there is no report %s%s; `mkernel trace --help` lists them", argv[1],
                       nearest_hint(near, argv[1], "", names, COMMANDS));
}
