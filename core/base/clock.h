/* This host's monotonic clock, and condition variables that wait by it. */
#pragma once

#include <pthread.h>
#include <stdint.h>
#include <time.h>

/* ns on a clock of the kernel's. */
static inline uint64_t mk_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ns on CLOCK_MONOTONIC, which every process of this host shares. */
static inline uint64_t mk_now_ns(void)
{
    return mk_clock_ns(CLOCK_MONOTONIC);
}

/* A condition variable for mk_cond_wait_until. What pthread_cond_init returns. */
static inline int mk_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int error = pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return error;
}

/* Waits, with `lock` held, until mk_now_ns is `until` at most. As pthread_cond_timedwait. */
static inline int mk_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until)
{
    struct timespec t = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    return pthread_cond_timedwait(cond, lock, &t);
}
