/* Inside core: the state of one rank's bootstrap.
 *
 * After join the watcher thread alone reads the sockets. It keeps the news under `lock` and signals
 * `changed`; callers write (under the lock too) and wait for `changed`. So a failure is seen at
 * once, also between calls. */
#pragma once

#include "core/comm/bootstrap_listener.h"

#include <pthread.h>

/* How long rank 0 collects the others' records of a failure before it decides, and how much longer
 * the others wait for that. A job ends within the timeout plus 2 s, and these come behind a wait
 * that expired, before the farewell. */
#define SETTLE_NS 1000000000ull
#define SETTLE_GRACE_NS 200000000ull

/* A PART or RESULT that waits for the caller. */
struct bootstrap_slot {
    int full;
    uint32_t sequence;
    uint64_t bytes;
    uint8_t *payload; /* malloc'd */
};

struct bootstrap {
    uint32_t rank, world;
    uint64_t timeout_ns;
    struct listener listener; /* rank 0 */
    struct peer *peers; /* rank 0: world of them, [r] leads to rank r; elsewhere one, to rank 0 */
    struct bootstrap_slot *slots;
    uint32_t peer_count;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int threads; /* the three above and the watcher exist */
    pthread_t watcher;
    int wake_fd; /* eventfd: the watcher looks again */
    int leaving, quit;
    uint32_t full_slots;
    uint32_t departed;            /* peers that said BYE */
    uint32_t sequence;            /* of the next collective */
    uint64_t pong_at, pong_value; /* pong_at 0: not here */

    struct bootstrap_slot *stands; /* rank 0: by rank, what each has said last of where it stands */
    uint32_t stands_news;          /* of them, since somebody looked */

    int failed; /* atomic; 1: the case has a record */
    struct failure_case failure;
    int final;
    uint64_t settle_at; /* when it becomes final; 0: not by this rank */
};

/* The rank at the other end of peer i, and back. */
static inline uint32_t bootstrap_peer_rank(const struct bootstrap *b, uint32_t i)
{
    return b->rank == 0 ? i : 0;
}

/* bootstrap_join.c: connects; after it, all ranks are in b->peers. 0 or -errno with a sentence. */
int bootstrap_meet(struct bootstrap *b, const struct bootstrap_config *config, char *error,
                   size_t size);

/* bootstrap_watch.c: the watcher thread. */
int bootstrap_watch_start(struct bootstrap *b);
void bootstrap_watch_stop(struct bootstrap *b);

/* With the lock held: takes a failure into the job's record and sends it on. */
void bootstrap_record(struct bootstrap *b, const struct mk_failure *f);

/* With the lock held: waits for `changed`, at most until `deadline`. ETIMEDOUT where that has
 * passed. */
int bootstrap_wait(struct bootstrap *b, uint64_t deadline);

/* With the lock held, on rank 0: takes over where a rank stands. */
void bootstrap_take_stand(struct bootstrap *b, uint32_t rank, uint8_t *stand, uint64_t bytes);

void bootstrap_clear_slot(struct bootstrap *b, uint32_t i);
void bootstrap_wake(struct bootstrap *b);

/* A record about nothing in particular yet, said by this rank. */
struct mk_failure bootstrap_blame(const struct bootstrap *b, enum mk_failure_kind kind,
                                  uint32_t producer);
