/* `mkernel trace`: reports on a trace file, and a generator of large ones. */
#include "experiments/common/commands.h"
#include "experiments/common/gnuplot.h"
#include "experiments/common/nearest.h"
#include "experiments/common/options.h"
#include "experiments/common/output_file.h"
#include "experiments/trace/trace_cli.h"
#include "experiments/common/trace_output.h"
#include "tracer/generate.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Everything that any subcommand takes. */
struct asked {
    const char *out;
    uint64_t from, to, rank, launch, events, nodes, gpus, ctas, seed;
    int chrome, gzip, csv, kind, script, json, role;
};

#define AT(field) .offset = offsetof(struct asked, field)

static const char *const plots[] = {"timeline", "overlap"};

static const char *const roles[MK_ROLES] = {[MK_COMPUTE] = "compute",
                                            [MK_INTRA_COMM] = "intra_comm",
                                            [MK_INTER_SEND] = "inter_send",
                                            [MK_INTER_REDUCE] = "inter_reduce"};

/* What of a trace: of export and plot alike. */
#define PART_SPECS                                                                                 \
    {.name = "from",                                                                               \
     .type = OPTION_SECONDS,                                                                       \
     AT(from),                                                                                     \
     .value = "TIME",                                                                              \
     .help = "leave out what ended before. Default 0",                                             \
     .max = INT64_MAX},                                                                            \
        {.name = "to",                                                                             \
         .type = OPTION_SECONDS,                                                                   \
         AT(to),                                                                                   \
         .value = "TIME",                                                                          \
         .help = "leave out what began after. Default: the end",                                   \
         .max = INT64_MAX},                                                                        \
    {                                                                                              \
        .name = "rank", .type = OPTION_NUMBERS, AT(rank), .value = "R", .help = "this rank only",  \
        .max = MK_MAX_RANKS - 1                                                                    \
    }

static const struct option_spec export_specs[] = {
    {.name = "chrome",
     .type = OPTION_FLAG,
     AT(chrome),
     .help = "the Trace Event Format's JSON (the default, and the only form)"},
    {.name = "out",
     .type = OPTION_TEXT,
     AT(out),
     .value = "FILE",
     .help =
         "where to; a FILE.gz is compressed. Default: standard output, where that is no terminal"},
    PART_SPECS,
    {.name = "launch",
     .type = OPTION_NUMBERS,
     AT(launch),
     .value = "N",
     .help = "this launch only. Default: all",
     .min = 1,
     .max = UINT32_MAX},
    {.name = "gzip",
     .type = OPTION_FLAG,
     AT(gzip),
     .help = "compressed, as --out FILE.gz is without asking. Perfetto opens it so"},
};
static const struct option_spec summary_specs[] = {
    {.name = "json",
     .type = OPTION_FLAG,
     AT(json),
     .help = "its figures (view figures) as one object, times in ns"},
};
static const struct option_spec sql_specs[] = {
    {.name = "csv", .type = OPTION_FLAG, AT(csv), .help = "commas and quotes instead of tabs"},
};
static const struct option_spec why_specs[] = {
    {.name = "launch",
     .type = OPTION_NUMBERS,
     AT(launch),
     .value = "N",
     .help = "this launch. Default: the median one",
     .min = 1,
     .max = UINT32_MAX},
    {.name = "json", .type = OPTION_FLAG, AT(json), .help = "one object, times in ns"},
};
static const struct option_spec plot_specs[] = {
    {.name = "kind",
     .type = OPTION_WORD,
     AT(kind),
     .value = "timeline|overlap",
     .help = "what to draw. Default timeline",
     .words = plots,
     .word_count = 2},
    {.name = "out",
     .type = OPTION_TEXT,
     AT(out),
     .value = "FILE",
     .help = "a .png or .svg. Default trace.png"},
    {.name = "launch",
     .type = OPTION_NUMBERS,
     AT(launch),
     .value = "N",
     .help = "this launch only. Default: all",
     .min = 1,
     .max = UINT32_MAX},
    PART_SPECS,
    {.name = "role",
     .type = OPTION_WORD,
     AT(role),
     .value = "ROLE",
     .help = "this role's CTAs only",
     .words = roles,
     .word_count = MK_ROLES},
    {.name = "script",
     .type = OPTION_FLAG,
     AT(script),
     .help = "print gnuplot's script instead of running it"},
};
static const struct option_spec generate_specs[] = {
    {.name = "events",
     .type = OPTION_NUMBERS,
     AT(events),
     .value = "N",
     .help = "at least so many. Default 1000000",
     .min = 1,
     .max = 100000000},
    {.name = "nodes",
     .type = OPTION_NUMBERS,
     AT(nodes),
     .value = "N",
     .help = "Default 2",
     .min = 1,
     .max = 512},
    {.name = "gpus",
     .type = OPTION_NUMBERS,
     AT(gpus),
     .value = "G",
     .help = "ranks per node. Default 8",
     .min = 1,
     .max = MK_MAX_LOCAL},
    {.name = "ctas",
     .type = OPTION_NUMBERS,
     AT(ctas),
     .value = "C",
     .help = "of a rank. Default 132",
     .min = 12,
     .max = 1024},
    {.name = "seed",
     .type = OPTION_NUMBERS,
     AT(seed),
     .value = "S",
     .help = "the same seed makes the same trace. Default 1",
     .max = INT64_MAX},
};

