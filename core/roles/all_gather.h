/* AllGather: C = A of all ranks, one under the other. The communication of ag_gemm (ag_gemm.h)
 * with no product behind it.
 *
 * intra_comm    pushes each chunk of this rank's shard to every rank of its node, itself included,
 *               and then each chunk that its rail brings from another node to the node's others
 * inter_send    puts each chunk of this rank's shard to its rail's rank on every other node
 * inter_reduce  takes each chunk that has come to its place in C
 *
 * A chunk's flag holds the epoch in which it came. The heap has two buffers, by epoch & 1: a
 * rank begins launch e + 2 only after it has had every rank's chunks of e + 1, whose senders had
 * ended launch e and with it read what this launch writes over. */
#ifndef MK_ROLES_ALL_GATHER_H
#define MK_ROLES_ALL_GATHER_H

#include "core/roles/all_gather_plan.h"

MK_ROLE int all_gather_await(const struct all_gather_plan *p, struct mk_cta *cta, uint32_t shard,
                             uint32_t chunk)
{
    int same_node = mk_node_of(&p->topo, shard) == mk_node_of(&p->topo, p->topo.rank);
    return mk_cta_wait(cta, all_gather_flag(p, shard, chunk), cta->epoch,
                       same_node ? MK_CAUSE_DATA : MK_CAUSE_NETWORK);
}

/* Neighbouring turns go to different ranks of the node, so that every link carries its share.
 * Turns are dealt out to the CTAs; this rank's own chunks come first, so none of them waits for
 * another's. */
MK_ROLE int all_gather_intra_comm(const struct all_gather_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    uint32_t shard_turns = p->chunks * t->gpus;
    for (uint32_t turn = cta->index; turn < t->nodes * shard_turns; turn += cta->count) {
        uint32_t distance = turn / shard_turns, chunk = turn % shard_turns / t->gpus;
        uint32_t shard = mk_rank_at(t, (node + distance) % t->nodes, local);
        uint32_t peer = (local + t->gpus - turn % t->gpus) % t->gpus;
        if (distance && peer == local) /* the network brought it here */
            continue;
        if (distance && all_gather_await(p, cta, shard, chunk))
            return 1;
        struct mk_chunk c =
            all_gather_chunk(p, shard, chunk, distance ? MK_SPACE_HEAP : MK_SPACE_ARG0, cta->epoch);
        mk_cta_copy(cta, peer, &c);
        mk_cta_signal(cta, peer, all_gather_flag(p, shard, chunk), cta->epoch);
    }
    return 0;
}

/* A put leaves from the heap, where intra_comm has copied this rank's own chunks. */
MK_ROLE int all_gather_inter_send(const struct all_gather_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    for (uint32_t chunk = cta->index; chunk < p->chunks; chunk += cta->count) {
        struct mk_chunk c = all_gather_chunk(p, t->rank, chunk, MK_SPACE_HEAP, cta->epoch);
        if (all_gather_await(p, cta, t->rank, chunk))
            return 1;
        for (uint32_t distance = 1; distance < t->nodes; distance++)
            if (mk_cta_put(cta, mk_rank_at(t, (node + distance) % t->nodes, local), &c,
                           all_gather_flag(p, t->rank, chunk)))
                return 1;
    }
    return mk_cta_drain(cta);
}

/* This rank's shard first, then those of the ranks behind it. */
MK_ROLE int all_gather_inter_reduce(const struct all_gather_plan *p, struct mk_cta *cta)
{
    uint32_t world = mk_world(&p->topo);
    for (uint32_t turn = cta->index; turn < world * p->chunks; turn += cta->count) {
        uint32_t shard = (p->topo.rank + turn / p->chunks) % world, chunk = turn % p->chunks;
        if (all_gather_await(p, cta, shard, chunk))
            return 1;
        struct mk_chunk c = all_gather_delivery(p, shard, chunk, cta->epoch);
        mk_cta_deliver(cta, MK_SPACE_ARG1, &c, 1, 0);
    }
    return 0;
}

#endif
