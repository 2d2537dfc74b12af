/* All ranks of a job as processes of this host: the parent starts itself once per rank, waits, and
 * ends whatever is left.
 *
 * A child is this program again with the same arguments; spawn_identity tells it its rank. It
 * reports its status and its one sentence through a pipe, so that the parent says one thing for
 * all. Children end when the parent does, even by SIGKILL: the kernel is asked for it, and each
 * watches the pipe.
 *
 * No job lasts for ever: children show in a page that they share with the parent that they get
 * things done. It ends
 *   all of them   where none has got anything done for the timeout and nearly 2 s
 *   a child       that runs on for the timeout and 2 s after the first one has ended well; after a
 *   failure, for 1.5 s where it is
 *                 stopped or takes no notice, for 3.5 s where it does, for 2 s after its last word,
 *                 and for the timeout and 2 s where it is still being set up. */
#pragma once

#include <stdint.h>

#define SPAWN_MAX_RANKS 256u
#define SPAWN_SENTENCE 1000

/* What a child is in the job. */
struct spawn_identity {
    uint32_t rank, world;
    uint16_t port; /* of rank 0, on 127.0.0.1 */
    int listen_fd; /* rank 0's listening socket, else -1 */
    int report_fd;
    char token[64];
};

/* 1 and *out where this process was started by spawn_ranks, else 0. Takes the identity out of the
 * environment, and from then on this process ends (status 3) when its parent has. */
int spawn_identity(struct spawn_identity *out);

/* A child's last word. One write, so that words of several children do not mix; a later one
 * replaces it. */
void spawn_report(const struct spawn_identity *me, int status, const char *sentence);

/* A child has got something done, be it small: a tile, a message, some rows of a check. Not for
 * what only waits. Any thread; cheap. These three do nothing in a process that was not started by
 * spawn_ranks. */
void spawn_beat(void);

/* What comes may take so much longer than other things without a beat in between, such as setting
 * up a GPU. 0: no longer. */
void spawn_allow(uint64_t ns);

enum spawn_stage {
    SPAWN_SETS_UP, /* a failure elsewhere may go unnoticed for a while */
    SPAWN_RUNS,    /* a failure elsewhere is noticed, and told by the next */
    SPAWN_FAILED,  /* knows that the job has failed, and ends */
};
void spawn_stage(enum spawn_stage stage);

enum spawn_overdue {
    SPAWN_IN_TIME,
    SPAWN_OVERDUE,    /* it had to be killed */
    SPAWN_STOPPED,    /* so it had, and it was stopped (SIGSTOP, a debugger) */
    SPAWN_UNKILLABLE, /* it is still there: it hangs in the kernel */
};

/* How a rank ended. */
struct spawn_end {
    int status; /* exit status, where signal is 0 */
    int signal; /* that killed it */
    enum spawn_overdue overdue;
    uint64_t overdue_ns; /* how long it was waited for */
    int stopped;         /* 1: it is, now */
    int reported, reported_status;
    char sentence[SPAWN_SENTENCE];
};

/* How a job ended. */
struct spawn_how {
    int interrupted; /* the signal that ended it; 0: none */
    /* no rank had got anything done for so long, so all were killed; 0: otherwise */
    uint64_t idle_ns;
};

/* Starts `world` children with `argv`, waits for all. After SIGINT, SIGTERM or SIGHUP, as far as
 * this process does not ignore them, all are ended at once. Fills ends[world] and *how. Returns 0
 * or -errno (nothing is left running). */
int spawn_ranks(char **argv, uint32_t world, uint64_t timeout_ns, struct spawn_end *ends,
                struct spawn_how *how);
