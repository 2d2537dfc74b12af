/* All ranks of a job as processes of this host: the parent starts itself once per rank, waits, and
 * ends whatever is left.
 *
 * A child is this program again with the same arguments; spawn_identity tells it its rank. It
 * reports its status and its one sentence through a pipe, so that the parent says one thing for
 * all. Children end when the parent does, even by SIGKILL: the kernel is asked for it, and each
 * watches the pipe.
 *
 * No job hangs for ever: children count their progress in a page that they share with the parent,
 * which kills
 *   all children  if none has made progress for the timeout and nearly 2 s
 *   a child       that still runs the timeout and 2 s after the first child ended without an error
 *   a child       after another one has failed: 1.5 s later if it is stopped or has not noticed the
 *                 failure, 3.5 s later if it has, 2 s after its report, and the timeout and 2 s
 *                 later while it is being set up. */
#pragma once

#include <stdint.h>

#define SPAWN_MAX_RANKS 256u
#define SPAWN_SENTENCE 1000

/* What a child is in the job. */
struct spawn_identity {
    uint32_t rank, world;
    uint16_t port; /* of rank 0, on this host */
    int listen_fd; /* rank 0's listening socket, else -1 */
    int report_fd;
    char token[64];
};

/* 1 and *out if this process was started by spawn_ranks, else 0. Removes the identity from the
 * environment; from then on this process ends (status 3) when its parent has ended. */
int spawn_identity(struct spawn_identity *out);

/* Reports a child's exit status and sentence to the parent, in one write, so that reports of
 * several children do not mix. A later report replaces it. */
void spawn_report(const struct spawn_identity *me, int status, const char *sentence);

/* Counts some progress of a child, however small: a tile, a message, some rows of a check. Not to
 * be called while it only waits. Any thread; cheap. This and the next two functions do nothing in a
 * process that was not started by spawn_ranks. */
void spawn_beat(void);

/* What follows, such as setting up a GPU, may take `ns` longer than the usual limit without
 * progress. 0 ends that. */
void spawn_allow(uint64_t ns);

enum spawn_stage {
    SPAWN_SETS_UP, /* it may not notice for a while that another rank has failed */
    SPAWN_RUNS,    /* it notices that another rank has failed, and enters the next stage */
    SPAWN_FAILED,  /* it knows that the job has failed, and ends */
};
void spawn_stage(enum spawn_stage stage);

enum spawn_overdue {
    SPAWN_IN_TIME,
    SPAWN_OVERDUE,    /* it had to be killed */
    SPAWN_STOPPED,    /* it had to be killed, and was stopped (SIGSTOP, a debugger) */
    SPAWN_UNKILLABLE, /* it was killed and still exists: it hangs in the kernel */
};

/* How a rank ended. */
struct spawn_end {
    int status; /* exit status, where signal is 0 */
    int signal; /* that killed it */
    enum spawn_overdue overdue;
    uint64_t overdue_ns; /* how long it was waited for */
    int stopped;         /* 1: it is stopped now */
    int reported, reported_status;
    char sentence[SPAWN_SENTENCE];
};

/* How a job ended. */
struct spawn_how {
    int interrupted; /* the signal that ended it; 0: none */
    /* all were killed because none had made progress for so long; 0: they were not */
    uint64_t idle_ns;
};

/* Starts `world` children with `argv`, waits for all. After SIGINT, SIGTERM or SIGHUP, as far as
 * this process does not ignore them, all are ended at once. Fills ends[world] and *how. Returns 0
 * or -errno (nothing is left running). */
int spawn_ranks(char **argv, uint32_t world, uint64_t timeout_ns, struct spawn_end *ends,
                struct spawn_how *how);
