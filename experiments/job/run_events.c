/* What stands between a rank's launches on a GPU, so that a launch's time is the GPU's: the same
 * quantity as `bench` measures, without what the host takes to launch and to wait. */
#include "experiments/job/run.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>

struct run_events {
    uint64_t count;
    cudaEvent_t of[];
};

int run_events_open(struct run_events **out, uint64_t launches)
{
    struct run_events *e = *out = calloc(1, sizeof *e + (launches + 1) * sizeof *e->of);
    if (!e)
        return -ENOMEM;
    for (; e->count <= launches; e->count++)
        if (cudaEventCreate(&e->of[e->count]) != cudaSuccess)
            return -ENOMEM;
    return 0;
}

int run_events_mark(struct run_events *e, uint64_t number)
{
    return cudaEventRecord(e->of[number], NULL) == cudaSuccess ? 0 : -EIO;
}

int run_events_read(const struct run_events *e, uint64_t launches, double *ms)
{
    for (uint64_t i = 0; i < launches; i++) {
        float one;
        if (cudaEventSynchronize(e->of[i + 1]) != cudaSuccess ||
            cudaEventElapsedTime(&one, e->of[i], e->of[i + 1]) != cudaSuccess)
            return -EIO;
        ms[i] = one;
    }
    return 0;
}

void run_events_close(struct run_events *e)
{
    for (uint64_t i = 0; e && i < e->count; i++)
        cudaEventDestroy(e->of[i]);
    free(e);
}
