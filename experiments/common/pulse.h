/* A thread beside a command's own: shows the parent that this rank gets things done (spawn.h), and
 * a person how far it is.
 *
 * The line on stderr: on a terminal one that is written over, from half a second on, and taken away
 * by pulse_end; elsewhere, such as a log, whole lines, the first after 30 s and then every minute.
 * MKERNEL_PROGRESS=off: none; MKERNEL_PROGRESS=N: whole lines every N seconds. Lines of `run` on a
 * rank other than 0 are not shown. */
#pragma once

#include <stdint.h>

struct mk_comm;

/* Starts the thread. `name` ("mkernel run ag_gemm") begins each line; NULL: no lines. Without
 * memory for it the command goes on without. Once at a time in a process. */
void pulse_begin(const char *name);

/* What is done now: "launch 3 of 20: checks". Takes printf's format; cheap, but not for inner
 * loops. */
void pulse_says(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* From now on the line also says how far `*done` of `all` is, in per cent; NULL: no longer. *done
 * must stay until then. */
void pulse_counts(const uint64_t *done, uint64_t all);

/* From now on what this rank's communicator gets done is passed on, and its failure; NULL: no
 * longer, which has to be said before it is closed. */
void pulse_follow(struct mk_comm *comm);

/* From now until pulse_trust(0) time on the CPU counts as something done: a library computes that
 * cannot be asked how far it is. */
void pulse_trust(int on);

/* Takes the line away until pulse_says: what comes is printed. */
void pulse_hide(void);

/* Takes the line away and ends the thread. Nothing, where none began. */
void pulse_end(void);
