/* Copies that softnic has yet to start, gathered so that one call of the driver starts many: alone,
 * each costs the thread 3 us and the copy engine 9; sixty-four together, below 1 us each.
 *
 * First go runs of bytes between GPUs, in any order, then words (flags), in any order. What must
 * not change places is not gathered together: a run that overlaps an earlier run's or word's target
 * starts everything before it. So a word lands after all bytes that were placed before it, and of
 * two writes to a place the later one stays. */
#pragma once

#include "cuda.h"

enum { GATHER_MOST = 64 };

struct softnic_gather_list {
    uint64_t to[GATHER_MOST], from[GATHER_MOST];
    size_t bytes[GATHER_MOST];
    int count;
};

/* Zeroed but for `cuda` and `stream`. One thread uses it. */
struct softnic_gather {
    const struct softnic_cuda *cuda;
    void *stream;
    struct softnic_gather_list runs, words;
};

/* Each returns 0 or -EIO: the driver refused a copy. `staged` is pinned memory that stays as it is
 * until the copy has ended. */
int softnic_gather_run(struct softnic_gather *g, uint64_t to, uint64_t from, uint64_t bytes);
int softnic_gather_word(struct softnic_gather *g, uint64_t to, const void *staged);
int softnic_gather_start(struct softnic_gather *g);
