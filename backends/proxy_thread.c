/* The proxy's thread: how it spends its time between commands. */
#include "backends/proxy_state.h"
#include "backends/wall_clock.h"

#include <errno.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

enum {
    YIELDS = 64,
    SLEEP_MIN_NS = 2000,
    SLEEP_MAX_NS = 50000,
    DRAIN_NS = 100000000, /* after a failure: how long completions are still collected */
};

static void proxy_thread_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Idle passes before the thread yields its core. If there are enough cores for all proxies, it
 * spins for about a millisecond; if not, the thread it waits for may need this core. */
static uint32_t proxy_thread_spins(const struct proxy *p)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return (uint32_t)cores >= 4 * p->config.topo.gpus ? 20000 : 16;
}

static void proxy_thread_back_off(uint32_t idle, uint32_t spin)
{
    if (idle < spin) {
        proxy_thread_relax();
    } else if (idle < spin + YIELDS) {
        sched_yield();
    } else {
        uint32_t doublings = idle - spin - YIELDS;
        long ns = doublings < 5 ? SLEEP_MIN_NS << doublings : SLEEP_MAX_NS;
        nanosleep(&(struct timespec){.tv_nsec = ns < SLEEP_MAX_NS ? ns : SLEEP_MAX_NS}, NULL);
    }
}

static void *run(void *argument)
{
    struct proxy *p = argument;
    uint32_t spin = proxy_thread_spins(p), idle = 0;
    uint64_t give_up = 0;
    /* the default of 50 us would double the longest sleep */
    prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);
    for (;;) {
        /* before the pass: commands that were posted before are read */
        int stop = __atomic_load_n(&p->stop, __ATOMIC_ACQUIRE);
        if (proxy_step(p)) {
            idle = 0;
        } else {
            if (stop && !p->in_flight)
                break;
            proxy_thread_back_off(idle++, spin);
        }
        if (stop && p->draining) {
            if (!p->in_flight || (give_up && wall_clock(NULL) > give_up))
                break;
            if (!give_up)
                give_up = wall_clock(NULL) + DRAIN_NS;
        }
    }
    return NULL;
}

int proxy_start(struct proxy *p)
{
    if (p->running)
        return -EALREADY;
    p->stop = 0;
    int rc = pthread_create(&p->thread, NULL, run, p);
    if (rc)
        return -rc;
    p->running = 1;
    pthread_setname_np(p->thread, "mkernel proxy");
    return 0;
}

void proxy_stop(struct proxy *p)
{
    if (!p->running)
        return;
    __atomic_store_n(&p->stop, 1, __ATOMIC_RELEASE);
    pthread_join(p->thread, NULL);
    p->running = 0;
}