#define SPECS(s) .specs = s, .count = sizeof s / sizeof *s
static const struct option_table summary_table = {
    .usage = "trace summary FILE [OPTIONS]",
    .about = "One screenful: overlap, exposed communication, efficiency, time by role, stalls, "
             "messages, "
             "drops, clocks.",
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
    .about = "Draws with gnuplot: role timelines or overlap bars.",
    SPECS(plot_specs),
    .examples =
        "  mkernel trace plot run.db --launch 3 --out timeline.svg\n  mkernel trace plot run.db "
        "--kind overlap --out overlap.png\n"};
static const struct option_table generate_table = {
    .usage = "trace generate FILE [OPTIONS]",
    .about = "Makes up a large trace for tests and benches; the file says that it is synthetic.",
    SPECS(generate_specs),
    .examples = "  mkernel trace generate big.db --events 10000000\n"};

static int trace_refuse(const char *name, const char *sentence)
{
    fprintf(stderr, "mkernel trace %s: %s\n", name, sentence);
    return STATUS_USAGE;
}

static int trace_fail(const char *name, const char *sentence)
{
    fprintf(stderr, "mkernel trace %s: %s\n", name, sentence);
    return STATUS_FAILED;
}

/* 0, or -EBADMSG with a sentence where a query met damage: what it gave is not all. */
static int trace_check_damage(char *error, size_t size)
{
    if (!trace_damage())
        return 0;
    snprintf(error, size, "the trace is damaged, and this is not all of it: %s", trace_damage());
    return -EBADMSG;
}

static int trace_run_summary(struct asked *a, struct options_found *f, char *error, size_t size)
{
    sqlite3 *db;
    if (trace_open(&db, f->words[0], error, size))
        return trace_refuse("summary", error);
    int rc = a->json ? trace_report_json(db, stdout, error, size)
                     : trace_report_summary(db, stdout, error, size);
    rc = rc ? rc : trace_check_damage(error, size);
    sqlite3_close(db);
    return rc ? trace_fail("summary", error) : STATUS_DONE;
}

static int trace_run_why(struct asked *a, struct options_found *f, char *error, size_t size)
{
    sqlite3 *db;
    if (trace_open(&db, f->words[0], error, size))
        return trace_refuse("why", error);
    int rc = trace_report_why(db, a->launch, a->json, stdout, error, size), none = rc == -ERANGE;
    rc = rc ? rc : trace_check_damage(error, size);
    sqlite3_close(db);
    return none ? trace_refuse("why", error) : rc ? trace_fail("why", error) : STATUS_DONE;
}

static int trace_run_diff(struct asked *a, struct options_found *f, char *error, size_t size)
{
    sqlite3 *one, *two;
    if (trace_open(&one, f->words[0], error, size))
        return trace_refuse("diff", error);
    if (trace_open(&two, f->words[1], error, size)) {
        sqlite3_close(one);
        return trace_refuse("diff", error);
    }
    int rc = trace_report_diff(one, two, stdout, error, size);
    rc = rc ? rc : trace_check_damage(error, size);
    sqlite3_close(one);
    sqlite3_close(two);
    return rc ? trace_fail("diff", error) : STATUS_DONE;
}

