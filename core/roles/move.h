/* What the schedules of operators that only move rows share (core/roles/move_plan.h).
 *
 * inter_reduce  takes each chunk that has come to its place in C
 *
 * A chunk's flag holds the epoch in which it came. The heap has two buffers, by epoch & 1: a rank
 * begins launch e + 2 only after it has had every rank's chunks of e + 1, whose senders had ended
 * launch e and with it read what this launch writes over. */
#ifndef MK_ROLES_MOVE_H
#define MK_ROLES_MOVE_H

#include "core/roles/move_plan.h"
#include "core/roles/roles.h"

MK_ROLE int move_await(const struct move_plan *m, struct mk_cta *cta, uint32_t rank, uint32_t chunk)
{
    int same_node = mk_node_of(&m->topo, rank) == mk_node_of(&m->topo, m->topo.rank);
    return mk_cta_wait(cta, move_flag(m, rank, chunk), cta->epoch,
                       same_node ? MK_CAUSE_DATA : MK_CAUSE_NETWORK);
}

/* This rank's block first, then those of the ranks behind it. */
MK_ROLE int move_deliver(const struct move_plan *m, struct mk_cta *cta)
{
    uint32_t world = mk_world(&m->topo);
    for (uint32_t turn = cta->index; turn < world * m->chunks; turn += cta->count) {
        uint32_t rank = (m->topo.rank + turn / m->chunks) % world, chunk = turn % m->chunks;
        if (move_await(m, cta, rank, chunk))
            return 1;
        struct mk_chunk c = move_chunk(m, rank, chunk, cta->epoch);
        c.destination =
            ((uint64_t)rank * m->block_rows + (uint64_t)chunk * m->chunk_rows) * m->row_bytes;
        mk_cta_deliver(cta, MK_SPACE_ARG1, &c, 1, 0);
    }
    return 0;
}

#endif
