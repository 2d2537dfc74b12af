/* The plan of ring attention and its arithmetic. The schedule, and what lies where and why, is
 * core/roles/ring_attention.h. */
#pragma once

#include "core/cta/cta.h"

struct ring_attention_plan {
    struct mk_topo topo;
    struct mk_role_split split;
    uint32_t batch, heads, kv_heads, head_dim, causal;
    uint32_t ordered; /* 1: keys are taken in the order of the sequence (ring_attention_keys) */
    uint32_t rows;    /* that this rank holds, per batch */
    /* Zigzag: a rank has 2 blocks of the sequence, else 1 (core/plan/attention_shards.h). The first
     * `whole` blocks have `half` rows, the next one `last`, those behind it none. */
    uint32_t halves, half, whole, last;
    uint32_t sequence;    /* S */
    uint32_t pitch_rows;  /* of a head of a batch in the gathered buffer: halves * half */
    uint32_t tile_rows;   /* of Q */
    uint32_t block_rows;  /* of K and V that are multiplied at a time */
    uint32_t paired;      /* a CTA is two blocks of the GPU, which each take tiles */
    uint32_t half_tiles;  /* of `half` rows */
    uint32_t tiles_of[2]; /* of this rank's halves */
    uint32_t query_tiles; /* of all its heads and batches */
    /* heads whose tiles CTAs of a GPU take at one time (ring_attention_order) */
    uint32_t section;
    /* W steps of each query tile, their number rounded up to the compute CTAs' */
    uint32_t tiles;
    uint32_t chunk_rows;          /* of K or V of one head */
    uint32_t half_chunks, chunks; /* of a half of a head; of a shard, all heads, K and V */
    uint32_t pieces, piece_rows;  /* of a chunk */
    uint32_t meets; /* 1: a rank's tiles may not wait for each other rank (ring_attention_meet) */
    uint32_t pace;  /* of an auxiliary warp: ns for 512 bytes, or MK_PACE_NONE */
    uint32_t flag_arrival;
    uint64_t row_bytes;    /* of K or V: all heads of a position, as arguments have them */
    uint64_t head_bytes;   /* one head of a position */
    uint64_t tensor_bytes; /* K or V of a rank, a multiple of 128 */
    uint64_t
        gathered[2]; /* heap, by epoch & 1: W shards of K, then V: [batch][kv_head][half][row][D] */
    uint64_t state;  /* heap: what a compute CTA of the host keeps of its query tile from step to
                       step. A CTA of a GPU keeps it in registers */
    /* bytes, of a CTA: tile_rows x (head_dim sums, maximum, sum of weights, 2 unused) fp32 */
    uint64_t state_pitch;
};
MK_PLAN_OF(ring_attention);

/* Which blocks of the sequence a rank holds: causal masks give early rows little work, so a rank
 * has one block from the front and the matching one from the back. */
MK_PURE uint32_t ring_attention_block(const struct ring_attention_plan *p, uint32_t rank,
                                      uint32_t half)
{
    return half ? 2 * mk_world(&p->topo) - 1 - rank : rank;
}

MK_PURE uint32_t ring_attention_block_rows(const struct ring_attention_plan *p, uint32_t block)
{
    return block < p->whole ? p->half : block == p->whole ? p->last : 0;
}

MK_PURE uint32_t ring_attention_half_rows(const struct ring_attention_plan *p, uint32_t rank,
                                          uint32_t half)
{
    return ring_attention_block_rows(p, ring_attention_block(p, rank, half));
}

/* All rows of a rank. */
MK_PURE uint32_t ring_attention_rows_of(const struct ring_attention_plan *p, uint32_t rank)
{
    uint32_t front = ring_attention_half_rows(p, rank, 0);
    return p->halves < 2 ? front : front + ring_attention_half_rows(p, rank, 1);
}

/* Which half the rank's row `row` is in. The second begins behind a whole first one. */
MK_PURE uint32_t ring_attention_half_of(const struct ring_attention_plan *p, uint32_t row)
{
    return p->halves == 2 && row >= p->half;
}

enum ring_attention_mask { RING_ATTENTION_NONE, RING_ATTENTION_ALL, RING_ATTENTION_DIAGONAL };

/* What the rows of a half of this rank's Q see of a half of `rank`'s K. */
MK_PURE enum ring_attention_mask ring_attention_mask(const struct ring_attention_plan *p,
                                                     uint32_t q_half, uint32_t rank,
                                                     uint32_t kv_half)
{
    if (!p->causal)
        return RING_ATTENTION_ALL;
    uint32_t q = ring_attention_block(p, p->topo.rank, q_half),
             kv = ring_attention_block(p, rank, kv_half);
    return kv < q ? RING_ATTENTION_ALL : kv == q ? RING_ATTENTION_DIAGONAL : RING_ATTENTION_NONE;
}

