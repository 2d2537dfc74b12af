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

#include "core/cta.h"

struct ag_gemm_plan {
    struct mk_topo topo;
    struct mk_role_split split;
    uint32_t m, n, k;
    uint32_t shard_rows;  /* M / W */
    uint32_t tile_m, tile_n, cluster; /* tile_m: rows of a tile, which `cluster` CTAs share */
    uint32_t chunk_rows;  /* a multiple of tile_m */
    uint32_t chunks;      /* of a shard; the last may be shorter */
    uint32_t full_chunks; /* of chunk_rows rows */
    uint32_t pieces;      /* parts of a chunk that different CTAs push over NVLink */
    uint32_t col_tiles;
    uint32_t chunk_tiles, shard_tiles;
    uint32_t tiles;       /* of this rank */
    uint32_t staged;      /* 1: A is not in the heap, so puts leave from the gathered copy */
    uint32_t flag_arrival, flag_credit, flag_done;
    uint64_t row_bytes, shard_pitch; /* shard_pitch: bytes from shard to shard, a multiple of 128 */
    uint64_t gathered[2]; /* heap offsets, by epoch & 1 */
    uint64_t a_offset;    /* heap offset of A where it is not staged */
};

/* Rows of chunk `chunk` of any shard. */
MK_PURE uint32_t ag_gemm_chunk_rows(const struct ag_gemm_plan *p, uint32_t chunk)
{
    uint32_t first = chunk * p->chunk_rows;
    return p->shard_rows - first < p->chunk_rows ? p->shard_rows - first : p->chunk_rows;
}

MK_PURE uint32_t ag_gemm_arrival_flag(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk)
{
    return p->flag_arrival + shard * p->chunks + chunk;
}

/* Whether the network brings `shard` to this rank itself: the rail's other ends. */
MK_PURE int ag_gemm_by_network(const struct ag_gemm_plan *p, uint32_t shard)
{
    return mk_node_of(&p->topo, shard) != mk_node_of(&p->topo, p->topo.rank) &&
           mk_local_of(&p->topo, shard) == mk_local_of(&p->topo, p->topo.rank);
}

MK_PURE uint64_t ag_gemm_arrival_target(const struct ag_gemm_plan *p, uint32_t shard, uint64_t epoch)
{
    return ag_gemm_by_network(p, shard) ? epoch : epoch * p->pieces;
}

MK_PURE uint64_t ag_gemm_gathered(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk, uint64_t epoch)
{
    return p->gathered[epoch & 1] + shard * p->shard_pitch + (uint64_t)chunk * p->chunk_rows * p->row_bytes;
}

/* Piece `piece` of a chunk, from `space` to the peer's gathered buffer. Pieces are 16-byte multiples. */
MK_PURE struct mk_chunk ag_gemm_piece(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk, uint32_t piece,
                                      uint32_t pieces, uint32_t space, uint64_t epoch)
{
    uint64_t bytes = ag_gemm_chunk_rows(p, chunk) * p->row_bytes;
    uint64_t size = mk_round_up(mk_ceil_div(bytes, pieces), MK_HEAP_UNIT);
    uint64_t first = piece * size < bytes ? piece * size : bytes;
    struct mk_chunk c;
    c.id = shard * p->chunks + chunk;
    c.space = space;
    c.destination = ag_gemm_gathered(p, shard, chunk, epoch) + first;
    c.source = space == MK_SPACE_HEAP ? c.destination
                                      : (uint64_t)chunk * p->chunk_rows * p->row_bytes + first;
    c.bytes = bytes - first < size ? bytes - first : size;
    return c;
}

/* Tile number `t` of this rank in the order of computation. Of n CTAs (or clusters) the i-th takes t = i, i + n, ... */
MK_PURE void ag_gemm_tile(const struct ag_gemm_plan *p, uint32_t t, struct mk_tile *tile)
{
    uint32_t gpus = p->topo.gpus, node_tiles = gpus * p->shard_tiles;
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    uint32_t distance = t / node_tiles, rest = t % node_tiles;
    uint32_t chunk, turn, within;
    if (distance == 0) { /* NVLink brings one shard after the other */
        turn = rest / p->shard_tiles;
        within = rest % p->shard_tiles;
        chunk = within / p->chunk_tiles;
        within -= chunk * p->chunk_tiles;
    } else { /* rails bring the shards of a node side by side */
        uint32_t full = p->full_chunks * p->chunk_tiles * gpus;
        uint32_t width = p->chunk_tiles;
        chunk = p->full_chunks;
        if (rest < full) {
            chunk = rest / (p->chunk_tiles * gpus);
            rest -= chunk * p->chunk_tiles * gpus;
        } else {
            rest -= full;
            width = p->shard_tiles - p->full_chunks * p->chunk_tiles;
        }
        turn = rest / width;
        within = rest % width;
    }
    uint32_t rows = ag_gemm_chunk_rows(p, chunk);
    uint32_t row_tiles = (uint32_t)mk_ceil_div(rows, p->tile_m);
    uint32_t row = within % row_tiles * p->tile_m, col = within / row_tiles * p->tile_n;
    tile->slab = mk_rank_at(&p->topo, (node + distance) % p->topo.nodes, (local + turn) % gpus);
    tile->id = tile->slab * p->shard_tiles + chunk * p->chunk_tiles + within;
    tile->a = tile->slab == p->topo.rank ? MK_SPACE_ARG0 : MK_SPACE_HEAP;
    tile->a_slab = tile->a == MK_SPACE_HEAP ? tile->slab : 0;
    tile->row = chunk * p->chunk_rows + row;
    tile->col = col;
    tile->rows = rows - row < p->tile_m ? rows - row : p->tile_m;
    tile->cols = p->n - col < p->tile_n ? p->n - col : p->tile_n;
}

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
