#include "sim/ops/exact_moe_ffn.h"

#include "core/base/bf16.h"
#include "core/base/e4m3.h"
#include "core/base/quantize.h"
#include "sim/clock.h"
#include "sim/ops/exact_moe.h"
#include "sim/route.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKEN_ONES                                                                                 \
    32 /* elements of a token that are not 0; the first is 1 and makes gates 64 and a few */
#define GATE 64
#define DOWN_ONES 16 /* at most as many of a column of B2 are not 0 */

/* Each tensor's elements are a function of its key and their place, so that the reference makes
 * only those that it needs. */
static uint64_t key(const struct sim_launch *l, uint32_t owner, uint32_t argument)
{
    return sim_mix(sim_stream(l->seed, l->launch, owner, argument).state);
}

static int exact_moe_ffn_one(uint64_t key, uint64_t place)
{
    return sim_mix(key ^ place) >> 63 ? 1 : -1;
}

/* Element number of the i-th that is not 0 of a token. */
static uint64_t exact_moe_ffn_token_place(const struct mk_moe *m, uint64_t i)
{
    return i * ((m->hidden - 1) / (TOKEN_ONES - 1));
}

static int exact_moe_ffn_token_at(const struct mk_moe *m, uint64_t k, uint64_t token, uint64_t i)
{
    return i ? exact_moe_ffn_one(k, token * m->hidden + exact_moe_ffn_token_place(m, i)) : 1;
}

static int exact_moe_ffn_up_at(const struct mk_moe *m, uint64_t k, uint64_t row, uint64_t col)
{
    return row == 0 && col < m->inner ? GATE : exact_moe_ffn_one(k, row * 2 * m->inner + col);
}

static uint64_t exact_moe_ffn_down_step(const struct mk_moe *m)
{
    return mk_ceil_div(m->inner, DOWN_ONES);
}

static int exact_moe_ffn_down_at(const struct mk_moe *m, uint64_t k, uint64_t row, uint64_t col)
{
    return (row + col) % exact_moe_ffn_down_step(m) ? 0
                                                    : exact_moe_ffn_one(k, row * m->hidden + col);
}

static float exact_moe_ffn_weight_at(uint64_t k, uint64_t place)
{
    return 0.25f * (float)(1u << (sim_mix(k ^ place) >> 62));
}

static void exact_moe_ffn_fill_expert(const struct mk_plan *plan, uint64_t k1, uint64_t k2,
                                      uint16_t *b1, uint16_t *b2)
{
    const struct mk_moe *m = &plan->problem.moe;
    int transposed = plan->problem.b_transposed;
    for (uint64_t row = 0; row < m->hidden; row++)
        for (uint64_t col = 0; col < 2 * m->inner; col++)
            b1[transposed ? col * m->hidden + row : row * 2 * m->inner + col] =
                mk_bf16_from_float((float)exact_moe_ffn_up_at(m, k1, row, col));
    for (uint64_t row = 0; row < m->inner; row++)
        for (uint64_t col = 0; col < m->hidden; col++)
            b2[transposed ? col * m->inner + row : row * m->hidden + col] =
                mk_bf16_from_float((float)exact_moe_ffn_down_at(m, k2, row, col));
}

/* ---- FP8 ----
 *
 * Gates are one weight of 32 or 64 by an element that is 1; up is at most 7, and 7 by a gate of 64
 * in the first column of each 128, whose scale is then a power of two: so activations are codes.
 * All scales are powers of two: of a token times one of its block of K, which those of B1 divide
 * by, and one of each block of B. */

static int exact_moe_ffn_power(uint64_t k, uint64_t i, uint32_t most)
{
    return (int)(sim_mix(sim_mix(k) ^ i) % most);
}

static int exact_moe_ffn_token_at_fp8(const struct mk_moe *m, uint64_t k, uint64_t token,
                                      uint64_t i)
{
    return i % 4 ? exact_moe_ffn_token_at(m, k, token, i) : 1;
}

