/* fp16 by its definition: all 65536 codes, and the rounding of floats around every code, halfway
 * between neighbours and beyond both ends, beside what rint in double says. */
#include <math.h>

#include "tests/helpers/test.h"
#include "core/base/fp16.h"

/* By the formula of IEEE 754, in double. */
static double code_value(uint32_t code)
{
    int exponent = code >> 10 & 31, fraction = code & 0x3ff;
    double v = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return code & 0x8000 ? -v : v;
}

/* To a whole number of units in the last place, ties to even. */
static double rounded(double v)
{
    const int exponent = v != 0 && ilogb(v) > -14 ? ilogb(v) : -14;
    const double r = ldexp(rint(ldexp(v, 10 - exponent)), exponent - 10);
    return fabs(r) > 65504 ? copysign(INFINITY, v) : r;
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void assert_rounds(float f)
{
    const uint16_t code = mk_fp16_from_float(f);
    if (isnan(f)) {
        assert_true(isnan(code_value(code)));
        return;
    }
    assert_true(code_value(code) == (isinf(f) ? (double)f : rounded((double)f)));
    assert_int_equal(code >> 15, signbit(f) != 0);
#ifdef __FLT16_MANT_DIG__ /* the compiler has it, too */
    const _Float16 theirs = (_Float16)f;
    assert_memory_equal(&code, &theirs, sizeof code);
#endif
}

CASE(test_codes)
{
    assert_true(mk_fp16_to_float(0x3c00) == 1 && mk_fp16_to_float(0x7bff) == 65504);
    assert_true(mk_fp16_to_float(0x8001) == -0x1p-24f && mk_fp16_to_float(0x0400) == 0x1p-14f);
    for (uint32_t code = 0; code < 65536; code++) {
        const float f = mk_fp16_to_float((uint16_t)code);
        const double v = code_value(code);
        assert_true(isnan(v) ? isnan(f) : (double)f == v);
        assert_int_equal(signbit(f) != 0, code >> 15);
        if (!isnan(v))
            assert_int_equal(mk_fp16_from_float(f), code);
    }
}

CASE(test_rounding)
{
    static const uint32_t near[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    for (uint32_t upper = 0; upper < 1u << 19; upper++) /* 13 bits below fp16's last */
        for (uint32_t i = 0; i < sizeof near / sizeof *near; i++)
            assert_rounds(float_of(upper << 13 | near[i]));
    for (uint32_t bits = 0; bits < 0xffffffff - 1021; bits += 1021) /* subnormal ones, too */
        assert_rounds(float_of(bits));
}

CASE(test_ends)
{
    assert_int_equal(mk_fp16_from_float(nextafterf(65520, 0)), 0x7bff);
    assert_int_equal(mk_fp16_from_float(65520), 0x7c00);
    assert_int_equal(mk_fp16_from_float(-1e30f), 0xfc00);
    assert_int_equal(mk_fp16_from_float(0x1p-25f), 0);
    assert_int_equal(mk_fp16_from_float(nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(mk_fp16_from_float(-0x1p-140f), 0x8000);
}
