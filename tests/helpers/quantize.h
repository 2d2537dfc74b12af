/* What is quantised in tests: numbers over many binades, a row of zeros, a block of them, numbers
 * under the least amax, NaN and infinities. As fp32 and as bf16, the same numbers. */
#pragma once

#include "core/base/bf16.h"
#include "core/base/quantize.h"
#include "core/base/random.h"

#include <math.h>
#include <stdlib.h>

/* rows x k of `type` (enum mk_input); the caller frees it. */
static inline void *quantize_input(uint32_t type, uint64_t rows, uint64_t k)
{
    float *wide = (float *)malloc(rows * k * sizeof *wide);
    uint16_t *narrow = (uint16_t *)malloc(rows * k * sizeof *narrow);
    for (uint64_t i = 0; i < rows * k; i++) {
        const uint64_t r = mk_mix((i + 1) * MK_RANDOM_STEP), row = i / k, column = i % k;
        float v = ldexpf((float)(int32_t)r, (int)((row + column / 128 * 7) % 81) - 40 - 31);
        if (row == 5 || (row >= 128 && column >= 128))
            v = row % 2 ? -0.0f : 0;
        if (row == 6)
            v = ldexpf(v < 0 ? -1 : 1, -111 - (int)(column % 20));
        if (row == 7 && column % 37 == 3)
            v = column / 37 % 3 == 2 ? NAN : column / 37 % 3 ? INFINITY : -INFINITY;
        narrow[i] = mk_bf16_from_float(v);
        wide[i] = type == MK_INPUT_FP32 ? v : mk_bf16_to_float(narrow[i]);
    }
    free(type == MK_INPUT_FP32 ? (void *)narrow : (void *)wide);
    return type == MK_INPUT_FP32 ? (void *)wide : (void *)narrow;
}

/* Bytes of codes; of records with their scales. */
static inline uint64_t quantize_codes(uint32_t scaling, uint64_t rows, uint64_t k)
{
    return rows * (scaling == MK_SCALE_RECORDS ? quantize_record(k) : k);
}

/* How many floats mk_quantize's scales take where pitch is 0. */
static inline uint64_t quantize_scales(uint32_t scaling, uint64_t rows, uint64_t k)
{
    const uint64_t across = mk_ceil_div(k, 128);
    return scaling == MK_SCALE_1X128     ? across * rows
           : scaling == MK_SCALE_128X128 ? mk_ceil_div(rows, 128) * mk_round_up(across, 4)
           : scaling == MK_SCALE_ROW     ? rows
                                         : 1;
}