/* Of the row of a token's i-th element that is not 0. */
static int exact_moe_ffn_up_at_fp8(const struct mk_moe *m, uint64_t k, uint64_t i, uint64_t col)
{
    const uint64_t inner = m->inner, mixed = sim_mix(k ^ col);
    if (col < inner) {
        const uint64_t from = mixed % (TOKEN_ONES / 4) * 4;
        return i != from ? 0 : col % MK_SCALE_BLOCK && mixed >> 63 ? GATE / 2 : GATE;
    }
    if ((col - inner) % MK_SCALE_BLOCK == 0)
        return i ? 0 : 7;
    for (uint64_t t = 0; t < 7; t++)
        if (i == 1 + (mixed + 3 * t) % (TOKEN_ONES - 1))
            return exact_moe_ffn_one(k, i * 2 * inner + col);
    return 0;
}

/* The power of a block of B1: which: 0 of gate, 1 of up. */
static int exact_moe_ffn_up_power(uint64_t k, uint64_t which, uint64_t block)
{
    return exact_moe_ffn_power(k, 1 + which + 2 * block, 4);
}

static int exact_moe_ffn_down_power(const struct mk_moe *m, uint64_t k, uint64_t row, uint64_t col)
{
    return exact_moe_ffn_power(k, (row / MK_SCALE_BLOCK) << 32 ^ (col / MK_SCALE_BLOCK), 4);
}

/* Of a block of K of tokens. */
static int exact_moe_ffn_depth_power(const struct sim_launch *l, uint64_t block)
{
    return exact_moe_ffn_power(key(l, 0, 7), block, 16);
}

static int exact_moe_ffn_token_power(uint64_t k, uint64_t token)
{
    return exact_moe_ffn_power(~k, token, 4);
}

static void exact_moe_ffn_fill_tokens_fp8(const struct sim_launch *l, uint8_t *records)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const uint64_t k = key(l, l->plan->problem.topo.rank, 0), record = quantize_record(m->hidden);
    for (uint64_t token = 0; token < m->tokens; token++) {
        uint8_t *to = records + token * record;
        float *scales = (float *)(void *)(to + m->hidden);
        memset(to, 0xff, record); /* what fills a record up is no number */
        memset(to, 0, m->hidden);
        for (uint64_t i = 0; i < TOKEN_ONES; i++)
            to[exact_moe_ffn_token_place(m, i)] =
                mk_e4m3_from_float((float)exact_moe_ffn_token_at_fp8(m, k, token, i));
        for (uint64_t i = 0; i < mk_ceil_div(m->hidden, MK_SCALE_BLOCK); i++)
            scales[i] =
                ldexpf(1, exact_moe_ffn_token_power(k, token) + exact_moe_ffn_depth_power(l, i));
    }
}

static void exact_moe_ffn_fill_expert_fp8(const struct sim_launch *l, uint32_t expert,
                                          uint32_t local)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const uint64_t k1 = key(l, expert, 1), k2 = key(l, expert, 4),
                   deep1 = mk_ceil_div(m->hidden, MK_SCALE_BLOCK), pitch1 = mk_round_up(deep1, 4),
                   deep2 = mk_ceil_div(m->inner, MK_SCALE_BLOCK), pitch2 = mk_round_up(deep2, 4),
                   size = m->hidden * m->inner;
    uint8_t *b1 = (uint8_t *)l->arguments[1] + local * 2 * size,
            *b2 = (uint8_t *)l->arguments[4] + local * size;
    float *scales1 = (float *)l->arguments[6] + local * 2 * deep2 * pitch1,
          *scales2 = (float *)l->arguments[7] + local * deep1 * pitch2;
    memset(b1, 0, 2 * size);
    memset(scales1, 0xff, 2 * deep2 * pitch1 * sizeof(float));
    memset(scales2, 0xff, deep1 * pitch2 * sizeof(float));
    for (uint64_t col = 0; col < 2 * m->inner; col++)
        for (uint64_t i = 0; i < TOKEN_ONES; i++)
            b1[col * m->hidden + exact_moe_ffn_token_place(m, i)] =
                mk_e4m3_from_float((float)exact_moe_ffn_up_at_fp8(m, k1, i, col));
    for (uint64_t i = 0; i < 2 * deep2; i++)
        for (uint64_t j = 0; j < deep1; j++)
            scales1[i * pitch1 + j] = ldexpf(1, exact_moe_ffn_up_power(k1, i / deep2, i % deep2) -
                                                    exact_moe_ffn_depth_power(l, j));
    for (uint64_t col = 0; col < m->hidden; col++)
        for (uint64_t row = 0; row < m->inner; row++)
            b2[col * m->inner + row] =
                mk_e4m3_from_float((float)exact_moe_ffn_down_at(m, k2, row, col));
    for (uint64_t i = 0; i < deep1; i++)
        for (uint64_t j = 0; j < deep2; j++)
            scales2[i * pitch2 + j] =
                ldexpf(1, exact_moe_ffn_down_power(m, k2, j * MK_SCALE_BLOCK, i * MK_SCALE_BLOCK));
}

