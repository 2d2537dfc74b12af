#include "sim/ops/exact_moe.h"

#include "core/base/bf16.h"
#include "core/base/e4m3.h"
#include "core/mkernel.h"
#include "core/ops/moe.h"
#include "core/ops/moe_map.h"
#include "core/base/quantize.h"
#include "core/base/scoped.h"
#include "sim/clock.h"
#include "sim/route.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT 256 /* bf16 has 8 significant bits: at most as many products of 1 and -1 in a sum */

enum routing { EVEN, ALL_TO_ONE, FEW, ONE_RANK_HAS_NONE, ROUTINGS };

static enum routing exact_moe_routing(uint64_t seed, uint64_t launch)
{
    return seed & EXACT_MOE_EVENLY ? EVEN : (enum routing)((seed + launch) % ROUTINGS);
}

/* By the first number of the stream of ids. */
static uint32_t exact_moe_draw_count(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                                     uint32_t rank, struct sim_random *r)
{
    const uint32_t most = (uint32_t)plan->problem.moe.tokens, world = mk_world(&plan->problem.topo);
    const uint32_t tokens = seed & EXACT_MOE_EVENLY ? most : sim_random_below(r, most + 1);
    return exact_moe_routing(seed, launch) == ONE_RANK_HAS_NONE &&
                   rank == (seed + launch) / ROUTINGS % world
               ? 0
               : tokens;
}

uint32_t exact_moe_count(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint32_t rank)
{
    struct sim_random r = sim_stream(seed, launch, rank, 2);
    return exact_moe_draw_count(plan, seed, launch, rank, &r);
}

void exact_moe_fill_ids(const struct sim_launch *l, uint32_t *to)
{
    const struct mk_problem *q = &l->plan->problem;
    const uint32_t count = exact_moe_count(l->plan, l->seed, l->launch, q->topo.rank);
    exact_moe_ids(l->plan, l->seed, l->launch, q->topo.rank, to);
    if (!op_counted(q))
        return;
    *(uint32_t *)l->arguments[op_arguments(q) - 1] = count;
    for (uint64_t i = count * q->moe.k; i < q->moe.tokens * q->moe.k; i++)
        to[i] = (uint32_t)(i % plan_moe_named(q));
}

uint64_t exact_moe_made(const struct sim_launch *l, const uint16_t *y)
{
    const struct mk_problem *q = &l->plan->problem;
    const uint64_t all = q->moe.tokens,
                   made = op_counted(q) ? exact_moe_count(l->plan, l->seed, l->launch, q->topo.rank)
                                        : all;
    for (uint64_t i = made * q->moe.hidden; i < all * q->moe.hidden; i++)
        if (y[i] != 0xffff) {
            sim_wrong(l, "Y[%lu] is written, and it has %lu tokens", i / q->moe.hidden, made);
            return UINT64_MAX;
        }
    return made;
}

void exact_moe_ids(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint32_t rank,
                   uint32_t *ids)
{
    const struct mk_moe *m = &plan->problem.moe;
    uint32_t experts = (uint32_t)plan_moe_named(&plan->problem), k = (uint32_t)m->k;
    struct sim_random r = sim_stream(seed, launch, rank, 2);
    int evenly = (seed & EXACT_MOE_EVENLY) != 0;
    enum routing how = exact_moe_routing(seed, launch);
    uint32_t used = how == FEW && experts / 2 >= k ? experts / 2 : experts;
    uint32_t tokens = exact_moe_draw_count(plan, seed, launch, rank, &r);
    uint32_t most = experts / k < 8 ? experts / k : 8; /* of steps that name no expert twice */
    for (uint32_t token = 0; token < m->tokens; token++) {
        uint32_t first = sim_random_below(&r, used),
                 step = evenly ? 1 + sim_random_below(&r, most) : 1;
        for (uint32_t place = 0; place < k; place++) {
            uint32_t expert = (first + place * step) % used; /* a token names an expert once */
            ids[token * k + place] = token >= tokens     ? UINT32_MAX
                                     : how == ALL_TO_ONE ? (place ? experts : 1 % experts)
                                                         : expert;
        }
    }
}

