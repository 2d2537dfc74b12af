/* Events of the Trace Event Format, as they are written by `mkernel trace export`. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "experiments/trace/trace_cli.h"

struct trace_json {
    FILE *out;
    int any;          /* an event stands before */
    int64_t next_tid; /* threads from here on are no tracks */
    /* Events that stand on another thread than their track's, by id. */
    struct trace_json_moved {
        int64_t event, tid;
    } * moved;
    size_t moved_count;
};

/* Threads beside each other for slices of which several are under way at once: on one thread
 * readers know slices inside each other, and leave out one that begins inside another and ends
 * after it. */
enum { TRACE_LANES = 4096 };
struct trace_lanes {
    int64_t end[TRACE_LANES], tid[TRACE_LANES];
    int count;
};
/* The first lane in which nothing is under way at `start`; it is taken until `end`. A new one has
 * tid -1. -1: all are taken. */
int trace_lane(struct trace_lanes *l, int64_t start, int64_t end);

void trace_json_string(FILE *out, const char *text);
/* Begins one event; the caller adds members, each begun by a comma, and ends it with `}`. */
void trace_json_begin(struct trace_json *j, char phase, int64_t rank, int64_t tid);
/* A member with a time, in us. */
void trace_json_us(struct trace_json *j, const char *name, int64_t ns);
/* `place`: threads of a rank stand in order of it. */
void trace_json_thread(struct trace_json *j, int64_t rank, int64_t tid, int64_t place,
                       const char *name);
/* The thread on which an event stands. */
int64_t trace_json_tid(const struct trace_json *j, int64_t event, int64_t track);
/* Begins a slice. */
void trace_json_slice(struct trace_json *j, int64_t rank, int64_t tid, int64_t start, int64_t end);

/* As queries take them: -1 for all launches; the end. */
static inline int64_t trace_json_launch(const struct trace_export *what)
{
    return what->launch ? (int64_t)what->launch : -1;
}

static inline int64_t trace_json_to(const struct trace_export *what)
{
    return what->to > INT64_MAX ? INT64_MAX : (int64_t)what->to;
}

/* Every put as a slice from its command to its arrival, its stages inside it, on as many threads of
 * the sender as are under way at once. Returns for each message's id (0 to the last) where its
 * slice is; NULL where there are none, or no memory. The caller frees. */
struct trace_json_message {
    int64_t tid, start, end; /* tid 0: it is not exported */
    int64_t rank;
};
struct trace_json_message *trace_json_messages(struct trace_json *j, sqlite3 *db,
                                               const struct trace_export *what, int64_t *count);

/* An arrow from what raised a flag (a command, or the work before a signal) to the wait that it
 * ended, by way of the message that carried it. Each point lies inside a slice, not on its end:
 * there the next slice begins, and a reader would take that one. */
void trace_json_arrows(struct trace_json *j, sqlite3 *db, const struct trace_export *what,
                       const struct trace_json_message *messages, int64_t count);
