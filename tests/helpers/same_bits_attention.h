/* Random cases of ring_attention whose rows must have the same bits everywhere, on any executor of the explorer: numbers of a
 * place of the sequence follow from the place, and under a mask a row from those up to its own. */
#pragma once

#include "core/plan/attention_shards.h"
#include "sim/op.h"
#include "tests/helpers/same_bits.h"

#include <math.h>

enum { SAME_MOST_S = 2048, SAME_HEADS = 2, SAME_MOST_DIM = 128 };

/* Rows that are compared with each other: of a head size, with a mask or without; of one sequence where there is none. Two heads
 * of Q, one of K and V. */
static struct same_attention {
    uint32_t dim, causal;
    uint64_t sequence; /* the most that is drawn */
    uint8_t known[SAME_MOST_S];
    uint16_t o[SAME_MOST_S][SAME_HEADS][SAME_MOST_DIM];
    float lse[SAME_MOST_S][SAME_HEADS];
} * same_attention; /* of the case that runs */
static uint64_t same_attention_compared;

/* Argument 0: Q; 1: K; 2: V. */
static uint16_t same_attention_number(uint32_t argument, uint64_t place, uint32_t head, uint32_t i)
{
    const uint16_t x = same_drawn(10 + argument, (uint32_t)place * SAME_HEADS + head, i);
    return argument == 1 ? (uint16_t)(x - (2 << 7)) : x;
}

static void same_attention_fill(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    const uint32_t world = mk_world(&q->topo), dim = same_attention->dim;
    const uint64_t rows = mk_attention_rows(&q->attention, world, q->topo.rank);
    for (uint32_t argument = 0; argument < 3; argument++)
        for (uint64_t row = 0; row < rows; row++) {
            const uint64_t place = mk_attention_place(&q->attention, world, q->topo.rank, row);
            const uint32_t heads = argument ? 1 : SAME_HEADS;
            for (uint32_t i = 0; i < heads * dim; i++)
                ((uint16_t *)l->arguments[argument])[row * heads * dim + i] =
                    same_attention_number(argument, place, i / dim, i % dim);
        }
}

/* The first column that differs; `count`: none. */
static uint32_t same_attention_differs(const uint16_t *a, const uint16_t *b, uint32_t count)
{
    uint32_t i = 0;
    while (i < count && a[i] == b[i])
        i++;
    return i;
}

/* Of a row that is met for the first time: whether it is right at all. */
static int same_attention_near(const uint16_t *o, uint64_t place, uint32_t head, uint64_t keys)
{
    static double score[SAME_MOST_S];
    const uint32_t dim = same_attention->dim;
    double most = -INFINITY, all = 0, sum;
    for (uint64_t key = 0; key < keys; key++) {
        score[key] = 0;
        for (uint32_t i = 0; i < dim; i++)
            score[key] += (double)mk_bf16_to_float(same_attention_number(0, place, head, i)) *
                          mk_bf16_to_float(same_attention_number(1, key, 0, i));
        score[key] /= sqrt(dim);
        most = fmax(most, score[key]);
    }
    for (uint64_t key = 0; key < keys; key++)
        all += score[key] = exp(score[key] - most);
    for (uint32_t i = 0; i < dim; i += 31) {
        sum = 0;
        for (uint64_t key = 0; key < keys; key++)
            sum += score[key] * mk_bf16_to_float(same_attention_number(2, key, 0, i));
        if (!(fabs(mk_bf16_to_float(o[i]) - sum / all) <= (fabs(sum / all) + 16) / 256))
            return 0; /* V is up to 16, weights are rounded to bf16 */
    }
    return 1;
}