/* A rank's part of the map that a seed draws, [logical]: loads that differ, and of every fourth
 * seed one expert without a copy. NULL: no memory. */
static uint32_t *exact_moe_map(const struct mk_plan *plan, uint64_t seed, uint32_t rank)
{
    const struct mk_problem *q = &plan->problem;
    const uint32_t world = mk_world(&q->topo), logical = (uint32_t)op_logical(q),
                   slots = (uint32_t)q->moe.experts;
    const struct mk_topo topo = {q->topo.nodes, q->topo.gpus, rank};
    struct sim_random r = sim_stream(seed, 0, 0, 3);
    uint32_t *row = malloc(logical * sizeof *row);
    int32_t *of = malloc((uint64_t)logical * world * sizeof *of);
    double *loads = malloc(logical * sizeof *loads);
    const struct moe_map map = {logical, world, of};
    int made = row && of && loads;
    for (uint32_t e = 0; e < logical && made; e++)
        loads[e] = sim_random_below(&r, 8);
    made = made && !mk_moe_balance(loads, logical, slots, q->topo.nodes, world, world, of);
    for (uint32_t copy = 0; copy < world && made && seed % 4 == 3; copy++)
        of[seed / 4 % logical * world + copy] = -1;
    if (made)
        moe_map_row(&map, &topo, slots / world, row);
    free(of);
    free(loads);
    if (made)
        return row;
    free(row);
    return NULL;
}

void exact_moe_taken(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint32_t rank,
                     uint32_t *ids)
{
    const struct mk_moe *m = &plan->problem.moe;
    const int mapped = op_logical(&plan->problem) != 0;
    uint32_t *map = mapped ? exact_moe_map(plan, seed, rank) : NULL;
    exact_moe_ids(plan, seed, launch, rank, ids);
    if (mapped && !map)
        memset(ids, 0xff, m->tokens * m->k * sizeof *ids);
    else
        route_find_experts(plan, map, ids);
    free(map);
}

uint32_t *exact_moe_all_taken(const struct sim_launch *l)
{
    const uint64_t places = l->plan->problem.moe.tokens * l->plan->problem.moe.k;
    const uint32_t world = mk_world(&l->plan->problem.topo);
    uint32_t *ids = malloc(world * places * sizeof *ids);
    for (uint32_t rank = 0; ids && rank < world; rank++)
        exact_moe_taken(l->plan, l->seed, l->launch, rank, ids + rank * places);
    return ids;
}

int exact_moe_start(const struct mk_plan *plan, uint64_t seed, uint8_t *heap)
{
    const uint64_t logical = op_logical(&plan->problem);
    uint32_t *map = logical ? exact_moe_map(plan, seed, plan->problem.topo.rank) : NULL;
    if (map)
        memcpy(heap + plan_moe_map(plan), map, logical * sizeof *map);
    free(map);
    return logical && !map ? -ENOMEM : 0;
}

static void exact_moe_fill_ones(struct sim_random *r, uint16_t *to, uint64_t count, uint64_t stride)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = i % stride ? 0 : sim_random(r) >> 63 ? 0x3f80 : 0xbf80;
}

/* Positions that are not 0 are the same in every row. */
static uint64_t exact_moe_stride_of(const struct mk_moe *m)
{
    uint64_t stride = 1;
    while (m->hidden / stride > EXACT && m->hidden % (2 * stride) == 0)
        stride *= 2;
    return stride;
}

static void exact_moe_fill_tokens(const struct sim_launch *l, uint32_t rank, uint16_t *x)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    struct sim_random r = sim_stream(l->seed, l->launch, rank, 0);
    exact_moe_fill_ones(&r, x, m->tokens * m->hidden, exact_moe_stride_of(m));
}

/* FP8: scales are powers of two: of a token times one of its block of K, of 128 columns of an
 * expert divided by that of the block. So a wrong scale is seen, and sums are as exact as
 * without. */
