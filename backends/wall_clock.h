/* The time by which everything outside a simulation waits, in the form of a proxy's `now`
 * (backends/proxy.h). */
#ifndef MK_WALL_CLOCK_H
#define MK_WALL_CLOCK_H

#include "core/clock.h"

/* CLOCK_MONOTONIC, ns. `context` is not used. */
static inline uint64_t wall_clock(void *context)
{
    return mk_now_ns();
}

#endif
