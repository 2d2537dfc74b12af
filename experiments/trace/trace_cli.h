/* `mkernel trace`: what its subcommands share. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include "tracer/query.h"
#include "tracer/reader.h"

/* The reports. They print to `out` and return 0, or -errno with one sentence in `error`. */
int trace_report_summary(sqlite3 *db, FILE *out, char *error, size_t size);
/* View figures as one JSON object, "SECTION: NAME" to value, times in ns. */
int trace_report_json(sqlite3 *db, FILE *out, char *error, size_t size);
int trace_report_diff(sqlite3 *a, sqlite3 *b, FILE *out, char *error, size_t size);
/* Of one launch (0: the median one); json: an object in place of lines. Also -ERANGE: there is no
 * such launch. */
int trace_report_why(sqlite3 *db, uint64_t launch, int json, FILE *out, char *error, size_t size);

/* Which part of a trace to export. Times in ns since the run's start. */
struct trace_export {
    uint64_t from, to; /* to: UINT64_MAX for the end */
    int64_t rank;      /* -1: all */
    uint64_t launch;   /* 0: all */
};
/* Writes the Trace Event Format's JSON (the form that chrome://tracing and ui.perfetto.dev open).
 * Ends early where `out` fails, which the caller asks it (ferror). */
void trace_export_chrome(sqlite3 *db, const struct trace_export *what, FILE *out);

enum trace_plot_kind { TRACE_PLOT_TIMELINE, TRACE_PLOT_OVERLAP };
/* What of a trace to draw. */
struct trace_plot_part {
    uint64_t launch;   /* 0: all */
    int64_t rank;      /* -1: all */
    int role;          /* enum mk_role; -1: all, and NICs */
    uint64_t from, to; /* ns since the run's start; to: UINT64_MAX for the end */
};
extern const char *const trace_plots[]; /* the kinds' names */
/* Draws into `path`, as picture_draw does (NULL: prints what it would draw). Overlap goes by launch
 * and rank. Also -ERANGE: there is no such launch or rank, or nothing in that time; -ENODATA: no
 * launch was recorded; -EBADMSG: the trace is damaged. */
int trace_plot(sqlite3 *db, enum trace_plot_kind kind, const struct trace_plot_part *part,
               const char *path, char *error, size_t size);
/* What of the trace goes into that picture, as JSON. */
int trace_plot_write(FILE *out, sqlite3 *db, enum trace_plot_kind kind,
                     const struct trace_plot_part *part, char *error, size_t size);

/* The time of a launch. 0, or -ERANGE with a sentence where there is no such launch. */
int trace_launch(sqlite3 *db, uint64_t launch, int64_t *start, int64_t *end, char *error,
                 size_t size);

/* A time for people: "850 ns", "12.3 us", "4.56 ms". `text` has room for 24 characters. Returns
 * text. */
const char *trace_time(char text[24], double ns);
/* The same in the unit, and with the digits, in which `like` is written: for what stands beside it.
 */
const char *trace_time_like(char text[24], double ns, double like);
const char *trace_bytes(char text[24], double bytes);
/* The ending of a noun with this count: "s" or "". */
const char *trace_plural(int64_t count);
