/* What is free of a row of places (bytes of the heap, flags): runs that are taken first fit and
 * given back in any order. The same calls give the same places, on every rank. */
#pragma once

#include "core/base.h"

struct ranges_run {
    uint64_t first, count;
};

/* Runs ascend and do not touch. All 0: nothing is free. */
struct ranges {
    struct ranges_run *runs;
    uint32_t count, room;
    uint32_t taken; /* runs that are out, each of which may come back as a run of its own */
};

/* Makes [first, first + count) free; ranges_close frees the memory. 0 or -ENOMEM. */
int ranges_open(struct ranges *r, uint64_t first, uint64_t count);
void ranges_close(struct ranges *r);

/* The first free place; UINT64_MAX: none is free. */
uint64_t ranges_first(const struct ranges *r);

/* Free places: of the longest run, and of the run that ends the row at `end` (0: there is none). */
uint64_t ranges_longest(const struct ranges *r);
uint64_t ranges_last(const struct ranges *r, uint64_t end);

/* Where `count` places lie free, the first such; UINT64_MAX: nowhere. */
uint64_t ranges_find(const struct ranges *r, uint64_t count);

/* Takes `count` places at `first`, where a run begins (ranges_find). Of 0 places it takes nothing.
 * 0, or -ENOMEM and nothing is taken. */
int ranges_take(struct ranges *r, uint64_t first, uint64_t count);

/* Gives back what one ranges_take took. Needs no memory. */
void ranges_give(struct ranges *r, uint64_t first, uint64_t count);

/* Whether none of the places is free. */
int ranges_are_taken(const struct ranges *r, uint64_t first, uint64_t count);

/* A digest of all that is free. */
uint64_t ranges_digest(const struct ranges *r);
