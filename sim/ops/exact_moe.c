#include "sim/ops/exact_moe.h"

#include "core/bf16.h"
#include "sim/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT 256 /* bf16 has 8 significant bits: at most as many products of 1 and -1 in a sum */

enum routing { EVEN, ALL_TO_ONE, FEW, ONE_RANK_HAS_NONE, ROUTINGS };

static struct sim_random exact_moe_stream(uint64_t seed, uint64_t launch, uint32_t rank,
                                          uint32_t argument)
{
    return (struct sim_random){sim_mix(seed) ^
                               sim_mix(launch << 20 ^ (uint64_t)rank << 4 ^ argument)};
}

void exact_moe_ids(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint32_t rank,
                   uint32_t *ids)
{
    const struct mk_moe *m = &plan->problem.moe;
    uint32_t experts = (uint32_t)m->experts, k = (uint32_t)m->k,
             world = mk_world(&plan->problem.topo);
    struct sim_random r = exact_moe_stream(seed, launch, rank, 2);
    int evenly = (seed & EXACT_MOE_EVENLY) != 0;
    enum routing how = evenly ? EVEN : (enum routing)((seed + launch) % ROUTINGS);
    uint32_t used = how == FEW && experts / 2 >= k ? experts / 2 : experts;
    uint32_t tokens = evenly ? (uint32_t)m->tokens : sim_random_below(&r, (uint32_t)m->tokens + 1);
    uint32_t most = experts / k < 8 ? experts / k : 8; /* of steps that name no expert twice */
    if (how == ONE_RANK_HAS_NONE && rank == (seed + launch) / ROUTINGS % world)
        tokens = 0;
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

static void exact_moe_fill_tokens(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                                  uint32_t rank, uint16_t *x)
{
    const struct mk_moe *m = &plan->problem.moe;
    struct sim_random r = exact_moe_stream(seed, launch, rank, 0);
    exact_moe_fill_ones(&r, x, m->tokens * m->hidden, exact_moe_stride_of(m));
}

void exact_moe_fill(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                    void *const arguments[MK_SPACES - 1])
{
    const struct mk_moe *m = &plan->problem.moe;
    const struct mk_topo *t = &plan->problem.topo;
    struct sim_random r = exact_moe_stream(seed, launch, t->rank, 1);
    exact_moe_fill_tokens(plan, seed, launch, t->rank, arguments[0]);
    exact_moe_fill_ones(&r, arguments[1], m->experts / mk_world(t) * m->hidden * m->inner, 1);
    exact_moe_ids(plan, seed, launch, t->rank, arguments[2]);
}

/* One row of C. */
static int exact_moe_check_row(const struct mk_plan *plan, const uint16_t *x, const uint16_t *b,
                               const uint16_t *c)
{
    const struct mk_moe *m = &plan->problem.moe;
    uint64_t stride = exact_moe_stride_of(m);
    for (uint64_t col = 0; col < m->inner; col++) {
        float sum = 0;
        for (uint64_t i = 0; i < m->hidden; i += stride)
            sum += mk_bf16_to_float(x[i]) *
                   mk_bf16_to_float(
                       b[plan->problem.b_transposed ? col * m->hidden + i : i * m->inner + col]);
        if (mk_bf16_to_float(c[col]) != sum)
            return 1;
    }
    return 0;
}

/* The rows of one expert, in the order of source rank, token, place; returns how many, or -1 for a
 * wrong one. */
static int64_t exact_moe_check_expert(const struct mk_plan *plan, uint32_t expert,
                                      const uint16_t *x, const uint32_t *ids, const uint16_t *b,
                                      const uint16_t *c, char *text, size_t size)
{
    const struct mk_moe *m = &plan->problem.moe;
    int64_t rows = 0;
    for (uint64_t i = 0; i < mk_world(&plan->problem.topo) * m->tokens * m->k; i++) {
        uint64_t token = i / m->k; /* over all ranks */
        if (ids[i] != expert)
            continue;
        if (exact_moe_check_row(plan, x + token * m->hidden, b, c + (uint64_t)rows * m->inner)) {
            snprintf(text, size, "row %lld of expert %u was not made from token %llu of rank %llu",
                     (long long)rows, expert, (unsigned long long)(token % m->tokens),
                     (unsigned long long)(token / m->tokens));
            return -1;
        }
        rows++;
    }
    return rows;
}

int exact_moe_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                     void *const arguments[MK_SPACES - 1], struct sim_reference *reference,
                     char *text, size_t size)
{
    const struct mk_moe *m = &plan->problem.moe;
    const struct mk_topo *t = &plan->problem.topo;
    uint32_t world = mk_world(t), rank_experts = (uint32_t)(m->experts / world), next = 0;
    const uint32_t *said = arguments[4];
    char what[160] = "";
    uint16_t *x = malloc(world * m->tokens * m->hidden * 2);
    uint32_t *ids = malloc(world * m->tokens * m->k * sizeof *ids);
    int wrong = !x || !ids;
    for (uint32_t rank = 0; rank < world && !wrong; rank++) {
        exact_moe_fill_tokens(plan, seed, launch, rank, x + rank * m->tokens * m->hidden);
        exact_moe_ids(plan, seed, launch, rank, ids + rank * m->tokens * m->k);
    }
    for (uint32_t i = 0; i < rank_experts && !wrong; i++) {
        uint32_t expert = t->rank * rank_experts + i;
        int64_t rows = exact_moe_check_expert(
            plan, expert, x, ids,
            (const uint16_t *)arguments[1] + (uint64_t)i * m->hidden * m->inner,
            (const uint16_t *)arguments[3] + (uint64_t)next * m->inner, what, sizeof what);
        if (rows >= 0 && (said[2 * i] != next || said[2 * i + 1] != rows))
            snprintf(what, sizeof what,
                     "expert %u has %lld rows from %u on, and is said to have %u from %u on",
                     expert, (long long)rows, next, said[2 * i + 1], said[2 * i]);
        wrong = *what != 0;
        next += (uint32_t)mk_round_up((uint64_t)rows, plan->problem.tuning.tile_m);
    }
    if (wrong)
        snprintf(text, size, "launch %llu, rank %u: %s", (unsigned long long)launch, t->rank,
                 *what ? what : "no memory");
    free(x);
    free(ids);
    return wrong;
}
