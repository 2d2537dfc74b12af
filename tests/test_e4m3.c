/* e4m3 by its definition: all 256 codes, every rounding decision beside what a search among the
 * codes says, and the quantiser of rows and of blocks by its rule (core/quantize.h). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "core/quantize.h"
#include "core/random.h"

/* By the formula of the specification, in double. */
static double code_value(int code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    double v = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -v : v;
}

static void test_codes(void **state)
{
    /* Some from the table of the specification itself. */
    assert_true(mk_e4m3_to_float(0x7e) == 448 && mk_e4m3_to_float(0x08) == 0x1p-6f);
    assert_true(mk_e4m3_to_float(0x07) == 0.875f * 0x1p-6f && mk_e4m3_to_float(0x81) == -0x1p-9f);
    assert_true(mk_e4m3_to_float(0x38) == 1 && signbit(mk_e4m3_to_float(0x80)));
    for (int code = 0; code < 256; code++) {
        float v = mk_e4m3_to_float((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(v));
            assert_int_equal(mk_e4m3_from_float(v), 0x7f);
            continue;
        }
        assert_true((double)v == code_value(code) && !signbit(v) == !(code & 0x80));
        assert_int_equal(mk_e4m3_from_float(v), code);
    }
}

/* The nearest of the 127 magnitudes, of two the even code. */
static int nearest(double v)
{
    int best = 0;
    double magnitude = fabs(v);
    for (int code = 1; code < 0x7f; code++) {
        double now = fabs(code_value(code) - magnitude), then = fabs(code_value(best) - magnitude);
        if (now < then || (now == then && code % 2 == 0))
            best = code;
    }
    return best | (signbit(v) ? 0x80 : 0);
}

static void rounds(float v)
{
    int want = nearest((double)v), is = mk_e4m3_from_float(v);
    if (is != want)
        fail_msg("%a becomes 0x%02x and should be 0x%02x", (double)v, is, want);
}

static void test_rounding(void **state)
{
    for (int code = 0; code < 0x7e; code++) { /* ties, and the floats on either side of them */
        float tie = (float)((code_value(code) + code_value(code + 1)) / 2);
        for (int sign = 0; sign < 2; sign++, tie = -tie) {
            rounds(tie);
            rounds(nextafterf(tie, 0));
            rounds(nextafterf(tie, 2 * tie));
        }
    }
    uint64_t state_of = 1;
    for (int i = 0; i < 100000; i++) {
        uint64_t r = mk_mix(state_of += MK_RANDOM_STEP);
        rounds(ldexpf((float)(int32_t)r, (int)(r >> 32 & 31) - 48));
    }
    static const float saturates[] = {449, 464, 479, 480, 1e30f, 3.4e38f, INFINITY};
    for (uint32_t i = 0; i < sizeof saturates / sizeof *saturates; i++) {
        assert_int_equal(mk_e4m3_from_float(saturates[i]), 0x7e);
        assert_int_equal(mk_e4m3_from_float(-saturates[i]), 0xfe);
    }
    assert_int_equal(mk_e4m3_from_float(-NAN), 0x7f);
    assert_int_equal(mk_e4m3_from_float(0x1p-140f), 0);
    assert_int_equal(mk_e4m3_from_float(-0x1p-140f), 0x80);
}

enum { ROWS = 131, K = 300, BLOCKS = 3, PITCH = 133 };

/* Each element within half a step of what it was, the largest exactly; scales where they belong. */
static void judge(const uint16_t *x, const uint8_t *q, uint64_t r, uint64_t k, float scale)
{
    double v = (double)mk_bf16_to_float(x[r * K + k]), back;
    back = (double)mk_e4m3_to_float(q[r * K + k]) * (double)scale;
    double half = fmax(fabs(v) / 16, 0x1p-10 * (double)scale) * 1.00001;
    if (!(fabs(back - v) <= half))
        fail_msg("[%d][%d]: %g became %g, scale %g", (int)r, (int)k, v, back, (double)scale);
}

static void test_quantiser(void **state)
{
    static uint16_t x[ROWS * K];
    static uint8_t q[ROWS * K];
    static float scales[BLOCKS * PITCH], blocks[2 * 4];
    for (uint64_t i = 0; i < ROWS * K; i++) { /* rows from 2^-40 to 2^40, and one of zeros */
        uint64_t r = mk_mix((i + 1) * MK_RANDOM_STEP), row = i / K;
        float v = ldexpf((float)(int32_t)r, (int)(row % 81) - 40 - 31);
        x[i] = mk_bf16_from_float(row == 5 ? 0 : v);
    }
    for (uint64_t i = 0; i < BLOCKS * PITCH; i++)
        scales[i] = -7;
    quantize_rows(x, ROWS, K, q, scales, PITCH);
    for (uint64_t r = 0; r < ROWS; r++)
        for (uint64_t k = 0; k < K; k++)
            judge(x, q, r, k, scales[k / 128 * PITCH + r]);
    for (uint64_t b = 0; b < BLOCKS; b++) {
        assert_true(scales[b * PITCH + 5] == 1);
        for (uint64_t r = ROWS; r < PITCH; r++)
            assert_true(scales[b * PITCH + r] == -7); /* nothing beyond the rows */
        int largest = 0;
        for (uint64_t k = b * 128; k < K && k < b * 128 + 128; k++)
            largest = largest > (q[7 * K + k] & 0x7f) ? largest : q[7 * K + k] & 0x7f;
        assert_int_equal(largest, 0x7e);
    }
    for (uint64_t i = 0; i < ROWS * K; i++)
        x[i] = mk_bf16_from_float(ldexpf((float)(int32_t)mk_mix(i),
                                         (int)(i / K / 128) * 9 + (int)(i % K / 128) * 5 - 31));
    for (int i = 0; i < 8; i++)
        blocks[i] = -7;
    quantize_blocks(x, ROWS, K, q, blocks, 4);
    for (uint64_t r = 0; r < ROWS; r++)
        for (uint64_t k = 0; k < K; k++)
            judge(x, q, r, k, blocks[r / 128 * 4 + k / 128]);
    assert_true(blocks[3] == -7 && blocks[7] == -7 && blocks[1] > 16 * blocks[0]);
}

/* What is no number stays in its element; the largest and the least scales. */
static void test_quantiser_extremes(void **state)
{
    uint16_t x[256], none = mk_bf16_from_float(NAN), inf = mk_bf16_from_float(INFINITY);
    uint8_t q[256];
    float scales[2];
    for (int i = 0; i < 256; i++)
        x[i] = mk_bf16_from_float(i < 128 ? 3.3e38f : 0x1p-111f);
    x[3] = none;
    x[4] = inf;
    x[5] = inf | 0x8000;
    quantize_rows(x, 1, 256, q, scales, 1);
    for (int i = 0; i < 128; i++)
        assert_int_equal(q[i], i >= 3 && i <= 5 ? 0x7f : 0x7e);
    assert_true(scales[0] > 7e35f && scales[1] == 1 && q[128] == 0);
    x[200] = mk_bf16_from_float(0x1p-110f);
    quantize_rows(x, 1, 256, q, scales, 1);
    assert_true(q[200] == 0x7e && q[128] == 0x76 && scales[1] == 0x1p-110f / 448);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes), cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_quantiser), cmocka_unit_test(test_quantiser_extremes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
