/* The plan of GEMM+ReduceScatter and its arithmetic. The schedule, and what lies where and why, is
 * core/roles/gemm_rs.h. */
#ifndef MK_ROLES_GEMM_RS_PLAN_H
#define MK_ROLES_GEMM_RS_PLAN_H

#include "core/cta.h"

struct gemm_rs_plan {
    struct mk_topo topo;
    struct mk_role_split split;
    uint32_t m, n, k;
    uint32_t shard_rows; /* M / W: rows of a block, what one rank ends with */
    uint32_t tile_m, tile_n, cluster;
    uint32_t chunk_rows;  /* a multiple of tile_m */
    uint32_t chunks;      /* of a block; the last may be shorter */
    uint32_t full_chunks; /* of chunk_rows rows */
    uint32_t pieces;      /* parts of a chunk that different CTAs reduce and send */
    uint32_t units;       /* chunks * pieces */
    uint32_t col_tiles, chunk_tiles, shard_tiles;
    uint32_t tiles;         /* of this rank */
    uint32_t slots;         /* of a block on its reducer: 1, or one per rank of the node */
    uint32_t add;           /* 1: the node's ranks add their tiles to one slot; 0: each stores into its own */
    uint32_t number;        /* enum mk_number of partial sums, staged and sent */
    uint32_t element_bytes; /* of it */
    uint32_t flag_partial, flag_sum;
    uint64_t slab_pitch; /* bytes from slab to slab of partial sums, a multiple of 128 */
    uint64_t staged[2];  /* heap: the slabs, by epoch & 1 */
    uint64_t sums;       /* heap: nodes - 1 slabs that leave for other nodes */
};

/* Rows of chunk `chunk` of any block. */
MK_PURE uint32_t gemm_rs_chunk_rows(const struct gemm_rs_plan *p, uint32_t chunk)
{
    uint32_t first = chunk * p->chunk_rows;
    return p->shard_rows - first < p->chunk_rows ? p->shard_rows - first : p->chunk_rows;
}

/* Elements of a unit of a block: where they begin, and how many; 0 where a short chunk has fewer pieces. */
MK_PURE uint64_t gemm_rs_unit(const struct gemm_rs_plan *p, uint32_t unit, uint64_t *elements)
{
    uint32_t chunk = unit / p->pieces, piece = unit % p->pieces;
    uint64_t all = (uint64_t)gemm_rs_chunk_rows(p, chunk) * p->n;
    uint64_t size = mk_round_up(mk_ceil_div(all, p->pieces), MK_HEAP_UNIT / 2);
    uint64_t first = piece * size < all ? piece * size : all;
    *elements = all - first < size ? all - first : size;
    return (uint64_t)chunk * p->chunk_rows * p->n + first;
}

/* Slabs of a rank of node `node`. First those of the blocks of other nodes, `slots` each; then what its own
 * block is the sum of, in the order in which it is added: the sums of the nodes before, its own node's slots,
 * the nodes behind. */
MK_PURE uint32_t gemm_rs_own_slab(const struct gemm_rs_plan *p)
{
    return (p->topo.nodes - 1) * p->slots;
}

MK_PURE uint32_t gemm_rs_partial_slab(const struct gemm_rs_plan *p, uint32_t node, uint32_t owner_node,
                                      uint32_t local)
{
    uint32_t slot = p->slots == 1 ? 0 : local;
    if (owner_node == node)
        return gemm_rs_own_slab(p) + node + slot;
    return (owner_node - (owner_node > node)) * p->slots + slot;
}

MK_PURE uint32_t gemm_rs_node_slab(const struct gemm_rs_plan *p, uint32_t owner_node, uint32_t from_node)
{
    return gemm_rs_own_slab(p) + from_node + (from_node > owner_node ? p->slots - 1 : 0);
}

MK_PURE uint32_t gemm_rs_slabs(const struct gemm_rs_plan *p)
{
    return p->topo.nodes * p->slots + p->topo.nodes - 1;
}

/* Of rank (this node, any local): `local`'s tiles of a chunk of the block of owner_node on that rank's rail.
 */
MK_PURE uint32_t gemm_rs_partial_flag(const struct gemm_rs_plan *p, uint32_t owner_node, uint32_t local,
                                      uint32_t chunk)
{
    return p->flag_partial + (owner_node * p->topo.gpus + local) * p->chunks + chunk;
}

MK_PURE uint64_t gemm_rs_partial_target(const struct gemm_rs_plan *p, uint32_t chunk, uint64_t epoch)
{
    uint32_t row_tiles = (uint32_t)mk_ceil_div(gemm_rs_chunk_rows(p, chunk), p->tile_m);
    return epoch * row_tiles * p->col_tiles * MK_TILE_PARTS;
}

