/* Several files of results into one. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* A part of FILE is named FILE.part.NAME: what one of several sweeps measured for it. */
#define RESULTS_PART ".part."

/* Adds to `into` (made where it is not there) the jobs of `from` that it does not have; a job that
 * failed gives way to the same one measured again. One transaction. Jobs of another build of
 * mkernel are refused but with `mix`; other hosts are welcome. *jobs: how many were added. Waits at
 * most a minute for a sweep that writes `into`. 0, or -errno with a sentence: -EBUSY where that
 * sweep is still at work. */
int results_merge(const char *into, const char *from, int mix, int64_t *jobs, char *error,
                  size_t size);

/* The same with each part of `into` beside it that nobody writes, which then goes. 0 or an error,
 * with its sentence, of one that stays: -EBUSY only where all that stay are being written, or
 * `into` is. */
struct results_merged {
    uint32_t parts; /* that went */
    int64_t jobs;   /* that were added */
};
int results_merge_parts(const char *into, int mix, struct results_merged *out, char *error,
                        size_t size);

/* SQL: what two machines whose results go together have in common, of column or value `x`: mkernel
 * and its build, but not the host. */
#define RESULTS_BUILD(x) "substr(" x ", instr(" x ", ', mkernel '))"
