/* AllGather: C = A of all ranks, one under the other. It is the communication of ag_gemm
 * (core/roles/ag_gemm.h) without a product.
 *
 * Operands
 *   A [M/W, K]   of each rank
 *   C [M, K]     of each rank, the same on all
 *
 * Roles
 *   intra_comm    pushes each chunk of this rank's A to every rank of its node, itself included,
 *                 then forwards to the others each chunk that its rail brings
 *   inter_send    puts each chunk of this rank's A to its rail's rank on every other node
 *   inter_reduce  copies each chunk that has come to its place in C (core/roles/move.h)
 *
 * Bytes moved
 *   Those of core/roles/ag_gemm.h.
 *
 * Buffer reuse and flags
 *   Those of core/roles/move.h.
 *
 * Deadlock freedom
 *   Pushes and puts wait for nothing, forwards for puts, inter_reduce for all of them. */
#pragma once

#include "core/roles/all_gather_plan.h"
#include "core/roles/move.h"

/* Neighbouring turns go to different ranks of the node, so that every link carries its share.
 * Turns are dealt out to the CTAs; this rank's own chunks come first, so none of them waits for
 * another's. */
MK_ROLE int all_gather_intra_comm(const struct move_plan *m, struct mk_cta *cta)
{
    const struct mk_topo *t = &m->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    uint32_t block_turns = m->chunks * t->gpus;
    for (uint32_t turn = cta->index; turn < t->nodes * block_turns; turn += cta->count) {
        uint32_t distance = turn / block_turns, chunk = turn % block_turns / t->gpus;
        uint32_t rank = mk_rank_at(t, (node + distance) % t->nodes, local);
        uint32_t peer = (local + t->gpus - turn % t->gpus) % t->gpus;
        if (distance && peer == local) /* the network brought it here */
            continue;
        if (distance && move_await(m, cta, rank, chunk))
            return 1;
        struct mk_chunk c = distance ? move_chunk(m, rank, chunk, cta->epoch)
                                     : move_chunk_of_a(m, 0, chunk, cta->epoch);
        mk_cta_copy(cta, peer, &c);
        mk_cta_signal(cta, peer, move_flag(m, rank, chunk), cta->epoch);
    }
    return 0;
}

/* A put leaves from the heap, where intra_comm has copied this rank's own chunks. */
MK_ROLE int all_gather_inter_send(const struct move_plan *m, struct mk_cta *cta)
{
    const struct mk_topo *t = &m->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    for (uint32_t chunk = cta->index; chunk < m->chunks; chunk += cta->count) {
        struct mk_chunk c = move_chunk(m, t->rank, chunk, cta->epoch);
        if (move_await(m, cta, t->rank, chunk))
            return 1;
        for (uint32_t distance = 1; distance < t->nodes; distance++)
            if (mk_cta_put(cta, mk_rank_at(t, (node + distance) % t->nodes, local), &c,
                           move_flag(m, t->rank, chunk)))
                return 1;
    }
    return mk_cta_drain(cta);
}

MK_ROLES_OF(all_gather, all_gather_intra_comm(&p->move, cta), all_gather_inter_send(&p->move, cta),
            move_deliver(&p->move, cta));
