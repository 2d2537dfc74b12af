/* The proxy's state, shared by its state machine (proxy.c) and its thread (proxy_thread.c). */
#pragma once

#include "backends/proxy.h"

#include <pthread.h>

#define PROXY_NONE UINT32_MAX

/* A put under way. */
struct flight {
    uint32_t ring, plan, peer, flag;
    uint64_t sequence, epoch;
    uint64_t posted;         /* ns */
    uint64_t message;        /* index in the message log, UINT64_MAX: not logged */
    uint32_t older, younger; /* the list of puts under way, in the order of their posting */
    int busy;
};

struct ring_state {
    struct mk_ring *ring;
    uint64_t next;      /* the command to read */
    uint64_t completed; /* commands complete, in order */
    uint64_t head_seen; /* ns; when `next` was first seen, 0: not yet. It waits for room. */
    uint64_t epoch;     /* of the last BEGIN; 0: none yet */
    uint32_t plan;
    uint8_t *done; /* by sequence modulo the window: complete, but an earlier command is not */
};

struct proxy {
    struct proxy_config config;
    struct ring_state rings[MK_MAX_RINGS];
    /* commands of one ring between `completed` and `next`, at most; a power of two */
    uint64_t window;
    struct flight *flights;
    uint32_t *idle; /* stack of free flights */
    uint32_t in_flight;
    uint32_t oldest, youngest;
    uint32_t turn; /* the ring that comes first in this pass */
    int draining;  /* the job has failed: commands are dropped */
    pthread_t thread;
    int running;
    int stop;
};
