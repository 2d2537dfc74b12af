/* The viewer's queries of a trace file. All times are ns (doubles hold them exactly) from the start
 * of the run. Every call uses an index or the aggregated levels, so its cost depends on the
 * screen's size and not on the file's. */
#pragma once

#include <stdint.h>

#include "tracer/query.h"
#include "tracer/reader.h"
#include "tracer/why.h"
#include "tui/words.h"

struct source_info {
    char title[128];   /* op and shape: "ag_gemm 8192x3584x8192" */
    char setting[320]; /* nodes, executor, fabric */
    int ranks, tracks, launches;
    int nvlink, nic;    /* 1: bytes went over it */
    double end;         /* of the run; it begins at 0 */
    double uncertainty; /* ns by which clocks of different ranks may disagree; < 0: not known */
    int64_t events, messages, dropped;
};

/* A track is one CTA. They are sorted by rank, role and CTA. */
struct source_track {
    int rank, role, cta, warp; /* warp -1: the CTA has this track alone */
    int64_t id;                /* in the file */
};

struct source_launch {
    int64_t epoch;
    double start, end;
};

/* One event, as the file has it. */
struct source_event {
    int64_t id;
    int track; /* index, -1: none */
    double start, end;
    int kind, cause; /* enum mk_event_kind, enum mk_cause */
    int64_t argument;
    int64_t launch, epoch, plan; /* -1: before the first launch */
    int peer;                    /* rank that a copy, signal or command went to; -1: none */
};

/* The tracks that a row shows: all of a rank, of a role of it, or one (an index; -1: not a single
 * one). */
struct source_group {
    int rank, role, track;
};

enum source_link { LINK_NVLINK, LINK_NIC };

#define MAX_LEVELS 24

struct source_link_row {
    int64_t id; /* 0: none */
    double peak;
};

struct source {
    sqlite3 *db;
    char *path;
    struct source_info info;
    struct source_track *tracks;      /* leaves: what events hang on */
    double *longest;                  /* by leaf: ns of its longest event */
    double *rate;                     /* by leaf: events per ns, to guess what a window holds */
    int64_t *rank_track, *role_track; /* ids of the tree's inner nodes; 0: none */
    int *leaves;                  /* by rank, then by rank * MK_ROLES + role from info.ranks on */
    struct source_link_row *link; /* by rank * 2 + enum source_link */
    int *node;
    double *uncertainty; /* by rank */
    struct source_launch *launches;
    int64_t *launch_id, *launch_plan;
    int levels, leaf_from; /* single tracks have rows from level leaf_from on */
    double level_ns[MAX_LEVELS];
    double *role_share; /* NULL: not read yet */
    /* where the time of the launch of this id goes (0: of none yet), or a sentence why not */
    int64_t why_of;
    struct trace_why why;
    char why_not[160];
    sqlite3_stmt *level, *overlap, *flow, *events, *at;
};

/* Opens a trace. On error *out is NULL and `error` a sentence without a full stop. The file is only
 * read. */
int source_open(struct source **out, const char *path, char *error, int size);
void source_close(struct source *s);

/* The launch at `time`, or the last one before it, or the first: an index of `launches`. */
int source_launch_at(const struct source *s, double time);
const char *source_role_name(int role);
double source_uncertainty(const struct source *s,
                          int rank); /* of one rank's clock against rank 0's, ns; < 0: not known */

/* Shares (0 .. 1, idle the rest) of `columns` intervals of `step` ns from t0 on: out[column *
 * classes + class]. */
int source_occupancy(struct source *s, struct source_group g, double t0, double step, int columns,
                     float *out);
int source_overlap(struct source *s, int rank, double t0, double step, int columns, float *out);

/* Mean bytes in flight that leave a rank over a link. *peak gets the largest value of the whole
 * run. */
int source_bytes(struct source *s, int rank, enum source_link link, double t0, double step,
                 int columns, float *out, float *peak);

/* The event of one track at or before `time` (covering it where one does); 1 found, 0 none. */
int source_event_at(struct source *s, int track, double time, struct source_event *out);
/* The next event of a group that starts after (direction 1) or before (-1) `time` and that the
 * query takes; with `from`, the next one after that event in the order of start, row and number, so
 * that none is passed over where many begin at the same ns. 1 found, 0 none, -EAGAIN: the time for
 * one answer is over and the search got as far as *reached. */
int source_find(struct source *s, struct source_group g, const struct query *q, double time,
                const struct source_event *from, int direction, struct source_event *out,
                double *reached);

/* The longest wait of a group that overlaps t0 .. t1. */
int source_longest_wait(struct source *s, struct source_group g, double t0, double t1,
                        struct source_event *out);

/* What the time of each role was, in percent by rank, role and span_class, from the views role_time
 * and stalls; after the last rank comes what view figures says of all ranks (role_share,
 * stall_share). idle -1: the rank has no such role. Read once; belongs to the source. NULL: no
 * memory. */
const double *source_role_shares(struct source *s);

/* The n-th longest wait of the run (from 0), of the tracks that `filter` takes (NULL: all). 1
 * found, 0 none. */
int source_worst_wait(struct source *s, const struct query *filter, int n,
                      struct source_event *out);

/* Reads an event from the next row, whose columns are EVENT_COLUMNS. 0: there is no further row. */
#define EVENT_COLUMNS "id, track, start, ns, kind, cause, argument, launch, peer"
int source_read_event(const struct source *s, sqlite3_stmt *q, struct source_event *out);
