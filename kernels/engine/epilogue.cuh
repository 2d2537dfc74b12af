/* What follows a product before it is stored (core/plan/epilogue.h), on the sums that a thread holds.
 *
 * Sums lie in groups of 8 columns: four of each, two neighbouring columns of a row and of the row 8
 * further on, as wgmma and mma.sync leave them. One form of both activations, so that a kernel has
 * their instructions once. */
#pragma once

#include "core/plan/epilogue.h"

#include "kernels/engine/half.cuh"

/* x / (1 + 2^(x (linear + cubic x^2))), the power's 2^x and the quotient approximate */
PTX_FN float epilogue_activated(float x, float linear, float cubic)
{
    return x * ptx_reciprocal(1 + ptx_exp2(x * fmaf(cubic, x * x, linear)));
}

PTX_FN float epilogue_silu(float x)
{
    return x * ptx_reciprocal(1 + ptx_exp2(x * EPILOGUE_SILU_LINEAR));
}

/* Adds the bias of sums [begin, end), whose first column is `first` of those that `bias` begins with;
 * columns: of these that there are. */
template <int element, int begin, int end, int count>
PTX_FN void epilogue_bias(const uint16_t *bias, float (&sum)[count], uint32_t first,
                          uint32_t columns)
{
    /* nothing that derives from the lane is kept from tile to tile */
    const uint32_t column = first + ptx_opaque(threadIdx.x) % 4 * 2;
    const int32_t left = (int32_t)(columns - column);
    bias += column;
#pragma unroll
    for (int j = 0; j < (end - begin) / 4; j++) {
        float *const d = sum + begin + j * 4;
        if (j * 8 >= left)
            break;
        const uint32_t both = *(const uint32_t *)(bias + j * 8);
        const float low = half_low<element>(both), high = half_high<element>(both);
        d[0] += low;
        d[1] += high;
        d[2] += low;
        d[3] += high;
    }
}

/* Of one block of rows. bias: the tile's first column's, 4-byte aligned; columns: of the tile that
 * lie in C, from `first` on those of sum[0]. up: where columns are gated, from a gate's to what it
 * lets through, which the second half of the sums are; else 0. apart: where that half's columns do
 * not follow the first's, from these to them. */
template <int element, bool gates, int apart = 0, int count>
PTX_FN void epilogue_apply(uint32_t epilogue, const uint16_t *bias, float (&sum)[count],
                           uint32_t first, uint32_t columns, uint32_t up)
{
    const bool silu = epilogue & MK_EPILOGUE_SILU;
    const float linear = silu ? EPILOGUE_SILU_LINEAR : EPILOGUE_GELU_LINEAR,
                cubic = silu ? 0.0f : EPILOGUE_GELU_CUBIC;
    if constexpr (gates)
        if (up) {
            if (epilogue & MK_EPILOGUE_BIAS) {
                epilogue_bias<element, 0, count / 2>(bias, sum, first, columns);
                epilogue_bias<element, count / 2, count>(bias + up, sum, first, columns);
            }
#pragma unroll
            for (int j = 0; j < count / 2; j++)
                sum[j] = epilogue_activated(sum[j], linear, cubic) * sum[j + count / 2];
            return;
        }
    if (epilogue & MK_EPILOGUE_BIAS) {
        epilogue_bias<element, 0, apart ? count / 2 : count>(bias, sum, first, columns);
        if constexpr (apart)
            epilogue_bias<element, count / 2, count>(bias + apart, sum, first, columns - apart);
    }
    if (epilogue & MK_EPILOGUE_ACTIVATION)
#pragma unroll
        for (int j = 0; j < count; j++)
            sum[j] = epilogue_activated(sum[j], linear, cubic);
}