void exact_moe_ffn_fill(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    uint32_t rank = l->plan->problem.topo.rank,
             rank_experts = (uint32_t)m->experts / mk_world(&l->plan->problem.topo);
    uint16_t *x = l->arguments[0], *b1 = l->arguments[1], *b2 = l->arguments[4];
    float *weights = l->arguments[3];
    const int fp8 = l->plan->problem.fp8;
    if (fp8)
        exact_moe_ffn_fill_tokens_fp8(l, l->arguments[0]);
    else
        memset(x, 0, m->tokens * m->hidden * 2);
    for (uint64_t token = 0; token < m->tokens && !fp8; token++)
        for (uint64_t i = 0; i < TOKEN_ONES; i++)
            x[token * m->hidden + exact_moe_ffn_token_place(m, i)] =
                mk_bf16_from_float((float)exact_moe_ffn_token_at(m, key(l, rank, 0), token, i));
    for (uint32_t i = 0; i < rank_experts; i++)
        if (fp8)
            exact_moe_ffn_fill_expert_fp8(l, rank * rank_experts + i, i);
        else
            exact_moe_ffn_fill_expert(
                l->plan, key(l, rank * rank_experts + i, 1), key(l, rank * rank_experts + i, 4),
                b1 + 2 * i * m->hidden * m->inner, b2 + i * m->hidden * m->inner);
    exact_moe_fill_ids(l, l->arguments[2]);
    for (uint64_t i = 0; i < m->tokens * m->k; i++)
        weights[i] = exact_moe_ffn_weight_at(key(l, rank, 3), i);
}

static float exact_moe_ffn_round_to_bf16(float value)
{
    return mk_bf16_to_float(mk_bf16_from_float(value));
}

/* What of an expert a token meets. */
struct expert {
    float *gate, *up; /* [TOKEN_ONES, I] */
    float *down;      /* [I, H] */
    float *sums;      /* gate and up of one token, then its row of results: [2 I + H] */
};

static void exact_moe_ffn_load_expert(const struct mk_problem *q, uint64_t k1, uint64_t k2,
                                      const struct expert *e)
{
    const struct mk_moe *m = &q->moe;
    for (uint64_t i = 0; i < TOKEN_ONES; i++)
        for (uint64_t col = 0; col < 2 * m->inner; col++) {
            const uint64_t which = col / m->inner, of = col % m->inner;
            (which ? e->up : e->gate)[i * m->inner + of] =
                q->fp8 ? ldexpf((float)exact_moe_ffn_up_at_fp8(m, k1, i, col),
                                exact_moe_ffn_up_power(k1, which, of / MK_SCALE_BLOCK))
                       : (float)exact_moe_ffn_up_at(m, k1, exact_moe_ffn_token_place(m, i), col);
        }
    for (uint64_t row = 0; row < m->inner; row++)
        for (uint64_t col = 0; col < m->hidden; col++)
            e->down[row * m->hidden + col] =
                ldexpf((float)exact_moe_ffn_down_at(m, k2, row, col),
                       q->fp8 ? exact_moe_ffn_down_power(m, k2, row, col) : 0);
}

/* The results of one token of an expert; returns them. All sums are exact. */
static const float *exact_moe_ffn_apply(const struct mk_problem *q, const struct expert *e,
                                        uint64_t k, uint64_t token)
{
    const struct mk_moe *m = &q->moe;
    float *gate = e->sums, *up = gate + m->inner, *out = up + m->inner;
    memset(e->sums, 0, (2 * m->inner + m->hidden) * sizeof *e->sums);
    for (uint64_t i = 0; i < TOKEN_ONES; i++) {
        float x = q->fp8 ? ldexpf((float)exact_moe_ffn_token_at_fp8(m, k, token, i),
                                  exact_moe_ffn_token_power(k, token))
                         : (float)exact_moe_ffn_token_at(m, k, token, i);
        for (uint64_t col = 0; col < m->inner; col++) {
            gate[col] += x * e->gate[i * m->inner + col];
            up[col] += x * e->up[i * m->inner + col];
        }
    }
    for (uint64_t row = 0; row < m->inner; row++) {
        float acted = exact_moe_ffn_round_to_bf16(gate[row] * up[row]);
        for (uint64_t col = 0; col < m->hidden; col++)
            out[col] += acted * e->down[row * m->hidden + col];
    }
    return out;
}

