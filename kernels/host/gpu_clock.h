/* The GPU's %globaltimer against the host's CLOCK_MONOTONIC. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpu_clock_sample {
    uint64_t gpu, host; /* ns: the same moment on both clocks */
    /* ns between the host times that enclose it; the moment is off by at most half */
    uint64_t bracket;
};

/* Pinned host memory through which the two sides take turns, a cache line each. */
struct gpu_clock_mailbox {
    volatile uint32_t ask; /* the question's number */
    uint32_t unused[15];
    /* the answer: one store, so that nothing but its way lies between the reading and the host; 0:
     * none yet */
    volatile uint64_t gpu;
};

/* Takes 64 samples with a small kernel on `stream` and keeps the one with the narrowest bracket.
 * `mailbox` is pinned and zeroed by the caller. Blocks for about a millisecond, at most 100 ms
 * beyond what the stream has before it. 0, -EIO (the launch failed), -ETIMEDOUT (the GPU is busy
 * with something else). */
int gpu_clock_sample(struct gpu_clock_mailbox *mailbox, cudaStream_t stream,
                     struct gpu_clock_sample *out);

#ifdef __cplusplus
}
#endif
