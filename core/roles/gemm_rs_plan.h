/* The plan of GEMM+ReduceScatter and its arithmetic. The schedule, and what lies where and why, is
 * core/roles/gemm_rs.h. */
#pragma once

#include "core/cta/cta_norm.h"
#include "core/cta/cta.h"
#include "core/cta/sum_tree.h"

#define GEMM_RS_OUTBOX 2u

/* Columns of a tile in one shot: with more, a GPU's threads have no registers left to exchange
 * their sums with. */
#define PLAN_MOST_JOINT_COLUMNS 192

/* Rows of a tile in whose sums a GPU's threads have room for a residual and a norm. Of 128 rows the
 * norm that stands behind all tiles is faster (docs/FIGURES.md). */
#define PLAN_MOST_NORM_ROWS 64

struct gemm_rs_plan {
    struct mk_topo topo;
    struct mk_role_split split;
    uint32_t m, n, k;
    uint32_t shots; /* 1: see core/roles/gemm_rs.h */
    /* 1: in one shot, but a rank adds of each tile the columns that are its own, and sends their
     * sums to all (core/roles/gemm_ar_shared.h); so many columns are one rank's */
    uint32_t shared_columns, share_cols;
    uint32_t via_outbox; /* 1: in one shot sums pass a CTA's outbox (by wgmma, of several tiles) */
    /* 1: in two shots consumers of a GPU store a tile at the peers themselves, where a CTA has few
     * tiles */
    uint32_t direct_store;
    uint32_t gathers; /* 1: every one of several ranks ends with all rows */
    /* Rows from one rank's block to the next: M / W, rounded up; the last ranks have fewer, or
     * none. 0 where blocks are of columns (gemm_ar, core/roles/gemm_ar.h). */
    uint32_t shard_rows;
    uint32_t shard_cols; /* columns, likewise; 0 where blocks are of rows */
    uint32_t block_rows,
        block_cols; /* of a block, which tiles are cut from; with one shot, M and N */
    uint32_t tile_m, tile_n, cluster;
    uint32_t chunk_rows; /* a multiple of tile_m */
    /* of a block, rows that are computed one after the other; the last may be shorter */
    uint32_t chunks;
    uint32_t full_chunks; /* of chunk_rows rows */
    uint32_t pieces;      /* parts of a tile that are delivered (gemm_rs: put) one by one */
    uint32_t piece_rows;  /* a multiple of 8, and of grain_rows */
    uint32_t put_tiles;   /* that one put takes at most; 0: each piece has a put of its own */
    uint32_t full_cols;   /* of col_tiles, tiles that are tile_n wide */
    uint32_t chunk_runs;  /* see gemm_rs_run_at: of a full chunk, */
    uint32_t runs;        /* of a block */
    uint32_t units;       /* shard_tiles * pieces */
    uint32_t col_tiles, chunk_tiles, shard_tiles;
    uint32_t tiles;                  /* of this rank */
    uint32_t batch, lag;             /* see gemm_rs_turn */
    uint32_t grain_rows, grain_cols; /* partial sums lie in memory as multiples of these */
    uint32_t number;                 /* enum mk_dtype of partial sums, staged and sent */
    uint32_t element_bytes;          /* of it */
    uint32_t element;                /* enum mk_dtype of C: bf16 or fp16 */
    uint32_t pace; /* of an auxiliary warp that pushes: ns for 512 bytes, or MK_PACE_NONE */
    uint32_t flag_partial, flag_sum;
    uint64_t slab_pitch; /* bytes from slab to slab of partial sums, a multiple of 128 */
    uint64_t staged[2];  /* heap: the slabs, by epoch & 1 */
    uint64_t sums;       /* heap: nodes - 1 slabs that leave for other nodes */
    /* heap: GEMM_RS_OUTBOX parts of tiles of each compute CTA that has an outbox */
    uint64_t outbox;
    /* of an epilogue of rows (core/roles/gemm_rs.h) */
    struct mk_norm norm;
    uint32_t flag_ended;
    /* 1: a GPU's consumers do it with the sums in their registers (kernels/sums/joint_norm.cuh) */
    uint32_t norm_inside;
    uint64_t squares; /* heap: words that they tell each other */
    /* of sums in a tree (core/cta/sum_tree.h): the blocks of K that this rank has; 0: there is no tree.
     * The first of them, the stages of K of all ranks, and the first of this rank's */
    uint32_t blocks, first_block, all_stages, first_stage;
    /* of tiles whose K is cut in slices (core/roles/gemm_rs_cut.h): how many tiles, slices of each,
     * 1 where none is cut, and elements of K of a slice, of which the last has what is left; the
     * turn of the first slice, `tiles` where there is none */
    uint32_t cut_tiles, slices, cut_k, cut_from;
    uint32_t late, late_from; /* turns of others' last, short batch (gemm_rs_cut_turn) */
    uint32_t flag_cut;
    uint64_t cut; /* heap: sums of slices, MK_FP32 */
};
MK_PLAN_OF(gemm_rs);