static int trace_run_export(struct asked *a, struct options_found *f, char *error, size_t size)
{
    sqlite3 *db;
    struct trace_export what = {.from = a->from,
                                .to = options_given(&export_table, f, "to") ? a->to : UINT64_MAX,
                                .rank =
                                    options_given(&export_table, f, "rank") ? (int64_t)a->rank : -1,
                                .launch = a->launch};
    int64_t begin, end;
    if (what.to < what.from)
        return trace_refuse("export", "--to lies before --from");
    if (!a->out && isatty(STDOUT_FILENO))
        return trace_refuse("export", "it writes megabytes of JSON, and standard output is a "
                                      "terminal: --out FILE, or a pipe");
    if (output_same(a->out, f->words[0])) {
        snprintf(error, size, "--out %s is the trace itself", a->out);
        return trace_refuse("export", error);
    }
    if (trace_output_check(a->out, error, size) || trace_open(&db, f->words[0], error, size))
        return trace_refuse("export", error);
    int64_t ranks = trace_integer(db, "SELECT count(*) FROM rank", 0);
    if (what.rank >= ranks) {
        snprintf(error, size, "there is no rank %lld; the trace has ranks 0 to %lld",
                 (long long)what.rank, (long long)ranks - 1);
        sqlite3_close(db);
        return trace_refuse("export", error);
    }
    if (a->launch && trace_launch(db, a->launch, &begin, &end, error, size)) {
        sqlite3_close(db);
        return trace_refuse("export", error);
    }
    if (a->launch) { /* what it did lies in its time */
        what.from = (uint64_t)begin > what.from ? (uint64_t)begin : what.from;
        what.to = (uint64_t)end < what.to ? (uint64_t)end : what.to;
    }
    struct trace_output o;
    size_t length = a->out ? strlen(a->out) : 0;
    int gzip = a->gzip || (length > 3 && !strcmp(a->out + length - 3, ".gz"));
    int rc = trace_output_open(&o, a->out, gzip, error, size);
    if (!rc) {
        trace_export_chrome(db, &what, o.out);
        rc = trace_output_close(&o, trace_check_damage(error, size), error, size);
    }
    sqlite3_close(db);
    return rc ? trace_fail("export", error) : STATUS_DONE;
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
        sqlite3_stmt *q = NULL;
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
        sqlite3_finalize(q);
        if (rc != SQLITE_DONE)
            break;
    }
    if (sqlite3_errcode(db) == SQLITE_OK || sqlite3_errcode(db) == SQLITE_DONE)
        return 0;
    snprintf(error, size, "%s", sqlite3_errmsg(db));
    return -EINVAL;
}

static int trace_run_sql(struct asked *a, struct options_found *f, char *error, size_t size)
{
    sqlite3 *db;
    if (f->word_count > 1 && !*f->words[1])
        return trace_refuse("sql", "the query is empty");
    if (trace_open(&db, f->words[0], error, size))
        return trace_refuse("sql", error);
    const char *list =
        "SELECT type, name, (SELECT group_concat(name, ' ') FROM pragma_table_info(m.name)) AS "
        "columns FROM"
        " (SELECT type, name FROM sqlite_master UNION SELECT type, name FROM sqlite_temp_master) m"
        " WHERE type IN ('table', 'view') ORDER BY type DESC, name";
    int rc = trace_run_query(db, f->word_count > 1 ? f->words[1] : list, a->csv, error, size);
    sqlite3_close(db);
    return rc ? trace_refuse("sql", error) : STATUS_DONE;
}