static int same_attention_verify(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    struct same_attention *s = same_attention;
    const uint32_t world = mk_world(&q->topo);
    const uint64_t rows = mk_attention_rows(&q->attention, world, q->topo.rank);
    for (uint64_t row = 0; row < rows; row++) {
        const uint64_t place = mk_attention_place(&q->attention, world, q->topo.rank, row);
        const int known = s->known[place];
        s->known[place] = 1;
        for (uint32_t head = 0; head < SAME_HEADS; head++, same_attention_compared++) {
            const uint16_t *o = (uint16_t *)l->arguments[3] + (row * SAME_HEADS + head) * s->dim;
            const float *lse = (float *)l->arguments[4] + head * rows + row;
            if (!known) {
                memcpy(s->o[place][head], o, s->dim * 2);
                s->lse[place][head] = *lse;
            }
            const uint32_t column = same_attention_differs(o, s->o[place][head], s->dim);
            if (column < s->dim || memcmp(lse, &s->lse[place][head], 4)) {
                snprintf(l->text, l->size,
                         "rank %u, place %llu, head %u: column %u is %04x, lse %a; elsewhere %04x, "
                         "%a",
                         q->topo.rank, (unsigned long long)place, head, column, o[column % s->dim],
                         *lse, s->o[place][head][column % s->dim], s->lse[place][head]);
                return 1;
            }
            if (!known && place % 7 == 3 &&
                !same_attention_near(o, place, head, s->causal ? place + 1 : s->sequence)) {
                snprintf(l->text, l->size, "rank %u, place %llu, head %u is wrong", q->topo.rank,
                         (unsigned long long)place, head);
                return 1;
            }
        }
    }
    return 0;
}

/* `count` cases of ring_attention with heads of `dim`, every plan as `draw_plan` says. most: parts of 128 rows that a sequence
 * has; ranks: at most. */
static void same_attention_cases(uint32_t count, uint32_t dim, uint32_t causal, uint32_t most,
                                 uint32_t ranks,
                                 void (*draw_plan)(struct sim_random *, struct sim_world_config *))
{
    static struct same_attention all;
    struct sim_op op = sim_op_ring_attention;
    uint32_t of_world[9] = {0}, of_nodes[3] = {0}, contiguous = 0;
    op.fill = same_attention_fill;
    op.verify = same_attention_verify;
    memset(&all, 0, sizeof all);
    same_attention = &all;
    all.dim = dim;
    all.causal = causal;
    all.sequence = most * 128 - (causal ? 0 : 1); /* the last block of keys is no whole one */
    same_attention_compared = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct sim_random r = {i * 2 + dim};
        for (int j = 0; j < 5; j++)
            sim_random(&r);
        const uint32_t split = causal && sim_random_below(&r, 2);
        uint32_t world = 1u << sim_random_below(&r, 4), nodes = 1 + sim_random_below(&r, 2);
        while (world > ranks || world * (causal && !split ? 2 : 1) > most)
            world /= 2;
        nodes = nodes > world ? 1 : nodes;
        const uint32_t parts = world * (causal && !split ? 2 : 1);
        uint64_t sequence = all.sequence;
        if (causal) /* as long as it may be, or less; now and then with a short last part */
            sequence = parts * 128ull * (1 + sim_random_below(&r, most / parts)) -
                       sim_random_below(&r, 2) * (parts > 1 ? 1 : sim_random_below(&r, 100));
        struct sim_world_config c = world_config(nodes, world / nodes, 0, 0, 0);
        c.problem.op = MK_OP_RING_ATTENTION;
        c.problem.attention = (struct mk_attention){.batch = 1,
                                                    .sequence = sequence,
                                                    .heads = SAME_HEADS,
                                                    .kv_heads = 1,
                                                    .head_dim = dim,
                                                    .causal = (int)causal,
                                                    .contiguous = (int)split};
        c.problem.deterministic = MK_EVERYWHERE;
        c.op = &op;
        c.seed = i;
        c.launches = 1;
        draw_plan(&r, &c);
        world_right(&c);
        of_world[world]++;
        of_nodes[nodes]++;
        contiguous += split;
    }
    print_message("ring_attention, heads of %u%s: %u cases on 1, 2, 4, 8 ranks %u, %u, %u, %u; 2 "
                  "nodes %u; contiguous %u; %llu rows\n",
                  dim, causal ? ", mask" : "", count, of_world[1], of_world[2], of_world[4],
                  of_world[8], of_nodes[2], contiguous,
                  (unsigned long long)same_attention_compared);
}
