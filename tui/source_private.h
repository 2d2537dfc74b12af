/* What the source's own files share. */
#pragma once

#include "tracer/query.h"
#include "tracer/reader.h"
#include "tracer/why.h"
#include "tui/source.h"

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
    int *leaves;                      /* by rank, then by rank * ROLES + role from info.ranks on */
    struct source_link_row *link;     /* by rank * 2 + enum source_link */
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

/* Reads an event off columns id, track, start, ns, kind, cause, argument, launch, peer of the next
 * row. 0: there is none more. */
#define EVENT_COLUMNS "id, track, start, ns, kind, cause, argument, launch, peer"
int source_read_event(const struct source *s, sqlite3_stmt *q, struct source_event *out);
