#include "kernels/host/cuda_tracks.h"
#include "kernels/host/gpu_clock.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct cuda_tracks {
    uint32_t count, capacity;
    struct mk_track *device; /* as kernels see them */
    struct mk_event *events; /* device: count * capacity */
    struct mk_track *host;   /* what has been brought over */
    struct mk_track *fresh;  /* the device's counters, just copied */
    /* the device's events as they lie there; pages that nothing was copied to take no memory */
    struct mk_event *brought;
    struct gpu_clock_mailbox *mailbox;
    struct gpu_clock_sample last;
    cudaStream_t stream; /* the legacy stream would wait for the program's blocking streams */
};

/* The device's counters and places of events, as `fresh` has them. */
static int cuda_tracks_store(struct cuda_tracks *t)
{
    return cudaMemcpyAsync(t->device, t->fresh, t->count * sizeof *t->device,
                           cudaMemcpyHostToDevice, t->stream) != cudaSuccess ||
                   cudaStreamSynchronize(t->stream) != cudaSuccess
               ? -EIO
               : 0;
}

int cuda_tracks_create(struct cuda_tracks **out, uint32_t count, uint32_t capacity,
                       cudaStream_t stream)
{
    struct cuda_tracks *t = calloc(1, sizeof *t);
    *out = t;
    if (!t)
        return -ENOMEM;
    t->count = count;
    t->capacity = capacity;
    t->stream = stream;
    t->host = calloc(count, sizeof *t->host);
    t->fresh = calloc(count, sizeof *t->fresh);
    t->brought = malloc((size_t)count * capacity * sizeof *t->brought);
    void *device = NULL, *events = NULL, *mailbox = NULL;
    if (!t->host || !t->fresh || !t->brought ||
        cudaMalloc(&device, count * sizeof *t->device) != cudaSuccess)
        return -ENOMEM;
    t->device = device;
    if (cudaMalloc(&events, (size_t)count * capacity * sizeof *t->events) != cudaSuccess)
        return -ENOMEM;
    t->events = events;
    if (cudaHostAlloc(&mailbox, sizeof *t->mailbox, cudaHostAllocPortable | cudaHostAllocMapped) !=
        cudaSuccess)
        return -ENOMEM;
    t->mailbox = mailbox;
    for (uint32_t i = 0; i < count; i++) {
        t->fresh[i] =
            (struct mk_track){.events = t->events + (size_t)i * capacity, .capacity = capacity};
        t->host[i] = (struct mk_track){.events = malloc(capacity * sizeof(struct mk_event)),
                                       .capacity = capacity};
        if (!t->host[i].events)
            return -ENOMEM;
    }
    int result = cuda_tracks_store(t);
    return result ? result : gpu_clock_sample(t->mailbox, t->stream, &t->last);
}

struct mk_track *cuda_tracks_device(const struct cuda_tracks *t)
{
    return t->device;
}

/* The line through two samples; `bracket` of either bounds how far off a point between them is. */
static uint64_t cuda_tracks_to_host(const struct gpu_clock_sample *a,
                                    const struct gpu_clock_sample *b, uint64_t gpu)
{
    double slope = b->gpu > a->gpu ? (double)(b->host - a->host) / (double)(b->gpu - a->gpu) : 1.0;
    return (uint64_t)((int64_t)a->host + (int64_t)((double)(int64_t)(gpu - a->gpu) * slope));
}

int cuda_tracks_collect(struct cuda_tracks *t, struct mk_comm *comm)
{
    struct gpu_clock_sample before = t->last, now;
    int result = gpu_clock_sample(t->mailbox, t->stream, &now);
    if (result == -ETIMEDOUT) /* the program's own kernels have all SMs: a later wait collects */
        return 0;
    if (result ||
        cudaMemcpyAsync(t->fresh, t->device, t->count * sizeof *t->fresh, cudaMemcpyDeviceToHost,
                        t->stream) != cudaSuccess ||
        cudaStreamSynchronize(t->stream) != cudaSuccess)
        return -EIO;
    t->last = now;
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        if (t->fresh[i].count > t->host[i].count) {
            first = t->host[i].count < first ? t->host[i].count : first;
            last = t->fresh[i].count > last ? t->fresh[i].count : last;
        }
    }
    /* One strided copy for all tracks: hundreds of small ones take milliseconds. */
    size_t pitch = t->capacity * sizeof(struct mk_event);
    if (first < last && (cudaMemcpy2DAsync(t->brought + first, pitch, t->events + first, pitch,
                                           (last - first) * sizeof(struct mk_event), t->count,
                                           cudaMemcpyDeviceToHost, t->stream) != cudaSuccess ||
                         cudaStreamSynchronize(t->stream) != cudaSuccess))
        return -EIO;
    for (uint32_t i = 0; i < t->count; i++) {
        struct mk_track *h = &t->host[i];
        for (uint32_t j = h->count; j < t->fresh[i].count; j++) {
            h->events[j] = t->brought[(size_t)i * t->capacity + j];
            h->events[j].start = cuda_tracks_to_host(&before, &t->last, h->events[j].start);
        }
        h->count = t->fresh[i].count;
        h->dropped = t->fresh[i].dropped;
    }
    comm->tracks = t->host;
    comm->track_count = t->count;
    uint64_t off = (before.bracket > t->last.bracket ? before.bracket : t->last.bracket) / 2;
    if (off > comm->gpu_clock_residual)
        comm->gpu_clock_residual = off;
    return 0;
}

int cuda_tracks_forget(struct cuda_tracks *t, struct mk_comm *comm)
{
    for (uint32_t i = 0; i < t->count; i++) {
        t->fresh[i].count = t->host[i].count = 0;
        t->fresh[i].dropped = t->host[i].dropped = 0;
        t->fresh[i].events = t->events + (size_t)i * t->capacity;
        t->fresh[i].capacity = t->capacity;
    }
    comm->gpu_clock_residual = 0;
    int result = cuda_tracks_store(t);
    return result ? result : gpu_clock_sample(t->mailbox, t->stream, &t->last);
}

void cuda_tracks_destroy(struct cuda_tracks *t, struct mk_comm *comm)
{
    if (!t)
        return;
    for (uint32_t i = 0; t->host && i < t->count; i++)
        free(t->host[i].events);
    free(t->host);
    free(t->fresh);
    free(t->brought);
    cudaFree(t->device);
    cudaFree(t->events);
    cudaFreeHost(t->mailbox);
    free(t);
    comm->tracks = NULL;
    comm->track_count = 0;
}
