/* The plan of ReduceScatter: a block is the rows that one rank gets of the sum. The schedule is
 * core/roles/reduce_scatter.h. */
#pragma once

#include "core/cta/cta_combine.h"
#include "core/roles/move_plan.h"

struct reduce_scatter_plan {
    /* `come` has W blocks: what each rank of this node has for each rank of this rail */
    struct move_plan move;
    uint32_t element; /* enum mk_dtype of A and C */
    uint32_t number;  /* enum mk_dtype of a node's sum: fp32, or of one rank what it has */
    uint32_t flag_sum;
    uint64_t sum_pitch; /* bytes from sum to sum in the heap, a multiple of 128 */
    uint64_t sums[2];   /* heap offsets of a sum of this rank's block by each node, by epoch & 1 */
    uint64_t leaving;   /* and of one for each node by this one, before it is put */
};
MK_PLAN_OF(reduce_scatter);

/* Holds the epoch in which `local` of this node has pushed what it has for this rail's rank of
 * `node`. */
MK_PURE uint32_t reduce_scatter_part_flag(const struct reduce_scatter_plan *p, uint32_t node,
                                          uint32_t local, uint32_t chunk)
{
    return move_flag(&p->move, mk_rank_at(&p->move.topo, node, local), chunk);
}

/* Holds the epoch in which the sum of `node` was here. */
MK_PURE uint32_t reduce_scatter_sum_flag(const struct reduce_scatter_plan *p, uint32_t node,
                                         uint32_t chunk)
{
    return p->flag_sum + node * p->move.chunks + chunk;
}

MK_PURE uint64_t reduce_scatter_elements(const struct reduce_scatter_plan *p, uint32_t chunk)
{
    return move_rows(&p->move, chunk) * (p->move.row_bytes / 2);
}

/* Where a chunk's sum lies among those at `sums`, one for each node. */
MK_PURE uint64_t reduce_scatter_sum(const struct reduce_scatter_plan *p, uint64_t sums,
                                    uint32_t node, uint32_t chunk)
{
    uint64_t bytes = p->number == MK_FP32 ? 4 : 2;
    return sums + node * p->sum_pitch +
           (uint64_t)chunk * p->move.chunk_rows * (p->move.row_bytes / 2) * bytes;
}

/* The number of a sum's chunk in traces: behind those of what is pushed. */
MK_PURE uint32_t reduce_scatter_sum_id(const struct reduce_scatter_plan *p, uint32_t node,
                                       uint32_t chunk)
{
    return (mk_world(&p->move.topo) + node) * p->move.chunks + chunk;
}
