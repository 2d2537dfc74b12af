/* What ranks say to each other of their tokens' experts (core/cta/cta_route.h), counted once more:
 * bytes of a launch that enter each rank, beside tokens and sums. */
#pragma once

#include "tests/helpers/ops.h"

/* A token's, wherever it goes: its k experts, 16 bytes each. */
static inline uint64_t moe_record(uint64_t k)
{
    return 16 * k;
}

/* Of how many rows and tokens there are. To each rank of another node, by the rail's, in one piece;
 * to each rank of the node of all nodes' tokens. */
static inline void moe_expect_counts(const struct mk_topo *t, uint64_t experts,
                                     struct ops_bytes *expected)
{
    const uint64_t counts = mk_round_up((experts / mk_world(t) + 2) * 4, 16);
    for (uint32_t rank = 0; rank < mk_world(t); rank++) {
        expected->network[rank] += (t->nodes - 1) * mk_round_up(t->gpus * counts, 128);
        expected->nvlink[rank] += (t->gpus - 1) * t->nodes * counts;
    }
}
