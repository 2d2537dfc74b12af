/* The plan of AllGather+GEMM and its arithmetic: what every executor and every report may ask of
 * it. The schedule itself, and what the plan is for, is core/roles/ag_gemm.h. */
#pragma once

#include "core/cta/cta.h"

struct ag_gemm_plan {
    struct mk_topo topo;
    struct mk_role_split split;
    uint32_t m, n, k; /* n: columns of C */
    /* of an epilogue that is gated: columns of B from a gate's to what it lets through; else 0 */
    uint32_t up;
    uint32_t shots;                   /* 1: see core/roles/ag_gemm.h */
    uint32_t shard_rows;              /* M / W */
    uint32_t tile_m, tile_n, cluster; /* tile_m: rows of a tile, which `cluster` CTAs share */
    uint32_t tile_columns;            /* of C: tile_n, or half of it where B's are gated */
    uint32_t chunk_rows;              /* a multiple of tile_m */
    uint32_t chunks;                  /* of a shard; the last may be shorter */
    uint32_t full_chunks;             /* of chunk_rows rows */
    /* runs of columns of a chunk, each with a flag of its own; 1 between nodes */
    uint32_t slices;
    /* chunks at the end of a shard that come slice by slice, side by side */
    uint32_t tail;
    uint32_t fanout; /* peers of the node that a rank pushes to at once */
    /* groups of rows of a slice that different CTAs push over NVLink */
    uint32_t pieces;
    uint32_t pace; /* of a pushing warp: ns for 512 bytes, or MK_PACE_NONE */
    uint32_t col_tiles;
    uint32_t chunk_tiles, shard_tiles;
    uint32_t tiles;  /* of this rank */
    uint32_t halved; /* of the last wave, which are two tiles of half the rows each */
    uint32_t staged; /* 1: A is not in the heap, so puts leave from the gathered copy */
    uint32_t flag_arrival, flag_scales;
    /* slice_bytes: of a row's part in a slice, a multiple of 128; the last is shorter */
    uint64_t row_bytes, slice_bytes;
    uint64_t shard_pitch; /* bytes from shard to shard, a multiple of 128; with one shot, of rows */
    uint64_t gathered[2]; /* heap offsets, by epoch & 1 */
    uint64_t a_offset;    /* heap offset of A where it is not staged */
    /* Of FP8: the gathered A's scales, by epoch & 1, of each chunk [blocks][rows], so that one put
     * takes them, where rows are whole 16 bytes; with one shot of all rows, [blocks][m]. A piece of
     * a chunk or slice has a share of its blocks, of all its rows, and its flag is told of both;
     * what comes by the network has a flag of its own. */
    uint32_t blocks; /* of 128 of K; 0: A is bf16 and has none */
    uint64_t
        scales_chunk; /* bytes from chunk to chunk, a multiple of 128; with one shot, of rows */
    uint64_t scales[2];
    uint32_t epilogue;   /* bits of enum mk_epilogue */
    uint32_t bias_space; /* where it has a bias: the argument that is it */
};
MK_PLAN_OF(ag_gemm);

/* Rows of chunk `chunk` of any shard. */
MK_PURE uint32_t ag_gemm_chunk_rows(const struct ag_gemm_plan *p, uint32_t chunk)
{
    uint32_t first = chunk * p->chunk_rows;
    return p->shard_rows - first < p->chunk_rows ? p->shard_rows - first : p->chunk_rows;
}

MK_PURE uint32_t ag_gemm_arrival_flag(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk,
                                      uint32_t slice)
{
    return p->flag_arrival + (shard * p->chunks + chunk) * p->slices + slice;
}

MK_PURE uint64_t ag_gemm_arrival_target(const struct ag_gemm_plan *p, uint32_t shard,
                                        uint64_t epoch)
{
    return mk_by_network(&p->topo, shard) ? epoch : epoch * p->pieces;
}

MK_PURE uint64_t ag_gemm_gathered(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk,
                                  uint64_t epoch)
{
    return p->gathered[epoch & 1] + shard * p->shard_pitch +
           (uint64_t)chunk * p->chunk_rows * p->row_bytes;
}

/* A whole chunk, from `space` to the gathered buffer. */
MK_PURE struct mk_chunk ag_gemm_chunk(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk,
                                      uint32_t space, uint64_t epoch)
{
    struct mk_chunk c;
    c.id = shard * p->chunks + chunk;
    c.space = space;
    c.destination = ag_gemm_gathered(p, shard, chunk, epoch);
    c.source =
        space == MK_SPACE_HEAP ? c.destination : (uint64_t)chunk * p->chunk_rows * p->row_bytes;
    c.bytes = ag_gemm_chunk_rows(p, chunk) * p->row_bytes;
    return c;
}

