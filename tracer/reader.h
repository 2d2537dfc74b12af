/* Reading a trace: all that a viewer or report needs besides SQL. The tables and views are
 * schema.sql and views.sql. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sqlite3.h>

#include "core/cta/event.h" /* the kinds and causes of events, the roles of tracks */

#define TRACE_APPLICATION_ID 1835758706 /* 'mktr' */
#define TRACE_SCHEMA_VERSION 1

/* The engine that a measured run's plans were for, in SQL: NULL where they were none of a GPU's,
 * and in traces made before 2026-11-25. (A simulated run's times are wgmma's, whichever its plans
 * name.) */
#define TRACE_ENGINE                                                                               \
    "(SELECT group_concat(DISTINCT unit) FROM metric WHERE name GLOB 'plan *: engine' AND "        \
    "(SELECT source FROM run) = 'measured')"

/* Columns of table level, in order; also the ids of table state. */
enum trace_state {
    TRACE_IDLE,
    TRACE_TILE,
    TRACE_COPY,
    TRACE_COMMAND,
    TRACE_REDUCE,
    TRACE_WAIT_DATA,
    TRACE_WAIT_BACKPRESSURE,
    /* 7 was the wait of a cause that is gone (core/cta/event.h): column wait_credit, now 0 */
    TRACE_WAIT_NETWORK = 8,
    TRACE_STATES
};

/* The state that an event of this kind and cause (core/cta/event.h) is; TRACE_IDLE for those that last
 * no time. */
enum trace_state trace_state_of(uint32_t kind, uint32_t cause);

/* Opens a trace for reading. The caller closes *db with sqlite3_close. Any thread; one thread at a
 * time per handle. Reads a few pages only, whatever the size of the trace. The views are this
 * program's (views.sql, as temporary ones), so that figures of two files are of one definition,
 * whichever version wrote them. Queries are bounded (tracer/bound.h). Returns 0, or -errno with one
 * sentence in `error` and *db NULL: -ENOENT, -EACCES, -ENODATA (empty), -EBADMSG (damaged), -EINVAL
 * (not a trace), -EPROTO (another schema version). */
int trace_open(sqlite3 **db, const char *path, char *error, size_t size);

/* Gives the queries of a handle of trace_open their allowance (tracer/bound.h) again: a viewer, for
 * each screen. */
void trace_allow(sqlite3 *db);

/* A row of view figures, of one trace or of two, side by side. */
struct trace_figure {
    int64_t place;
    char section[16], name[48], unit[8];
    double value[2]; /* NAN: that trace has no such figure */
};

/* The figures of `a`, and of `b` where that is not NULL, in order of place; at most `room`. Returns
 * how many. */
int trace_figures(sqlite3 *a, sqlite3 *b, struct trace_figure *out, int room);

/* From now on notes damage that SQLite finds in a file, in any query of this process. (trace_open
 * reads only a few pages, and a query that meets damage just ends.) Call it before anything else
 * uses SQLite, while there is one thread. It takes over SQLite's error log (SQLITE_CONFIG_LOG), so
 * it is for commands, not for the library. */
void trace_watch_damage(void);

/* SQLite's first message about damage ("database disk image is malformed"), or that queries did not
 * end (tracer/bound.h; also without trace_watch_damage). NULL: no damage. */
const char *trace_damage(void);