/* Of this rank's stages the first behind its block `block`. */
MK_PURE uint32_t gemm_rs_block_end(const struct gemm_rs_plan *p, uint32_t block)
{
    return mk_sum_border(p->all_stages, p->first_block + block + 1) - p->first_stage;
}

/* Rows of chunk `chunk` of any block. */
MK_PURE uint32_t gemm_rs_chunk_rows(const struct gemm_rs_plan *p, uint32_t chunk)
{
    uint32_t first = chunk * p->chunk_rows;
    return p->block_rows - first < p->chunk_rows ? p->block_rows - first : p->chunk_rows;
}

/* A rectangle of a block: a tile, or some rows of one. In slabs of partial sums each tile has as
 * much room as the largest, so that all of them, and their pieces, begin at multiples of 128 bytes.
 * How the elements of a tile lie there is the executor's, since who adds them is the same thread of
 * the same CTA as made them: row by row on the host, in the order of a GPU's registers there
 * (kernels/engine/fragments.cuh); what counts for all is that rows in multiples of grain_rows follow each
 * other. */
struct gemm_rs_area {
    uint32_t row, col; /* in the block */
    uint32_t rows, cols;
    uint64_t first; /* element of a slab */
};

/* Of an area of a block the rows that there are: a block whose end is behind row M or column N of
 * the whole has the tiles and the room of every other, but no such rows or columns. (With one shot
 * the block is the whole, number 0. A tile has all of its columns or none.) */
MK_PURE uint32_t gemm_rs_rows(const struct gemm_rs_plan *p, uint32_t block,
                              const struct gemm_rs_area *a)
{
    uint32_t first = block * p->shard_rows + a->row, left = first < p->m ? p->m - first : 0;
    if (block * p->shard_cols + a->col >= p->n)
        left = 0;
    return a->rows < left ? a->rows : left;
}

/* The first column of this rank's block; 0 also where it has none. */
MK_PURE uint32_t gemm_rs_own_col(const struct gemm_rs_plan *p)
{
    uint32_t first = p->topo.rank * p->shard_cols;
    return first < p->n ? first : 0;
}

/* All of a block. */
MK_PURE struct gemm_rs_area gemm_rs_block(const struct gemm_rs_plan *p, uint32_t block)
{
    struct gemm_rs_area a = {0, 0, p->block_rows, p->block_cols, 0};
    uint32_t first = block * p->shard_cols;
    a.rows = gemm_rs_rows(p, block, &a);
    a.cols = p->n - first < a.cols ? p->n - first : a.cols; /* of no rows it does not matter */
    return a;
}

