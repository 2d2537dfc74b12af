/* Sets of intervals of time, and their union. */
#pragma once

#include <stdint.h>

struct interval {
    int64_t start, end;
};

/* Zeroed to begin with. Intervals are added in runs, each in order of start; a run out of order is
 * cut into several. */
struct intervals {
    struct interval *at;
    uint64_t count, capacity;
    uint64_t *runs; /* where each run ends */
    uint64_t run_count;
};

/* 0 or -ENOMEM. */
int intervals_add(struct intervals *s, int64_t start, int64_t end);
int intervals_end_run(struct intervals *s);

/* Sorts the set and joins intervals that overlap or touch: afterwards `at` is one run of disjoint
 * intervals in order. 0 or -ENOMEM. */
int intervals_unite(struct intervals *s);

/* Of a united set: the first interval that ends after t; the ns that lie in from .. to. */
uint64_t intervals_find(const struct intervals *s, int64_t t);
uint64_t intervals_within(const struct intervals *s, int64_t from, int64_t to);

void intervals_free(struct intervals *s);
