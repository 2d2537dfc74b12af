/* All ranks of a job as processes of this host: the parent starts itself once per rank, waits, and ends
 * whatever is left.
 *
 * A child is this program again with the same arguments; spawn_identity tells it who it is. It reports its
 * status and its one sentence through a pipe, so that the parent says one thing for all. Children end when
 * the parent does, even by SIGKILL: the kernel is asked for it, and each watches the pipe. */
#ifndef MK_SPAWN_H
#define MK_SPAWN_H

#include <stdint.h>

#define SPAWN_MAX_RANKS 256u
#define SPAWN_SENTENCE 1000

/* Who a child is. */
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

/* A child's last word. One write, so that words of several children do not mix. */
void spawn_report(const struct spawn_identity *me, int status, const char *sentence);

/* How a rank ended. */
struct spawn_end {
    int status;  /* exit status, where signal is 0 */
    int signal;  /* that killed it */
    int overdue; /* 1: it had to be killed, because it did not end in time */
    int reported;
    char sentence[SPAWN_SENTENCE];
};

/* Starts `world` children with `argv`, waits for all. After the first one that fails the others have grace_ns
 * to end by themselves; after SIGINT, SIGTERM or SIGHUP they are ended at once. Fills ends[world];
 * *interrupted is the signal or 0. Returns 0 or -errno (nothing is left running). */
int spawn_ranks(char **argv, uint32_t world, uint64_t grace_ns, struct spawn_end *ends, int *interrupted);

#endif
