/* The deterministic executor's chance and time, in one place: a seeded generator, and what things
 * cost on the virtual clock. */
#pragma once

#include "core/plan/plan.h"
#include "core/base/random.h"

struct sim_random {
    uint64_t state;
};

static inline uint64_t sim_mix(uint64_t x)
{
    return mk_mix(x);
}

static inline uint64_t sim_random(struct sim_random *r)
{
    return mk_random(&r->state);
}

/* What is drawn for an argument of a rank's launch. */
static inline struct sim_random sim_stream(uint64_t seed, uint64_t launch, uint32_t rank,
                                           uint32_t argument)
{
    return (struct sim_random){sim_mix(seed) ^
                               sim_mix(launch << 20 ^ (uint64_t)rank << 4 ^ argument)};
}

/* 0 .. below - 1. */
static inline uint32_t sim_random_below(struct sim_random *r, uint32_t below)
{
    return (uint32_t)((sim_random(r) >> 32) * below >> 32);
}

/* The cost model. Each hook says at what time (ns, not before `now`) the thing is done that starts
 * at `now`, so a model may keep links and engines busy between calls, or count. A NULL hook costs
 * nothing. With no cost model at all the world explores: a step takes a few random ns and
 * everything under way may land at any time. */
struct sim_costs {
    void *context;
    uint64_t (*tile)(void *context, uint64_t now, const struct mk_plan *plan,
                     const struct mk_tile *tile);
    uint64_t (*copy)(void *context, uint64_t now, uint32_t from, uint32_t to,
                     uint64_t bytes); /* within a node */
    uint64_t (*put)(void *context, uint64_t now, uint32_t from, uint32_t to,
                    uint64_t bytes); /* doorbell to last byte */
};
