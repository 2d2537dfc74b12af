/* FP8 whose B has a scale for each column (core/plan/plan.h, b_columns): these, to the finished sums of a
 * product, which lie in a thread of either engine as kernels/engine/epilogue.cuh has it. */
#pragma once

#include "kernels/engine/engine.cuh"

enum {
    COLUMN_SCALES_AHEAD = 8
}; /* pairs that a thread loads at once: one by one each waits for L2 */

/* Sums [begin, end), whose first column is `first` of those that `scales` begins with; columns: of
 * these that there are. */
template <int begin, int end, int count>
PTX_FN void column_scale(const float *scales, float (&sum)[count], uint32_t first, uint32_t columns)
{
    /* nothing that derives from the lane is kept from tile to tile */
    const uint32_t column = first + ptx_opaque(threadIdx.x) % 4 * 2;
    const int32_t left = (int32_t)(columns - column);
    scales += column;
    constexpr int all = (end - begin) / 4,
                  ahead = all < COLUMN_SCALES_AHEAD ? all : COLUMN_SCALES_AHEAD;
#pragma unroll
    for (int from = 0; from < all; from += ahead) {
        float low[ahead], high[ahead];
        if (from * 8 >= left)
            break;
#pragma unroll
        for (int j = 0; j < ahead; j++) {
            const bool is = from + j < all && (from + j) * 8 < left;
            low[j] = is ? scales[(from + j) * 8] : 0;
            high[j] = is ? scales[(from + j) * 8 + 1] : 0;
        }
#pragma unroll
        for (int j = 0; j < ahead && from + j < all; j++) {
            float *const d = sum + begin + (from + j) * 4;
            d[0] *= low[j];
            d[1] *= high[j];
            d[2] *= low[j];
            d[3] *= high[j];
        }
    }
}

/* One block of rows, whose first sum is of column `first` of the tile. gates: the tile's columns may
 * be two runs, the second half of the sums that of what is let through. */
template <bool gates, int count>
PTX_FN void column_scales_apply(const struct column_scales *s, float (&sum)[count], uint32_t first)
{
    if (gates && s->up) {
        column_scale<0, count / 2>(s->first, sum, first, s->columns);
        column_scale<count / 2, count>(s->first + s->up, sum, first, s->columns);
    } else {
        column_scale<0, count>(s->first, sum, first, s->columns);
    }
}
