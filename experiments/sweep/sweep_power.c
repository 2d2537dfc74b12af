/* Clocks, power and temperature of the GPUs while a job runs, asked of NVML where there is one. */
#include "experiments/sweep/sweep.h"
#include "core/base/grow.h"
#include "core/base/clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define EVERY_NS 500000000ull
#define GPUS_MOST 16u
#define SAMPLES_MOST 100000u

/* Of nvml.h: every call returns 0 where it went well. */
enum { CLOCK_SM = 1, CLOCK_MEMORY = 2, TEMPERATURE_GPU = 0 };
struct nvml {
    int (*init)(void);
    int (*close)(void);
    int (*count)(unsigned *devices);
    int (*device)(unsigned index, void **device);
    int (*clock)(void *device, int which, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*temperature)(void *device, int which, unsigned *celsius);
};

struct sweep_power {
    void *library;
    struct nvml nvml;
    void *devices[GPUS_MOST];
    unsigned count;
    struct sweep_power_sample *samples;
    uint32_t used;
    uint64_t start;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int end;
};

static int sweep_power_load(struct sweep_power *p)
{
    struct nvml *n = &p->nvml;
    p->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!p->library)
        return -ENOENT;
    n->init = (int (*)(void))dlsym(p->library, "nvmlInit_v2");
    n->close = (int (*)(void))dlsym(p->library, "nvmlShutdown");
    n->count = (int (*)(unsigned *))dlsym(p->library, "nvmlDeviceGetCount_v2");
    n->device = (int (*)(unsigned, void **))dlsym(p->library, "nvmlDeviceGetHandleByIndex_v2");
    n->clock = (int (*)(void *, int, unsigned *))dlsym(p->library, "nvmlDeviceGetClockInfo");
    n->power = (int (*)(void *, unsigned *))dlsym(p->library, "nvmlDeviceGetPowerUsage");
    n->temperature =
        (int (*)(void *, int, unsigned *))dlsym(p->library, "nvmlDeviceGetTemperature");
    if (!n->init || !n->close || !n->count || !n->device || !n->clock || !n->power ||
        !n->temperature || n->init())
        return -ENOENT;
    if (n->count(&p->count) || !p->count) {
        n->close();
        return -ENODEV;
    }
    p->count = p->count < GPUS_MOST ? p->count : GPUS_MOST;
    for (unsigned i = 0; i < p->count; i++)
        if (n->device(i, &p->devices[i]))
            p->devices[i] = NULL;
    return 0;
}

static double sweep_power_clock(const struct sweep_power *p, void *device, int which)
{
    unsigned mhz;
    return p->nvml.clock(device, which, &mhz) ? NAN : mhz;
}

static void sweep_power_take(struct sweep_power *p)
{
    for (unsigned i = 0; i < p->count; i++) {
        unsigned milliwatts, celsius;
        if (!p->devices[i] || p->used == SAMPLES_MOST)
            continue;
        if (mk_grow(&p->samples, p->used, sizeof *p->samples))
            return;
        p->samples[p->used++] = (struct sweep_power_sample){
            .seconds = (double)(mk_now_ns() - p->start) / 1e9,
            .gpu = (int)i,
            .sm_mhz = sweep_power_clock(p, p->devices[i], CLOCK_SM),
            .memory_mhz = sweep_power_clock(p, p->devices[i], CLOCK_MEMORY),
            .watts = p->nvml.power(p->devices[i], &milliwatts) ? NAN : milliwatts / 1e3,
            .celsius =
                p->nvml.temperature(p->devices[i], TEMPERATURE_GPU, &celsius) ? NAN : celsius};
    }
}

static void *sweep_power_main(void *argument)
{
    struct sweep_power *p = argument;
    pthread_mutex_lock(&p->lock);
    while (!p->end) {
        sweep_power_take(p);
        mk_cond_wait_until(&p->ended, &p->lock, mk_now_ns() + EVERY_NS);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void sweep_power_free(struct sweep_power *p)
{
    if (p->library)
        dlclose(p->library);
    free(p->samples);
    free(p);
}

struct sweep_power *sweep_power_begin(void)
{
    struct sweep_power *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    if (sweep_power_load(p)) {
        sweep_power_free(p);
        return NULL;
    }
    pthread_mutex_init(&p->lock, NULL);
    mk_cond_init(&p->ended);
    p->start = mk_now_ns();
    sigset_t all, before; /* signals are the main thread's to see */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&p->thread, NULL, sweep_power_main, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        p->nvml.close();
        sweep_power_free(p);
        return NULL;
    }
    return p;
}

uint32_t sweep_power_end(struct sweep_power *p, struct sweep_power_sample **samples)
{
    *samples = NULL;
    if (!p)
        return 0;
    pthread_mutex_lock(&p->lock);
    p->end = 1;
    pthread_cond_signal(&p->ended);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    uint32_t used = p->used;
    *samples = p->samples;
    p->samples = NULL;
    p->nvml.close();
    sweep_power_free(p);
    return used;
}
