/* Ring attention: O = softmax(Q K^T / sqrt(D)) V over a sequence that all ranks share. One schedule
 * for every executor.
 *
 * Operands
 *   Q, O [B, rows, heads, D]        each rank's rows of the sequence
 *   K, V [B, rows, kv_heads, D]     likewise
 *   lse [B, heads, rows] fp32       log-sum-exp of these rows
 *   Causal: the sequence has 2 W blocks, and rank r holds blocks r and 2 W - 1 - r, one behind the
 *   other (zigzag). Blocks have ceil(S / blocks) rows, the last ones fewer or none; flags and
 *   places are those of whole blocks on all ranks. So at every step every rank has the same work:
 *   two of four pairs of blocks, and at its own step one pair and two diagonals.
 *
 * Roles
 *   intra_comm    pushes this rank's K and V, head by head, to the peers of the node, then forwards
 *                 those that the rail brings
 *   inter_send    puts K and V, head by head, to the same local rank of every other node. They are
 *                 staged once, in the heap.
 *   compute       takes a tile of queries through W steps: its own K and V, those of its node, then
 *                 those of the other nodes. It waits where a step needs it. The state of a tile
 *                 (sums, maximum and sum of weights, fp32) stays with its CTA, on a GPU in
 *                 registers.
 *
 * Heads travel in the order in which tiles of queries need them. So only the first tiles of a CTA
 * wait, for the few heads that all CTAs work on at that time; later heads have come by then. The
 * ring inside the node and the rails run at once. No rank passes on what a direct link brings: at
 * step s local rank l receives from l + s, and no two senders share an ingress. A chunk goes over
 * NVLink in pieces, which different CTAs push, so that heads arrive soon and in their order.
 *
 * Steps come in one order, so every run gives the same bits. Where a row's are the same everywhere
 * (MK_EVERYWHERE), keys come in blocks of fixed size at fixed places of the sequence, from the last
 * that a row sees to the first, whichever rank has them (ring_attention_keys): under a mask a
 * rank's own keys still come first. What a row does not see of a block changes nothing of it.
 *
 * Bytes moved
 *   Every rank reads W shards of K and V and has one. (nodes - 1) shards come by its rail, since
 *   each must enter a node once and the rails share them evenly; the (gpus - 1) nodes others come
 *   over NVLink. A causal mask spares none: the last block attends to everything.
 *
 * Buffer reuse
 *   Two buffers, by epoch & 1, need no credits, as in core/roles/ag_gemm.h: a rank ends a launch
 *   when it has something of each other rank's, so nobody is two launches ahead. Tiles see to that
 *   where each rank sees keys of each other. Rank 0 of a contiguous split does not under a causal
 *   mask, nor do ranks without rows: there intra_comm and inter_send wait, at their end, for the
 *   first chunk of each rank that they write to. Puts are drained before a launch ends. Without
 *   that, where puts have no order (SRD), a flag that the next launch's put raises could speak for
 *   bytes of this launch that are still under way.
 *
 * Deadlock freedom
 *   Pushes and puts of a rank's own K and V wait for nothing. Forwards wait for puts, and compute
 *   for both, as do the waits at the end of intra_comm and inter_send.
 *
 * Flags of a rank
 *   arrival[rank][chunk]   counts pieces; where a put brings the chunk, the epoch */
#pragma once

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
    uint32_t q_half = ring_attention_half_of(p, tile->row), head = tile->col / p->head_dim,
             batch = head / p->heads;
    uint32_t kv_head = ring_attention_kv_head(p, head % p->heads);
    if (tile->slab == p->topo.rank)
        return 0;
    for (uint32_t half = 0; half < p->halves; half++) {
        uint32_t rows = ring_attention_half_rows(p, tile->slab, half);
        if (rows && ring_attention_mask(p, q_half, tile->slab, half) != RING_ATTENTION_NONE &&
            ring_attention_before_rows(p, cta, tile->slab, batch, kv_head, half, 0, rows))
            return 1;
    }
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

/* Where a rank's tiles do not wait for each other rank (p->meets): its first chunk of `rank` is
 * here, so `rank` has begun this launch. */
MK_ROLE int ring_attention_meet(const struct ring_attention_plan *p, struct mk_cta *cta,
                                uint32_t rank)
{
    return p->meets && cta->index == 0 && ring_attention_await(p, cta, rank, 0);
}

MK_ROLE int ring_attention_intra_comm(const struct ring_attention_plan *p, struct mk_cta *cta)
{
    uint32_t turns = p->topo.nodes * (p->topo.gpus - 1) * p->chunks * p->pieces;
    for (uint32_t turn = cta->index; turn < turns; turn += cta->count)
        if (ring_attention_push(p, cta, turn))
            return 1;
    for (uint32_t step = 1; step < p->topo.gpus; step++)
        if (ring_attention_meet(p, cta, ring_attention_source(p, step)))
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
            if (!rows) /* the flag comes all the same, with a row that nobody reads */
                c.bytes = p->head_bytes;
            else if (distance == 1)
                mk_cta_copy_packed(cta, local, &c, rows, p->row_bytes);
            c.space = MK_SPACE_HEAP;
            c.source = c.destination;
            if (mk_cta_put(cta, peer, &c, ring_attention_flag(p, t->rank, chunk)))
                return 1;
        }
    }
    for (uint32_t distance = 1; distance < t->nodes; distance++)
        if (ring_attention_meet(p, cta, mk_rank_at(t, (node + distance) % t->nodes, local)))
            return 1;
    return mk_cta_drain(cta);
}
