#include "sim/ops/exact_moe_rows.h"

#include "core/base/bf16.h"
#include "core/base/quantize.h"
#include "sim/clock.h"
#include "sim/ops/exact_moe.h"
#include "sim/route.h"

#include <stdio.h>
#include <stdlib.h>

#define NOT_A_NUMBER 0x7fc1 /* of bf16: in rows that nobody may read */

/* ---- out ---- */

static uint64_t exact_moe_rows_bytes(const struct mk_plan *plan)
{
    const struct mk_problem *q = &plan->problem;
    return q->fp8 ? quantize_record(q->moe.hidden) : q->moe.hidden * 2;
}

/* Byte `at` of token `token`, counted over all ranks. */
static uint8_t exact_moe_rows_byte(const struct sim_launch *l, uint64_t token, uint64_t at)
{
    uint64_t word = sim_mix(sim_mix(l->seed ^ l->launch << 40) ^ token << 24 ^ at / 8);
    return (uint8_t)(word >> at % 8 * 8);
}

void exact_moe_rows_fill_out(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    uint32_t rank = l->plan->problem.topo.rank;
    uint64_t bytes = exact_moe_rows_bytes(l->plan);
    uint8_t *x = l->arguments[0];
    for (uint64_t i = 0; i < m->tokens * bytes; i++)
        x[i] = exact_moe_rows_byte(l, rank * m->tokens + i / bytes, i % bytes);
    exact_moe_fill_ids(l, l->arguments[1]);
}

static int exact_moe_rows_see(const struct sim_launch *l, const struct exact_moe_expert *e,
                              const void *with)
{
    const uint8_t *rows = l->arguments[2];
    const struct mk_moe *m = &l->plan->problem.moe;
    const uint64_t bytes = exact_moe_rows_bytes(l->plan);
    (void)with;
    if (exact_moe_check_said(l, e, l->arguments[3]))
        return 1;
    for (uint32_t row = 0; row < e->count; row++)
        for (uint64_t at = 0, token = e->places[row] / m->k; at < bytes; at++)
            if (rows[(e->first + row) * bytes + at] != exact_moe_rows_byte(l, token, at))
                return sim_wrong(
                    l, "byte %lu of row %u of its expert %u is not that of token %lu of rank %lu",
                    at, row, e->local, token % m->tokens, token / m->tokens);
    return 0;
}

int exact_moe_rows_verify_out(const struct sim_launch *l)
{
    return exact_moe_walk(l, exact_moe_rows_see, NULL);
}

/* ---- back ---- */

/* Column `col` of what the expert of place `place`, counted over all ranks, has made: 1 or -1. By
 * weights of 1/4 to 2 every sum of 32 of them is a number of bf16. */
static float exact_moe_rows_made(const struct sim_launch *l, uint64_t place, uint64_t col)
{
    return sim_mix(sim_mix(l->seed ^ l->launch << 40) ^ place << 24 ^ col) >> 63 ? 1 : -1;
}

static float exact_moe_rows_weight(const struct sim_launch *l, uint64_t place)
{
    return 0.25f * (float)(1u << (sim_mix(sim_mix(l->seed ^ l->launch << 40) + place) >> 62));
}

static int exact_moe_rows_lay(const struct sim_launch *l, const struct exact_moe_expert *e,
                              const void *with)
{
    uint16_t *rows = l->arguments[0];
    const uint64_t hidden = l->plan->problem.moe.hidden;
    (void)with;
    for (uint32_t row = 0; row < e->count; row++)
        for (uint64_t col = 0; col < hidden; col++)
            rows[(e->first + row) * hidden + col] =
                mk_bf16_from_float(exact_moe_rows_made(l, e->places[row], col));
    return 0;
}

void exact_moe_rows_fill_back(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    uint32_t rank = l->plan->problem.topo.rank;
    uint16_t *rows = l->arguments[0];
    float *weights = l->arguments[2];
    for (uint64_t i = 0; i < l->plan->problem.m * m->hidden; i++)
        rows[i] = NOT_A_NUMBER;
    exact_moe_walk(l, exact_moe_rows_lay, NULL); /* of no memory Y is wrong */
    exact_moe_fill_ids(l, l->arguments[1]);
    for (uint64_t i = 0; i < m->tokens * m->k; i++)
        weights[i] = exact_moe_rows_weight(l, rank * m->tokens * m->k + i);
}

int exact_moe_rows_verify_back(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const uint64_t rank = l->plan->problem.topo.rank, places = m->tokens * m->k;
    const uint16_t *y = l->arguments[3];
    uint32_t *ids = malloc(places * sizeof *ids);
    int wrong = !ids;
    uint64_t made = 0;
    snprintf(l->text, l->size, "no memory");
    if (ids) {
        made = exact_moe_made(l, y);
        wrong = made == UINT64_MAX;
        exact_moe_taken(l->plan, l->seed, l->launch, (uint32_t)rank, ids);
    }
    for (uint64_t i = 0; !wrong && i < made * m->hidden; i++) {
        uint64_t token = i / m->hidden, col = i % m->hidden;
        float sum = 0;
        for (uint64_t at = token * m->k; at < (token + 1) * m->k; at++)
            if (ids[at] < m->experts)
                sum += exact_moe_rows_weight(l, rank * places + at) *
                       exact_moe_rows_made(l, rank * places + at, col);
        wrong = mk_bf16_to_float(y[i]) != sum &&
                sim_wrong(l, "Y[%lu][%lu] is %g and should be %g", token, col,
                          (double)mk_bf16_to_float(y[i]), (double)sum);
    }
    free(ids);
    return wrong;
}
