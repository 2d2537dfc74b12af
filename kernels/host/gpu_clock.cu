#include "kernels/host/gpu_clock.h"

#include <errno.h>
#include <time.h>

#include "kernels/engine/ptx.cuh"

enum { SAMPLES = 64 };

static const uint64_t LIMIT_NS = 100000000;

/* Answers each question with its clock. Ends by itself when no question comes. */
static __global__ void gpu_clock_kernel(struct gpu_clock_mailbox *mailbox)
{
    uint64_t start = ptx_globaltimer();
    for (uint32_t i = 1; i <= SAMPLES; i++) {
        while (mailbox->ask < i) {
            if (ptx_globaltimer() - start > LIMIT_NS)
                return;
        }
        mailbox->gpu = ptx_globaltimer();
    }
}

static uint64_t host_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int gpu_clock_sample(struct gpu_clock_mailbox *mailbox, cudaStream_t stream,
                     struct gpu_clock_sample *out)
{
    mailbox->ask = 0;
    out->bracket = UINT64_MAX;
    gpu_clock_kernel<<<1, 1, 0, stream>>>(mailbox);
    if (cudaGetLastError() != cudaSuccess)
        return -EIO;
    uint64_t begin = host_clock(), before, after = begin;
    for (uint32_t i = 1; i <= SAMPLES && after - begin < LIMIT_NS; i++) {
        uint64_t answer;
        mailbox->gpu = 0;
        before = host_clock();
        __atomic_store_n((uint32_t *)&mailbox->ask, i, __ATOMIC_RELEASE);
        do {
            answer = __atomic_load_n((uint64_t *)&mailbox->gpu, __ATOMIC_ACQUIRE);
            after = host_clock();
        } while (!answer && after - begin < LIMIT_NS);
        if (answer && after - before < out->bracket) {
            out->gpu = answer;
            out->host = before + (after - before) / 2;
            out->bracket = after - before;
        }
    }
    if (cudaStreamSynchronize(stream) != cudaSuccess)
        return -EIO;
    return out->bracket == UINT64_MAX ? -ETIMEDOUT : 0;
}
