/* A thread beside a command's own. It shows the parent process that this rank makes progress
 * (spawn.h), and prints for the user how far the command is.
 *
 * The line on stderr: on a terminal one line that is overwritten, from half a second on, and that
 * pulse_end removes; elsewhere, such as in a log, whole lines, the first after 30 s and then one a
 * minute. MKERNEL_PROGRESS=off: none; MKERNEL_PROGRESS=N: whole lines every N seconds. Only rank 0
 * of a run prints lines. */
#pragma once

#include <stdint.h>

struct mk_comm;

/* Starts the thread. `name` ("mkernel run ag_gemm") begins each line; NULL: no lines. Without
 * memory for it the command goes on without. Once at a time in a process. */
void pulse_begin(const char *name);

/* Sets what the command does now: "launch 3 of 20: checks". Cheap, but not for inner loops. */
void pulse_says(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* From now on the line also shows `*done` as a percentage of `all`. NULL ends that; until then
 * *done must exist. */
void pulse_counts(const uint64_t *done, uint64_t all);

/* From now on the progress of this rank's communicator, and its failure, are passed to the parent.
 * NULL ends that; call it before the communicator is closed. */
void pulse_follow(struct mk_comm *comm);

/* From now until pulse_trust(0) CPU time counts as progress: for libraries that compute long and do
 * not tell how far they are. */
void pulse_trust(int on);

/* Removes the line until the next pulse_says, so that other text can be printed. */
void pulse_hide(void);

/* Removes the line and ends the thread, if there is one. */
void pulse_end(void);
