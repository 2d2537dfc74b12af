/* Ring attention: O = softmax(Q K^T / sqrt(D)) V over a sequence that is spread over all ranks, as
 * one schedule for every executor.
 *
 *   Q, O [B, S/W, heads, D]         each rank's rows of the sequence
 *   K, V [B, S/W, kv_heads, D]      the same
 *   lse [B, heads, S/W] fp32        logarithms of the sums of weights of these rows
 *
 * Causal: the sequence is 2 W blocks, and rank r holds blocks r and 2 W - 1 - r one after the
 * other, so that at every step every rank has the same work (two of four pairs of blocks; at its
 * own step one and two diagonals).
 *
 *   intra_comm   pushes its rank's K and V, head by head, to the peers of the node, then forwards
 *                those that the rail brings
 *   inter_send   puts K and V, head by head, to the same local rank of every other node (staged
 *                once into the heap)
 *   compute      takes a query tile through W steps: its own K and V, its node's ring, then the
 *                rings of the other nodes, waiting where it must. What a tile has so far (sums,
 *                maximum, sum of weights, fp32) stays with its CTA: on a GPU in registers, so that
 *                it never goes to memory
 *
 * Heads travel in the order in which query tiles want them: only the first tiles that a CTA takes
 * wait, for the few heads that all CTAs together are at; what later ones need has come by then.
 *
 * The ring inside the node and the rails run at once. Nothing is passed on from neighbour to
 * neighbour where a link leads straight there: at step s local rank l receives from l + s, and no
 * ingress is shared.
 *
 * Minimum bytes: every rank reads W shards of K and V and has one; (nodes - 1) come by its rail,
 * since each must enter a node once and rails share them evenly, the (gpus - 1) nodes others over
 * NVLink. Causal masks spare none: the last block sees everything.
 *
 * Two buffers (epoch & 1) need no credits: see core/roles/ag_gemm.h. Puts are drained before a
 * launch ends: where puts have no order (SRD), the next launch's to the same flag would else tell
 * of this one's bytes, which are still under way. Steps come in one order, so a result has the same
 * bits on every run.
 *
 * A chunk goes over NVLink in pieces, which different CTAs push, so that it arrives soon and the
 * heads in their order.
 *
 * Flags of a rank: arrival[rank][chunk]. Of what comes over NVLink they count the pieces; of what
 * comes over the network they hold the epoch. */
#ifndef MK_ROLES_RING_ATTENTION_H
#define MK_ROLES_RING_ATTENTION_H

#include "core/roles/ring_attention_plan.h"

MK_PURE enum mk_cause ring_attention_cause(const struct ring_attention_plan *p, uint32_t rank)
{
    return mk_node_of(&p->topo, rank) != mk_node_of(&p->topo, p->topo.rank) ? MK_CAUSE_NETWORK
                                                                            : MK_CAUSE_DATA;
}

MK_ROLE int ring_attention_await(const struct ring_attention_plan *p, struct mk_cta *cta,
                                 uint32_t rank, uint32_t chunk)
{
    return mk_cta_wait(cta, ring_attention_flag(p, rank, chunk),
                       ring_attention_target(p, rank, cta->epoch), ring_attention_cause(p, rank));
}

/* Before the loads of rows [first, end) of a half of `rank`'s K and V of a head: they are here. */
MK_ROLE int ring_attention_before_rows(const struct ring_attention_plan *p, struct mk_cta *cta,
                                       uint32_t rank, uint32_t batch, uint32_t kv_head,
                                       uint32_t half, uint32_t first, uint32_t end)
{
    uint32_t number = first / p->chunk_rows, left = 2 * ((end - 1) / p->chunk_rows - number + 1);
    uint32_t flag =
        ring_attention_flag(p, rank, ring_attention_chunk(p, batch, kv_head, half, number, 0));
    for (uint32_t count; left; flag += count, left -= count) {
        count = left < 32 ? left : 32;
        if (mk_cta_wait_all(cta, flag, count, ring_attention_target(p, rank, cta->epoch),
                            ring_attention_cause(p, rank)))
            return 1;
    }
    return 0;
}

