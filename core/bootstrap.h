/* Bootstrap: how the ranks of a job find each other, exchange addresses, and learn that one of them is gone. TCP, a star
 * around rank 0. It carries set-up, clock samples, traces and bad news, never a launch's data.
 *
 * One thread per process may call; a thread of its own watches for bad news between calls. Every call ends within the
 * timeout given at join. After a call returned an error only bootstrap_failure and bootstrap_leave are allowed. */
#ifndef MK_BOOTSTRAP_H
#define MK_BOOTSTRAP_H

#include "core/failure.h"

struct bootstrap;

struct bootstrap_config {
    uint32_t rank, world;
    char host[256];  /* of rank 0 */
    uint16_t port;   /* of rank 0; where listen_fd is given, for information */
    int listen_fd;   /* rank 0: an already listening socket, taken over; -1: bind `port` itself */
    char token[64];  /* the job's secret: a stranger is turned away */
    uint64_t timeout_ns;
};

/* Joins the job: returns when all ranks have. 0, or -errno with one sentence in `error`: -ETIMEDOUT (names the ranks that
 * are missing), -EPERM (wrong token), -EPROTO (garbled or other version), -EEXIST (a rank came twice), -ECONNREFUSED. */
int bootstrap_join(struct bootstrap **out, const struct bootstrap_config *config, char *error, size_t error_size);

/* Gathers `bytes` from every rank, in rank order, into all (world * bytes). Also a barrier. 0 or -errno. */
int bootstrap_allgather(struct bootstrap *b, const void *mine, void *all, size_t bytes);

/* Gathers byte strings of any length at rank 0: there *all (malloc'd, caller frees) holds them end to end and lengths[world]
 * their sizes; elsewhere both are left alone. 0 or -errno. */
int bootstrap_gather(struct bootstrap *b, const void *mine, size_t bytes, void **all, size_t *lengths);

int bootstrap_barrier(struct bootstrap *b);

/* Bracketed clock samples against rank 0: `samples` exchanges; fills local[i] (ns, CLOCK_MONOTONIC here, middle of the
 * bracket), remote[i] (rank 0's clock) and bracket[i] (its width). On rank 0 it serves the others and fills zeros. */
int bootstrap_clock(struct bootstrap *b, uint32_t samples, uint64_t *local, uint64_t *remote, uint64_t *bracket);

/* Tells every rank of a failure. The first to reach rank 0 is the job's; later ones are dropped. Any thread. */
void bootstrap_fail(struct bootstrap *b, const struct mk_failure *failure);

/* Whether the job has failed: 1 and *failure, the same one on every rank. A lost connection is a failure of kind
 * MK_FAIL_PEER_LOST. Any thread; never blocks; cheap (one atomic load) while all is well. */
int bootstrap_failure(struct bootstrap *b, struct mk_failure *failure);

/* Leaves in good order (others do not take it for a loss) and frees b. NULL is allowed. */
void bootstrap_leave(struct bootstrap *b);

#endif
