/* The plan of GEMM+ReduceScatter and its arithmetic. The schedule, and what lies where and why, is
 * core/roles/gemm_rs.h. */
#ifndef MK_ROLES_GEMM_RS_PLAN_H
#define MK_ROLES_GEMM_RS_PLAN_H

#include "core/cta_reduce.h"
#include "core/plan.h"

#define GEMM_RS_OUTBOX 2u

struct gemm_rs_plan {
    struct mk_topo topo;
    struct mk_role_split split;
    uint32_t m, n, k;
    uint32_t shard_rows; /* M / W: rows of a block, what one rank ends with */
    uint32_t tile_m, tile_n, cluster;
    uint32_t chunk_rows; /* a multiple of tile_m */
    /* of a block, rows that are computed one after the other; the last may be shorter */
    uint32_t chunks;
    uint32_t full_chunks; /* of chunk_rows rows */
    uint32_t pieces;      /* parts of a tile that different CTAs reduce and send */
    uint32_t piece_rows;  /* a multiple of 8 */
    uint32_t units;       /* shard_tiles * pieces */
    uint32_t col_tiles, chunk_tiles, shard_tiles;
    uint32_t tiles; /* of this rank */
    uint32_t slots; /* of a block on its reducer: 1, or one per rank of the node */
    /* 1: the node's ranks add their tiles to one slot; 0: each stores into its own */
    uint32_t add;
    uint32_t number;        /* enum mk_dtype of partial sums, staged and sent */
    uint32_t element_bytes; /* of it */
    /* ns that an auxiliary warp takes to push 512 bytes at least; 0: as fast as it goes */
    uint32_t pace;
    uint32_t flag_partial, flag_sum;
    uint64_t slab_pitch; /* bytes from slab to slab of partial sums, a multiple of 128 */
    uint64_t staged[2];  /* heap: the slabs, by epoch & 1 */
    uint64_t sums;       /* heap: nodes - 1 slabs that leave for other nodes */
    /* heap, on a GPU: GEMM_RS_OUTBOX parts of tiles of each compute CTA, on their way out */
    uint64_t outbox;
};
MK_PLAN_OF(gemm_rs);

/* Rows of chunk `chunk` of any block. */
MK_PURE uint32_t gemm_rs_chunk_rows(const struct gemm_rs_plan *p, uint32_t chunk)
{
    uint32_t first = chunk * p->chunk_rows;
    return p->shard_rows - first < p->chunk_rows ? p->shard_rows - first : p->chunk_rows;
}

/* A rectangle of a block: a tile, or some rows of one. In slabs of partial sums and of whole ones
 * its elements follow each other, row by row, without gaps. Each tile has as much room there as the
 * largest, so that all of them, and their pieces (rows in eights, columns in eights), begin at
 * multiples of 128 bytes. */
struct gemm_rs_area {
    uint32_t row, col; /* in the block */
    uint32_t rows, cols;
    uint64_t first; /* element of a slab */
};

/* Tile `tile` of a block, 0 .. shard_tiles - 1. */
MK_PURE struct gemm_rs_area gemm_rs_tile_area(const struct gemm_rs_plan *p, uint32_t tile)
{
    uint32_t chunk = tile / p->chunk_tiles, within = tile % p->chunk_tiles;
    uint32_t rows = gemm_rs_chunk_rows(p, chunk),
             row_tiles = (uint32_t)mk_ceil_div(rows, p->tile_m);
    uint32_t row = within % row_tiles * p->tile_m, col = within / row_tiles * p->tile_n;
    struct gemm_rs_area a;
    a.row = chunk * p->chunk_rows + row;
    a.col = col;
    a.rows = rows - row < p->tile_m ? rows - row : p->tile_m;
    a.cols = p->n - col < p->tile_n ? p->n - col : p->tile_n;
    a.first = (uint64_t)tile * p->tile_m * p->tile_n;
    return a;
}

/* Unit `unit` of a block: piece unit % pieces of tile unit / pieces. No rows where a short tile has
 * fewer pieces. */
MK_PURE struct gemm_rs_area gemm_rs_unit(const struct gemm_rs_plan *p, uint32_t unit)
{
    struct gemm_rs_area a = gemm_rs_tile_area(p, unit / p->pieces);
    uint32_t from = unit % p->pieces * p->piece_rows;
    from = from < a.rows ? from : a.rows;
    a.row += from;
    a.first += (uint64_t)from * a.cols;
    a.rows = a.rows - from < p->piece_rows ? a.rows - from : p->piece_rows;
    return a;
}

MK_PURE uint64_t gemm_rs_elements(const struct gemm_rs_area *a)
{
    return (uint64_t)a->rows * a->cols;
}

/* Slabs of a rank of node `node`. First those of the blocks of other nodes, `slots` each; then what
 * its own block is the sum of, in the order in which it is added: the sums of the nodes before, its
 * own node's slots, the nodes behind. */
MK_PURE uint32_t gemm_rs_own_slab(const struct gemm_rs_plan *p)
{
    return (p->topo.nodes - 1) * p->slots;
}

