/* Clocks: samples of two clocks, the line fitted through them, and its error bound.
 *
 * A sample reads the remote clock between two readings of the local one, so the remote clock was
 * read at `local` +- `bracket` / 2. The smallest brackets are those that no interrupt or queue has
 * stretched: only they are fitted. */
#pragma once

#include <stdint.h>

struct trace_clock_sample {
    uint64_t local;   /* ns, middle of the bracket */
    uint64_t remote;  /* ns on the other clock */
    uint64_t bracket; /* ns, its width */
};

/* remote = local + offset + drift * (local - reference). */
struct trace_clock {
    uint64_t reference;   /* ns, local */
    int64_t offset;       /* ns */
    double drift;         /* ns per ns */
    double drift_error;   /* error bound of drift */
    uint64_t first, last; /* local time of the samples that were used */
    uint64_t residual;    /* ns: error bound of the line between first and last */
    uint32_t samples, used;
};

/* Clock crystals of servers differ by less than this. It bounds the drift if the samples span too
 * little time to measure it. */
#define TRACE_DRIFT_UNKNOWN 50e-6

/* Fits a line to `count` samples in any order; used[i] (NULL allowed) becomes 1 where sample i was
 * fitted. No samples: the identity, with a residual of 0. Drift is fitted only where the samples'
 * span determines it better than TRACE_DRIFT_UNKNOWN. Pure. Returns 0 or -ENOMEM. */
int clock_fit(struct trace_clock *out, const struct trace_clock_sample *samples, uint32_t count,
              uint8_t *used);

/* The other clock's time at `local`. */
int64_t clock_map(const struct trace_clock *c, uint64_t local);

/* The error bound of clock_map in from .. to (local ns): the residual, plus the drift's error
 * outside the samples. */
uint64_t clock_residual(const struct trace_clock *c, uint64_t from, uint64_t to);
