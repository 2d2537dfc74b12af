/* The proxy: reads the command rings of one rank and turns commands into puts of a fabric. It is a
 * state machine that one thread steps (proxy_start makes such a thread; the deterministic executor
 * steps it itself). */
#pragma once

#include "backends/fabric.h"

struct proxy_config {
    struct fabric *fabric;
    struct mk_ring *const *rings;
    uint32_t ring_count;
    uint32_t in_flight;  /* puts under way at most, all peers together; 0: 256 */
    uint64_t timeout_ns; /* a put that has not completed after this fails the job */
    struct mk_topo topo;
    uint64_t heap_bytes, heap_flags; /* bounds that commands are checked against */
    struct mk_message_log *messages; /* NULL: not traced */
    uint64_t (*now)(void *context);  /* ns; the wall or the virtual clock */
    int (*failed)(void *context);    /* has the job failed? then the proxy only drains */
    void (*fail)(void *context, const struct mk_failure *failure); /* called once at most */
    /* Fills the fields of a failure that the proxy cannot know: op, and where failure->flag is not
     * UINT32_MAX, chunk and what. `plan` is the id of the ring's last BEGIN, 0 for none. NULL: they
     * stay unknown. */
    void (*describe)(void *context, uint32_t plan, struct mk_failure *failure);
    void *context;
};

struct proxy;

/* The configuration is copied; all that it points to must outlive the proxy. 0, -EINVAL (a ring
 * whose capacity is no power of two, a zero timeout, too many rings) or -ENOMEM. */
int proxy_create(struct proxy **out, const struct proxy_config *config);

/* One pass: reads commands while the fabric accepts puts, polls completions, and publishes `seen`
 * and `completed`. Returns how much it did (0: idle); never blocks.
 *
 * `completed` of a ring counts its commands in order, so a put to a slow peer holds back the ring's
 * later ones. A message's record is complete before `completed` counts it (release).
 *
 * An invalid command, a put that fails, and a put that does not complete within timeout_ns (or is
 * not taken by the fabric for so long) fail the job. Once the job has failed, here or elsewhere,
 * commands are read and dropped and only completions are collected; `completed` stands still. */
int proxy_step(struct proxy *p);

/* Puts not yet completed. Any thread. */
uint32_t proxy_in_flight(const struct proxy *p);

/* Runs proxy_step on a thread of its own, which spins while busy; when idle it yields, then sleeps
 * up to 50 us, so that 8 ranks can share 2 cores. proxy_stop ends and joins it after all posted
 * puts are complete, or, if the job has failed, when nothing is in flight or 100 ms later. 0 or
 * -errno of pthread_create. */
int proxy_start(struct proxy *p);
void proxy_stop(struct proxy *p);

/* Stops the thread, if it runs, and frees the proxy. Puts may still be in flight: close the fabric
 * before or right after, and before the heap is freed. NULL is allowed. */
void proxy_destroy(struct proxy *p);
