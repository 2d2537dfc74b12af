/* AllGather+GEMM: C = gather(A) * B, as one schedule for every executor.
 *
 *   A_r [M/W, K] on rank r (an argument, never copied on its own rank unless it must cross to another node)
 *   B_r [K, N]   each rank's own
 *   C_r [M, N]   each rank's whole product
 *
 * The gathered A lies in the symmetric heap as W shards, twice, so that launch e + 1 may arrive while e is still read.
 *   intra_comm   pushes its rank's chunks to the peers of the node, then forwards the chunks that the rail brings
 *   inter_send   puts each chunk to the same local rank of every other node (staged once into the heap where A is not there)
 *   compute      takes its own shard first, then shards in the order in which they arrive
 * At step s every rank pushes to local rank - s and expects from local rank + s, so each step is a permutation and no
 * ingress is shared. Bytes: every rank receives (W - 1) / W of A once; over the network it receives (nodes - 1) shards.
 *
 * Flags of a rank: arrival[shard][chunk], credit[rank] (that rank has finished reading epoch e), done (its own CTAs). */
#ifndef MK_ROLES_AG_GEMM_H
#define MK_ROLES_AG_GEMM_H

#include "core/roles/ag_gemm_plan.h"

/* Before the loads of a tile's A: its rows are here. */
MK_ROLE int ag_gemm_before(const struct ag_gemm_plan *p, struct mk_cta *cta, const struct mk_tile *tile)
{
    if (tile->slab == p->topo.rank)
        return 0;
    int remote = mk_node_of(&p->topo, tile->slab) != mk_node_of(&p->topo, p->topo.rank);
    return mk_cta_wait(cta, ag_gemm_arrival_flag(p, tile->slab, tile->row / p->chunk_rows),
                       ag_gemm_arrival_target(p, tile->slab, cta->epoch),
                       remote ? MK_CAUSE_NETWORK : MK_CAUSE_DATA);
}

/* After all tiles of a compute CTA have read their A. */
MK_ROLE void ag_gemm_computed(const struct ag_gemm_plan *p, struct mk_cta *cta)
{
    mk_cta_add(cta, mk_local_of(&p->topo, p->topo.rank), p->flag_done, 1);
}

/* Waits until `rank` has finished reading the buffer that this epoch writes: the one of two epochs ago. */
MK_ROLE int ag_gemm_credit(const struct ag_gemm_plan *p, struct mk_cta *cta, uint32_t rank)
{
    if (cta->epoch <= 2)
        return 0;
    return mk_cta_wait(cta, p->flag_credit + rank, cta->epoch - 2, MK_CAUSE_CREDIT);
}

/* Waits until nothing on this rank reads the gathered buffer of this epoch any more. */
MK_ROLE int ag_gemm_finished(const struct ag_gemm_plan *p, struct mk_cta *cta)
{
    return mk_cta_wait(cta, p->flag_done, cta->epoch * (p->split.ctas[MK_COMPUTE] + p->split.ctas[MK_INTRA_COMM]),
                       MK_CAUSE_DATA);
}

/* Pushes every chunk of `shard` to local rank `local`, those pieces that are this CTA's turn. */
MK_ROLE int ag_gemm_push(const struct ag_gemm_plan *p, struct mk_cta *cta, uint32_t shard, uint32_t chunk,
                         uint32_t local, uint32_t space, uint32_t *turn)
{
    uint32_t peer = mk_rank_at(&p->topo, mk_node_of(&p->topo, p->topo.rank), local);
    for (uint32_t piece = 0; piece < p->pieces; piece++) {
        if ((*turn)++ % cta->count != cta->index)
            continue;
        if (space == MK_SPACE_HEAP &&
            mk_cta_wait(cta, ag_gemm_arrival_flag(p, shard, chunk), cta->epoch, MK_CAUSE_NETWORK))
            return 1;
        if (ag_gemm_credit(p, cta, peer))
            return 1;
        struct mk_chunk c = ag_gemm_piece(p, shard, chunk, piece, p->pieces, space, cta->epoch);
        if (c.bytes)
            mk_cta_copy(cta, local, &c);
        mk_cta_add(cta, local, ag_gemm_arrival_flag(p, shard, chunk), 1);
    }
    return 0;
}

MK_ROLE int ag_gemm_intra_comm(const struct ag_gemm_plan *p, struct mk_cta *cta)
{
    uint32_t gpus = p->topo.gpus, node = mk_node_of(&p->topo, p->topo.rank);
    uint32_t local = mk_local_of(&p->topo, p->topo.rank);
    uint32_t turn = 0;
    for (uint32_t step = 1; step < gpus; step++)
        for (uint32_t chunk = 0; chunk < p->chunks; chunk++)
            if (ag_gemm_push(p, cta, p->topo.rank, chunk, (local + gpus - step) % gpus, MK_SPACE_ARG0, &turn))
                return 1;
    for (uint32_t distance = 1; distance < p->topo.nodes; distance++) {
        uint32_t shard = mk_rank_at(&p->topo, (node + distance) % p->topo.nodes, local);
        for (uint32_t chunk = 0; chunk < p->chunks; chunk++)
            for (uint32_t step = 1; step < gpus; step++)
                if (ag_gemm_push(p, cta, shard, chunk, (local + gpus - step) % gpus, MK_SPACE_HEAP, &turn))
                    return 1;
    }
    mk_cta_add(cta, local, p->flag_done, 1);
    if (cta->index != 0 || gpus == 1)
        return 0;
    if (ag_gemm_finished(p, cta))
        return 1;
    for (uint32_t step = 1; step < gpus; step++)
        mk_cta_signal(cta, (local + step) % gpus, p->flag_credit + p->topo.rank, cta->epoch);
    return 0;
}

MK_ROLE int ag_gemm_inter_send(const struct ag_gemm_plan *p, struct mk_cta *cta)
{
    uint32_t nodes = p->topo.nodes, node = mk_node_of(&p->topo, p->topo.rank);
    uint32_t local = mk_local_of(&p->topo, p->topo.rank), rank = p->topo.rank;
    for (uint32_t distance = 1; distance < nodes; distance++) {
        uint32_t peer = mk_rank_at(&p->topo, (node + nodes - distance) % nodes, local);
        if (ag_gemm_credit(p, cta, peer))
            return 1;
        for (uint32_t chunk = cta->index; chunk < p->chunks; chunk += cta->count) {
            struct mk_chunk c = ag_gemm_piece(p, rank, chunk, 0, 1, MK_SPACE_ARG0, cta->epoch);
            if (p->staged && distance == 1)
                mk_cta_copy(cta, local, &c);
            c.source = p->staged ? c.destination : p->a_offset + c.source;
            c.space = MK_SPACE_HEAP;
            if (mk_cta_put(cta, peer, &c, ag_gemm_arrival_flag(p, rank, chunk)))
                return 1;
        }
    }
    if (cta->index == 0) {
        if (ag_gemm_finished(p, cta))
            return 1;
        struct mk_chunk none = {0, MK_SPACE_HEAP, 0, 0, 0};
        for (uint32_t distance = 1; distance < nodes; distance++)
            if (mk_cta_put(cta, mk_rank_at(&p->topo, (node + distance) % nodes, local), &none, p->flag_credit + rank))
                return 1;
    }
    return mk_cta_drain(cta);
}

#endif