static int trace_run_plot(struct asked *a, struct options_found *f, char *error, size_t size)
{
    sqlite3 *db;
    const char *out = a->out ? a->out : "trace.png";
    if (gnuplot_check_path("--out", out, error, size))
        return trace_refuse("plot", error);
    const struct option_table *t = &plot_table;
    const struct trace_plot_part part = {
        .launch = a->launch,
        .rank = options_given(t, f, "rank") ? (int64_t)a->rank : -1,
        .role = options_given(t, f, "role") ? a->role : -1,
        .from = a->from,
        .to = options_given(t, f, "to") ? a->to : UINT64_MAX,
    };
    if (part.to <= part.from)
        return trace_refuse("plot", "--to does not lie behind --from");
    if (a->kind == TRACE_PLOT_OVERLAP && (part.role >= 0 || part.from || options_given(t, f, "to")))
        return trace_refuse("plot", "--role, --from and --to go with --kind timeline");
    if ((!a->script && trace_output_check(out, error, size)) ||
        trace_open(&db, f->words[0], error, size))
        return trace_refuse("plot", error);
    int rc = a->script ? trace_plot_script(db, a->kind, &part, out, stdout, error, size)
                       : trace_plot(db, a->kind, &part, out, error, size);
    sqlite3_close(db);
    if (rc == -ERANGE)
        return trace_refuse("plot", error);
    return rc ? trace_fail("plot", error) : STATUS_DONE;
}

static int trace_run_generate(struct asked *a, struct options_found *f, char *error, size_t size)
{
    char command[160];
    if (output_check("FILE", f->words[0], OUTPUT_REPLACED, error, size))
        return trace_refuse("generate", error);
    snprintf(command, sizeof command,
             "mkernel trace generate --events %llu --nodes %llu --gpus %llu --seed %llu",
             (unsigned long long)a->events, (unsigned long long)a->nodes,
             (unsigned long long)a->gpus, (unsigned long long)a->seed);
    struct generate_config c = {.events = a->events,
                                .nodes = (uint32_t)a->nodes,
                                .gpus = (uint32_t)a->gpus,
                                .ctas = (uint32_t)a->ctas,
                                .seed = a->seed,
                                .command = command};
    int rc = trace_generate(&c, f->words[0], error, size);
    if (!rc)
        return STATUS_DONE;
    return rc == -EINVAL ? trace_refuse("generate", error) : trace_fail("generate", error);
}

static const struct {
    const char *name;
    const struct option_table *table;
    int words, most; /* words that it takes besides options */
    const char *missing;
    int (*run)(struct asked *a, struct options_found *f, char *error, size_t size);
} commands[] = {
    {"summary", &summary_table, 1, 1, "one trace file", trace_run_summary},
    {"why", &why_table, 1, 1, "one trace file", trace_run_why},
    {"diff", &diff_table, 2, 2, "two trace files", trace_run_diff},
    {"export", &export_table, 1, 1, "one trace file", trace_run_export},
    {"sql", &sql_table, 1, 2, "one trace file, and at most one query", trace_run_sql},
    {"plot", &plot_table, 1, 1, "one trace file", trace_run_plot},
    {"generate", &generate_table, 1, 1, "the file to write", trace_run_generate},
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
    char error[512] = "";
    trace_watch_damage();
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of write */
    if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) {
        trace_print_help();
        return STATUS_DONE;
    }
    for (int i = 0; argc > 1 && i < COMMANDS; i++) {
        struct asked a = {.events = 1000000, .nodes = 2, .gpus = 8, .seed = 1};
        struct options_found f = {0};
        names[i] = commands[i].name;
        if (strcmp(argv[1], names[i]))
            continue;
        if (options_parse(commands[i].table, argc - 1, argv + 1, &a, &f, error, sizeof error)) {
            size_t used = strlen(error);
            snprintf(error + used, sizeof error - used, "; `mkernel trace %s --help` tells more",
                     names[i]);
            return trace_refuse(names[i], error);
        }
        if (f.help) {
            options_help(commands[i].table, stdout);
            return STATUS_DONE;
        }
        if (f.word_count < commands[i].words || f.word_count > commands[i].most) {
            snprintf(error, sizeof error, "it takes %s; `mkernel trace %s --help` tells more",
                     commands[i].missing, names[i]);
            return trace_refuse(names[i], error);
        }
        return commands[i].run(&a, &f, error, sizeof error);
    }
    const char *near = argc > 1 ? nearest_word(argv[1], names, COMMANDS) : NULL;
    if (argc < 2)
        fprintf(stderr, "mkernel trace: which report? summary, why, diff, export, sql, plot or "
                        "generate; `mkernel "
                        "trace --help` tells more\n");
    else
        fprintf(stderr,
                "mkernel trace: there is no report %s%s%s%s; `mkernel trace --help` lists them\n",
                argv[1], near ? " (did you mean " : "", near ? near : "", near ? "?)" : "");
    return STATUS_USAGE;
}
