/* The time by which everything outside a simulation waits, in the form of a proxy's `now`
 * (backends/proxy.h). */
#pragma once

#include "core/base/clock.h"

/* CLOCK_MONOTONIC, ns. `context` is not used. */
static inline uint64_t wall_clock(void *context)
{
    return mk_now_ns();
}