/* Rank whose K and V are multiplied at step `step` of W: this rank's own, its node's, then node by
 * node. */
MK_PURE uint32_t ring_attention_source(const struct ring_attention_plan *p, uint32_t step)
{
    const struct mk_topo *t = &p->topo;
    return mk_rank_at(t, (mk_node_of(t, t->rank) + step / t->gpus) % t->nodes,
                      (mk_local_of(t, t->rank) + step % t->gpus) % t->gpus);
}

/* A run of keys of a tile: a half of a rank's. */
struct ring_attention_keys {
    uint32_t rank, half;
};

/* Run `run` of the tiles whose queries are in half `q_half` of this rank's; 0: there are no more.
 * Of each rank in its turn the half that the queries are in, then the other. Ordered: blocks of the
 * sequence from the last that the queries see to the first, whoever has them. */
MK_PURE int ring_attention_keys(const struct ring_attention_plan *p, uint32_t q_half, uint32_t run,
                                struct ring_attention_keys *out)
{
    const uint32_t world = mk_world(&p->topo);
    if (!p->ordered) {
        out->rank = ring_attention_source(p, run / p->halves);
        out->half = q_half ^ (run % p->halves);
        return run / p->halves < world;
    }
    const uint32_t blocks = p->causal ? ring_attention_block(p, p->topo.rank, q_half) + 1
                                      : p->whole + (p->last > 0),
                   block = blocks - 1 - run;
    out->half = p->halves == 2 && block >= world;
    out->rank = out->half ? 2 * world - 1 - block : block;
    return run < blocks;
}

/* Chunk `part` (0: K, 1: V) of rows of a half of a KV head. Chunks are numbered head by head, which
 * is the order in which query tiles want them. */
MK_PURE uint32_t ring_attention_chunk(const struct ring_attention_plan *p, uint32_t batch,
                                      uint32_t kv_head, uint32_t half, uint32_t number,
                                      uint32_t part)
{
    return (((batch * p->kv_heads + kv_head) * p->halves + half) * p->half_chunks + number) * 2 +
           part;
}

MK_PURE uint32_t ring_attention_flag(const struct ring_attention_plan *p, uint32_t rank,
                                     uint32_t chunk)
{
    return p->flag_arrival + rank * p->chunks + chunk;
}

/* Where a rank's K (part 0) or V begins in the gathered buffer. */
MK_PURE uint64_t ring_attention_gathered(const struct ring_attention_plan *p, uint32_t rank,
                                         uint32_t part, uint64_t epoch)
{
    return p->gathered[epoch & 1] + (2ull * rank + part) * p->tensor_bytes;
}

/* How far behind the first rank's K (or V) that of the block lies that is not whole, the first
 * head's. */
MK_PURE uint64_t ring_attention_last(const struct ring_attention_plan *p)
{
    uint32_t blocks = mk_world(&p->topo) * p->halves,
             back = p->halves == 2 && p->whole >= mk_world(&p->topo),
             rank = p->whole >= blocks ? 0
                    : back             ? blocks - 1 - p->whole
                                       : p->whole;
    return 2ull * rank * p->tensor_bytes + (uint64_t)back * p->half * p->head_bytes;
}

/* What the flags of a rank's chunks are once these have come. */
MK_PURE uint64_t ring_attention_target(const struct ring_attention_plan *p, uint32_t rank,
                                       uint64_t epoch)
{
    return mk_by_network(&p->topo, rank) ? epoch : epoch * p->pieces;
}

/* Of a chunk of `rank` `most` rows behind the first `skip`, as far as it has them, from this rank's
 * arguments (K and V are arguments 1 and 2), where they lie row_bytes apart, or from the heap,
 * where they follow each other. */
MK_PURE struct mk_chunk ring_attention_part(const struct ring_attention_plan *p, uint32_t rank,
                                            uint32_t chunk, uint32_t skip, uint32_t most, int heap,
                                            uint64_t epoch, uint32_t *rows)
{
    uint32_t part = chunk % 2, number = chunk / 2 % p->half_chunks,
             rest = chunk / 2 / p->half_chunks;
    uint32_t half = rest % p->halves, head = rest / p->halves; /* of all batches */
    uint32_t first = number * p->chunk_rows + skip, end = ring_attention_half_rows(p, rank, half),
             left = first < end ? end - first : 0, row = half * p->half + first;
    struct mk_chunk c;
    *rows = left < most ? left : most;
    c.id = rank * p->chunks + chunk;
    c.destination = ring_attention_gathered(p, rank, part, epoch) +
                    ((uint64_t)head * p->pitch_rows + row) * p->head_bytes;
    c.space = heap ? MK_SPACE_HEAP : part ? MK_SPACE_ARG2 : MK_SPACE_ARG1;
    c.source = heap ? c.destination
                    : ((uint64_t)(head / p->kv_heads) * p->rows + row) * p->row_bytes +
                          head % p->kv_heads * p->head_bytes;
    c.bytes = *rows * p->head_bytes;
    return c;
}

