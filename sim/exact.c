#include "sim/exact.h"

#include "core/base/e4m3.h"
#include "core/plan/epilogue.h"
#include "core/cta/half.h"
#include "core/ops/op.h"
#include "core/base/quantize.h"
#include "core/base/scoped.h"
#include "sim/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EXACT 256 /* bf16 has 8 significant bits, fp16 more */

/* Of K positions, those at multiples of this have an A that is not 0. */
static uint64_t exact_stride_of(const struct mk_problem *q)
{
    uint64_t most = EXACT / mk_world(&q->topo);
    return most ? mk_ceil_div(q->k, most) : q->k;
}

static int8_t exact_one(struct sim_random *r)
{
    return sim_random(r) >> 63 ? 1 : -1;
}

static void exact_fill_a(const struct mk_problem *q, const struct sim_launch *l, uint32_t rank,
                         int8_t *a)
{
    struct sim_random r = sim_stream(l->seed, l->launch, rank, 0);
    uint64_t stride = exact_stride_of(q);
    memset(a, 0, q->m * q->k);
    for (uint64_t i = 0; i < q->m; i++)
        for (uint64_t j = 0; j < q->k; j += stride)
            a[i * q->k + j] = exact_one(&r);
}

static void exact_fill_b(const struct mk_problem *q, const struct sim_launch *l, uint32_t rank,
                         int8_t *b)
{
    struct sim_random r = sim_stream(l->seed, l->launch, rank, 1);
    for (uint64_t i = 0; i < q->k * q->n; i++)
        b[i] = exact_one(&r);
}

/* FP8: an element of the sum is a whole number times powers of two of its row and of its 128
 * columns (of its column, where B has a scale for each), which are the same on every rank; scales
 * have a third one of their block of K in them (there of the rank), which A's and B's cancel. So a
 * wrong scale is seen, and sums are as exact as without. */
static int exact_power(const struct sim_launch *l, uint64_t rank, uint64_t which, uint64_t i,
                       uint32_t most)
{
    return (int)(sim_mix(sim_mix(l->seed ^ l->launch << 32) + (rank << 40 ^ which << 32 ^ i)) %
                 most);
}

static int exact_power_of_row(const struct sim_launch *l, uint64_t row)
{
    return exact_power(l, 0, 1, row, 8);
}

static int exact_power_of_column(const struct sim_launch *l, uint64_t column)
{
    return exact_power(l, 0, 2, l->plan->problem.b_columns ? column : column / MK_SCALE_BLOCK, 8);
}

static int exact_power_of_block(const struct mk_problem *q, const struct sim_launch *l,
                                uint64_t block)
{
    return exact_power(l, q->topo.rank, 3, q->b_columns ? 0 : block, 32);
}

static void exact_fill_scales_of_b(const struct mk_problem *q, const struct sim_launch *l)
{
    const uint64_t blocks = mk_ceil_div(q->k, MK_SCALE_BLOCK), pitch = mk_round_up(blocks, 4),
                   columns = mk_ceil_div(q->n, MK_SCALE_BLOCK);
    float *scales = l->arguments[4];
    for (uint64_t i = 0; i < q->n && q->b_columns; i++)
        scales[i] = ldexpf(1, exact_power_of_column(l, i) - exact_power_of_block(q, l, 0));
    if (q->b_columns)
        return;
    memset(scales, 0, columns * pitch * sizeof *scales);
    for (uint64_t i = 0; i < columns * blocks; i++)
        scales[i / blocks * pitch + i % blocks] =
            ldexpf(1, exact_power_of_column(l, i / blocks * MK_SCALE_BLOCK) -
                          exact_power_of_block(q, l, i % blocks));
}

static void exact_fill_fp8(const struct mk_problem *q, const struct sim_launch *l, const int8_t *a,
                           const int8_t *b)
{
    const uint64_t blocks = mk_ceil_div(q->k, MK_SCALE_BLOCK), wide = mk_round_up(q->m, 4);
    uint8_t *codes = l->arguments[0];
    float *scales = l->arguments[3];
    for (uint64_t i = 0; i < q->m * q->k; i++)
        codes[i] = mk_e4m3_from_float(a[i]);
    for (uint64_t i = 0; i < blocks * wide; i++)
        scales[i] =
            i % wide < q->m
                ? ldexpf(1, exact_power_of_row(l, i % wide) + exact_power_of_block(q, l, i / wide))
                : NAN; /* nobody multiplies these */
    codes = l->arguments[1];
    for (uint64_t i = 0; i < q->k * q->n; i++)
        codes[i] = mk_e4m3_from_float(b[i]);
    exact_fill_scales_of_b(q, l);
}

static void exact_widen(const struct mk_problem *q, uint16_t *to, const int8_t *from,
                        uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = mk_half_from_float(plan_element(q), from[i]);
}

static int8_t exact_bias(const struct mk_problem *q, const struct sim_launch *l, uint64_t col)
{
    return (
        int8_t)((int)(sim_mix(l->seed ^ sim_mix(l->launch << 32 ^ q->topo.rank << 24 ^ col)) % 17) -
                8);
}

