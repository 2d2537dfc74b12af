/* Writing a trace: every rank calls trace_collect after its last mk_wait; rank 0 merges what the
 * ranks recorded and stores one SQLite file (schema.sql). Reading one is reader.h. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tracer/clock.h"

struct mk_comm;
struct mk_plan;

#define TRACE_MAX_SAMPLES 512

/* Clock samples of one rank against another clock. Zeroed to begin with. */
struct trace_samples {
    uint32_t count;
    struct trace_clock_sample samples[TRACE_MAX_SAMPLES];
};

struct trace_metric {
    char name[48]; /* "launch_median" */
    char unit[16]; /* "ns" */
    double value;
};

/* What the caller knows of the run. Strings may be NULL: not known. Only rank 0's is stored, but
 * for device, host_clock and gpu_clock, which are each rank's own. Nothing is kept after the
 * call. */
struct trace_run {
    const char *source;   /* "measured" (NULL stands for it), "simulated", "synthetic" */
    const char *executor; /* "cuda", "host", "sim" */
    const char *fabric, *nic;
    const char *command; /* how the run was started */
    const char *shape;   /* as on the command line; the first plan's M,N,K stand for NULL */
    const char *version;
    const char *device;  /* of this rank, in words */
    const int64_t *seed; /* NULL: none */
    /* of one rank, per second; 0: not known. These set the ideal of view efficiency */
    double peak_flops;
    double memory_bytes_per_s,
        cache_bytes; /* of its memory; what its cache keeps, not per second */
    double nvlink_bytes_per_s, network_bytes_per_s; /* into one rank; 0: not known or none */
    const struct trace_samples
        *host_clock; /* taken before the run with trace_sample_clock; NULL: only those after it */
    const struct trace_samples
        *gpu_clock; /* %globaltimer is `local`, this host's CLOCK_MONOTONIC `remote`;
                     * NULL: the tracks are on CLOCK_MONOTONIC already */
    /* the launches are of this plan alone; NULL: of all that the communicator has */
    const struct mk_plan *plan;
    const struct trace_metric *metrics;
    uint32_t metric_count;
};

/* Takes up to `count` clock samples against rank 0 and adds them to `samples`. Every rank calls,
 * before its first launch: with samples on both sides of the run the clocks' drift can be told.
 * Blocks as bootstrap_clock does. 0 or -errno. */
int trace_sample_clock(struct mk_comm *comm, struct trace_samples *samples, uint32_t count);

/* Gathers all ranks' tracks, messages and clock samples at rank 0, which stores them at `path`,
 * over what was there. Every rank calls, between launches; blocks as the bootstrap does for each
 * few MB, then until rank 0, which goes on saying that it is storing, has stored them.
 * Collective: a rank that passes no path (NULL) still takes part. Returns 0, or -errno with one
 * sentence in `error`; on rank 0 also what the disk said (-ENOSPC, -EACCES ...). The file is then
 * as it was before, and the communicator is usable. */
int trace_collect(struct mk_comm *comm, const struct trace_run *run, const char *path, char *error,
                  size_t size);

/* mk_trace_end with more to tell: `run` is stored but for its host_clock, which mk_trace_begin has
 * taken. Every rank calls. Returns as mk_trace_end does. */
int trace_window_end(struct mk_comm *comm, const struct trace_run *run, const char *path);

/* The same for ranks that live in one process and on one clock (the deterministic executor, the
 * simulator): `comms` in rank order, all idle. Uses no bootstrap. Returns as trace_collect does. */
int trace_collect_local(struct mk_comm *const *comms, uint32_t count, const struct trace_run *run,
                        const char *path, char *error, size_t size);
