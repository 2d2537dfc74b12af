/* Random cases of moe_ffn whose tokens must have the same bits everywhere, on any executor of the explorer. A token is known by
 * its id alone, an expert by its number of all ranks'. */
#pragma once

#include "sim/op.h"
#include "tests/helpers/same_bits.h"

#include <math.h>

enum { SAME_MOST_INNER = 96 };

/* most: ranks that its experts divide by */
static const struct same_layer {
    uint32_t hidden, inner, experts, k, most;
} same_layers[] = {{72, 40, 8, 3, 8}, {136, 96, 16, 8, 8}, {64, 72, 12, 6, 4}, {200, 40, 2, 2, 2}};
enum { SAME_LAYERS = sizeof same_layers / sizeof *same_layers };

/* The case that runs: token i of all ranks is token (first + i step) of SAME_IDS. */
static struct {
    const struct same_layer *layer;
    uint16_t (*rows)[SAME_MOST_N]; /* what each must be */
    uint32_t first, step;
    uint64_t compared;
} same_tokens;

/* Tokens of odd ids name any experts, and in one place none. Those of even ids name them in pairs that are the same
 * (same_expert), whose weights take each other's part nearly back, so that the order of additions shows. */
static int same_apart(const struct same_layer *l, uint32_t id)
{
    return id % 2 && l->k > 2;
}

static uint32_t same_named(const struct same_layer *l, uint32_t id, uint32_t place)
{
    const uint32_t half = l->experts / 2, step = l->experts % 3 ? 3 : 5;
    if (same_apart(l, id))
        return place == id % l->k ? UINT32_MAX : (id + place * step) % l->experts;
    return (id / 2 + place / 2 * step) % half + place % 2 * half;
}

static float same_weight(const struct same_layer *l, uint32_t id, uint32_t place)
{
    const float w = mk_bf16_to_float(same_drawn(2, id, place / 2) & 0x7fff);
    return same_apart(l, id) ? w * 1.37f : w * (place % 2 ? -1.37f : 1.37f * (1 + 0x1p-18f));
}

static float same_token(uint32_t id, uint32_t k)
{
    return mk_bf16_to_float(same_drawn(3, id, k));
}

/* which: 0 of B1, whose columns are gate's, then up's; 1 of B2. Experts half of all apart are the same. */
static uint16_t same_expert(const struct same_layer *l, uint32_t expert, uint32_t which,
                            uint32_t col, uint32_t k)
{
    return same_drawn(4 + which, expert % (l->experts / 2) * 1024 + col, k);
}

static float same_expert_sum(const struct same_layer *l, uint32_t expert, uint32_t which,
                             uint32_t col, const float *a, uint32_t count)
{
    float sum = 0;
    for (uint32_t k = 0; k < count; k++)
        sum += a[k] * mk_bf16_to_float(same_expert(l, expert, which, col, k));
    return sum;
}

/* What an expert makes of a token. gpu: its activation is kernels/engine/epilogue.cuh's. */
static void same_expert_row(const struct same_layer *l, uint32_t id, uint32_t expert, int gpu,
                            float *row)
{
    float x[SAME_MOST_N], act[SAME_MOST_INNER];
    for (uint32_t k = 0; k < l->hidden; k++)
        x[k] = same_token(id, k);
    for (uint32_t col = 0; col < l->inner; col++) {
        const float gate = same_expert_sum(l, expert, 0, col, x, l->hidden),
                    up = same_expert_sum(l, expert, 0, l->inner + col, x, l->hidden),
                    power = exp2f(gate * -1.44269504f),
                    value = gpu ? gate * (1 / (1 + (power < 0x1p-126f ? 0 : power))) * up
                                : gate * (up / (1 + expf(-gate)));
        act[col] = mk_bf16_to_float(mk_bf16_from_float(value));
    }
    for (uint32_t col = 0; col < l->hidden; col++)
        row[col] = same_expert_sum(l, expert, 1, col, act, l->inner);
}

/* What a token must be, written out: its experts in their order, each in its leaf, and the tree; in_turn: what it would be if all
 * were one leaf. */
static void same_token_row(const struct same_layer *l, uint32_t id, int gpu, int in_turn,
                           uint16_t *to)
{
    float b[8][SAME_MOST_N] = {{0}}, row[SAME_MOST_N];
    for (uint32_t expert = 0, leaf = 0; expert < l->experts; expert++) {
        while (expert >= (leaf + 1) * l->experts / 8)
            leaf++;
        for (uint32_t place = 0; place < l->k; place++) {
            if (same_named(l, id, place) != expert)
                continue;
            same_expert_row(l, id, expert, gpu, row);
            for (uint32_t col = 0; col < l->hidden; col++)
                b[in_turn ? 0 : leaf][col] += same_weight(l, id, place) * row[col];
        }
    }
    for (uint32_t col = 0; col < l->hidden; col++)
        to[col] = mk_bf16_from_float(((b[0][col] + b[1][col]) + (b[2][col] + b[3][col])) +
                                     ((b[4][col] + b[5][col]) + (b[6][col] + b[7][col])));
}

static uint32_t same_token_id(const struct mk_problem *q, uint64_t token)
{
    return (
        uint32_t)((same_tokens.first + (q->topo.rank * q->moe.tokens + token) * same_tokens.step) %
                  SAME_IDS);
}

