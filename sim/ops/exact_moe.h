/* The explorer's tokens, experts and verification for MoE: small integers, so that products are
 * exact and compared bit by bit. The seed also chooses how many tokens each rank has and how they
 * are routed: evenly, all to one expert, to few experts, or with no token on one rank. With
 * EXACT_MOE_EVENLY in it every rank has all of its tokens, and all experts alike get them. */
#pragma once

#include "sim/op.h"

#define EXACT_MOE_EVENLY (1ull << 63)

/* Expert numbers of a rank: uint32_t [tokens, k]. Others than experts' stand for none. */
void exact_moe_ids(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint32_t rank,
                   uint32_t *ids);

/* ... as the launch takes them: the experts of ranks that they stand for, where a plan drops or has
 * a map, which the seed draws; UINT32_MAX: none, and for all where there is no memory. */
void exact_moe_taken(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint32_t rank,
                     uint32_t *ids);

/* ... of all ranks, [world, tokens, k]. NULL: no memory. */
uint32_t *exact_moe_all_taken(const struct sim_launch *l);

/* Before the first launch: the map into this rank's heap. */
int exact_moe_start(const struct mk_plan *plan, uint64_t seed, uint8_t *heap);

/* How many tokens a rank has: none of those behind names an expert. */
uint32_t exact_moe_count(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint32_t rank);

/* This rank's ids into `to`; and its count, where the plan is counted: then tokens behind name
 * experts, which no launch should see. */
void exact_moe_fill_ids(const struct sim_launch *l, uint32_t *to);

/* Of Y [tokens, H]: tokens behind the count of a plan that is counted are as they were, 0xff.
 * Returns how many are not behind it; UINT64_MAX, with a sentence: one has been written. */
uint64_t exact_moe_made(const struct sim_launch *l, const uint16_t *y);

/* An expert of this rank, and its rows: the first, and which places they are of (token * k + place,
 * counted over all ranks), in order. */
struct exact_moe_expert {
    uint32_t local, count;
    uint64_t first;
    const uint64_t *places;
};

/* Calls `see` for each expert of this rank until it returns 1. Returns that, or 0; 1, with a
 * sentence, where there is no memory. */
typedef int (*exact_moe_see)(const struct sim_launch *l, const struct exact_moe_expert *e,
                             const void *with);
int exact_moe_walk(const struct sim_launch *l, exact_moe_see see, const void *with);

/* 1, with a sentence: `said`, first row and number of rows of each expert, is wrong of this one. */
int exact_moe_check_said(const struct sim_launch *l, const struct exact_moe_expert *e,
                         const uint32_t *said);

void exact_moe_fill(const struct sim_launch *l);
int exact_moe_verify(const struct sim_launch *l);
