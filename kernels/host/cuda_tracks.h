/* The GPU's tracks: event buffers in device memory, brought to the host and onto the host's clock
 * after a launch. */
#pragma once

#include "core/comm/comm.h"

#include <cuda_runtime_api.h>

struct cuda_tracks;

/* `count` tracks of `capacity` events each; takes the first clock sample. All work is on `stream`,
 * a non-blocking one. 0, -ENOMEM, -EIO or -ETIMEDOUT (gpu_clock.h). */
int cuda_tracks_create(struct cuda_tracks **out, uint32_t count, uint32_t capacity,
                       cudaStream_t stream);

/* The tracks as kernels see them. */
struct mk_track *cuda_tracks_device(const struct cuda_tracks *t);

/* Copies what is new to comm->tracks, its times turned into CLOCK_MONOTONIC by a line through the
 * clock samples before and after, and notes how far off they may be in comm->gpu_clock_residual. No
 * kernel of the communicator may be running. Where others' kernels leave no SM for the clock's,
 * nothing is brought, and the next call brings it. 0 or -EIO. */
int cuda_tracks_collect(struct cuda_tracks *t, struct mk_comm *comm);

/* Empties the tracks, on the GPU too; takes a clock sample. No kernel may be running, and all that
 * was recorded has been collected. 0 or -EIO. */
int cuda_tracks_forget(struct cuda_tracks *t, struct mk_comm *comm);

/* Frees; comm->tracks too. NULL is allowed. */
void cuda_tracks_destroy(struct cuda_tracks *t, struct mk_comm *comm);
