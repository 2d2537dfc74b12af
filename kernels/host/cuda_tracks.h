/* The GPU's tracks: event buffers in device memory, brought to the host and onto the host's clock
 * after a launch. */
#pragma once

#include "core/comm/comm.h"

struct cuda_tracks;

/* `count` tracks of `capacity` events each; takes the first clock sample. 0, -ENOMEM or -EIO. */
int cuda_tracks_create(struct cuda_tracks **out, uint32_t count, uint32_t capacity);

/* The tracks as kernels see them. */
struct mk_track *cuda_tracks_device(const struct cuda_tracks *t);

/* Copies what is new to comm->tracks, its times turned into CLOCK_MONOTONIC by a line through the
 * clock samples before and after, and notes how far off they may be in comm->gpu_clock_residual. No
 * kernel may be running. 0 or -EIO. */
int cuda_tracks_collect(struct cuda_tracks *t, struct mk_comm *comm);

/* Empties the tracks, on the GPU too; takes a clock sample. No kernel may be running, and all that
 * was recorded has been collected. 0 or -EIO. */
int cuda_tracks_forget(struct cuda_tracks *t, struct mk_comm *comm);

/* Frees; comm->tracks too. NULL is allowed. */
void cuda_tracks_destroy(struct cuda_tracks *t, struct mk_comm *comm);
