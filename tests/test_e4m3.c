/* e4m3 by its definition: all 256 codes, and every rounding decision beside what a search among the
 * codes says. */
#include <math.h>

#include "tests/helpers/test.h"
#include "core/base/e4m3.h"
#include "core/base/random.h"

/* By the formula of the specification, in double. */
static double code_value(int code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    double v = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -v : v;
}

CASE(test_codes)
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

CASE(test_rounding)
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