/* Piece `piece` of a slice of a chunk: its first row's part (row_bytes apart from the next), and
 * how many rows; 0 where a short chunk has fewer pieces. */
MK_PURE struct mk_chunk ag_gemm_piece(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk,
                                      uint32_t slice, uint32_t piece, uint32_t space,
                                      uint64_t epoch, uint32_t *rows)
{
    struct mk_chunk c = ag_gemm_chunk(p, shard, chunk, space, epoch);
    uint32_t all = ag_gemm_chunk_rows(p, chunk), size = (uint32_t)mk_ceil_div(all, p->pieces);
    uint32_t first = piece * size < all ? piece * size : all;
    uint64_t within = slice * p->slice_bytes, at = first * p->row_bytes + within;
    *rows = all - first < size ? all - first : size;
    c.source += at;
    c.destination += at;
    c.bytes = p->row_bytes - within < p->slice_bytes ? p->row_bytes - within : p->slice_bytes;
    return c;
}

MK_PURE uint32_t ag_gemm_scales_flag(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk)
{
    return p->flag_scales + shard * p->chunks + chunk;
}

/* The chunk that row `row` is in: of a shard; with one shot all rows are one. */
MK_PURE uint32_t ag_gemm_chunk_of(const struct ag_gemm_plan *p, uint32_t row)
{
    return p->shots == 1 ? 0 : row / p->chunk_rows;
}

/* Where the gathered scales of a chunk begin; bytes from one block's to the next. */
MK_PURE uint64_t ag_gemm_scales_at(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk,
                                   uint64_t epoch)
{
    return p->scales[epoch & 1] + ((uint64_t)shard * p->chunks + chunk) * p->scales_chunk;
}

/* Of a scale for each of so many rows: whole 16 bytes, as copies have them. */
MK_PURE uint64_t ag_gemm_scales_bytes(uint32_t rows)
{
    return (rows + 3ull) / 4 * 16;
}

MK_PURE uint64_t ag_gemm_scales_pitch(const struct ag_gemm_plan *p, uint32_t chunk)
{
    return ag_gemm_scales_bytes(p->shots == 1 ? p->m : ag_gemm_chunk_rows(p, chunk));
}

/* Of the scales of a slice of a chunk, those that piece `piece` brings: the first run of them, one
 * for each row, how many runs there are, and bytes from run to run at their source. */
MK_PURE struct mk_chunk ag_gemm_scales(const struct ag_gemm_plan *p, uint32_t shard, uint32_t chunk,
                                       uint32_t slice, uint32_t piece, uint32_t space,
                                       uint64_t epoch, uint32_t *runs, uint64_t *pitch)
{
    uint32_t of_slice = (uint32_t)(p->slice_bytes / 128), first = slice * of_slice,
             all = p->slices == 1                 ? p->blocks
                   : p->blocks - first < of_slice ? p->blocks - first
                                                  : of_slice;
    uint32_t size = (uint32_t)mk_ceil_div(all, p->pieces),
             skipped = piece * size < all ? piece * size : all;
    uint64_t block = first + skipped;
    struct mk_chunk c;
    *runs = all - skipped < size ? all - skipped : size;
    *pitch = space == MK_SPACE_HEAP ? ag_gemm_scales_pitch(p, chunk)
                                    : ag_gemm_scales_bytes(p->shard_rows);
    c.id = shard * p->chunks + chunk;
    c.space = space;
    c.destination =
        ag_gemm_scales_at(p, shard, chunk, epoch) + block * ag_gemm_scales_pitch(p, chunk);
    c.source = space == MK_SPACE_HEAP ? c.destination
                                      : block * *pitch + (uint64_t)chunk * p->chunk_rows * 4;
    c.bytes = ag_gemm_scales_bytes(ag_gemm_chunk_rows(p, chunk));
    return c;
}

/* Step `step` (below chunks * slices) of pushing a shard: chunk by chunk, but the last ones slice
 * by slice: the tiles that end a launch then multiply while their chunks still come, and only the
 * last slice is left when all is there. */
MK_PURE void ag_gemm_step(const struct ag_gemm_plan *p, uint32_t step, uint32_t *chunk,
                          uint32_t *slice)
{
    uint32_t head = p->chunks - p->tail, rest = step - head * p->slices;
    *chunk = step < head * p->slices ? step / p->slices : head + rest % p->tail;
    *slice = step < head * p->slices ? step % p->slices : rest / p->tail;
}

/* One shot: tile `t`, of the rows of all shards, which follow each other; those of one rank alone
 * lie in its argument. */
