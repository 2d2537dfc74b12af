/* Inside the tracer, between align.c and merge.c: one rank's records on rank 0's clock. */
#pragma once

#include "tracer/data.h"

/* What one track recorded in one role: a leaf before the tree is made. */
struct leaf {
    uint32_t role, cta, warp;
    struct trace_event *events;
    uint64_t count, dropped;
};

/* Fits every rank's clocks into d->clocks. 0 or -ENOMEM. */
int align_clocks(struct trace_data *d);

/* A time of rank r's host on rank 0's clock. */
int64_t align_host(const struct trace_data *d, uint32_t r, uint64_t t);

/* Launches whose plans tracks tell for certain: in the order of their records' `what`, then of
 * `start`, on rank 0's clock. */
struct align_launches {
    struct align_launch {
        int64_t start;
        uint32_t what, plan;
    } * known;
    uint64_t count;
};

/* Finds them on all ranks, where a launch's record does not tell plans apart. The caller frees
 * `known`. 0 or -ENOMEM. */
int align_find_launches(const struct trace_data *d, struct align_launches *out);

/* Appends the leaves of one track to leaves[*count ..], at most MK_ROLES of them, and its launches
 * to d. The caller frees their events. 0 or -ENOMEM. */
int align_track(struct trace_data *d, uint32_t rank, uint32_t track,
                const struct align_launches *launches, struct leaf *leaves, uint32_t *count);
