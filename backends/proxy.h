/* The proxy: reads the command rings of one rank and turns commands into puts of a fabric. It is a state machine that
 * one thread steps (proxy_start makes such a thread; the deterministic executor steps it itself). */
#ifndef MK_PROXY_H
#define MK_PROXY_H

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
    void (*fail)(void *context, const struct mk_failure *failure);
    void *context;
};

struct proxy;

int proxy_create(struct proxy **out, const struct proxy_config *config);

/* One pass: reads commands while the fabric takes them, polls completions, publishes seen and completed. Returns how many
 * things it did (0: idle), never blocks. */
int proxy_step(struct proxy *p);

/* Puts not yet completed. */
uint32_t proxy_in_flight(const struct proxy *p);

/* Runs proxy_step on a thread of its own: spins while busy, yields, then sleeps up to 50 us where idle, so that 8 ranks
 * fit 2 cores. proxy_stop ends it (after what is in flight has completed or failed) and joins it. */
int proxy_start(struct proxy *p);
void proxy_stop(struct proxy *p);

void proxy_destroy(struct proxy *p);

#endif
