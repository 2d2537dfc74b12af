/* The plan of AllGather and its arithmetic. The schedule is core/roles/all_gather.h. */
#ifndef MK_ROLES_ALL_GATHER_PLAN_H
#define MK_ROLES_ALL_GATHER_PLAN_H

#include "core/cta.h"
#include "core/plan.h"

struct all_gather_plan {
    struct mk_topo topo;
    uint32_t k;
    uint32_t shard_rows; /* M / W */
    uint32_t chunk_rows; /* a multiple of 8 */
    uint32_t chunks;     /* of a shard; the last may be shorter */
    uint32_t flag_arrival;
    uint64_t row_bytes;
    uint64_t shard_pitch; /* bytes from shard to shard, a multiple of 128 */
    uint64_t gathered[2]; /* heap offsets, by epoch & 1 */
};
MK_PLAN_OF(all_gather);

/* Holds the epoch of the last launch whose chunk has come. */
MK_PURE uint32_t all_gather_flag(const struct all_gather_plan *p, uint32_t shard, uint32_t chunk)
{
    return p->flag_arrival + shard * p->chunks + chunk;
}

MK_PURE uint32_t all_gather_rows(const struct all_gather_plan *p, uint32_t chunk)
{
    uint32_t left = p->shard_rows - chunk * p->chunk_rows;
    return left < p->chunk_rows ? left : p->chunk_rows;
}

/* A chunk on its way into the heap of a peer, or of this rank: out of A where it is this rank's own
 * and has not been copied yet (`space`), else from where it lies in this rank's heap. */
MK_PURE struct mk_chunk all_gather_chunk(const struct all_gather_plan *p, uint32_t shard,
                                         uint32_t chunk, uint32_t space, uint64_t epoch)
{
    uint64_t first = (uint64_t)chunk * p->chunk_rows * p->row_bytes;
    struct mk_chunk c;
    c.id = shard * p->chunks + chunk;
    c.space = space;
    c.destination = p->gathered[epoch & 1] + shard * p->shard_pitch + first;
    c.source = space == MK_SPACE_HEAP ? c.destination : first;
    c.bytes = all_gather_rows(p, chunk) * p->row_bytes;
    return c;
}

/* A chunk that has come, on its way into C. */
MK_PURE struct mk_chunk all_gather_delivery(const struct all_gather_plan *p, uint32_t shard,
                                            uint32_t chunk, uint64_t epoch)
{
    struct mk_chunk c = all_gather_chunk(p, shard, chunk, MK_SPACE_HEAP, epoch);
    c.destination =
        ((uint64_t)shard * p->shard_rows + (uint64_t)chunk * p->chunk_rows) * p->row_bytes;
    return c;
}

#endif
