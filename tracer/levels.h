/* Occupancy, aggregated when the trace is written: the state of every row of the timeline in each
 * bucket of time, for every zoom. */
#pragma once

#include "tracer/data.h"
#include "tracer/reader.h"

#define LEVEL_FACTOR 4 /* buckets of the next finer level in one bucket */
#define LEVEL_MAX 16
/* Mean events of a track in a bucket of its finest level. For a finer zoom readers read events. */
#define LEVEL_EVENTS 8

struct level_row {
    uint32_t bucket, busiest;
    uint64_t ns[TRACE_STATES - 1]; /* states from 1 on */
};

/* Rows of one node on one level: rows[first .. first + count). */
struct level_run {
    uint64_t first;
    uint32_t count;
};

struct level {
    uint64_t ns; /* of a bucket, a power of two */
    uint32_t buckets;
    struct level_row *rows;
    uint64_t count;
    struct level_run *runs; /* one a node */
};

struct levels {
    uint32_t count;
    uint32_t leaf_from; /* the finest level at which CTAs and warps have rows: ranks and roles, of
                         * which there are few and which hold the events of many, have finer ones */
    struct level at[LEVEL_MAX];
};

/* All levels of a run. 0 or -ENOMEM (then empty). The caller frees with levels_free. */
int levels_make(struct levels *out, const struct trace_data *d);
void levels_free(struct levels *l);
