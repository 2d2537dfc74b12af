#include "sim/ops/attention.h"
#include "core/base/bf16.h"
#include "sim/vectorised.h"

#include <math.h>
#include <string.h>

#define MOST_DIM 128

/* A row of the tile's state: sums of weighted V, the largest score, the sum of weights. */
struct row_state {
    float *sums, *most, *weight;
};

static struct row_state attention_row_of(const struct ring_attention_plan *p, float *state,
                                         uint32_t row)
{
    float *r = state + (uint64_t)row * (p->head_dim + 4);
    return (struct row_state){r, r + p->head_dim, r + p->head_dim + 1};
}

VECTORISED static float score(const float *q, const uint16_t *k, uint32_t dim)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < dim; i += 16)
        for (uint32_t j = 0; j < 16; j++)
            lanes[j] += q[i + j] * mk_bf16_to_float(k[i + j]);
    for (uint32_t width = 8; width; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            lanes[j] += lanes[j + width];
    return lanes[0];
}

VECTORISED static void add_weighted(float *sums, float weight, const uint16_t *v, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        sums[i] += weight * mk_bf16_to_float(v[i]);
}

/* One row of Q against `count` rows of K and V. */
static void attention_add_block(const struct ring_attention_plan *p, const float *q,
                                const uint16_t *k, const uint16_t *v, uint64_t pitch,
                                uint32_t count, struct row_state r)
{
    float scores[count], most = *r.most;
    for (uint32_t i = 0; i < count; i++) {
        scores[i] = score(q, k + i * pitch, p->head_dim);
        most = scores[i] > most ? scores[i] : most;
    }
    float old = expf(*r.most - most); /* 0 where there was none yet */
    *r.weight *= old;
    for (uint32_t i = 0; i < p->head_dim; i++)
        r.sums[i] *= old;
    for (uint32_t i = 0; i < count; i++) {
        float weight = expf(scores[i] - most);
        *r.weight += weight;
        add_weighted(r.sums, weight, v + i * pitch, p->head_dim);
    }
    *r.most = most;
}

static void attention_finish(const struct ring_attention_plan *p, const struct mk_tile *tile,
                             float *state, uint16_t *o, float *lse)
{
    uint32_t head = tile->col / p->head_dim, batch = head / p->heads;
    for (uint32_t i = 0; i < tile->rows; i++) {
        struct row_state r = attention_row_of(p, state, i);
        uint64_t row = (uint64_t)batch * p->rows + tile->row + i;
        uint16_t *to = o + (row * p->heads + head % p->heads) * p->head_dim;
        for (uint32_t j = 0; j < p->head_dim; j++)
            to[j] = mk_bf16_from_float(r.sums[j] / *r.weight);
        lse[(uint64_t)head * p->rows + tile->row + i] = *r.most + logf(*r.weight);
    }
}

/* Rows [first, end) of a half of K and V, in blocks: from the first one on, or ordered from the
 * last one back. */
static void attention_add_rows(const struct ring_attention_plan *p, const struct mk_tile *tile,
                               const uint16_t *q, const uint16_t *k, const uint16_t *v,
                               uint64_t pitch, float *state, int diagonal, uint32_t first,
                               uint32_t end)
{
    float row[MOST_DIM], scale = 1.0f / sqrtf((float)p->head_dim);
    uint32_t head = tile->col / p->head_dim, batch = head / p->heads;
    for (uint32_t i = 0; i < tile->rows; i++) {
        const uint16_t *from =
            q + (((uint64_t)batch * p->rows + tile->row + i) * p->heads + head % p->heads) *
                    p->head_dim;
        uint32_t seen = tile->row % p->half + i + 1; /* of the diagonal's half */
        uint32_t stop = diagonal && seen < end ? seen : end,
                 blocks = stop > first ? (uint32_t)mk_ceil_div(stop - first, p->block_rows) : 0;
        for (uint32_t j = 0; j < p->head_dim; j++)
            row[j] = mk_bf16_to_float(from[j]) * scale;
        for (uint32_t block = 0; block < blocks; block++) {
            const uint32_t j = first + (p->ordered ? blocks - 1 - block : block) * p->block_rows;
            attention_add_block(p, row, k + j * pitch, v + j * pitch, pitch,
                                stop - j < p->block_rows ? stop - j : p->block_rows,
                                attention_row_of(p, state, i));
        }
    }
}

static void attention_add_run(const struct ring_attention_plan *p, const struct mk_tile *tile,
                              const uint16_t *q, const struct attention_shard *of, uint32_t rank,
                              uint32_t half, float *state, void (*between)(void))
{
    const uint32_t head = tile->col / p->head_dim, batch = head / p->heads,
                   kv_head = ring_attention_kv_head(p, head % p->heads);
    enum ring_attention_mask mask =
        ring_attention_mask(p, ring_attention_half_of(p, tile->row), rank, half);
    uint32_t rows = ring_attention_half_rows(p, rank, half),
             middle = p->ordered ? rows / 2 / p->block_rows * p->block_rows : rows / 2;
    uint64_t pitch = of->packed ? p->head_dim : p->row_bytes / 2, row = half * p->half,
             all = ring_attention_rows_of(p, rank),
             at = of->packed
                      ? (((uint64_t)batch * p->kv_heads + kv_head) * p->pitch_rows + row) * pitch
                      : (batch * all + row) * pitch + kv_head * p->head_dim;
    const int diagonal = mask == RING_ATTENTION_DIAGONAL;
    if (mask == RING_ATTENTION_NONE)
        return;
    attention_add_rows(p, tile, q, of->k + at, of->v + at, pitch, state, diagonal,
                       p->ordered ? middle : 0, p->ordered ? rows : middle);
    if (between)
        between();
    attention_add_rows(p, tile, q, of->k + at, of->v + at, pitch, state, diagonal,
                       p->ordered ? 0 : middle, p->ordered ? middle : rows);
}

void attention_tile(const struct ring_attention_plan *p, const struct mk_tile *tile,
                    const uint16_t *q, const struct attention_shard *shards, float *state,
                    uint16_t *o, float *lse, void (*between)(void))
{
    const uint32_t step = ring_attention_step(p, tile->id),
                   q_half = ring_attention_half_of(p, tile->row);
    const int last = step + 1 == mk_world(&p->topo);
    struct ring_attention_keys of;
    for (uint32_t i = 0; !step && i < tile->rows; i++) {
        struct row_state r = attention_row_of(p, state, i);
        memset(r.sums, 0, (p->head_dim + 4) * sizeof(float));
        *r.most = -INFINITY;
    }
    for (uint32_t half = 0; !p->ordered && half < p->halves; half++)
        attention_add_run(p, tile, q, &shards[tile->slab], tile->slab, half, state, between);
    for (uint32_t run = 0; p->ordered && last && ring_attention_keys(p, q_half, run, &of); run++)
        attention_add_run(p, tile, q, &shards[of.rank], of.rank, of.half, state, between);
    if (last)
        attention_finish(p, tile, state, o, lse);
}
