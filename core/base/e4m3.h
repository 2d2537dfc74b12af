/* e4m3, the 8-bit float of FP8 products, on host and GPU: sign, 4 bits of exponent (bias 7), 3 of
 * fraction. Largest 448 (0x7e); smallest normal number 2^-6, subnormal steps of 2^-9; NaN is 0x7f
 * and 0xff, and there is no infinity. OCP 8-bit Floating Point Specification, 5.3. */
#pragma once

#include "core/base.h"

#include <string.h>

#define MK_E4M3_LARGEST 448.0f

MK_PURE float mk_e4m3_to_float(uint8_t v)
{
    uint32_t exponent = v >> 3 & 15, fraction = v & 7, sign = (uint32_t)(v & 0x80) << 24, bits;
    float f;
    if ((v & 0x7f) == 0x7f)
        bits = 0x7fc00000;
    else if (exponent)
        bits = (exponent + 120) << 23 | fraction << 20;
    else {
        f = (float)fraction * 0x1p-9f;
        memcpy(&bits, &f, sizeof bits);
    }
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rounds to nearest, ties to even; what is larger than 448 becomes 448, infinities too, and every
 * NaN 0x7f: as the GPU's cvt.rn.satfinite.e4m3x2.f32 does. */
MK_PURE uint8_t mk_e4m3_from_float(float f)
{
    uint32_t bits, magnitude, sign;
    memcpy(&bits, &f, sizeof bits);
    magnitude = bits & 0x7fffffff;
    sign = bits >> 24 & 0x80;
    if (magnitude > 0x7f800000)
        return 0x7f;
    if (magnitude >= 0x43e00000) /* 448 */
        return (uint8_t)(sign | 0x7e);
    if (magnitude >= 0x3c800000) { /* 2^-6: a carry out of the fraction is the next exponent */
        magnitude += 0x7ffff + (magnitude >> 20 & 1);
        return (uint8_t)(sign | ((magnitude >> 20) - 120 * 8));
    }
    /* A subnormal number in steps of 2^-9, the unit of a float between 2^14 and 2^15. */
    float shifted;
    memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0x1p14f;
    memcpy(&magnitude, &shifted, sizeof magnitude);
    return (uint8_t)(sign | (magnitude - 0x46800000));
}