/* Tile `tile` of a block, 0 .. shard_tiles - 1. */
MK_PURE struct gemm_rs_area gemm_rs_tile_area(const struct gemm_rs_plan *p, uint32_t tile)
{
    uint32_t chunk = tile / p->chunk_tiles, within = tile % p->chunk_tiles;
    uint32_t rows = gemm_rs_chunk_rows(p, chunk),
             row_tiles = (rows + p->tile_m - 1) / p->tile_m; /* 64-bit divisions are calls */
    uint32_t row = within % row_tiles * p->tile_m, col = within / row_tiles * p->tile_n;
    struct gemm_rs_area a;
    a.row = chunk * p->chunk_rows + row;
    a.col = col;
    a.rows = rows - row < p->tile_m ? rows - row : p->tile_m;
    a.cols = p->block_cols - col < p->tile_n ? p->block_cols - col : p->tile_n;
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

/* Tiles of a block that lie in memory without a gap, so that one put takes them: `tiles` from
 * `tile` on. */
struct gemm_rs_run {
    uint32_t tile, tiles;
};

/* How a chunk is cut into runs. Where its rows end with those of a tile, its tiles of full width
 * are one line, else each column of them is; of a line put_tiles are a run. The others, behind the
 * last full column, have gaps, and are runs of their own. */
struct gemm_rs_lines {
    uint32_t full, line, runs; /* tiles of full width; of a line; runs of a line */
};

MK_PURE struct gemm_rs_lines gemm_rs_lines_of(const struct gemm_rs_plan *p, uint32_t chunk)
{
    uint32_t rows = gemm_rs_chunk_rows(p, chunk), row_tiles = (rows + p->tile_m - 1) / p->tile_m,
             most = p->put_tiles ? p->put_tiles : 1;
    struct gemm_rs_lines l;
    l.full = p->full_cols * row_tiles;
    l.line = rows % p->tile_m ? row_tiles : l.full;
    l.runs = (l.line + most - 1) / most;
    return l;
}

/* How many runs a chunk has. */
MK_PURE uint32_t gemm_rs_chunk_runs(const struct gemm_rs_plan *p, uint32_t chunk)
{
    struct gemm_rs_lines l = gemm_rs_lines_of(p, chunk);
    uint32_t row_tiles = (gemm_rs_chunk_rows(p, chunk) + p->tile_m - 1) / p->tile_m;
    return (l.full ? l.full / l.line * l.runs : 0) + (p->col_tiles - p->full_cols) * row_tiles;
}

/* The run that begins with the `within`-th tile of a chunk. */
MK_PURE struct gemm_rs_run gemm_rs_run_from(const struct gemm_rs_plan *p, uint32_t chunk,
                                            const struct gemm_rs_lines *l, uint32_t within)
{
    uint32_t most = p->put_tiles ? p->put_tiles : 1,
             left = within < l->full ? l->line - within % l->line : 1;
    struct gemm_rs_run run;
    run.tile = chunk * p->chunk_tiles + within;
    run.tiles = left < most ? left : most;
    return run;
}

/* The run that tile `tile` of a block is in. */
MK_PURE struct gemm_rs_run gemm_rs_run_of(const struct gemm_rs_plan *p, uint32_t tile)
{
    uint32_t chunk = tile / p->chunk_tiles, within = tile % p->chunk_tiles,
             most = p->put_tiles ? p->put_tiles : 1;
    struct gemm_rs_lines l = gemm_rs_lines_of(p, chunk);
    if (within < l.full)
        within -= within % l.line % most;
    return gemm_rs_run_from(p, chunk, &l, within);
}

/* The `turn`-th run of a block in the order in which tiles are computed (gemm_rs_order). */
MK_PURE struct gemm_rs_run gemm_rs_run_at(const struct gemm_rs_plan *p, uint32_t turn)
{
    uint32_t chunk = turn / p->chunk_runs, most = p->put_tiles ? p->put_tiles : 1;
    chunk = chunk < p->chunks ? chunk : p->chunks - 1; /* the last, short one may have more runs */
    uint32_t within = turn - chunk * p->chunk_runs;
    uint32_t all = chunk < p->full_chunks ? p->chunk_runs : p->runs - chunk * p->chunk_runs;
    struct gemm_rs_lines l = gemm_rs_lines_of(p, chunk);
    uint32_t in_lines = l.full ? l.full / l.line * l.runs : 0;
    within = chunk & 1 ? all - 1 - within : within;
    within = within < in_lines ? within / l.runs * l.line + within % l.runs * most
                               : l.full + within - in_lines;
    return gemm_rs_run_from(p, chunk, &l, within);
}

/* The unit whose flag the put raises that brings unit `unit`: the first of it. */
MK_PURE uint32_t gemm_rs_put_unit(const struct gemm_rs_plan *p, uint32_t unit)
{
    return p->put_tiles ? gemm_rs_run_of(p, unit / p->pieces).tile * p->pieces : unit;
}

/* Puts of a block; the `turn`-th of them begins with unit *unit. */
MK_PURE uint32_t gemm_rs_puts(const struct gemm_rs_plan *p)
{
    return p->runs * (p->put_tiles ? 1 : p->pieces);
}

MK_PURE struct gemm_rs_run gemm_rs_put_at(const struct gemm_rs_plan *p, uint32_t turn,
                                          uint32_t *unit)
{
    uint32_t pieces = p->put_tiles ? 1 : p->pieces;
    struct gemm_rs_run run = gemm_rs_run_at(p, turn / pieces);
    *unit = run.tile * p->pieces + turn % pieces;
    return run;
}

MK_PURE uint64_t gemm_rs_elements(const struct gemm_rs_area *a)
{
    return (uint64_t)a->rows * a->cols;
}

/* How wide a tile of `cols` columns is in a slab, elements; and what an area takes there, which
 * begins at a multiple of grain_rows rows of a tile and ends at one or where the tile does. */
MK_PURE uint32_t gemm_rs_grained_cols(const struct gemm_rs_plan *p, uint32_t cols)
{
    return (cols + p->grain_cols - 1) / p->grain_cols * p->grain_cols;
}

MK_PURE uint64_t gemm_rs_bytes(const struct gemm_rs_plan *p, const struct gemm_rs_area *a)
{
    return (uint64_t)((a->rows + p->grain_rows - 1) / p->grain_rows * p->grain_rows) *
           gemm_rs_grained_cols(p, a->cols) * p->element_bytes;
}

/* Slabs of a rank. First what its node's other ranks store, of the blocks on its rail: `gpus - 1`
 * for each node, in rank order. Then the sums of the other nodes, of its own block, in node order.
 */
MK_PURE uint32_t gemm_rs_partial_slab(const struct gemm_rs_plan *p, uint32_t owner_node,
                                      uint32_t reducer, uint32_t local)
{
    return owner_node * (p->topo.gpus - 1) + local - (local > reducer);
}

MK_PURE uint32_t gemm_rs_node_slab(const struct gemm_rs_plan *p, uint32_t owner_node,
                                   uint32_t from_node)
{
    return p->topo.nodes * (p->topo.gpus - 1) + from_node - (from_node > owner_node);
}

MK_PURE uint32_t gemm_rs_slabs(const struct gemm_rs_plan *p)
{
    return p->topo.nodes * p->topo.gpus - 1;
}

/* Of rank (this node, any local): `local`'s tile `tile` of the block of owner_node on that rank's
 * rail; of its own, that the node's sum of it lies in `sums`. The flags of all ranks of a node for
 * one tile follow each other. */
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

/* Which tile of a block comes `turn`-th. Chunk by chunk, to and fro, so that the last columns of B
 * are still in a cache. */
MK_PURE uint32_t gemm_rs_order(const struct gemm_rs_plan *p, uint32_t turn)
{
    uint32_t chunk = turn / p->chunk_tiles, within = turn % p->chunk_tiles;
    uint32_t width =
        chunk < p->full_chunks ? p->chunk_tiles : p->shard_tiles - chunk * p->chunk_tiles;
    return chunk * p->chunk_tiles + (chunk & 1 ? width - 1 - within : within);
}

/* Of the tiles of the blocks of one node's owners, which this rank takes `rest`-th: the turn-th of
 * the block on the rail of the rank that lies `distance` behind this one; 0: on its own rail, so
 * that it is added here.
 *
 * In batches: first `lag` batches of tiles for the node's others; then in turn a batch for them and
 * one of its own, which lies `lag` batches behind; its own last. A batch is a tile of each CTA (or
 * cluster) for each peer. So what is pushed and what is multiplied come at an even rate, and a
 * rank's own tile finds those of its peers here.
 *
 * Tile j of one's own stands behind tile j for others, on every rank at the same place of the
 * order, and each CTA goes by the order: by induction over it, no wait for a peer's tile stands
 * before a tile that a peer waits for. */
MK_PURE uint32_t gemm_rs_turn(const struct gemm_rs_plan *p, uint32_t rest, uint32_t *distance)
{
    uint32_t others = p->topo.gpus - 1, all = p->shard_tiles, whole = all / p->batch * p->batch;
    uint32_t lead = p->lag * p->batch < all ? p->lag * p->batch
                                            : all; /* turns of others before the first of its own */
    uint32_t head = lead * others, round = p->batch * p->topo.gpus,
             rounds = whole > lead ? (whole - lead) / p->batch : 0;
    *distance = 0;
    if (rest < head) {
        *distance = 1 + rest % others;
        return rest / others;
    }
    rest -= head;
    if (rest < rounds * round) {
        uint32_t at = rest / round, within = rest % round;
        if (within >= p->batch * others)
            return at * p->batch + within - p->batch * others;
        *distance = 1 + within % others;
        return lead + at * p->batch + within / others;
    }
    rest -= rounds * round;
    uint32_t last =
        whole > lead ? whole : lead; /* turns of others that are done; a short batch may be left */
    if (rest < (all - last) * others) {
        *distance = 1 + rest % others;
        return last + rest / others;
    }
    return rounds * p->batch + rest - (all - last) * others;
}

/* What a tile is to this rank, beside its product. */
enum gemm_rs_kind {
    GEMM_RS_OWN, /* its rows are this rank's: what others have of it is added, and it is C */
    GEMM_RS_SUM, /* they are those of this rail's rank of another node, which gets the node's sum */
    GEMM_RS_PARTIAL, /* another rank of this node adds it */
    GEMM_RS_JOINT    /* one shot: it has rows of all ranks, and each adds those that it ends with */
};

MK_PURE enum gemm_rs_kind gemm_rs_kind_of(const struct gemm_rs_plan *p, const struct mk_tile *tile)
{
    return p->shots == 1                                          ? GEMM_RS_JOINT
           : tile->slab == p->topo.rank                           ? GEMM_RS_OWN
           : tile->c_local == mk_local_of(&p->topo, p->topo.rank) ? GEMM_RS_SUM
                                                                  : GEMM_RS_PARTIAL;
}

/* One shot: whether a rank ends with any of `rows` rows from `row` on. */
MK_PURE int gemm_rs_wants(const struct gemm_rs_plan *p, uint32_t rank, uint32_t row, uint32_t rows)
{
    uint32_t first = rank * p->shard_rows;
    return rows && (p->gathers || (row < first + p->shard_rows && row + rows > first));
}

/* Tile `index` of `rank`'s block; with one shot, of all rows. It may have no rows: it is computed
 * and announced like all others, and nothing of it moves. */
MK_PURE void gemm_rs_describe(const struct gemm_rs_plan *p, uint32_t rank, uint32_t index,
                              struct mk_tile *tile)
{
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    uint32_t owner_node = mk_node_of(&p->topo, rank), owner = mk_local_of(&p->topo, rank);
    struct gemm_rs_area a = gemm_rs_tile_area(p, index);
    tile->slab = rank;
    tile->id = (p->shots == 1 ? 0 : rank) * p->shard_tiles + index;
    tile->a = MK_SPACE_ARG0;
    tile->a_slab = p->shots == 1 ? 0 : rank;
    tile->row = a.row;
    tile->col = a.col + rank * p->shard_cols;
    tile->rows = gemm_rs_rows(p, tile->a_slab, &a);
    tile->cols = a.cols;
    tile->c = rank == p->topo.rank ? MK_SPACE_ARG2 : MK_SPACE_HEAP;
    tile->c_local = owner;
    tile->c_slab = rank == p->topo.rank ? 0
                   : owner == local     ? owner_node - (owner_node > node)
                                        : gemm_rs_partial_slab(p, owner_node, owner, local);
    tile->stage = 0;
}

/* Tile number `t` of this rank in the order of computation. Of n CTAs (or clusters) the i-th takes
 * t = i, i + n, ... Blocks of other nodes come first, the next node's foremost: their sums have the
 * longest way. A rank sends to all of its peers at any time, so that no link stands idle when ranks
 * lose step. */
MK_PURE void gemm_rs_tile(const struct gemm_rs_plan *p, uint32_t t, struct mk_tile *tile)
{
    uint32_t node_tiles = p->topo.gpus * p->shard_tiles, behind;
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    if (p->shots == 1) {
        gemm_rs_describe(p, p->topo.rank, gemm_rs_order(p, t), tile);
        return;
    }
    uint32_t turn = gemm_rs_turn(p, t % node_tiles, &behind);
    uint32_t owner_node = (node + 1 + t / node_tiles) % p->topo.nodes;
    gemm_rs_describe(p, mk_rank_at(&p->topo, owner_node, (local + behind) % p->topo.gpus),
                     gemm_rs_order(p, turn), tile);
}

/* Of a tile that is not C: the heap offset of its first element on the rank that it goes to. */
MK_PURE uint64_t gemm_rs_tile_offset(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                     uint64_t epoch)
{
    uint64_t first = gemm_rs_tile_area(p, tile->id % p->shard_tiles).first;
    uint64_t slabs = gemm_rs_kind_of(p, tile) == GEMM_RS_SUM ? p->sums : p->staged[epoch & 1];
    return slabs + tile->c_slab * p->slab_pitch + first * p->element_bytes;
}

/* One shot: the heap offset of a tile's first element in the first slab, of any rank. */
MK_PURE uint64_t gemm_rs_joint_offset(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                      uint64_t epoch)
{
    return p->staged[epoch & 1] + gemm_rs_tile_area(p, tile->id).first * p->element_bytes;
}

/* ... and from there to the slab of rank `from` of rank `peer`: there is one node. */
MK_PURE uint64_t gemm_rs_joint_slab(const struct gemm_rs_plan *p, uint32_t peer, uint32_t from)
{
    return gemm_rs_partial_slab(p, 0, peer, from) * p->slab_pitch;
}

/* Of a shared tile: parts that one rank each adds, of share_cols columns but the last; and the rank
 * of the first. The next part is the next rank's, and the next tile begins with the next rank: so
 * ranks have as many of all tiles, and at no time do all CTAs of all ranks send to one. */
MK_PURE uint32_t gemm_rs_shares(const struct gemm_rs_plan *p, const struct mk_tile *tile)
{
    return (tile->cols + p->share_cols - 1) / p->share_cols;
}

MK_PURE uint32_t gemm_rs_first_sharer(const struct gemm_rs_plan *p, const struct mk_tile *tile)
{
    return tile->id % p->topo.gpus;
}

MK_PURE uint32_t gemm_rs_sharer(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                uint32_t share)
{
    return (gemm_rs_first_sharer(p, tile) + share) % p->topo.gpus;
}

MK_PURE uint32_t gemm_rs_share_cols(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                    uint32_t share)
{
    uint32_t left = tile->cols - share * p->share_cols;
    return left < p->share_cols ? left : p->share_cols;
}

/* What is added to a tile of this rail, element by element in fp32: `count` runs, slab_pitch apart
 * in this rank's heap, the first at `source`; the tile's own sums come behind `place` of them. */
struct gemm_rs_terms {
    uint64_t source;
    uint32_t count, place;
};

/* Level 0: to this rank's product the partial sums of its node, in rank order. Level 1, of its own
 * block: to that the sums of the other nodes, in node order. Its own always come first, but in a
 * tree, where each is a leaf at its own place. */
MK_PURE struct gemm_rs_terms gemm_rs_level(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                           uint32_t level, uint64_t epoch)
{
    uint32_t owner_node = mk_node_of(&p->topo, tile->slab);
    uint32_t slab = level ? p->topo.nodes * (p->topo.gpus - 1) : owner_node * (p->topo.gpus - 1);
    struct gemm_rs_terms terms = {0, 0, 0};
    terms.count = !level ? p->topo.gpus - 1 : tile->slab == p->topo.rank ? p->topo.nodes - 1 : 0;
    if (p->blocks)
        terms.place =
            level ? mk_node_of(&p->topo, p->topo.rank) : mk_local_of(&p->topo, p->topo.rank);
    if (terms.count) /* divisions take a GPU's thread a while */
        terms.source = p->staged[epoch & 1] + slab * p->slab_pitch +
                       gemm_rs_tile_area(p, tile->id % p->shard_tiles).first * p->element_bytes;
    return terms;
}
#define GEMM_RS_LEVELS 2u

/* The last tile of a run. */
MK_PURE struct gemm_rs_area gemm_rs_run_end(const struct gemm_rs_plan *p, struct gemm_rs_run run)
{
    return gemm_rs_tile_area(p, run.tile + run.tiles - 1);
}

/* This node's sums of what one put takes of the block of `owner_node` on its rail: `run`, or unit
 * `unit` of it alone. No bytes: there is no such unit. */
MK_PURE struct mk_chunk gemm_rs_sum_chunk(const struct gemm_rs_plan *p, uint32_t owner_node,
                                          struct gemm_rs_run run, uint32_t unit, uint64_t epoch)
{
    uint32_t node = mk_node_of(&p->topo, p->topo.rank), local = mk_local_of(&p->topo, p->topo.rank);
    struct gemm_rs_area whole = gemm_rs_tile_area(p, run.tile),
                        a = p->put_tiles ? gemm_rs_run_end(p, run) : gemm_rs_unit(p, unit);
    uint64_t before = p->put_tiles
                          ? (uint64_t)(run.tiles - 1) * p->tile_m * p->tile_n * p->element_bytes
                          : 0,
             from =
                 p->put_tiles ? 0 : (uint64_t)(a.row - whole.row) * gemm_rs_grained_cols(p, a.cols),
             at = (whole.first + from) * p->element_bytes;
    struct mk_chunk c;
    c.id = gemm_rs_unit_id(p, mk_rank_at(&p->topo, owner_node, local), unit);
    c.space = MK_SPACE_HEAP;
    c.source = p->sums + (owner_node - (owner_node > node)) * p->slab_pitch + at;
    c.destination =
        p->staged[epoch & 1] + gemm_rs_node_slab(p, owner_node, node) * p->slab_pitch + at;
    c.bytes = before + gemm_rs_bytes(p, &a);
    return c;
}