/* Of the owner: node's sum of a unit. */
MK_PURE uint32_t gemm_rs_sum_flag(const struct gemm_rs_plan *p, uint32_t node, uint32_t unit)
{
    return p->flag_sum + node * p->units + unit;
}

/* Number of a unit of `rank`'s block, for traces. */
MK_PURE uint32_t gemm_rs_unit_id(const struct gemm_rs_plan *p, uint32_t rank, uint32_t unit)
{
    return rank * p->units + unit;
}

/* This node's sum of a unit of the block of `owner_node` on this rail, into what is sent. */
MK_PURE struct mk_sum gemm_rs_node_sum(const struct gemm_rs_plan *p, uint32_t owner_node, uint32_t unit,
                                       uint64_t epoch)
{
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    struct mk_sum s;
    uint64_t first = gemm_rs_unit(p, unit, &s.elements) * p->element_bytes;
    s.id = gemm_rs_unit_id(p, mk_rank_at(&p->topo, owner_node, local), unit);
    s.sources = p->slots;
    s.source = p->staged[epoch & 1] + gemm_rs_partial_slab(p, node, owner_node, 0) * p->slab_pitch + first;
    s.pitch = p->slab_pitch;
    s.from = s.to = p->number;
    s.clear = p->add;
    s.space = MK_SPACE_HEAP;
    s.destination = p->sums + (owner_node - (owner_node > node)) * p->slab_pitch + first;
    return s;
}

/* The sum of a unit of this rank's own block, as bf16 to where the block begins at `destination` of `space`.
 */
MK_PURE struct mk_sum gemm_rs_total(const struct gemm_rs_plan *p, uint32_t unit, uint64_t epoch,
                                    uint32_t space, uint64_t destination)
{
    struct mk_sum s;
    uint64_t first = gemm_rs_unit(p, unit, &s.elements);
    s.id = gemm_rs_unit_id(p, p->topo.rank, unit);
    s.sources = p->slots + p->topo.nodes - 1;
    s.source = p->staged[epoch & 1] + gemm_rs_own_slab(p) * p->slab_pitch + first * p->element_bytes;
    s.pitch = p->slab_pitch;
    s.from = p->number;
    s.to = MK_BF16;
    s.clear = p->add;
    s.space = space;
    s.destination = destination + first * 2;
    return s;
}

/* Tile number `t` of this rank in the order of computation. Of n CTAs (or clusters) the i-th takes t = i, i +
 * n, ... Blocks of other nodes come first, the next node's foremost: their sums have the longest way. The
 * blocks of one node go side by side, chunk by chunk, so that a chunk's sum is whole early; every rank begins
 * with another local rank, its own last. */
MK_PURE void gemm_rs_tile(const struct gemm_rs_plan *p, uint32_t t, struct mk_tile *tile)
{
    uint32_t gpus = p->topo.gpus, node_tiles = gpus * p->shard_tiles;
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    uint32_t distance = t / node_tiles, rest = t % node_tiles;
    uint32_t full = p->full_chunks * p->chunk_tiles * gpus, width = p->chunk_tiles, chunk = p->full_chunks;
    if (rest < full) {
        chunk = rest / (p->chunk_tiles * gpus);
        rest -= chunk * p->chunk_tiles * gpus;
    } else {
        rest -= full;
        width = p->shard_tiles - p->full_chunks * p->chunk_tiles;
    }
    uint32_t owner = (local + 1 + rest / width) % gpus, within = rest % width;
    uint32_t owner_node = (node + 1 + distance) % p->topo.nodes;
    uint32_t rows = gemm_rs_chunk_rows(p, chunk);
    uint32_t row_tiles = (uint32_t)mk_ceil_div(rows, p->tile_m);
    uint32_t row = within % row_tiles * p->tile_m, col = within / row_tiles * p->tile_n;
    tile->slab = mk_rank_at(&p->topo, owner_node, owner);
    tile->id = tile->slab * p->shard_tiles + chunk * p->chunk_tiles + within;
    tile->a = MK_SPACE_ARG0;
    tile->a_slab = tile->slab;
    tile->row = chunk * p->chunk_rows + row;
    tile->col = col;
    tile->rows = rows - row < p->tile_m ? rows - row : p->tile_m;
    tile->cols = p->n - col < p->tile_n ? p->n - col : p->tile_n;
    tile->c = MK_SPACE_HEAP;
    tile->c_local = owner;
    tile->c_slab = gemm_rs_partial_slab(p, node, owner_node, local);
    tile->stage = 0;
}

/* Heap offset of the first element of a tile's C, on the rank that it goes to. */
MK_PURE uint64_t gemm_rs_tile_offset(const struct gemm_rs_plan *p, const struct mk_tile *tile, uint64_t epoch)
{
    return p->staged[epoch & 1] + tile->c_slab * p->slab_pitch +
           ((uint64_t)tile->row * p->n + tile->col) * p->element_bytes;
}

#endif
