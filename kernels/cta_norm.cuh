/* core/cta_norm.h on a GPU: a warp's row, 16 bytes of each lane at a time. The row is read twice,
 * the second time what the same lane has stored, which is still in a cache. */
#ifndef MK_KERNELS_CTA_NORM_CUH
#define MK_KERNELS_CTA_NORM_CUH

#include "core/cta_norm.h"

#include "kernels/cta.cuh"

/* Of two bf16 in a word: the first, the second. */
PTX_FN float norm_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

PTX_FN float norm_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000);
}

/* Two elements of C + residual, as they are stored; adds their squares. */
PTX_FN uint32_t norm_add(uint32_t c, uint32_t residual, float *squares)
{
    const uint32_t sum =
        ptx_pack_bf16(norm_low(c) + norm_low(residual), norm_high(c) + norm_high(residual));
    *squares = fmaf(norm_low(sum), norm_low(sum), *squares);
    *squares = fmaf(norm_high(sum), norm_high(sum), *squares);
    return sum;
}

PTX_FN uint32_t norm_scale(uint32_t sum, uint32_t weight, float scale)
{
    return ptx_pack_bf16(norm_low(sum) * scale * norm_low(weight),
                         norm_high(sum) * scale * norm_high(weight));
}

/* lanes: a warp's. */
PTX_FN void mk_cta_norm(struct mk_cta *cta, const struct mk_norm *norm, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32, words = norm->columns / 8;
    const uint64_t first = (uint64_t)row * norm->columns * 2;
    const struct gpu_launch *launch = cta->launch;
    uint4 *c = (uint4 *)(launch->arguments[norm->c] + first),
          *sum = norm->normed ? (uint4 *)(launch->arguments[norm->sum] + first) : c;
    const uint4 *residual = (const uint4 *)(launch->arguments[norm->residual] + first);
    float squares = 0;
#pragma unroll 2
    for (uint32_t i = lane; i < words; i += 32) {
        const uint4 x = c[i], y = residual[i];
        uint4 s;
        s.x = norm_add(x.x, y.x, &squares);
        s.y = norm_add(x.y, y.y, &squares);
        s.z = norm_add(x.z, y.z, &squares);
        s.w = norm_add(x.w, y.w, &squares);
        sum[i] = s;
    }
    if (!norm->normed)
        return;
#pragma unroll
    for (int other = 16; other; other /= 2)
        squares += __shfl_sync(0xffffffff, squares, lane ^ other);
    const float scale = 1 / sqrtf(squares / (float)norm->columns + norm->eps);
    const uint4 *weight = (const uint4 *)launch->arguments[norm->weight];
#pragma unroll 2
    for (uint32_t i = lane; i < words; i += 32) {
        const uint4 s = sum[i], w = weight[i];
        uint4 n;
        n.x = norm_scale(s.x, w.x, scale);
        n.y = norm_scale(s.y, w.y, scale);
        n.z = norm_scale(s.z, w.z, scale);
        n.w = norm_scale(s.w, w.w, scale);
        c[i] = n;
    }
}

#endif
