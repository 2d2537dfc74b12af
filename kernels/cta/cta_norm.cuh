/* core/cta/cta_norm.h on a GPU: a row is a block's, 16 bytes of each thread at a time. By one warp a
 * row of 8192 numbers took 33 us on an H100, a load behind the other. */
#pragma once

#include "core/cta/cta_norm.h"

#include "kernels/cta/cta_made.cuh"
#include "kernels/engine/half.cuh"
#include "kernels/engine/quantize.cuh"

/* Of what the rows are: MK_FP16, by a file before this one whose plans are of that. */
#ifndef NORM_ELEMENT
#define NORM_ELEMENT MK_BF16
#endif

/* Two elements of C + residual, as they are stored; adds their squares. */
PTX_FN uint32_t norm_add(uint32_t c, uint32_t residual, float *squares)
{
    const uint32_t sum =
        half_pack<NORM_ELEMENT>(half_low<NORM_ELEMENT>(c) + half_low<NORM_ELEMENT>(residual),
                                half_high<NORM_ELEMENT>(c) + half_high<NORM_ELEMENT>(residual));
    *squares = fmaf(half_low<NORM_ELEMENT>(sum), half_low<NORM_ELEMENT>(sum), *squares);
    *squares = fmaf(half_high<NORM_ELEMENT>(sum), half_high<NORM_ELEMENT>(sum), *squares);
    return sum;
}

PTX_FN uint32_t norm_scale(uint32_t sum, uint32_t weight, float scale)
{
    return half_pack<NORM_ELEMENT>(
        half_low<NORM_ELEMENT>(sum) * scale * half_low<NORM_ELEMENT>(weight),
        half_high<NORM_ELEMENT>(sum) * scale * half_high<NORM_ELEMENT>(weight));
}

PTX_FN uint4 norm_scale_word(uint4 sum, uint4 weight, float scale)
{
    return make_uint4(norm_scale(sum.x, weight.x, scale), norm_scale(sum.y, weight.y, scale),
                      norm_scale(sum.z, weight.z, scale), norm_scale(sum.w, weight.w, scale));
}

/* Words of a row that a thread has at a time, all of their loads under way together: by a block of
 * 384 threads rows of up to 12,288 numbers are read once. */
#define NORM_WORDS 4

PTX_SHARED(float, norm_squares, 32);

/* A sum over the block's threads, in one order. */
PTX_FN float norm_sum(const struct mk_cta *cta, float value)
{
    const uint32_t warps = cta->lanes / 32;
#pragma unroll
    for (int other = 16; other; other /= 2)
        value += __shfl_xor_sync(0xffffffff, value, other);
    cta_meet(cta); /* the row before has been read */
    if (threadIdx.x % 32 == 0)
        norm_squares[threadIdx.x / 32] = value;
    cta_meet(cta);
    value = 0;
    for (uint32_t i = 0; i < warps; i++)
        value += norm_squares[i];
    return value;
}

/* The largest of `amax` and 8 numbers of a row; and their codes (quantize_up). */
PTX_FN float norm_largest(uint4 x, float amax)
{
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int k = 0; k < 4; k++)
        amax = quantize_larger(quantize_larger(amax, half_low<NORM_ELEMENT>(word[k])),
                               half_high<NORM_ELEMENT>(word[k]));
    return amax;
}

PTX_FN uint2 norm_codes(uint4 x, float up)
{
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
    uint32_t pair[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        pair[k] =
            quantize_pair(half_low<NORM_ELEMENT>(word[k]), half_high<NORM_ELEMENT>(word[k]), up);
    return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
}

/* 8 numbers of a row, word i of it, as codes, and their block's scale; 16 lanes have a block. All lanes of a warp:
 * x is zeros where the row has no such word. */
PTX_FN void norm_quantize(const struct mk_cta *cta, const struct mk_norm *norm, uint32_t row,
                          uint32_t i, uint4 x)
{
    const struct gpu_launch *launch = cta->launch;
    const float amax = quantize_largest_of(norm_largest(x, 0), 16);
    if (i >= norm->columns / 8)
        return;
    uint2 *codes = (uint2 *)(launch->arguments[norm->codes] + (uint64_t)row * norm->columns);
    codes[i] = norm_codes(x, quantize_up(amax));
    if (i % 16 == 0)
        ((float *)launch->arguments[norm->scales])[(uint64_t)(i / 16) * norm->rows + row] =
            quantize_scale(amax);
}

/* lanes: a block's. */
PTX_FN void mk_cta_norm(struct mk_cta *cta, const struct mk_norm *norm, uint32_t row)
{
    const uint32_t lane = cta_lane(cta), lanes = cta->lanes, words = norm->columns / 8;
    const uint64_t first = (uint64_t)row * norm->columns * 2;
    const struct gpu_launch *launch = cta->launch;
    uint4 *c = (uint4 *)(launch->arguments[norm->c] + first),
          *sum = norm->normed ? (uint4 *)(launch->arguments[norm->sum] + first) : c;
    const uint4 *residual = (const uint4 *)(launch->arguments[norm->residual] + first),
                *weight = norm->normed ? (const uint4 *)launch->arguments[norm->weight] : residual;
    uint4 x[NORM_WORDS], y[NORM_WORDS], w[NORM_WORDS];
    float squares = 0;
    uint32_t from = 0; /* of the words that x has, which are the row's last in the end */
    for (;; from += NORM_WORDS * lanes) {
        const int last = words - from <= NORM_WORDS * lanes;
#pragma unroll
        for (uint32_t j = 0; j < NORM_WORDS; j++) {
            const uint32_t i = from + j * lanes + lane;
            if (i >= words)
                continue;
            x[j] = c[i];
            y[j] = residual[i];
            if (last && norm->normed)
                w[j] = weight[i];
        }
#pragma unroll
        for (uint32_t j = 0; j < NORM_WORDS; j++) {
            const uint32_t i = from + j * lanes + lane;
            if (i >= words)
                continue;
            x[j].x = norm_add(x[j].x, y[j].x, &squares);
            x[j].y = norm_add(x[j].y, y[j].y, &squares);
            x[j].z = norm_add(x[j].z, y[j].z, &squares);
            x[j].w = norm_add(x[j].w, y[j].w, &squares);
            sum[i] = x[j];
        }
        if (last)
            break;
    }
    if (!norm->normed)
        return;
    const float scale = 1 / sqrtf(norm_sum(cta, squares) / (float)norm->columns + norm->eps);
    if (norm->rows) {
#pragma unroll
        for (uint32_t j = 0; j < NORM_WORDS; j++) {
            const uint32_t i = from + j * lanes + lane;
            norm_quantize(cta, norm, row, i,
                          i < words ? norm_scale_word(x[j], w[j], scale) : make_uint4(0, 0, 0, 0));
        }
        for (uint32_t i = lane; i < from; i += lanes)
            norm_quantize(cta, norm, row, i, norm_scale_word(sum[i], weight[i], scale));
        return;
    }
#pragma unroll
    for (uint32_t j = 0; j < NORM_WORDS; j++) {
        const uint32_t i = from + j * lanes + lane;
        if (i < words)
            c[i] = norm_scale_word(x[j], w[j], scale);
    }
    for (uint32_t i = lane; i < from; i += lanes) /* what this thread has stored */
        c[i] = norm_scale_word(sum[i], weight[i], scale);
}
