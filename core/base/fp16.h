/* fp16, IEEE 754's binary16, on host and GPU: sign, 5 bits of exponent (bias 15), 10 of fraction.
 * Largest 65504 (0x7bff); smallest normal number 2^-14, subnormal steps of 2^-24. Kept as uint16_t,
 * so that every compiler takes it. */
#pragma once

#include "core/base.h"

#include <string.h>

MK_PURE float mk_fp16_to_float(uint16_t h)
{
    uint32_t magnitude = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16, bits;
    float f = (float)magnitude * 0x1p-24f; /* of a subnormal number */
    memcpy(&bits, &f, sizeof bits);
    if (magnitude >= 0x0400)
        bits = (magnitude << 13) + (magnitude >= 0x7c00 ? 0x70000000 : 0x38000000);
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rounds to nearest, ties to even, as the GPU's cvt.rn.f16.f32 does: from 65520 on to infinity; NaN
 * stays NaN. */
MK_PURE uint16_t mk_fp16_from_float(float f)
{
    uint32_t bits, magnitude, sign;
    float shifted;
    memcpy(&bits, &f, sizeof bits);
    magnitude = bits & 0x7fffffff;
    sign = bits >> 16 & 0x8000;
    /* A subnormal number in steps of 2^-24, the unit of a float between 1/2 and 1. */
    memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    memcpy(&bits, &shifted, sizeof bits);
    bits -= 0x3f000000;
    if (magnitude >= 0x38800000) /* 2^-14: a carry out of the fraction is the next exponent */
        bits = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    if (magnitude >= 0x477ff000) /* 65520 */
        bits = 0x7c00;
    if (magnitude > 0x7f800000)
        bits = 0x7e00 | (magnitude >> 13 & 0x3ff);
    return (uint16_t)(sign | bits);
}