void exact_fill_bias(const struct mk_problem *q, const struct sim_launch *l)
{
    uint16_t *bias = q->epilogue & MK_EPILOGUE_BIAS ? l->arguments[op_bias_argument(q)] : NULL;
    for (uint64_t col = 0; bias && col < q->n; col++)
        bias[col] = mk_half_from_float(plan_element(q), exact_bias(q, l, col));
}

int exact_is_right(const struct mk_problem *q, const struct sim_launch *l, uint64_t col,
                   uint16_t value, float *right)
{
    const uint64_t up = q->epilogue & MK_EPILOGUE_GATED ? epilogue_columns(q->epilogue, q->n) : 0;
    const int biased = (q->epilogue & MK_EPILOGUE_BIAS) != 0;
    float after = epilogue_activate(q->epilogue, *right + (biased ? exact_bias(q, l, col) : 0));
    if (up)
        after *= right[up] + (biased ? exact_bias(q, l, col + up) : 0);
    *right = mk_half_to_float(plan_element(q), mk_half_from_float(plan_element(q), after));
    float said = mk_half_to_float(plan_element(q), value);
    return said == *right || (q->epilogue & MK_EPILOGUE_ACTIVATION &&
                              fabsf(said - *right) <= 0x1p-7f * fabsf(*right) + 1e-30f);
}

int exact_is_wrong(const struct sim_launch *l, const char *what, uint64_t row, uint64_t col,
                   uint16_t value, float right)
{
    return sim_wrong(l, "%s[%lu][%lu] is %g and should be %g%s", what, row, col,
                     (double)mk_half_to_float(plan_element(&l->plan->problem), value),
                     (double)right, value == 0xffff ? " (never written)" : "");
}

/* Of an epilogue of rows: element i of the whole residual, and of the norm's weight. */
static float exact_residual(const struct sim_launch *l, uint64_t i)
{
    return (float)(sim_mix(l->seed ^ sim_mix(l->launch << 40 ^ i)) % 33) - 16;
}

static float exact_weight(const struct sim_launch *l, uint64_t col)
{
    return ldexpf((float)(sim_mix(~l->seed ^ sim_mix(l->launch << 40 ^ col)) % 15) - 7, -2);
}

static void exact_fill_rows(const struct mk_problem *q, const struct sim_launch *l)
{
    if (!(q->epilogue & MK_EPILOGUE_ROWS))
        return;
    uint64_t bytes[MK_SPACES - 1];
    const uint32_t argument = op_residual_argument(q);
    op_extents(q, bytes);
    const uint64_t count = bytes[argument] / 2,
                   first = count < q->m * q->n ? q->topo.rank * count : 0;
    uint16_t *residual = l->arguments[argument];
    for (uint64_t i = 0; i < count; i++)
        residual[i] = mk_half_from_float(plan_element(q), exact_residual(l, first + i));
    uint16_t *weight = q->epilogue & MK_EPILOGUE_RMSNORM ? l->arguments[argument + 1] : NULL;
    for (uint64_t col = 0; weight && col < q->n; col++)
        weight[col] = mk_half_from_float(plan_element(q), exact_weight(l, col));
}

