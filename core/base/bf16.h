/* bfloat16, on host and GPU: the upper half of a float32. Kept as uint16_t, so that every compiler
 * takes it. */
#pragma once

#include "core/base.h"

#include <string.h>

MK_PURE float mk_bf16_to_float(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rounds to nearest, ties to even, as the GPU's cvt.rn.bf16.f32 does; NaN stays NaN. */
MK_PURE uint16_t mk_bf16_from_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(f == f ? rounded : (bits >> 16 | 0x40));
}
