/* The explorer's tokens, experts and verification for MoE: small integers, so that products are
 * exact and compared bit by bit. The seed also chooses how many tokens each rank has and how they
 * are routed: evenly, all to one expert, to few experts, or with no token on one rank. With
 * EXACT_MOE_EVENLY in it every rank has all of its tokens, and all experts alike get them. */
#ifndef SIM_EXACT_MOE_H
#define SIM_EXACT_MOE_H

#include "sim/op.h"

#define EXACT_MOE_EVENLY (1ull << 63)

/* Expert numbers of a rank: uint32_t [tokens, k]. Others than experts' stand for none. */
void exact_moe_ids(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint32_t rank,
                   uint32_t *ids);

void exact_moe_fill(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                    void *const arguments[MK_SPACES - 1]);
int exact_moe_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                     void *const arguments[MK_SPACES - 1], struct sim_reference *reference,
                     char *text, size_t size);

#endif
