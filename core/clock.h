/* This host's monotonic clock. */
#ifndef MK_CLOCK_H
#define MK_CLOCK_H

#include <stdint.h>
#include <time.h>

/* ns on CLOCK_MONOTONIC, which every process of this host shares. */
static inline uint64_t mk_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
