/* Inside form (b): the world's state, shared by its scheduler (world_schedule.c), its memory
 * (world_memory.c), its network (model_fabric.c) and its life (world.c). */
#pragma once

#include "backends/proxy.h"
#include "sim/compute.h"
#include "sim/first_error.h"
#include "sim/op.h"
#include "sim/world.h"

#define SIM_NEVER UINT64_MAX

/* A CTA's transfer on its way. */
struct sim_flight {
    struct sim_transfer transfer;
    uint64_t due;   /* not before */
    uint64_t moved; /* bytes that have landed */
    int landed;
    float *values;              /* a tile's, its own copy */
    struct mk_combine *combine; /* a weighted sum's, its own copy */
};

/* What a CTA has issued and what has not landed, oldest first: flights[first .. first + count -
 * 1]. */
struct sim_outbox {
    struct sim_flight *flights;
    uint32_t first, count, capacity;
};

struct sim_world;

struct sim_world_rank {
    struct sim_rank rank; /* what its CTAs see; its context is this struct */
    struct sim_world *world;
    struct mk_plan plan;
    struct sim_outbox *outboxes; /* per CTA */
    uint8_t *heap;
    uint64_t heap_bytes;
    /* Of launches that may be under way at once: of two with emulated GPUs, unless arguments lie in
     * the heap, where there is one place for them. */
    void *arguments[2][MK_SPACES - 1];
    uint32_t ahead;
    float *scratch; /* a tile's A per compute CTA */
    struct compute *compute;
    struct mk_ring *rings[MK_MAX_RINGS];
    uint32_t ring_count;
    struct fabric *fabric;
    struct proxy *proxy;
    int proxy_touched; /* something happened that its proxy could see */
    uint64_t launch;   /* the last one begun */
    uint64_t begins;   /* not before then: SIM_FAULT_LATE */
    uint32_t running;  /* CTAs of it that have not ended */
    uint32_t busy;     /* so many have not ended: CTAs run or stores are on their way */
};

/* How the scheduler draws. */
enum sim_strategy { SIM_UNIFORM, SIM_STICKY, SIM_STARVE, SIM_PRIORITIES, SIM_STRATEGIES };

struct hopper;
struct emulated_rank;

struct sim_actor {
    struct sim_world_rank *rank;
    uint32_t number; /* among its rank's actors */
};

struct sim_world {
    struct sim_world_config config;
    struct hopper *hopper; /* the GPUs, where kernels are emulated; then ranks have no CTAs */
    struct emulated_rank *emulated;
    int machine_runs; /* as far as is known */
    struct sim_world_result *result;
    struct coroutine_pool *pool, *own_pool;
    const struct sim_op *op;
    struct sim_random random;
    uint64_t now, steps, hash;
    uint32_t world;
    struct sim_world_rank *ranks;
    struct sim_reference reference;
    struct failure_case failure; /* all ranks' records; what it keeps is result->failure */
    int error;                   /* 0, or what sim_world_run will return */
    int dropped;                 /* the fault DROP has struck */

    /* The scheduler's: actors are numbered rank by rank. */
    enum sim_strategy strategy;
    uint32_t ctas;                                      /* of one rank */
    uint32_t per_rank, actors;                          /* actors of one rank and in all */
    uint32_t last;                                      /* actor of the last step */
    uint32_t starved_from, starved_step, starved_count; /* an arithmetic sequence of actors */
    uint32_t *priorities;
    struct sim_actor *actor; /* of each id: a division is dear where it is asked for all the time */
};

/* world.c */
#define sim_world_error(w, ...)                                                                    \
    first_error(&(w)->error, (w)->result->sentence, sizeof(w)->result->sentence, __VA_ARGS__)
static inline int sim_world_dropped(const struct sim_world *w, uint32_t rank)
{
    return w->dropped && w->config.fault.rank == rank;
}
static inline void **sim_world_arguments(struct sim_world_rank *r, uint64_t launch)
{
    return r->arguments[launch % r->ahead];
}
void sim_world_begin_launch(struct sim_world_rank *r);
void sim_world_end_launch(struct sim_world_rank *r);

/* world_memory.c */
/* struct sim_rank's transfer */
void sim_world_transfer(struct sim_cta *cta, const struct sim_transfer *t);
/* struct sim_rank's math */
void sim_world_math(struct sim_cta *cta, const struct mk_tile *tile);
int sim_outbox_ready(const struct sim_world *w, const struct sim_outbox *o);
uint64_t sim_outbox_due(const struct sim_outbox *o); /* the earliest; SIM_NEVER: empty */
void sim_outbox_step(struct sim_world_rank *r, uint32_t cta);
void sim_outbox_free(struct sim_outbox *o);

/* Moves some or all of what is left of `bytes` (landed so far: *moved) to `destination`. 1 once all
 * has landed. */
int sim_world_move(struct sim_world *w, uint8_t *destination, const uint8_t *source, uint64_t bytes,
                   uint64_t *moved);

/* world_emulated.c: GPUs in place of CTAs, where config.emulated is not 0. */
int world_emulated_open(struct sim_world *w, char *error, size_t size);
void world_emulated_close(struct sim_world *w);
int world_emulated_rank(struct sim_world *w, struct sim_world_rank *r, char *error, size_t size);
void *world_emulated_memory(struct sim_world *w, size_t bytes);
int world_emulated_launch(struct sim_world_rank *r);
int world_emulated_busy(const struct sim_world_rank *r); /* with the oldest that has not ended */
/* Commands that the rank's kernels have posted to a ring, all launches together. */
uint64_t world_emulated_posted(const struct sim_world_rank *r, uint32_t ring);
/* What the host has written for the next launch. */
void world_emulated_wrote(struct sim_world_rank *r, const void *p, size_t bytes);
int world_emulated_step(struct sim_world *w);
int world_emulated_tick(struct sim_world *w, uint64_t next);
void world_emulated_deadlock(struct sim_world *w); /* says which rank waits for what */
void world_emulated_drop(struct sim_world *w, uint32_t rank);
void world_emulated_moves(struct sim_world *w, uint32_t rank, const void *destination,
                          const void *source, uint64_t bytes);
void world_emulated_raises(struct sim_world *w, uint32_t rank, const void *flag);
void world_emulated_proxy(struct sim_world_rank *r);

/* world_schedule.c: runs until everything has ended or world->error is set. */
void sim_world_schedule(struct sim_world *w);