static int exact_moe_power(const struct sim_launch *l, uint64_t which, uint64_t i, uint32_t most)
{
    return (int)(sim_mix(sim_mix(l->seed ^ l->launch << 32) + (which << 40 ^ i)) % most);
}

static void exact_moe_encode(uint8_t *to, const uint16_t *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = mk_e4m3_from_float(mk_bf16_to_float(from[i]));
}

/* Tokens as records, and the experts' B with its scales, of numbers in bf16. */
static void exact_moe_fill_fp8(const struct sim_launch *l, const uint16_t *x, const uint16_t *b)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const struct mk_topo *t = &l->plan->problem.topo;
    const uint64_t blocks = mk_ceil_div(m->hidden, MK_SCALE_BLOCK), pitch = mk_round_up(blocks, 4),
                   record = quantize_record(m->hidden), across = mk_ceil_div(m->inner, 128),
                   experts = m->experts / mk_world(t);
    float *scales = l->arguments[5];
    for (uint64_t token = 0; token < m->tokens; token++) {
        uint8_t *to = (uint8_t *)l->arguments[0] + token * record;
        float *of = (float *)(void *)(to + m->hidden);
        int power = exact_moe_power(l, 1, t->rank * m->tokens + token, 8);
        memset(to, 0xff, record); /* what fills a record up is no number */
        exact_moe_encode(to, x + token * m->hidden, m->hidden);
        for (uint64_t i = 0; i < blocks; i++)
            of[i] = ldexpf(1, power + exact_moe_power(l, 3, i, 32));
    }
    exact_moe_encode(l->arguments[1], b, experts * m->hidden * m->inner);
    memset(scales, 0, experts * across * pitch * sizeof *scales);
    for (uint64_t i = 0; i < experts * across; i++)
        for (uint64_t j = 0; j < blocks; j++)
            scales[i * pitch + j] =
                ldexpf(1, exact_moe_power(l, 2, t->rank * experts * across + i, 8) -
                              exact_moe_power(l, 3, j, 32));
}

static void exact_moe_fill_b(const struct sim_launch *l, uint16_t *b)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const struct mk_topo *t = &l->plan->problem.topo;
    struct sim_random r = sim_stream(l->seed, l->launch, t->rank, 1);
    exact_moe_fill_ones(&r, b, m->experts / mk_world(t) * m->hidden * m->inner, 1);
}

void exact_moe_fill(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const struct mk_topo *t = &l->plan->problem.topo;
    const int fp8 = l->plan->problem.fp8;
    uint16_t *x = fp8 ? malloc(m->tokens * m->hidden * 2) : l->arguments[0],
             *b = fp8 ? malloc(m->experts / mk_world(t) * m->hidden * m->inner * 2)
                      : l->arguments[1];
    if (x && b) { /* else C keeps its poison, and is found wrong */
        exact_moe_fill_tokens(l, t->rank, x);
        exact_moe_fill_b(l, b);
        if (fp8)
            exact_moe_fill_fp8(l, x, b);
    }
    exact_moe_fill_ids(l, l->arguments[2]);
    if (fp8) {
        free(x);
        free(b);
    }
}

/* The places whose expert is `expert`, in order, to `places`; how many. */
static uint32_t exact_moe_places(const struct mk_plan *plan, const uint32_t *ids, uint32_t expert,
                                 uint64_t *places)
{
    const struct mk_moe *m = &plan->problem.moe;
    uint32_t count = 0;
    for (uint64_t i = 0; i < mk_world(&plan->problem.topo) * m->tokens * m->k; i++)
        if (ids[i] == expert)
            places[count++] = i;
    return count;
}

