/* `mkernel trace summary`: one screenful, by the statements of summary.sql. Every figure comes from
 * a view or an aggregate, so it takes as long for ten million events as for ten thousand. */
#include "experiments/common/json_write.h"
#include "core/base/sentence.h"
#include "experiments/trace/trace_cli.h"

#include <errno.h>
#include <string.h>

#define BAR 32
#define MOST_FIGURES 256

/* summary.sql, so that the binary needs no other file */
extern const char summary_sql[];
__asm__(".section .rodata\n.global summary_sql\nsummary_sql:\n"
        ".incbin \"experiments/trace/summary.sql\"\n.byte 0\n"
        ".size summary_sql, . - summary_sql\n.type summary_sql, @object\n.previous\n");

/* ---- functions of summary.sql ---- */

static void trace_summary_time(sqlite3_context *context, int count, sqlite3_value **value)
{
    char text[24];
    double ns = sqlite3_value_double(value[0]);
    sqlite3_result_text(context,
                        sqlite3_value_type(value[0]) == SQLITE_NULL ? "-"
                        : count > 1 ? trace_time_like(text, ns, sqlite3_value_double(value[1]))
                                    : trace_time(text, ns),
                        -1, SQLITE_TRANSIENT);
}

static void trace_summary_bytes(sqlite3_context *context, int count, sqlite3_value **value)
{
    char text[24];
    sqlite3_result_text(context, trace_bytes(text, sqlite3_value_double(value[0])), -1,
                        SQLITE_TRANSIENT);
}

static void trace_summary_plural(sqlite3_context *context, int count, sqlite3_value **value)
{
    sqlite3_result_text(context, trace_plural(sqlite3_value_int64(value[0])), -1, SQLITE_STATIC);
}

/* Shares as a bar, in the viewer's letters: # compute only, @ both, = communication only, space
 * idle. */
static void trace_summary_bar(sqlite3_context *context, int count, sqlite3_value **value)
{
    char text[BAR + 3];
    double sum = 0;
    int at = 1;
    memset(text, ' ', sizeof text);
    text[0] = text[BAR + 1] = '|';
    for (int i = 0; i < count; i++) {
        sum += sqlite3_value_double(value[i]);
        for (; at <= (int)(sum * BAR / 100 + 0.5) && at <= BAR; at++)
            text[at] = "#@="[i];
    }
    sqlite3_result_text(context, text, BAR + 2, SQLITE_TRANSIENT);
}

static const struct {
    const char *name;
    int arguments;
    void (*call)(sqlite3_context *context, int count, sqlite3_value **value);
} functions[] = {{"time_of", 1, trace_summary_time},
                 {"time_of", 2, trace_summary_time},
                 {"bytes_of", 1, trace_summary_bytes},
                 {"s_of", 1, trace_summary_plural},
                 {"bar_of", 3, trace_summary_bar}};

int trace_report_summary(sqlite3 *db, FILE *out, char *error, size_t size)
{
    int rc = SQLITE_OK;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        sqlite3_create_function(db, functions[i].name, functions[i].arguments, SQLITE_UTF8, NULL,
                                functions[i].call, NULL, NULL);
    for (const char *sql = summary_sql; *sql && (rc == SQLITE_OK || rc == SQLITE_DONE);) {
        QUERY q = NULL;
        rc = sqlite3_prepare_v2(db, sql, -1, &q, &sql);
        while (q && (rc = sqlite3_step(q)) == SQLITE_ROW)
            fprintf(out, "%s\n", (const char *)sqlite3_column_text(q, 0));
    }
    if (rc != SQLITE_OK && rc != SQLITE_DONE && rc != SQLITE_INTERRUPT) /* the last: bound.h */
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
    fprintf(out, "  \"launches\": %ld\n}\n",
            query_integer(db, 0, "SELECT count(*) FROM launch", ""));
    if (fflush(out) != 0)
        return mk_fail(-EIO, error, size, "cannot write the figures: %s", strerror(errno));
    return 0;
}
