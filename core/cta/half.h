/* The 16-bit element of a plan, bf16 or fp16 (plan_element), as a float and back. */
#pragma once

#include "core/base/bf16.h"
#include "core/cta/cta.h"
#include "core/base/fp16.h"

/* element: MK_FP16, or MK_BF16. */
MK_PURE float mk_half_to_float(uint32_t element, uint16_t h)
{
    return element == MK_FP16 ? mk_fp16_to_float(h) : mk_bf16_to_float(h);
}

MK_PURE uint16_t mk_half_from_float(uint32_t element, float f)
{
    return element == MK_FP16 ? mk_fp16_from_float(f) : mk_bf16_from_float(f);
}