/* A whole chunk, and a piece of one: 0 rows where the half has fewer rows than
 * chunks are for, or the chunk, a half's last, fewer pieces. */
MK_PURE struct mk_chunk ring_attention_move(const struct ring_attention_plan *p, uint32_t rank,
                                            uint32_t chunk, int heap, uint64_t epoch,
                                            uint32_t *rows)
{
    return ring_attention_part(p, rank, chunk, 0, p->chunk_rows, heap, epoch, rows);
}

MK_PURE struct mk_chunk ring_attention_piece(const struct ring_attention_plan *p, uint32_t rank,
                                             uint32_t chunk, uint32_t piece, int heap,
                                             uint64_t epoch, uint32_t *rows)
{
    uint32_t skip = piece * p->piece_rows, left = skip < p->chunk_rows ? p->chunk_rows - skip : 0;
    return ring_attention_part(p, rank, chunk, skip, left < p->piece_rows ? left : p->piece_rows,
                               heap, epoch, rows);
}

/* A query tile, taken apart. */
struct ring_attention_query {
    uint32_t batch, head, half;
    uint32_t row, rows; /* in the half */
};

MK_PURE struct ring_attention_query ring_attention_query(const struct ring_attention_plan *p,
                                                         uint32_t query)
{
    struct ring_attention_query q;
    const uint32_t head_tiles = p->tiles_of[0] + p->tiles_of[1];
    uint32_t head = query / head_tiles, tile = query % head_tiles;
    q.half = tile < p->tiles_of[1]; /* the back half has the most to do */
    if (!q.half)
        tile -= p->tiles_of[1];
    uint32_t end = ring_attention_half_rows(p, p->topo.rank, q.half);
    q.row = tile * p->tile_rows;
    q.rows = end - q.row < p->tile_rows ? end - q.row : p->tile_rows;
    q.head = head % p->heads;
    q.batch = head / p->heads;
    return q;
}

/* The query tile that is handed out as number `i`, where CTAs take them in turn. All keys of a
 * query tile count alike without a mask: head by head. With one, of a section of heads those with
 * most keys first, so that short ones fill the end. */
MK_PURE uint32_t ring_attention_order(const struct ring_attention_plan *p, uint32_t i)
{
    uint32_t head_tiles = p->tiles_of[0] + p->tiles_of[1], section_tiles = p->section * head_tiles;
    uint32_t first = i / section_tiles * p->section, all = p->batch * p->heads;
    uint32_t here = all - first < p->section ? all - first : p->section,
             at = i % section_tiles / here;
    if (!p->causal)
        return i;
    /* A head's tiles are numbered by half, the back one first, then by row: the lowest rows have
     * the most keys. */
    uint32_t back = p->tiles_of[1], tile = at < back ? back - 1 - at : back + head_tiles - 1 - at;
    return (first + i % section_tiles % here) * head_tiles + tile;
}

MK_PURE uint32_t ring_attention_kv_head(const struct ring_attention_plan *p, uint32_t head)
{
    return head / (p->heads / p->kv_heads);
}

/* The number of a step of a query tile: W steps follow each other in each CTA of the host, which
 * takes numbers i, i + n, ... of n. So a query tile stays with its CTA until it is done. */
MK_PURE uint32_t ring_attention_tile_number(const struct ring_attention_plan *p, uint32_t query,
                                            uint32_t step)
{
    uint32_t ctas = p->split.ctas[MK_COMPUTE];
    return (query / ctas * mk_world(&p->topo) + step) * ctas + query % ctas;
}

/* Which step of its query tile a tile is. */
MK_PURE uint32_t ring_attention_step(const struct ring_attention_plan *p, uint32_t t)
{
    return t / p->split.ctas[MK_COMPUTE] % mk_world(&p->topo);
}

/* Tile number `t`. rows is 0 where there is none. */
MK_PURE void ring_attention_tile(const struct ring_attention_plan *p, uint32_t t,
                                 struct mk_tile *tile)
{
    uint32_t ctas = p->split.ctas[MK_COMPUTE],
             query = t / ctas / mk_world(&p->topo) * ctas + t % ctas;
    struct ring_attention_query q = {0, 0, 0, 0, 0};
    if (query < p->query_tiles)
        q = ring_attention_query(p, query);
    tile->id = t;
    tile->slab = tile->a_slab = ring_attention_source(p, ring_attention_step(p, t));
    tile->a = tile->slab == p->topo.rank ? MK_SPACE_ARG1 : MK_SPACE_HEAP;
    tile->row = q.half * p->half + q.row;
    tile->rows = q.rows;
    tile->col = (q.batch * p->heads + q.head) * p->head_dim;
    tile->cols = p->head_dim;
    tile->c = MK_SPACE_ARG3;
    tile->c_local = tile->c_slab = tile->stage = 0;
}
