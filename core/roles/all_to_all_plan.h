/* The plan of all-to-all: a block is the rows of A that one rank has for another. The schedule is
 * core/roles/all_to_all.h. */
#pragma once

#include "core/roles/move_plan.h"

struct all_to_all_plan {
    struct move_plan move;
    uint32_t flag_staged;
    uint64_t staged[2]; /* heap offsets of W blocks that wait for this rank's rail, by epoch & 1 */
};
MK_PLAN_OF(all_to_all);

/* Holds the epoch in which `local` of this node staged the chunk for node `node`. */
MK_PURE uint32_t all_to_all_staged_flag(const struct all_to_all_plan *p, uint32_t node,
                                        uint32_t local, uint32_t chunk)
{
    return p->flag_staged + mk_rank_at(&p->move.topo, node, local) * p->move.chunks + chunk;
}

/* Where that chunk lies. */
MK_PURE uint64_t all_to_all_staged(const struct all_to_all_plan *p, uint32_t node, uint32_t local,
                                   uint32_t chunk, uint64_t epoch)
{
    return p->staged[epoch & 1] + mk_rank_at(&p->move.topo, node, local) * p->move.block_pitch +
           (uint64_t)chunk * p->move.chunk_rows * p->move.row_bytes;
}