int exact_moe_walk(const struct sim_launch *l, exact_moe_see see, const void *with)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const struct mk_topo *t = &l->plan->problem.topo;
    const uint32_t world = mk_world(t), each = (uint32_t)m->experts / world;
    MK_FREED uint32_t *ids = exact_moe_all_taken(l);
    MK_FREED uint64_t *places = malloc(world * m->tokens * m->k * sizeof *places);
    struct exact_moe_expert e = {.places = places};
    if (!ids || !places)
        return sim_no_memory(l);
    for (e.local = 0; e.local < each; e.local++) {
        e.count = exact_moe_places(l->plan, ids, t->rank * each + e.local, places);
        if (see(l, &e, with))
            return 1;
        e.first += mk_round_up(e.count, l->plan->problem.tuning.tile_m);
    }
    return 0;
}

int exact_moe_check_said(const struct sim_launch *l, const struct exact_moe_expert *e,
                         const uint32_t *said)
{
    const uint32_t first = said[2 * e->local], count = said[2 * e->local + 1];
    return (first != e->first || count != e->count) &&
           sim_wrong(l, "its expert %u has %u rows from %lu on, and is said to have %u from %u on",
                     e->local, e->count, e->first, count, first);
}

/* One row of C; token: over all ranks. */
static int exact_moe_check_row(const struct sim_launch *l, const uint16_t *x, uint64_t token,
                               uint32_t expert, const uint16_t *b, const uint16_t *c)
{
    const struct mk_plan *plan = l->plan;
    const struct mk_moe *m = &plan->problem.moe;
    uint64_t stride = exact_moe_stride_of(m);
    for (uint64_t col = 0; col < m->inner; col++) {
        float sum = 0;
        for (uint64_t i = 0; i < m->hidden; i += stride)
            sum += mk_bf16_to_float(x[i]) *
                   mk_bf16_to_float(
                       b[plan->problem.b_transposed ? col * m->hidden + i : i * m->inner + col]);
        if (plan->problem.fp8)
            sum = ldexpf(
                sum, exact_moe_power(l, 1, token, 8) +
                         exact_moe_power(l, 2, expert * mk_ceil_div(m->inner, 128) + col / 128, 8));
        if (mk_bf16_to_float(c[col]) != sum)
            return 1;
    }
    return 0;
}

/* What rows of C are made of: all ranks' tokens, this rank's B. */
struct exact_moe_factors {
    const uint16_t *x, *b;
};

static int exact_moe_check_expert(const struct sim_launch *l, const struct exact_moe_expert *e,
                                  const void *with)
{
    const struct exact_moe_factors *of = with;
    const struct mk_moe *m = &l->plan->problem.moe;
    const struct mk_topo *t = &l->plan->problem.topo;
    const uint32_t expert = t->rank * ((uint32_t)m->experts / mk_world(t)) + e->local;
    const uint16_t *b = of->b + e->local * m->hidden * m->inner,
                   *c = (const uint16_t *)l->arguments[3] + e->first * m->inner;
    for (uint32_t row = 0; row < e->count; row++) {
        const uint64_t token = e->places[row] / m->k; /* over all ranks */
        if (exact_moe_check_row(l, of->x + token * m->hidden, token, expert, b, c + row * m->inner))
            return sim_wrong(l, "row %u of its expert %u was not made from token %lu of rank %lu",
                             row, e->local, token % m->tokens, token / m->tokens);
    }
    return exact_moe_check_said(l, e, l->arguments[4]);
}

int exact_moe_verify(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const struct mk_topo *t = &l->plan->problem.topo;
    const uint32_t world = mk_world(t);
    MK_FREED uint16_t *x = malloc(world * m->tokens * m->hidden * 2);
    MK_FREED uint16_t *made =
        l->plan->problem.fp8 ? malloc(m->experts / world * m->hidden * m->inner * 2) : NULL;
    const struct exact_moe_factors of = {x, l->plan->problem.fp8 ? made : l->arguments[1]};
    if (!of.x || !of.b)
        return sim_no_memory(l);
    if (made)
        exact_moe_fill_b(l, made);
    for (uint32_t rank = 0; rank < world; rank++)
        exact_moe_fill_tokens(l, rank, x + rank * m->tokens * m->hidden);
    return exact_moe_walk(l, exact_moe_check_expert, &of);
}
