/* What follows a product before it is stored (core/epilogue.h), on the sums that a thread holds.
 *
 * Sums lie in groups of 8 columns: four of each, two neighbouring columns of a row and of the row 8
 * further on, as wgmma and mma.sync leave them. One form of both activations, so that a kernel has
 * their instructions once. */
#pragma once

#include "core/epilogue.h"

#include "kernels/half.cuh"

/* x / (1 + 2^(x (linear + cubic x^2))), the power's 2^x and the quotient approximate */
PTX_FN float epilogue_activated(float x, float linear, float cubic)
{
    return x * ptx_reciprocal(1 + ptx_exp2(x * fmaf(cubic, x * x, linear)));
}

PTX_FN float epilogue_silu(float x)
{
    return x * ptx_reciprocal(1 + ptx_exp2(x * EPILOGUE_SILU_LINEAR));
}

/* Of one block of rows. bias: the tile's first column's, 4-byte aligned; columns: of the tile that
 * lie in C, from `first` on those of sum[0]. */
template <int element, int count>
PTX_FN void epilogue_apply(uint32_t epilogue, const uint16_t *bias, float (&sum)[count],
                           uint32_t first, uint32_t columns)
{
    if (epilogue & MK_EPILOGUE_BIAS) {
        /* nothing that derives from the lane is kept from tile to tile */
        const uint32_t column = first + ptx_opaque(threadIdx.x) % 4 * 2;
        const int32_t left = (int32_t)(columns - column);
        bias += column;
#pragma unroll
        for (int j = 0; j < count / 4; j++) {
            if (j * 8 >= left)
                break;
            const uint32_t both = *(const uint32_t *)(bias + j * 8);
            const float low = half_low<element>(both), high = half_high<element>(both);
            sum[j * 4] += low;
            sum[j * 4 + 1] += high;
            sum[j * 4 + 2] += low;
            sum[j * 4 + 3] += high;
        }
    }
    if (epilogue & MK_EPILOGUE_ACTIVATION) {
        const bool silu = epilogue & MK_EPILOGUE_SILU;
        const float linear = silu ? EPILOGUE_SILU_LINEAR : EPILOGUE_GELU_LINEAR,
                    cubic = silu ? 0.0f : EPILOGUE_GELU_CUBIC;
#pragma unroll
        for (int j = 0; j < count; j++)
            sum[j] = epilogue_activated(sum[j], linear, cubic);
    }
}