/* Adds what rank `at` has for every token of every rank to `partial` [W, T, H]. */
static void exact_moe_ffn_add_rank(const struct sim_launch *l, uint32_t at, const uint32_t *ids,
                                   const struct expert *e, float *partial)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    uint32_t world = mk_world(&l->plan->problem.topo), count = (uint32_t)m->experts / world;
    uint64_t places = m->tokens * m->k;
    for (uint32_t expert = at * count; expert < (at + 1) * count; expert++) {
        exact_moe_ffn_load_expert(&l->plan->problem, key(l, expert, 1), key(l, expert, 4), e);
        for (uint64_t i = 0; i < world * places; i++) {
            uint32_t rank = (uint32_t)(i / places);
            uint64_t token = i % places / m->k;
            if (ids[i] != expert)
                continue;
            const float *out = exact_moe_ffn_apply(&l->plan->problem, e, key(l, rank, 0), token);
            float weight = exact_moe_ffn_weight_at(key(l, rank, 3), i % places);
            float *sum = partial + (rank * m->tokens + token) * m->hidden;
            for (uint64_t col = 0; col < m->hidden; col++)
                sum[col] += weight * (l->plan->problem.deterministic
                                          ? out[col]
                                          : exact_moe_ffn_round_to_bf16(out[col]));
        }
    }
}

/* A sum, and how far others may be from it that add the same in another order: that is nothing
 * where all is exact, which it is but for codes times scales. */
struct exact_sums {
    float *of, *off;
};

/* A block of a sum on its way back as e4m3: as codes and scale say it, and how far another code may
 * be. */
static void exact_moe_ffn_quantise(const float *of, const float *off, uint64_t count, float *made,
                                   float *made_off)
{
    uint8_t codes[MK_SCALE_BLOCK];
    float amax = 0;
    const float scale = quantize_row_block(of, count, codes);
    for (uint64_t i = 0; i < count; i++)
        amax = fmaxf(amax, fabsf(of[i]));
    const float up = quantize_up(amax);
    for (uint64_t i = 0; i < count; i++) {
        const float far = off[i] + 0x1p-20f * fabsf(of[i]) * (off[i] > 0),
                    low = mk_e4m3_to_float(mk_e4m3_from_float((of[i] - far) * up)),
                    high = mk_e4m3_to_float(mk_e4m3_from_float((of[i] + far) * up));
        made[i] = mk_e4m3_to_float(codes[i]) * scale;
        made_off[i] = (high - low) * scale + 0x1p-22f * fabsf(made[i]);
    }
}

/* to += from, rounded where it crosses a link in bf16 or e4m3: `crosses` says so of each rank's
 * tokens. */
static void exact_moe_ffn_join(const struct mk_plan *plan, const struct exact_sums *to,
                               const struct exact_sums *from,
                               int (*crosses)(const struct mk_topo *t, uint32_t rank, uint32_t at),
                               uint32_t at)
{
    const struct mk_problem *q = &plan->problem;
    const struct mk_moe *m = &q->moe;
    float made[MK_SCALE_BLOCK], off[MK_SCALE_BLOCK];
    for (uint64_t row = 0; row < mk_world(&q->topo) * m->tokens; row++)
        for (uint64_t first = 0, count; first < m->hidden; first += count) {
            const uint64_t i = row * m->hidden + first;
            const int link = crosses(&q->topo, (uint32_t)(row / m->tokens), at);
            count =
                m->hidden - first < MK_SCALE_BLOCK ? m->hidden - first : (uint64_t)MK_SCALE_BLOCK;
            memcpy(made, from->of + i, count * sizeof *made);
            memcpy(off, from->off + i, count * sizeof *off);
            if (link && q->back_fp8)
                exact_moe_ffn_quantise(from->of + i, from->off + i, count, made, off);
            for (uint64_t j = 0; j < count; j++) {
                to->of[i + j] += link && !q->back_fp8 && !q->deterministic
                                     ? exact_moe_ffn_round_to_bf16(made[j])
                                     : made[j];
                to->off[i + j] += off[j];
                if (q->back_fp8 && to->off[i + j] > 0) /* its own rounding, and its terms' */
                    to->off[i + j] += 0x1p-20f * (fabsf(made[j]) + fabsf(to->of[i + j]));
            }
        }
}

