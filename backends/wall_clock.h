/* The time by which everything outside a simulation waits, in the form of a proxy's `now` (backends/proxy.h). */
#ifndef MK_WALL_CLOCK_H
#define MK_WALL_CLOCK_H

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC, ns. `context` is not used. */
static inline uint64_t wall_clock(void *context)
{
    struct timespec t;
    (void)context;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
