/* AllGather+GEMM: C = gather(A) B. One schedule for every executor.
 *
 * Operands
 *   A_r [M/W, K]  rows of A of rank r: an argument. Its own rank reads it in place, and copies it
 *                 only to stage it for another node.
 *   B_r [K, N]    each rank's own
 *   C_r [M, N]    each rank's whole product
 *   A of FP8 has a scale for each row and each 128 of K; B one for each 128 x 128.
 *
 * Roles
 *   intra_comm    pushes this rank's chunks to the peers of its node, then forwards to them the
 *                 chunks that the rail brings
 *   inter_send    puts each chunk to the same local rank of every other node. An A that is not in
 *                 the heap is staged there once.
 *   compute       takes its own shard first, then the others in the order in which they arrive
 *
 * A rank pushes to `fanout` peers at once, chunk by chunk, so that several shards arrive side by
 * side; compute takes chunk 0 of each of them, then chunk 1. The last chunks of a shard come in
 * slices of their columns: a tile awaits a slice only when it has multiplied the ones before.
 *
 * One shot, for few rows on one node: every rank pushes its rows to all ranks, itself included, and
 * a tile has rows of all shards. So B is read once and no tile is mostly empty. A tile awaits all
 * of its rows before its first load of A; loads of B go ahead. A shard is one chunk, and slices
 * only divide its bytes among CTAs.
 *
 * Scales travel with their slice of a chunk: a CTA copies its share of them before it raises the
 * flag of its piece. To another node the scales of a chunk have a put and a flag of their own: one
 * put may overtake another.
 *
 * Bytes moved
 *   Every rank multiplies W shards and has one, so W - 1 come to it. The (nodes - 1) gpus shards of
 *   other nodes must enter this node once, and the rails share them evenly: (nodes - 1) shards into
 *   a rank over the network. The others come over NVLink: nodes (gpus - 1) shards. The schedule
 *   moves exactly these.
 *
 * Buffer reuse
 *   The gathered A lies in the symmetric heap as W shards, in two buffers by epoch & 1. No credits:
 *   a rank begins launch e + 2 only after it has received every rank's chunks of e + 1, and the
 *   ranks that sent those had ended launch e, which read the buffer. (Launches of one rank follow
 *   each other, and a launch ends when its puts have completed.)
 *
 * Deadlock freedom
 *   Pushes and puts of a rank's own chunks wait for nothing. Forwards wait for puts, and compute
 *   for both.
 *
 * Flags of a rank
 *   arrival[shard][chunk][slice]  counts pieces; where a put brings the chunk, the epoch
 *   scales[shard][chunk]          FP8 between nodes: the epoch */
#pragma once

#include "core/roles/ag_gemm_plan.h"

/* Of FP8, before anything that reads the scales of a chunk that the rail brings: they are here. */
MK_ROLE int ag_gemm_await_scales(const struct ag_gemm_plan *p, struct mk_cta *cta, uint32_t shard,
                                 uint32_t chunk)
{
    return mk_cta_wait(cta, ag_gemm_scales_flag(p, shard, chunk), cta->epoch, MK_CAUSE_NETWORK);
}

/* Before the loads of a slice of a tile's A: its rows are here. scaled, here and below: A is FP8. A
 * constant of each kernel, so that bf16's knows nothing of scales. */
MK_ROLE int ag_gemm_before(const struct ag_gemm_plan *p, struct mk_cta *cta, int scaled,
                           const struct mk_tile *tile, uint32_t slice)
{
    if (p->shots == 1) {
        uint32_t first = tile->row / p->shard_rows,
                 last = (tile->row + tile->rows - 1) / p->shard_rows;
        for (uint32_t shard = first; shard <= last && p->topo.gpus > 1; shard++)
            if (mk_cta_wait(cta, ag_gemm_arrival_flag(p, shard, 0, 0),
                            cta->epoch * p->pieces * p->slices, MK_CAUSE_DATA))
                return 1;
        return 0;
    }
    if (tile->slab == p->topo.rank)
        return 0;
    int remote = mk_node_of(&p->topo, tile->slab) != mk_node_of(&p->topo, p->topo.rank);
    if (scaled && mk_by_network(&p->topo, tile->slab) &&
        ag_gemm_await_scales(p, cta, tile->slab, tile->row / p->chunk_rows))
        return 1;
    return mk_cta_wait(cta, ag_gemm_arrival_flag(p, tile->slab, tile->row / p->chunk_rows, slice),
                       ag_gemm_arrival_target(p, tile->slab, cta->epoch),
                       remote ? MK_CAUSE_NETWORK : MK_CAUSE_DATA);
}

/* A piece's share of the scales of a slice, to a rank of the node. */
MK_ROLE void ag_gemm_push_scales(const struct ag_gemm_plan *p, struct mk_cta *cta, int scaled,
                                 uint32_t peer, uint32_t shard, uint32_t chunk, uint32_t slice,
                                 uint32_t piece)
{
    uint32_t runs, space = shard == p->topo.rank ? MK_SPACE_ARG3 : MK_SPACE_HEAP;
    uint64_t pitch;
    if (!scaled)
        return;
    struct mk_chunk c =
        ag_gemm_scales(p, shard, chunk, slice, piece, space, cta->epoch, &runs, &pitch);
    if (runs)
        mk_cta_copy_rows(cta, peer, &c, runs, pitch, ag_gemm_scales_pitch(p, chunk));
}

/* Turn `turn` of the node's communication on this rank: its own chunks, then those that its rail
 * brings, one node after the other. Neighbouring turns go to `fanout` different peers, so that
 * every link carries its share even if some ranks are ahead: one peer at a time would be a
 * permutation only while all ranks keep step. Turns are dealt out to the CTAs. */
