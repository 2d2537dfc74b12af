/* All-to-all: block j of rank r's A becomes block r of rank j's C.
 *
 * Operands
 *   A, C [M/W, K]  of each rank, W equal blocks of rows
 *
 * Roles
 *   intra_comm    pushes each chunk for its own node to its owner, itself included. It stages a
 *                 chunk for another node with its own node's rank on the receiver's rail.
 *   inter_send    puts the chunks that are staged with this rank to its rail's rank on their node
 *   inter_reduce  copies each chunk that has come to its place in C (core/roles/move.h)
 *
 * Bytes moved
 *   W - gpus blocks come over the network, each once. Over NVLink come the blocks of gpus - 1
 *   ranks for this one and, since puts go along rails alone, their blocks for its rail: nodes
 *   (gpus - 1) in all.
 *
 * Buffer reuse
 *   As in core/roles/move.h, and the same holds of staged blocks: a rank that stages has had a
 *   chunk of launch e + 1 of the rank that it stages with, whose puts of launch e had left by then.
 *
 * Deadlock freedom
 *   intra_comm waits for nothing, inter_send for intra_comm, inter_reduce for both.
 *
 * Flags of a rank
 *   arrival[rank][chunk]               the epoch
 *   staged[node][local rank][chunk]    the epoch */
#pragma once

#include "core/roles/all_to_all_plan.h"
#include "core/roles/move.h"

MK_ROLE int all_to_all_intra_comm(const struct all_to_all_plan *p, struct mk_cta *cta)
{
    const struct move_plan *m = &p->move;
    const struct mk_topo *t = &m->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    for (uint32_t turn = cta->index; turn < t->nodes * m->chunks * t->gpus; turn += cta->count) {
        struct move_turn to = move_turn_of(m, turn);
        struct mk_chunk c = move_chunk_of_a(m, mk_rank_at(t, to.node, to.local) * m->block_rows,
                                            to.chunk, cta->epoch);
        if (to.node != node)
            c.destination = all_to_all_staged(p, to.node, local, to.chunk, cta->epoch);
        mk_cta_copy(cta, to.local, &c);
        mk_cta_signal(cta, to.local,
                      to.node == node ? move_flag(m, t->rank, to.chunk)
                                      : all_to_all_staged_flag(p, to.node, local, to.chunk),
                      cta->epoch);
    }
    return 0;
}

/* In the order in which intra_comm stages. */
MK_ROLE int all_to_all_inter_send(const struct all_to_all_plan *p, struct mk_cta *cta)
{
    const struct move_plan *m = &p->move;
    const struct mk_topo *t = &m->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    uint32_t block_turns = m->chunks * t->gpus;
    for (uint32_t turn = cta->index; turn < (t->nodes - 1) * block_turns; turn += cta->count) {
        uint32_t to = (node + 1 + turn / block_turns) % t->nodes;
        uint32_t chunk = turn % block_turns / t->gpus, of = (local + turn) % t->gpus;
        uint32_t sender = mk_rank_at(t, node, of);
        struct mk_chunk c = move_chunk(m, sender, chunk, cta->epoch);
        c.source = all_to_all_staged(p, to, of, chunk, cta->epoch);
        if (mk_cta_wait(cta, all_to_all_staged_flag(p, to, of, chunk), cta->epoch, MK_CAUSE_DATA) ||
            mk_cta_put(cta, mk_rank_at(t, to, local), &c, move_flag(m, sender, chunk)))
            return 1;
    }
    return mk_cta_drain(cta);
}

MK_ROLES_OF(all_to_all, all_to_all_intra_comm(p, cta), all_to_all_inter_send(p, cta),
            move_deliver(&p->move, cta));
