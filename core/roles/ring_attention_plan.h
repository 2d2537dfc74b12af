/* The plan of ring attention and its arithmetic. The schedule, and what lies where and why, is
 * core/roles/ring_attention.h. */
#ifndef MK_ROLES_RING_ATTENTION_PLAN_H
#define MK_ROLES_RING_ATTENTION_PLAN_H

#include "core/plan.h"

struct ring_attention_plan {
    struct mk_topo topo;
    struct mk_role_split split;
    uint32_t batch, heads, kv_heads, head_dim, causal;
    uint32_t rows;         /* S / W: of a rank, per batch */
    uint32_t halves, half; /* causal: 2 blocks of `half` rows; else 1 of all */
    uint32_t tile_rows;    /* of Q */
    uint32_t block_rows;   /* of K and V that are multiplied at a time */
    uint32_t half_tiles, query_tiles;
    /* heads whose tiles CTAs of a GPU take at one time (ring_attention_order) */
    uint32_t section;
    /* W steps of each query tile, their number rounded up to the compute CTAs' */
    uint32_t tiles;
    uint32_t chunk_rows;          /* of K or V of one head */
    uint32_t half_chunks, chunks; /* of a half of a head; of a shard, all heads, K and V */
    uint32_t pieces, piece_rows;  /* of a chunk */
    uint32_t meets; /* 1: a rank's tiles may not wait for each other rank (ring_attention_meet) */
    uint32_t pace;  /* ns for 512 bytes of an auxiliary warp */
    uint32_t flag_arrival;
    uint64_t row_bytes;    /* of K or V: all heads of a position, as arguments have them */
    uint64_t head_bytes;   /* one head of a position */
    uint64_t tensor_bytes; /* K or V of a rank, a multiple of 128 */
    uint64_t gathered[2];  /* heap, by epoch & 1: W shards of K, then V: [batch][kv_head][row][D] */
    uint64_t state; /* heap: what a compute CTA of the host keeps of its query tile from step to
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
    uint32_t first = number * p->chunk_rows + skip, left = first < p->half ? p->half - first : 0,
             row = half * p->half + first;
    struct mk_chunk c;
    *rows = left < most ? left : most;
    c.id = rank * p->chunks + chunk;
    c.destination = ring_attention_gathered(p, rank, part, epoch) +
                    ((uint64_t)head * p->rows + row) * p->head_bytes;
    c.space = heap ? MK_SPACE_HEAP : part ? MK_SPACE_ARG2 : MK_SPACE_ARG1;
    c.source = heap ? c.destination
                    : ((uint64_t)(head / p->kv_heads) * p->rows + row) * p->row_bytes +
                          head % p->kv_heads * p->head_bytes;
    c.bytes = *rows * p->head_bytes;
    return c;
}

/* A whole chunk, and a piece of one: 0 rows where the chunk, a half's last, has fewer pieces. */
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
    uint32_t rest = query / p->half_tiles;
    q.row = query % p->half_tiles * p->tile_rows;
    q.rows = p->half - q.row < p->tile_rows ? p->half - q.row : p->tile_rows;
    q.half = p->halves - 1 - rest % p->halves; /* the back half has the most to do */
    rest /= p->halves;
    q.head = rest % p->heads;
    q.batch = rest / p->heads;
    return q;
}

/* The query tile that is handed out as number `i`, where CTAs take them in turn. All keys of a
 * query tile count alike without a mask: head by head. With one, of a section of heads those with
 * most keys first, so that short ones fill the end. */
MK_PURE uint32_t ring_attention_order(const struct ring_attention_plan *p, uint32_t i)
{
    uint32_t head_tiles = p->halves * p->half_tiles, section_tiles = p->section * head_tiles;
    uint32_t first = i / section_tiles * p->section, all = p->batch * p->heads;
    uint32_t here = all - first < p->section ? all - first : p->section,
             at = i % section_tiles / here;
    if (!p->causal)
        return i;
    /* A head's tiles are numbered by half, the back one first, then by row: the lowest rows have
     * the most keys. */
    return (first + i % section_tiles % here) * head_tiles + at / p->half_tiles * p->half_tiles +
           p->half_tiles - 1 - at % p->half_tiles;
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
    struct ring_attention_query q = ring_attention_query(p, query < p->query_tiles ? query : 0);
    tile->id = t;
    tile->slab = tile->a_slab = ring_attention_source(p, ring_attention_step(p, t));
    tile->a = tile->slab == p->topo.rank ? MK_SPACE_ARG1 : MK_SPACE_HEAP;
    tile->row = q.half * p->half + q.row;
    tile->rows = query < p->query_tiles ? q.rows : 0;
    tile->col = (q.batch * p->heads + q.head) * p->head_dim;
    tile->cols = p->head_dim;
    tile->c = MK_SPACE_ARG3;
    tile->c_local = tile->c_slab = tile->stage = 0;
}

#endif