MK_PURE void ag_gemm_joint_tile(const struct ag_gemm_plan *p, uint32_t t, struct mk_tile *tile)
{
    uint32_t row_tiles = (p->m + p->tile_m - 1) / p->tile_m;
    tile->id = t;
    tile->slab = tile->c_slab = tile->a_slab = 0;
    tile->a = p->topo.gpus == 1 ? MK_SPACE_ARG0 : MK_SPACE_HEAP;
    tile->row = t % row_tiles * p->tile_m;
    tile->col = t / row_tiles * p->tile_columns;
    tile->rows = p->m - tile->row < p->tile_m ? p->m - tile->row : p->tile_m;
    tile->cols = p->n - tile->col < p->tile_columns ? p->n - tile->col : p->tile_columns;
    tile->c = MK_SPACE_ARG2;
    tile->c_local = 0;
    tile->stage = 0;
}

/* Tile `within` of a chunk of the shard that rank `slab` has. */
MK_PURE void ag_gemm_tile_of_chunk(const struct ag_gemm_plan *p, uint32_t slab, uint32_t chunk,
                                   uint32_t within, struct mk_tile *tile)
{
    uint32_t rows = ag_gemm_chunk_rows(p, chunk);
    uint32_t row_tiles = (uint32_t)mk_ceil_div(rows, p->tile_m);
    uint32_t row = within % row_tiles * p->tile_m, col = within / row_tiles * p->tile_columns;
    tile->slab = slab;
    tile->id = slab * p->shard_tiles + chunk * p->chunk_tiles + within;
    tile->a = slab == p->topo.rank ? MK_SPACE_ARG0 : MK_SPACE_HEAP;
    tile->a_slab = tile->a == MK_SPACE_HEAP ? slab : 0;
    tile->row = chunk * p->chunk_rows + row;
    tile->col = col;
    tile->rows = rows - row < p->tile_m ? rows - row : p->tile_m;
    tile->cols = p->n - col < p->tile_columns ? p->n - col : p->tile_columns;
    tile->c = MK_SPACE_ARG2;
    tile->c_local = 0;
    tile->c_slab = slab;
    tile->stage = 0;
}

/* Whether a tile of half the rows keeps half of a CTA's consumers busy on engine wgmma: of bf16,
 * each has 64 rows or more. */
MK_PURE int ag_gemm_halves(const struct ag_gemm_plan *p)
{
    return !p->blocks && p->tile_m / p->cluster >= 128;
}

/* Tile number `t` of this rank in the order of computation, before the last are halved. */
MK_PURE void ag_gemm_whole_tile(const struct ag_gemm_plan *p, uint32_t t, struct mk_tile *tile)
{
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    uint32_t node_tiles = p->topo.gpus * p->shard_tiles, distance = t / node_tiles,
             rest = t % node_tiles;
    if (p->shots == 1) {
        ag_gemm_joint_tile(p, t, tile);
        return;
    }
    /* Its own shard a rank takes first; those of its node arrive `fanout` side by side, those of
     * others all at once. */
    uint32_t shards = p->topo.gpus, first = 0;
    if (distance == 0 && rest < p->shard_tiles) {
        shards = 1;
    } else if (distance == 0) {
        rest -= p->shard_tiles;
        first = 1 + rest / (p->fanout * p->shard_tiles) * p->fanout;
        rest %= p->fanout * p->shard_tiles;
        shards = p->topo.gpus - first < p->fanout ? p->topo.gpus - first : p->fanout;
    }
    uint32_t full = p->full_chunks * p->chunk_tiles * shards, width = p->chunk_tiles,
             chunk = p->full_chunks;
    if (rest < full) {
        chunk = rest / (width * shards);
        rest -= chunk * width * shards;
    } else {
        rest -= full;
        width = p->shard_tiles - p->full_chunks * width;
    }
    uint32_t turn = first + rest / width;
    ag_gemm_tile_of_chunk(
        p, mk_rank_at(&p->topo, (node + distance) % p->topo.nodes, (local + turn) % p->topo.gpus),
        chunk, rest % width, tile);
}

/* Tile number `t` of this rank in the order of computation. Of n CTAs (or clusters) the i-th takes
 * t = i, i + n, ... The tiles of a last wave that keeps at most half of them busy are halved, so
 * that it takes half as long; a lower half has a number of its own, behind all others. */
MK_PURE void ag_gemm_tile(const struct ag_gemm_plan *p, uint32_t t, struct mk_tile *tile)
{
    const uint32_t whole = p->tiles - 2 * p->halved, half = t < whole ? 0 : t - whole;
    ag_gemm_whole_tile(p, t - half + half / 2, tile);
    if (t < whole)
        return;
    tile->rows /= 2;
    if (half % 2) {
        tile->row += tile->rows;
        tile->id = whole + p->halved + half / 2;
    }
}
