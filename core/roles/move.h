/* What the schedules of operators that only move rows share (core/roles/move_plan.h).
 *
 * Roles
 *   inter_reduce  copies each chunk that has come to its place in C
 *
 * Buffer reuse
 *   The heap has two buffers, by epoch & 1. A rank begins launch e + 2 after it has received every
 *   rank's chunks of e + 1. The senders had ended launch e by then, and with it read the buffer
 *   that launch e + 2 overwrites.
 *
 * Flags of a rank
 *   A chunk's flag holds the epoch in which the chunk came. */
#pragma once

#include "core/roles/move_plan.h"
#include "core/roles/roles.h"

MK_ROLE int move_await(const struct move_plan *m, struct mk_cta *cta, uint32_t rank, uint32_t chunk)
{
    int same_node = mk_node_of(&m->topo, rank) == mk_node_of(&m->topo, m->topo.rank);
    return mk_cta_wait(cta, move_flag(m, rank, chunk), cta->epoch,
                       same_node ? MK_CAUSE_DATA : MK_CAUSE_NETWORK);
}

/* What is pushed in a turn, of a block for each rank: to a rank's rail in this node. Other nodes
 * first, since theirs is the longer way; neighbouring turns go to different ranks of this node, so
 * that every link carries its share. */
struct move_turn {
    uint32_t node, local, chunk;
};

MK_ROLE struct move_turn move_turn_of(const struct move_plan *m, uint32_t turn)
{
    const struct mk_topo *t = &m->topo;
    uint32_t block_turns = m->chunks * t->gpus, in = turn % block_turns;
    struct move_turn to;
    to.node = (mk_node_of(t, t->rank) + 1 + turn / block_turns) % t->nodes;
    to.local = (mk_local_of(t, t->rank) + t->gpus - in % t->gpus) % t->gpus;
    to.chunk = in / t->gpus;
    return to;
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
