/* Bootstrap: how the ranks of a job find each other, exchange addresses, and learn that one of them
 * is gone. TCP, a star around rank 0. It carries set-up, clock samples, traces and bad news, never
 * a launch's data.
 *
 * One thread per process may call; a thread of its own watches for bad news between calls. Every
 * call ends within the timeout given at join; ranks other than 0 give rank 0, which knows the
 * missing ranks, up to a second more to name them. The look-up of rank 0's name is the resolver's
 * and has the resolver's bound. After a call returned an error only bootstrap_failure,
 * bootstrap_settle and bootstrap_leave are allowed. Rank 0 and each other rank prove to each
 * other that they know the token, which does not cross the network. What follows is neither
 * encrypted nor signed: a process that can change packets on their way is not kept out. */
#pragma once

#include "core/comm/failure.h"

struct bootstrap;

struct bootstrap_config {
    uint32_t rank, world;
    char host[256]; /* of rank 0; bootstrap_listen says at which addresses rank 0 then listens */
    uint16_t port;  /* of rank 0; where listen_fd is given, for information */
    int listen_fd;  /* rank 0: an already listening socket, taken over; -1: bind `port` itself.
                       Others: not  looked at */
    char token[64]; /* the job's secret: whoever does not know it is refused */
    uint64_t timeout_ns;
};

/* Joins the job: returns when all ranks have. 0, or -errno with one sentence in `error`, the same
 * on every rank that had reached rank 0: -ETIMEDOUT (names the ranks that are missing), -EPROTO
 * (garbled or another version), -EEXIST (a rank joined twice), -EINVAL (ranks disagree about their
 * number, or unusable arguments), -ECONNRESET (a rank was lost). To this rank alone: -EPERM (wrong
 * token, or rank 0 does not know it), -EADDRINUSE (rank 0's port is taken), -ECONNREFUSED and others of connect, -EHOSTUNREACH
 * (no such host), -ENOMEM. A process without the token is refused and cannot end the job: a rank
 * with a wrong token is missing to the others. */
int bootstrap_join(struct bootstrap **out, const struct bootstrap_config *config, char *error,
                   size_t size);

/* From now on each wait is so long. */
void bootstrap_set_timeout(struct bootstrap *b, uint64_t timeout_ns);

/* A listening socket as rank 0's would be for ranks that know it by `host`, for a bootstrap to
 * come: at port *port, or at any where that is 0; *port is then its port. It listens at the address
 * that `host` is ("localhost" is 127.0.0.1, which is ::1 where there is no IPv4), and on all addresses where that is a name, which may
 * be another address elsewhere, or an address of no interface here. The socket, the caller's, or
 * -errno. */
int bootstrap_listen(const char *host, uint16_t *port);

/* Gathers `bytes` from every rank, in rank order, into all (world * bytes, at most 4 GiB, else
 * -EMSGSIZE). Also a barrier. 0, or -errno of the job's failure: -ECONNRESET (a rank is lost or has
 * left), -ETIMEDOUT, -EPROTO (ranks made different calls), -EIO (others). The same holds for the
 * calls below. */
int bootstrap_allgather(struct bootstrap *b, const void *mine, void *all, size_t bytes);

/* Gathers byte strings of any length at rank 0: there *all (malloc'd, caller frees) holds them end
 * to end and lengths[world] their sizes; elsewhere both are left alone. A rank that has 4 GiB or
 * more takes part with nothing, and -EMSGSIZE is its own answer. */
int bootstrap_gather(struct bootstrap *b, const void *mine, size_t bytes, void **all,
                     size_t *lengths);

int bootstrap_barrier(struct bootstrap *b);

/* Bracketed clock samples against rank 0: `samples` exchanges; fills local[i] (ns, CLOCK_MONOTONIC
 * here, middle of the bracket), remote[i] (rank 0's clock) and bracket[i] (its width). On rank 0 it
 * serves the others and fills zeros. */
int bootstrap_clock(struct bootstrap *b, uint32_t samples, uint64_t *local, uint64_t *remote,
                    uint64_t *bracket);

/* Tells every rank of a failure. The first to reach rank 0 is the job's; later ones are dropped,
 * unless they say more about it (failure_merge): a rank that waits when it comes hands in its wait,
 * as a TIMEOUT, so that rank 0 finds the rank that all wait for in the end. Any thread. */
void bootstrap_fail(struct bootstrap *b, const struct mk_failure *failure);

/* Whether the job has failed: 1 and *failure (may be NULL), the record so far. A lost connection is
 * a failure of kind MK_FAIL_PEER_LOST. Any thread; never blocks; cheap (one atomic load) while all
 * is well. */
int bootstrap_failure(struct bootstrap *b, struct mk_failure *failure);

/* Where the job has failed: waits, at most 1.2 seconds, for rank 0's last word on it, which is the
 * same on every rank, and returns 1 with it in *failure. 0 where it has not failed. Any thread. */
int bootstrap_settle(struct bootstrap *b, struct mk_failure *failure);

/* Says to rank 0 where this rank stands, in bytes that the caller understands (comm_watch.c); they
 * take the place of those before. Any thread. */
#define BOOTSTRAP_STAND_BYTES (64u << 10)
void bootstrap_stand(struct bootstrap *b, const void *stand, size_t bytes);

/* Rank 0: how many records have come since the last call; and a copy of a rank's last (malloc'd),
 * NULL where there is none. Any thread. */
uint32_t bootstrap_stands(struct bootstrap *b);
void *bootstrap_stand_of(struct bootstrap *b, uint32_t rank, size_t *bytes);

/* The collectives that this rank has begun. Any thread. */
uint32_t bootstrap_meetings(struct bootstrap *b);

/* Leaves in good order (others do not take it for a loss) and frees b. NULL is allowed. */
void bootstrap_leave(struct bootstrap *b);
