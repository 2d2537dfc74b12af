/* AllGather+GEMM: C = gather(A) * B, as one schedule for every executor.
 *
 *   A_r [M/W, K]  on rank r: an argument, never copied on its own rank unless it must cross to
 *                 another node
 *   B_r [K, N]    each rank's own
 *   C_r [M, N]    each rank's whole product
 *
 * The gathered A lies in the symmetric heap as W shards, twice, by epoch & 1. No rank has to ask
 * whether a buffer may be written: a rank begins launch e + 2 only after it has had every rank's
 * chunks of e + 1, and the ranks that sent those had ended launch e, which read the buffer.
 * (Launches of one rank follow each other; a launch ends when its puts have completed.)
 *
 *   intra_comm  pushes its rank's chunks to the peers of the node, then forwards the chunks that
 * the rail brings inter_send  puts each chunk to the same local rank of every other node (staged
 * once into the heap where A is not there) compute     takes its own shard first, then shards in
 * the order in which they arrive
 *
 * A rank pushes to `fanout` peers at once, chunk by chunk, so that many shards arrive side by side,
 * and compute takes chunk 0 of each, then chunk 1. The last chunks come in slices of their columns:
 * a tile needs no slice before it has multiplied those before.
 *
 * One shot, for few rows, in one node: every rank pushes its rows to all, itself included, and a
 * tile has rows of all shards, so that B is read once and no tile is mostly empty. It waits for all
 * of them before its first load of A (B's may go ahead). A shard is one chunk, and slices only
 * share its bytes out to CTAs.
 *
 * Minimum bytes: every rank multiplies W shards of A and has one, so W - 1 come to it. The (nodes -
 * 1) gpus shards of other nodes must each enter this node once, and rails share them evenly: (nodes
 * - 1) into a rank over the network; what its rail does not bring comes over NVLink, nodes (gpus -
 * 1) shards. The schedule moves exactly these.
 *
 * A of FP8 has a scale for each row and 128 of K, which travel with their slice of a chunk: before
 * a CTA tells of its piece it copies its share of the slice's scales. To another node a chunk's
 * scales go by a put of their own, with a flag of its own, since puts may overtake each other.
 *
 * Flags of a rank: arrival[shard][chunk][slice]; scales[shard][chunk], by the network alone. */
#ifndef MK_ROLES_AG_GEMM_H
#define MK_ROLES_AG_GEMM_H

#include "core/roles/ag_gemm_plan.h"

/* Of a chunk that the rail brings, its scales are here. scaled: A
 * is FP8. A constant of each kernel, so that bf16's knows nothing of scales. */
MK_ROLE int ag_gemm_await_scales(const struct ag_gemm_plan *p, struct mk_cta *cta, int scaled,
                                 uint32_t shard, uint32_t chunk)
{
    return scaled &&
           mk_cta_wait(cta, ag_gemm_scales_flag(p, shard, chunk), cta->epoch, MK_CAUSE_NETWORK);
}

/* Before the loads of a slice of a tile's A: its rows are here. */
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
        ag_gemm_await_scales(p, cta, scaled, tile->slab, tile->row / p->chunk_rows))
        return 1;
    return mk_cta_wait(cta, ag_gemm_arrival_flag(p, tile->slab, tile->row / p->chunk_rows, slice),
                       ag_gemm_arrival_target(p, tile->slab, cta->epoch),
                       remote ? MK_CAUSE_NETWORK : MK_CAUSE_DATA);
}

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
                     ag_gemm_await_scales(p, cta, scaled, shard, chunk)))
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

/* Puts the scales of this rank's chunk, which distance 1 stages. */
MK_ROLE int ag_gemm_put_scales(const struct ag_gemm_plan *p, struct mk_cta *cta, uint32_t peer,
                               uint32_t chunk, uint32_t distance)
{
    uint32_t rank = p->topo.rank, local = mk_local_of(&p->topo, rank), runs;
    uint64_t pitch, at = ag_gemm_scales_at(p, rank, chunk, cta->epoch);
    for (uint32_t piece = 0; piece < p->pieces && distance == 1; piece++) {
        struct mk_chunk c =
            ag_gemm_scales(p, rank, chunk, 0, piece, MK_SPACE_ARG3, cta->epoch, &runs, &pitch);
        if (runs)
            mk_cta_copy_rows(cta, local, &c, runs, pitch, ag_gemm_scales_pitch(p, chunk));
    }
    struct mk_chunk c;
    c.id = rank * p->chunks + chunk;
    c.space = MK_SPACE_HEAP;
    c.source = c.destination = at;
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
                (scaled && ag_gemm_put_scales(p, cta, peer, chunk, distance)))
                return 1;
        }
    }
    return mk_cta_drain(cta);
}

#endif
