/* Pairs of the plan's 16-bit element in a word: MK_FP16, or MK_BF16 for any other number. */
#pragma once

#include "kernels/engine/ptx.cuh"

#include "core/cta/cta.h"

/* Rounded to nearest even; fp16 beyond 65504 to infinity. */
template <int element> PTX_FN uint32_t half_pack(float low, float high)
{
    if constexpr (element == MK_FP16)
        return ptx_pack_f16(low, high);
    else
        return ptx_pack_bf16(low, high);
}

template <int element> PTX_FN float half_low(uint32_t pair)
{
    if constexpr (element == MK_FP16)
        return ptx_low_f16(pair);
    else
        return __uint_as_float(pair << 16);
}

template <int element> PTX_FN float half_high(uint32_t pair)
{
    if constexpr (element == MK_FP16)
        return ptx_high_f16(pair);
    else
        return __uint_as_float(pair & 0xffff0000);
}