static void same_tokens_fill(const struct sim_launch *of)
{
    const struct mk_problem *q = &of->plan->problem;
    const struct same_layer *l = same_tokens.layer;
    uint16_t *x = of->arguments[0], *b1 = of->arguments[1], *b2 = of->arguments[4];
    uint32_t *ids = of->arguments[2];
    float *weights = of->arguments[3];
    const uint32_t here = l->experts / mk_world(&q->topo), columns = 2 * l->inner;
    for (uint64_t token = 0; token < q->moe.tokens; token++) {
        const uint32_t id = same_token_id(q, token);
        for (uint32_t k = 0; k < l->hidden; k++)
            x[token * l->hidden + k] = mk_bf16_from_float(same_token(id, k));
        for (uint32_t place = 0; place < l->k; place++) {
            ids[token * l->k + place] = same_named(l, id, place);
            weights[token * l->k + place] = same_weight(l, id, place);
        }
    }
    for (uint32_t i = 0; i < here; i++) {
        const uint32_t expert = q->topo.rank * here + i;
        for (uint32_t col = 0; col < columns; col++)
            for (uint32_t k = 0; k < l->hidden; k++)
                b1[(uint64_t)i * l->hidden * columns +
                   (q->b_transposed ? col * l->hidden + k : k * columns + col)] =
                    same_expert(l, expert, 0, col, k);
        for (uint32_t col = 0; col < l->hidden; col++)
            for (uint32_t k = 0; k < l->inner; k++)
                b2[(uint64_t)i * l->hidden * l->inner +
                   (q->b_transposed ? col * l->inner + k : k * l->hidden + col)] =
                    same_expert(l, expert, 1, col, k);
    }
}

static int same_tokens_verify(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    const uint32_t columns = same_tokens.layer->hidden;
    const uint16_t *y = l->arguments[5];
    for (uint64_t token = 0; token < q->moe.tokens; token++) {
        const uint32_t id = same_token_id(q, token);
        for (uint32_t col = 0; col < columns; col++, same_tokens.compared++)
            if (y[token * columns + col] != same_tokens.rows[id][col]) {
                snprintf(l->text, l->size,
                         "rank %u, token %llu (%u), column %u is %04x and must be %04x",
                         q->topo.rank, (unsigned long long)token, id, col, y[token * columns + col],
                         same_tokens.rows[id][col]);
                return 1;
            }
    }
    return 0;
}

/* `count` cases of moe_ffn, every plan as `draw_plan` says. gpu: on emulated GPUs. */
static void same_token_cases(uint32_t count, int gpu,
                             void (*draw_plan)(struct sim_random *, struct sim_world_config *))
{
    static uint16_t rows[SAME_LAYERS][SAME_IDS][SAME_MOST_N], others[SAME_MOST_N];
    struct sim_op op = sim_op_moe_ffn;
    uint32_t of_world[9] = {0}, of_nodes[3] = {0}, of_all = 0, in_turn = 0;
    op.fill = same_tokens_fill;
    op.verify = same_tokens_verify;
    same_tokens.compared = 0;
    for (uint32_t i = 0; i < SAME_LAYERS; i++)
        for (uint32_t id = 0; id < SAME_IDS; id++) {
            same_token_row(&same_layers[i], id, gpu, 0, rows[i][id]);
            same_token_row(&same_layers[i], id, gpu, 1, others);
            for (uint32_t col = 0; col < same_layers[i].hidden; col++, of_all++)
                in_turn += rows[i][id][col] != others[col];
        }
    assert_true(in_turn >
                of_all / 8); /* else the numbers would not tell the tree from sums in turn */
    for (uint32_t i = 0; i < count; i++) {
        struct sim_random r = {i * 2 + 1};
        for (int j = 0; j < 5; j++)
            sim_random(&r);
        const uint32_t layer = sim_random_below(&r, SAME_LAYERS);
        const struct same_layer *l = same_tokens.layer = &same_layers[layer];
        uint32_t world = 1u << sim_random_below(&r, 4), nodes = 1 + sim_random_below(&r, 2);
        world = world > l->most ? l->most : world;
        nodes = nodes > world ? 1 : nodes;
        same_tokens.rows = rows[layer];
        same_tokens.first = sim_random_below(&r, SAME_IDS);
        same_tokens.step = 1 + sim_random_below(&r, 5);
        struct sim_world_config c = world_config(nodes, world / nodes, 0, 0, 0);
        c.problem.op = MK_OP_MOE_FFN;
        c.problem.moe = (struct mk_moe){.tokens = 1 + sim_random_below(&r, gpu ? 30 : 60),
                                        .hidden = l->hidden,
                                        .inner = l->inner,
                                        .experts = l->experts,
                                        .k = l->k};
        c.problem.deterministic = MK_EVERYWHERE;
        c.problem.b_transposed = (int)sim_random_below(&r, 2);
        c.op = &op;
        c.seed = i;
        c.launches = 2;
        draw_plan(&r, &c);
        world_right(&c);
        of_world[world]++;
        of_nodes[nodes]++;
    }
    print_message("moe_ffn: %u cases on 1, 2, 4, 8 ranks %u, %u, %u, %u; 2 nodes %u; %llu numbers; "
                  "in turn %u of %u would differ\n",
                  count, of_world[1], of_world[2], of_world[4], of_world[8], of_nodes[2],
                  (unsigned long long)same_tokens.compared, in_turn, of_all);
}