static int exact_moe_ffn_other_rail(const struct mk_topo *t, uint32_t rank, uint32_t at)
{
    return mk_local_of(t, rank) != mk_local_of(t, at);
}

static int exact_moe_ffn_other_node(const struct mk_topo *t, uint32_t rank, uint32_t at)
{
    return mk_node_of(t, rank) != mk_node_of(t, at);
}

/* Y of all ranks, before its own rounding. */
static int exact_moe_ffn_make_reference(const struct sim_launch *l, struct sim_reference *r)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const struct mk_topo *t = &l->plan->problem.topo;
    uint64_t world = mk_world(t), count = world * m->tokens * m->hidden;
    uint32_t *ids = exact_moe_all_taken(l);
    float *partial = malloc(4 * count * sizeof *partial); /* of a node, of a rank */
    float *words =
        malloc((2 * TOKEN_ONES * m->inner + m->inner * m->hidden + 2 * m->inner + m->hidden) *
               sizeof *words);
    if (!r->memory)
        r->memory = malloc(2 * count * sizeof(float));
    int result = !ids || !partial || !words || !r->memory;
    if (!result) {
        struct expert e = {.gate = words, .up = words + TOKEN_ONES * m->inner};
        const struct exact_sums y = {r->memory, (float *)r->memory + count},
                                of_node = {partial, partial + count},
                                of_rank = {partial + 2 * count, partial + 3 * count};
        e.down = e.up + TOKEN_ONES * m->inner;
        e.sums = e.down + m->inner * m->hidden;
        memset(y.of, 0, 2 * count * sizeof *y.of);
        for (uint32_t node = 0; node < t->nodes; node++) {
            memset(of_node.of, 0, 2 * count * sizeof *partial);
            for (uint32_t local = 0; local < t->gpus; local++) {
                uint32_t at = mk_rank_at(t, node, local);
                memset(of_rank.of, 0, 2 * count * sizeof *partial);
                exact_moe_ffn_add_rank(l, at, ids, &e, of_rank.of);
                exact_moe_ffn_join(l->plan, &of_node, &of_rank, exact_moe_ffn_other_rail, at);
            }
            exact_moe_ffn_join(l->plan, &y, &of_node, exact_moe_ffn_other_node,
                               mk_rank_at(t, node, 0));
        }
        r->launch = l->launch;
    }
    free(ids);
    free(partial);
    free(words);
    return result;
}

int exact_moe_ffn_verify(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    uint32_t rank = l->plan->problem.topo.rank;
    if (l->reference->launch != l->launch && exact_moe_ffn_make_reference(l, l->reference))
        return sim_no_memory(l);
    const float *expected = (const float *)l->reference->memory + rank * m->tokens * m->hidden;
    const float *off = expected + mk_world(&l->plan->problem.topo) * m->tokens * m->hidden;
    const uint16_t *y = l->arguments[5];
    const uint64_t made = exact_moe_made(l, y);
    if (made == UINT64_MAX)
        return 1;
    for (uint64_t i = 0; i < made * m->hidden; i++) {
        const float value = mk_bf16_to_float(y[i]);
        if (value >= exact_moe_ffn_round_to_bf16(expected[i] - off[i]) &&
            value <= exact_moe_ffn_round_to_bf16(expected[i] + off[i]))
            continue;
        return sim_wrong(l, "Y[%lu][%lu] is %g and should be %g%s", i / m->hidden, i % m->hidden,
                         (double)mk_bf16_to_float(y[i]),
                         (double)exact_moe_ffn_round_to_bf16(expected[i]),
                         y[i] == 0xffff ? " (made of what was never written)" : "");
    }
    return 0;
}