MK_ROLE int ag_gemm_push(const struct ag_gemm_plan *p, struct mk_cta *cta, int scaled,
                         uint32_t turn)
{
    uint32_t gpus = p->topo.gpus, node = mk_node_of(&p->topo, p->topo.rank);
    uint32_t local = mk_local_of(&p->topo, p->topo.rank), chunk, slice, rows;
    uint32_t peer_turns = p->chunks * p->slices * p->pieces, shard_turns = (gpus - 1) * peer_turns;
    uint32_t distance = turn / shard_turns, rest = turn % shard_turns;
    uint32_t fanout = distance ? gpus - 1 : p->fanout,
             before = rest / (fanout * peer_turns) * fanout;
    rest -= before * peer_turns;
    if (fanout > gpus - 1 - before)
        fanout = gpus - 1 - before;
    ag_gemm_step(p, rest / fanout / p->pieces, &chunk, &slice);
    uint32_t shard = mk_rank_at(&p->topo, (node + distance) % p->topo.nodes, local);
    uint32_t peer = (local + gpus - 1 - before - rest % fanout) % gpus;
    uint32_t flag = ag_gemm_arrival_flag(p, shard, chunk, slice);
    if (distance && (mk_cta_wait(cta, flag, cta->epoch, MK_CAUSE_NETWORK) ||
                     (scaled && ag_gemm_await_scales(p, cta, shard, chunk))))
        return 1;
    struct mk_chunk c = ag_gemm_piece(p, shard, chunk, slice, rest / fanout % p->pieces,
                                      distance ? MK_SPACE_HEAP : MK_SPACE_ARG0, cta->epoch, &rows);
    if (rows)
        mk_cta_copy_rows(cta, peer, &c, rows, p->row_bytes, p->row_bytes);
    ag_gemm_push_scales(p, cta, scaled, peer, shard, chunk, slice, rest / fanout % p->pieces);
    mk_cta_add(cta, peer, flag, 1);
    return 0;
}

/* One shot: piece by piece, slice by slice to every rank. */
MK_ROLE void ag_gemm_push_joint(const struct ag_gemm_plan *p, struct mk_cta *cta, int scaled,
                                uint32_t turn)
{
    uint32_t gpus = p->topo.gpus, rank = p->topo.rank, rows; /* one node */
    uint32_t peer = (rank + gpus - 1 - turn % gpus) % gpus, rest = turn / gpus;
    struct mk_chunk c = ag_gemm_piece(p, rank, 0, rest % p->slices, rest / p->slices, MK_SPACE_ARG0,
                                      cta->epoch, &rows);
    if (rows)
        mk_cta_copy_rows(cta, peer, &c, rows, p->row_bytes, p->row_bytes);
    ag_gemm_push_scales(p, cta, scaled, peer, rank, 0, rest % p->slices, rest / p->slices);
    mk_cta_add(cta, peer, ag_gemm_arrival_flag(p, rank, 0, 0), 1);
}

MK_ROLE int ag_gemm_intra_comm(const struct ag_gemm_plan *p, struct mk_cta *cta, int scaled)
{
    if (p->shots == 1) {
        for (uint32_t turn = cta->index; turn < p->topo.gpus * p->pieces * p->slices;
             turn += cta->count)
            ag_gemm_push_joint(p, cta, scaled, turn);
        return 0;
    }
    uint32_t turns = p->topo.nodes * (p->topo.gpus - 1) * p->chunks * p->slices * p->pieces;
    for (uint32_t turn = cta->index; turn < turns; turn += cta->count)
        if (ag_gemm_push(p, cta, scaled, turn))
            return 1;
    return 0;
}

/* Puts the scales of a chunk of this rank, which are staged for the first of the other nodes. */
MK_ROLE int ag_gemm_put_scales(const struct ag_gemm_plan *p, struct mk_cta *cta, uint32_t peer,
                               uint32_t chunk, int first)
{
    uint32_t rank = p->topo.rank, local = mk_local_of(&p->topo, rank);
    for (uint32_t piece = 0; piece < p->pieces && first; piece++)
        ag_gemm_push_scales(p, cta, 1, local, rank, chunk, 0, piece);
    struct mk_chunk c;
    c.id = rank * p->chunks + chunk;
    c.space = MK_SPACE_HEAP;
    c.source = c.destination = ag_gemm_scales_at(p, rank, chunk, cta->epoch);
    c.bytes = p->blocks * ag_gemm_scales_pitch(p, chunk);
    return mk_cta_put(cta, peer, &c, ag_gemm_scales_flag(p, rank, chunk));
}

MK_ROLE int ag_gemm_inter_send(const struct ag_gemm_plan *p, struct mk_cta *cta, int scaled)
{
    uint32_t nodes = p->topo.nodes, node = mk_node_of(&p->topo, p->topo.rank);
    uint32_t local = mk_local_of(&p->topo, p->topo.rank), rank = p->topo.rank;
    for (uint32_t distance = 1; distance < nodes; distance++) {
        uint32_t peer = mk_rank_at(&p->topo, (node + nodes - distance) % nodes, local);
        for (uint32_t chunk = cta->index; chunk < p->chunks; chunk += cta->count) {
            struct mk_chunk c = ag_gemm_chunk(p, rank, chunk, MK_SPACE_ARG0, cta->epoch);
            if (p->staged && distance == 1)
                mk_cta_copy(cta, local, &c);
            c.source = p->staged ? c.destination : p->a_offset + c.source;
            c.space = MK_SPACE_HEAP;
            if (mk_cta_put(cta, peer, &c, ag_gemm_arrival_flag(p, rank, chunk, 0)) ||
                (scaled && ag_gemm_put_scales(p, cta, peer, chunk, distance == 1)))
                return 1;
        }
    }
    return mk_cta_drain(cta);
}