void exact_fill(const struct sim_launch *l)
{
    const struct mk_problem *q = &l->plan->problem;
    int8_t *values = malloc(q->m * q->k + q->k * q->n);
    if (!values)
        return; /* C keeps its poison, and is found wrong */
    exact_fill_a(q, l, q->topo.rank, values);
    exact_fill_b(q, l, q->topo.rank, values + q->m * q->k);
    if (q->fp8) {
        exact_fill_fp8(q, l, values, values + q->m * q->k);
    } else {
        exact_widen(q, l->arguments[0], values, q->m * q->k);
        exact_widen(q, l->arguments[1], values + q->m * q->k, q->k * q->n);
    }
    exact_fill_bias(q, l);
    exact_fill_rows(q, l);
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

static int exact_make_reference(const struct mk_problem *q, const struct sim_launch *l,
                                struct sim_reference *r)
{
    int8_t *values = malloc(q->m * q->k + q->k * q->n), *b = values + q->m * q->k;
    if (!r->memory)
        r->memory = malloc(q->m * q->n * sizeof(int32_t));
    if (values && r->memory) {
        memset(r->memory, 0, q->m * q->n * sizeof(int32_t));
        for (uint32_t rank = 0; rank < mk_world(&q->topo); rank++) {
            exact_fill_a(q, l, rank, values);
            exact_fill_b(q, l, rank, b);
            exact_multiply(q, values, b, r->memory);
        }
        r->launch = l->launch;
    }
    int result = values && r->memory ? 0 : 1;
    free(values);
    return result;
}

/* A sum of products of numbers without their scales, with them. */
static float exact_sum(const struct sim_launch *l, int32_t expected, uint64_t row, uint64_t col)
{
    const int scaled = l->plan->problem.fp8;
    return ldexpf((float)expected,
                  scaled ? exact_power_of_row(l, row) + exact_power_of_column(l, col) : 0);
}

/* The sums `expected` themselves. */
static int exact_verify_sums(const struct mk_problem *q, const struct sim_launch *l, uint64_t first,
                             uint64_t rows, const int32_t *expected)
{
    const uint16_t *c = l->arguments[2];
    for (uint64_t i = 0; i < rows * q->n; i++) {
        float right = exact_sum(l, expected[i], first + i / q->n, i % q->n);
        if (exact_is_right(q, l, i % q->n, c[i], &right))
            continue;
        return exact_is_wrong(l, "C", first + i / q->n, i % q->n, c[i], right);
    }
    return 0;
}

/* A normed row's codes and scales: of `right` but for a rounding of the element. */
static int exact_verify_codes(const struct mk_problem *q, const struct sim_launch *l, uint64_t row,
                              uint64_t rows, const float *right)
{
    const uint32_t argument = op_residual_argument(q) + 2;
    const uint8_t *codes = (const uint8_t *)l->arguments[argument] + row * q->n;
    const float *scales = l->arguments[argument + 1];
    for (uint64_t first = 0; first < q->n; first += MK_SCALE_BLOCK) {
        const uint64_t end = first + MK_SCALE_BLOCK < q->n ? first + MK_SCALE_BLOCK : q->n;
        const float scale = scales[first / MK_SCALE_BLOCK * rows + row];
        float amax = 0;
        for (uint64_t col = first; col < end; col++)
            amax = fmaxf(amax, fabsf(right[col]));
        if (!(fabsf(scale - (amax > 0 ? amax / 448 : 1)) <= 0x1p-8f * amax / 448 * 1.01f))
            return sim_wrong(l, "normed_scales[%lu][%lu] is %g, and the largest number %g",
                             first / MK_SCALE_BLOCK, row, (double)scale, (double)amax);
        for (uint64_t col = first; col < end; col++)
            if (!quantize_may_be(codes[col], scale, (double)right[col],
                                 0x1p-8 * 1.01 * fabs((double)right[col])))
                return sim_wrong(l, "normed[%lu][%lu] is %g and should be %g", row, col,
                                 (double)(mk_e4m3_to_float(codes[col]) * scale),
                                 (double)right[col]);
    }
    return 0;
}

/* Of an epilogue of rows: what follows the sums `expected` (core/plan/epilogue.h). An element of a
 * normed row may be the next of bf16. */
static int exact_verify_rows(const struct mk_problem *q, const struct sim_launch *l, uint64_t first,
                             uint64_t rows, const int32_t *expected)
{
    const uint32_t of = op_new_residual_argument(q);
    const int normed = of != 2, quantized = (q->epilogue & MK_EPILOGUE_QUANTIZE) != 0;
    const uint16_t *c = l->arguments[2], *sum = l->arguments[of];
    MK_FREED float *all = malloc(q->n * sizeof *all);
    if (!all)
        return sim_no_memory(l);
    for (uint64_t row = 0; row < rows; row++) {
        const uint64_t at = row * q->n, whole = (first + row) * q->n;
        double squares = 0;
        for (uint64_t col = 0; col < q->n; col++) {
            const float right = mk_half_to_float(
                plan_element(q),
                mk_half_from_float(plan_element(q),
                                   exact_sum(l, expected[at + col], first + row, col) +
                                       exact_residual(l, whole + col)));
            if (mk_half_to_float(plan_element(q), sum[at + col]) != right)
                return exact_is_wrong(l, op_argument(q, of)->name, first + row, col, sum[at + col],
                                      right);
            squares += (double)right * (double)right;
        }
        const double scale = 1 / sqrt(squares / (double)q->n + (double)q->eps);
        for (uint64_t col = 0; col < q->n; col++)
            all[col] = (float)((double)mk_half_to_float(plan_element(q), sum[at + col]) * scale *
                               (double)exact_weight(l, col));
        for (uint64_t col = 0; normed && col < q->n; col++) {
            const float off = mk_half_to_float(plan_element(q), c[at + col]) - all[col];
            if (!(fabsf(off) <= 0x1p-8f * fabsf(all[col]) * 1.01f))
                return exact_is_wrong(l, "C", first + row, col, c[at + col], all[col]);
        }
        const int wrong = quantized ? exact_verify_codes(q, l, row, rows, all) : 0;
        if (wrong)
            return wrong;
    }
    return 0;
}

int exact_verify(const struct sim_launch *l, uint64_t first, uint64_t rows)
{
    const struct mk_problem *q = &l->plan->problem;
    if (l->reference->launch != l->launch && exact_make_reference(q, l, l->reference))
        return sim_no_memory(l);
    const int32_t *expected = (const int32_t *)l->reference->memory + first * q->n;
    return q->epilogue ? exact_verify_rows(q, l, first, rows, expected)
                       : exact_verify_sums(q, l, first, rows, expected);
}
