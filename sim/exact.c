#include "sim/exact.h"

#include "core/bf16.h"
#include "sim/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT 256 /* bf16 has 8 significant bits */

/* Of K positions, those at multiples of this have an A that is not 0. */
static uint64_t exact_stride_of(const struct mk_problem *q)
{
    uint64_t most = EXACT / mk_world(&q->topo);
    return most ? mk_ceil_div(q->k, most) : q->k;
}

static struct sim_random exact_stream(uint64_t seed, uint64_t launch, uint32_t rank,
                                      uint32_t argument)
{
    return (struct sim_random){sim_mix(seed) ^
                               sim_mix(launch << 20 ^ (uint64_t)rank << 4 ^ argument)};
}

static int8_t exact_one(struct sim_random *r)
{
    return sim_random(r) >> 63 ? 1 : -1;
}

static void exact_fill_a(const struct mk_problem *q, uint64_t seed, uint64_t launch, uint32_t rank,
                         int8_t *a)
{
    struct sim_random r = exact_stream(seed, launch, rank, 0);
    uint64_t stride = exact_stride_of(q);
    memset(a, 0, q->m * q->k);
    for (uint64_t i = 0; i < q->m; i++)
        for (uint64_t j = 0; j < q->k; j += stride)
            a[i * q->k + j] = exact_one(&r);
}

static void exact_fill_b(const struct mk_problem *q, uint64_t seed, uint64_t launch, uint32_t rank,
                         int8_t *b)
{
    struct sim_random r = exact_stream(seed, launch, rank, 1);
    for (uint64_t i = 0; i < q->k * q->n; i++)
        b[i] = exact_one(&r);
}

static void exact_widen(uint16_t *to, const int8_t *from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = mk_bf16_from_float(from[i]);
}

void exact_fill(const struct mk_plan *plan, uint64_t seed, uint64_t launch,
                void *const arguments[MK_SPACES - 1])
{
    const struct mk_problem *q = &plan->problem;
    int8_t *values = malloc(q->m * q->k + q->k * q->n);
    if (!values)
        return; /* C keeps its poison, and is found wrong */
    exact_fill_a(q, seed, launch, q->topo.rank, values);
    exact_widen(arguments[0], values, q->m * q->k);
    exact_fill_b(q, seed, launch, q->topo.rank, values);
    exact_widen(arguments[1], values, q->k * q->n);
    free(values);
}

static void exact_multiply(const struct mk_problem *q, const int8_t *a, const int8_t *b, int32_t *c)
{
    uint64_t stride = exact_stride_of(q);
    for (uint64_t i = 0; i < q->m; i++)
        for (uint64_t k = 0; k < q->k; k += stride)
            for (uint64_t j = 0; j < q->n; j++)
                c[i * q->n + j] +=
                    a[i * q->k + k] * b[q->b_transposed ? j * q->k + k : k * q->n + j];
}

static int exact_make_reference(const struct mk_problem *q, uint64_t seed, uint64_t launch,
                                struct sim_reference *r)
{
    int8_t *values = malloc(q->m * q->k + q->k * q->n), *b = values + q->m * q->k;
    if (!r->memory)
        r->memory = malloc(q->m * q->n * sizeof(int32_t));
    if (values && r->memory) {
        memset(r->memory, 0, q->m * q->n * sizeof(int32_t));
        for (uint32_t rank = 0; rank < mk_world(&q->topo); rank++) {
            exact_fill_a(q, seed, launch, rank, values);
            exact_fill_b(q, seed, launch, rank, b);
            exact_multiply(q, values, b, r->memory);
        }
        r->launch = launch;
    }
    int result = values && r->memory ? 0 : 1;
    free(values);
    return result;
}

int exact_verify(const struct mk_plan *plan, uint64_t seed, uint64_t launch, uint64_t first,
                 uint64_t rows, const uint16_t *c, struct sim_reference *reference, char *text,
                 size_t size)
{
    const struct mk_problem *q = &plan->problem;
    if (reference->launch != launch && exact_make_reference(q, seed, launch, reference)) {
        snprintf(text, size, "no memory to check launch %llu", (unsigned long long)launch);
        return 1;
    }
    const int32_t *expected = (const int32_t *)reference->memory + first * q->n;
    for (uint64_t i = 0; i < rows * q->n; i++) {
        if (mk_bf16_to_float(c[i]) == (float)expected[i])
            continue;
        snprintf(text, size, "launch %llu, rank %u: C[%llu][%llu] is %g and should be %d%s",
                 (unsigned long long)launch, q->topo.rank, (unsigned long long)(first + i / q->n),
                 (unsigned long long)(i % q->n), (double)mk_bf16_to_float(c[i]), expected[i],
                 c[i] == 0xffff ? " (never written)" : "");
        return 1;
    }
    return 0;
}