/* In place of tiles, where nothing is multiplied: this CTA's share of all chunks is here. */
MK_ROLE int ring_attention_await_share(const struct ring_attention_plan *p, struct mk_cta *cta)
{
    for (uint32_t step = 1; step < mk_world(&p->topo); step++)
        for (uint32_t chunk = cta->index; chunk < p->chunks; chunk += cta->count)
            if (ring_attention_await(p, cta, ring_attention_source(p, step), chunk))
                return 1;
    return 0;
}

/* Before the loads of a tile's K and V: all rows that it may see are here. */
MK_ROLE int ring_attention_before(const struct ring_attention_plan *p, struct mk_cta *cta,
                                  const struct mk_tile *tile)
{
    uint32_t q_half = tile->row / p->half, head = tile->col / p->head_dim, batch = head / p->heads;
    uint32_t kv_head = ring_attention_kv_head(p, head % p->heads);
    if (tile->slab == p->topo.rank)
        return 0;
    for (uint32_t half = 0; half < p->halves; half++)
        if (ring_attention_mask(p, q_half, tile->slab, half) != RING_ATTENTION_NONE &&
            ring_attention_before_rows(p, cta, tile->slab, batch, kv_head, half, 0, p->half))
            return 1;
    return 0;
}

/* Turn `turn` of the node's communication on this rank: its own chunks, then those that its rail
 * brings, one node after the other. Piece by piece to all peers: each is at the same heads. */
MK_ROLE int ring_attention_push(const struct ring_attention_plan *p, struct mk_cta *cta,
                                uint32_t turn)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank), peers = t->gpus - 1;
    uint32_t shard_turns = peers * p->chunks * p->pieces, distance = turn / shard_turns,
             piece = turn % shard_turns / peers, chunk = piece / p->pieces, rows;
    uint32_t rank = mk_rank_at(t, (node + distance) % t->nodes, local),
             peer = (local + peers - turn % peers) % t->gpus;
    if (distance && ring_attention_await(p, cta, rank, chunk))
        return 1;
    struct mk_chunk c =
        ring_attention_piece(p, rank, chunk, piece % p->pieces, distance > 0, cta->epoch, &rows);
    if (rows && distance)
        mk_cta_copy(cta, peer, &c);
    else if (rows)
        mk_cta_copy_packed(cta, peer, &c, rows, p->row_bytes);
    mk_cta_add(cta, peer, ring_attention_flag(p, rank, chunk), 1);
    return 0;
}

MK_ROLE int ring_attention_intra_comm(const struct ring_attention_plan *p, struct mk_cta *cta)
{
    uint32_t turns = p->topo.nodes * (p->topo.gpus - 1) * p->chunks * p->pieces;
    for (uint32_t turn = cta->index; turn < turns; turn += cta->count)
        if (ring_attention_push(p, cta, turn))
            return 1;
    return 0;
}

MK_ROLE int ring_attention_inter_send(const struct ring_attention_plan *p, struct mk_cta *cta)
{
    const struct mk_topo *t = &p->topo;
    uint32_t node = mk_node_of(t, t->rank), local = mk_local_of(t, t->rank);
    for (uint32_t distance = 1; distance < t->nodes; distance++) {
        uint32_t peer = mk_rank_at(t, (node + t->nodes - distance) % t->nodes, local);
        for (uint32_t chunk = cta->index; chunk < p->chunks; chunk += cta->count) {
            uint32_t rows;
            struct mk_chunk c = ring_attention_move(p, t->rank, chunk, 0, cta->epoch, &rows);
            if (distance == 1)
                mk_cta_copy_packed(cta, local, &c, rows, p->row_bytes);
            c.space = MK_SPACE_HEAP;
            c.source = c.destination;
            if (mk_cta_put(cta, peer, &c, ring_attention_flag(p, t->rank, chunk)))
                return 1;
        }
    }
    return mk_cta_drain(cta);
}

#endif
