/* Ring attention: O = softmax(Q K^T / sqrt(D)) V over a sequence that is spread over all ranks, as one
 * schedule for every executor.
 *
 *   Q, O [B, S/W, heads, D], K, V [B, S/W, kv_heads, D], lse [B, heads, S/W] fp32   each rank's rows of the
 * sequence
 *
 * Causal: the sequence is 2 W blocks, and rank r holds blocks r and 2 W - 1 - r one after the other, so that
 * at every step every rank has the same work (two of four pairs of blocks; at its own step one and two
 * diagonals).
 *
 *   intra_comm   pushes its rank's K and V to the peers of the node, then forwards those that the rail brings
 *   inter_send   puts K and V to the same local rank of every other node (staged once into the heap)
 *   compute      W steps: its own K and V, its node's ring, then the rings of the other nodes. A step takes
 * every query tile once; what a tile has so far (sums, maximum, sum of weights, fp32) waits in memory for the
 * next step, so that all tiles use a shard as soon as it is here
 *
 * The ring inside the node and the rails run at once. Nothing is passed on from neighbour to neighbour where
 * a link leads straight there: at step s local rank l receives from l + s, and no ingress is shared.
 *
 * Minimum bytes: every rank reads W shards of K and V and has one; (nodes - 1) come by its rail, since each
 * must enter a node once and rails share them evenly, the (gpus - 1) nodes others over NVLink. Causal masks
 * spare none: the last block sees everything.
 *
 * Two buffers (epoch & 1) need no credits: see core/roles/ag_gemm.h. Puts are drained before a launch ends: where
 * puts have no order (SRD), the next launch's to the same flag would else tell of this one's bytes, which are still
 * under way. Steps come in one order, so a result has the same bits on every run.
 *
 * Flags of a rank: arrival[rank][chunk], set to the epoch. */
#ifndef MK_ROLES_RING_ATTENTION_H
#define MK_ROLES_RING_ATTENTION_H

#include "core/roles/ring_attention_plan.h"

MK_ROLE int ring_attention_await(const struct ring_attention_plan *p, struct mk_cta *cta, uint32_t rank,
                                 uint32_t chunk)
{
    int remote = mk_node_of(&p->topo, rank) != mk_node_of(&p->topo, p->topo.rank);
    return mk_cta_wait(cta, ring_attention_flag(p, rank, chunk), cta->epoch,
                       remote ? MK_CAUSE_NETWORK : MK_CAUSE_DATA);
}

/* Before the loads of a tile's K and V: all rows that it may see are here. */
MK_ROLE int ring_attention_before(const struct ring_attention_plan *p, struct mk_cta *cta,
                                  const struct mk_tile *tile)
{
    uint32_t q_half = tile->row / p->half, batch = tile->col / p->head_dim / p->heads;
    if (tile->slab == p->topo.rank)
        return 0;
    for (uint32_t half = 0; half < p->halves; half++) {
        if (ring_attention_mask(p, q_half, tile->slab, half) == RING_ATTENTION_NONE)
            continue;
        for (uint32_t number = 0; number < p->half_chunks; number++)
            for (uint32_t part = 0; part < 2; part++)
                if (ring_attention_await(p, cta, tile->slab,
                                         ring_attention_chunk(p, batch, half, number, part)))
                    return 1;
    }
    return 0;
}

MK_ROLE int ring_attention_intra_comm(const struct ring_attention_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), turn = 0;
    for (uint32_t distance = 0; distance < t->nodes; distance++) {
        uint32_t rank = mk_rank_at(t, (node + distance) % t->nodes, local);
        for (uint32_t i = 0; i < (t->gpus - 1) * p->chunks; i++) {
            /* Its own go to one peer after the other; what the rail brings goes on, chunk by chunk, to all.
             */
            uint32_t step = 1 + (distance ? i % (t->gpus - 1) : i / p->chunks);
            uint32_t chunk = distance ? i / (t->gpus - 1) : i % p->chunks,
                     peer = (local + t->gpus - step) % t->gpus;
            if (turn++ % cta->count != cta->index)
                continue;
            struct mk_chunk c = ring_attention_move(p, rank, chunk, distance > 0, cta->epoch);
            if (distance && ring_attention_await(p, cta, rank, chunk))
                return 1;
            mk_cta_copy(cta, peer, &c);
            mk_cta_signal(cta, peer, ring_attention_flag(p, rank, chunk), cta->epoch);
        }
    }
    return 0;
}

MK_ROLE int ring_attention_inter_send(const struct ring_attention_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    for (uint32_t distance = 1; distance < t->nodes; distance++) {
        uint32_t peer = mk_rank_at(t, (node + t->nodes - distance) % t->nodes, local);
        for (uint32_t chunk = cta->index; chunk < p->chunks; chunk += cta->count) {
            struct mk_chunk c = ring_attention_move(p, t->rank, chunk, 0, cta->epoch);
            if (distance == 1)
                mk_cta_copy(cta, local, &c);
            c.space = MK_SPACE_HEAP;
            c.source = c.destination;
            if (mk_cta_put(cta, peer, &c, ring_attention_flag(p, t->rank, chunk)))
                return 1;
        }
    }
    return mk_cta_drain(cta);
}

#endif