MK_PURE uint32_t gemm_rs_partial_slab(const struct gemm_rs_plan *p, uint32_t node,
                                      uint32_t owner_node, uint32_t local)
{
    uint32_t slot = p->slots == 1 ? 0 : local;
    if (owner_node == node)
        return gemm_rs_own_slab(p) + node + slot;
    return (owner_node - (owner_node > node)) * p->slots + slot;
}

MK_PURE uint32_t gemm_rs_node_slab(const struct gemm_rs_plan *p, uint32_t owner_node,
                                   uint32_t from_node)
{
    return gemm_rs_own_slab(p) + from_node + (from_node > owner_node ? p->slots - 1 : 0);
}

MK_PURE uint32_t gemm_rs_slabs(const struct gemm_rs_plan *p)
{
    return p->topo.nodes * p->slots + p->topo.nodes - 1;
}

/* Of rank (this node, any local): `local`'s tile `tile` of the block of owner_node on that rank's
 * rail. The flags of all ranks of a node for one tile follow each other. */
MK_PURE uint32_t gemm_rs_partial_flag(const struct gemm_rs_plan *p, uint32_t owner_node,
                                      uint32_t local, uint32_t tile)
{
    return p->flag_partial + (owner_node * p->shard_tiles + tile) * p->topo.gpus + local;
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

/* What this rank adds of a unit of the block of `owner_node` on its rail. Of another node's: this
 * node's sum, into what is sent. Of its own: all of it, as bf16 into C. */
MK_PURE struct mk_sum gemm_rs_sum(const struct gemm_rs_plan *p, uint32_t owner_node, uint32_t unit,
                                  uint64_t epoch)
{
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    uint32_t own = owner_node == node;
    struct gemm_rs_area a = gemm_rs_unit(p, unit);
    struct mk_sum s;
    s.id = gemm_rs_unit_id(p, mk_rank_at(&p->topo, owner_node, local), unit);
    s.sources = p->slots + (own ? p->topo.nodes - 1 : 0);
    s.source =
        p->staged[epoch & 1] +
        (own ? gemm_rs_own_slab(p) : gemm_rs_partial_slab(p, node, owner_node, 0)) * p->slab_pitch +
        a.first * p->element_bytes;
    s.pitch = p->slab_pitch;
    s.elements = gemm_rs_elements(&a);
    s.columns = a.cols;
    s.from = p->number;
    s.to = own ? (uint32_t)MK_BF16 : p->number;
    s.clear = p->add;
    s.space = own ? (uint32_t)MK_SPACE_ARG2 : (uint32_t)MK_SPACE_HEAP;
    s.row_pitch = own ? (uint64_t)p->n * 2 : (uint64_t)a.cols * p->element_bytes;
    s.destination = own ? ((uint64_t)a.row * p->n + a.col) * 2
                        : p->sums + (owner_node - (owner_node > node)) * p->slab_pitch +
                              a.first * p->element_bytes;
    return s;
}

/* Tile number `t` of this rank in the order of computation. Of n CTAs (or clusters) the i-th takes
 * t = i, i + n, ... Blocks of other nodes come first, the next node's foremost: their sums have the
 * longest way. The blocks of one node go side by side, tile by tile: a rank sends to all of its
 * peers at any time, so that no link stands idle when ranks lose step. Chunk by chunk, to and fro,
 * so that the last columns of B are still in a cache. */
MK_PURE void gemm_rs_tile(const struct gemm_rs_plan *p, uint32_t t, struct mk_tile *tile)
{
    uint32_t gpus = p->topo.gpus, node_tiles = gpus * p->shard_tiles;
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    uint32_t distance = t / node_tiles, rest = t % node_tiles;
    uint32_t chunk = rest / (p->chunk_tiles * gpus), within = rest % (p->chunk_tiles * gpus);
    uint32_t width =
        chunk < p->full_chunks ? p->chunk_tiles : p->shard_tiles - chunk * p->chunk_tiles;
    uint32_t owner = (local + 1 + within % gpus) % gpus,
             owner_node = (node + 1 + distance) % p->topo.nodes;
    within /= gpus;
    uint32_t index = chunk * p->chunk_tiles + (chunk & 1 ? width - 1 - within : within);
    struct gemm_rs_area a = gemm_rs_tile_area(p, index);
    tile->slab = mk_rank_at(&p->topo, owner_node, owner);
    tile->id = tile->slab * p->shard_tiles + index;
    tile->a = MK_SPACE_ARG0;
    tile->a_slab = tile->slab;
    tile->row = a.row;
    tile->col = a.col;
    tile->rows = a.rows;
    tile->cols = a.cols;
    tile->c = MK_SPACE_HEAP;
    tile->c_local = owner;
    tile->c_slab = gemm_rs_partial_slab(p, node, owner_node, local);
    tile->stage = 0;
}

/* Heap offset of the first element of a tile's C, on the rank that it goes to; its rows follow each
 * other without gaps. */
MK_PURE uint64_t gemm_rs_tile_offset(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                     uint64_t epoch)
{
    uint64_t first = gemm_rs_tile_area(p, tile->id % p->shard_tiles).first;
    return p->staged[epoch & 1] + tile->c_slab * p->slab_pitch + first * p->element_bytes;
}

#endif
