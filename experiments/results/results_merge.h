/* Several files of results into one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A part of FILE is named FILE.part.NAME: what one of several sweeps measured for it. */
#define RESULTS_PART ".part."

/* Adds to `into` (created if it does not exist) the jobs of `from` that it does not have. A failed
 * job is replaced by the same job measured again. One transaction. Refuses jobs of another build of
 * mkernel without `mix`; jobs of other hosts are always taken. *jobs: how many were added. Waits
 * for a sweep that writes `into` for a minute at most. 0, or -errno with a sentence: -EBUSY: that
 * sweep is still running. */
int results_merge(const char *into, const char *from, int mix, int64_t *jobs, char *error,
                  size_t size);

/* Merges each part of `into` that no sweep is writing, and removes it. 0, or the error of a part
 * that stays, with its sentence; -EBUSY only if all that stay are being written, or `into` is. */
struct results_merged {
    uint32_t parts; /* merged and removed */
    int64_t jobs;   /* added */
};
int results_merge_parts(const char *into, int mix, struct results_merged *out, char *error,
                        size_t size);

/* SQL: of a machine's description `x` the part that must be equal for results to be merged: mkernel
 * and its build, without the host. */
#define RESULTS_BUILD(x) "substr(" x ", instr(" x ", ', mkernel '))"
