/* The arithmetic of mk_quantize (core/mkernel.h has the rule) on a GPU, for whoever has the numbers
 * of a block in registers. */
#pragma once

#include "core/base/quantize.h"
#include "kernels/engine/ptx.cuh"

/* The larger of amax and |v|, where that is finite. */
PTX_FN float quantize_larger(float amax, float v)
{
    v = fabsf(v);
    return fmaxf(amax, v < INFINITY ? v : 0); /* no NaN is */
}

/* Of `lanes` lanes that follow each other, to all of them. */
PTX_FN float quantize_largest_of(float amax, int lanes)
{
    for (int to = lanes / 2; to; to /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffff, amax, to));
    return amax;
}

/* What the lowest 8 bits say. An fp32 whose exponent they begin is 2^-120 of it, subnormal numbers
 * too. */
PTX_FN float quantize_decode(uint32_t code)
{
    const uint32_t size = code & 0x7f;
    const float v = __uint_as_float(size << 20 | (code & 0x80) << 24) * 0x1p120f;
    return size == 0x7f ? NAN : v;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 890
/* GPUs before 8.9 have no such instruction. */
PTX_FN uint32_t ptx_pack_e4m3(float low, float high)
{
    return mk_e4m3_from_float(low) | mk_e4m3_from_float(high) << 8;
}
#endif

/* Two codes, of `low` in the lower byte; up: quantize_up(amax). v * up + v * 0 is v * up, but NaN
 * where v is not finite. */
PTX_FN uint32_t quantize_pair(float low, float high, float up)
{
    return ptx_pack_e4m3(fmaf(low, up, low * 0.0f), fmaf(high, up, high * 0.0f));
}

/* A row of 128 numbers that lie as mma.sync and wgmma leave them in four lanes, 32 in each: of sum[0 ..
 * 63] those of the row itself (low 0) or of that 8 further on (low 2). store(j, word) for j = 0 .. 7:
 * codes of 4 of columns 16 j to 16 j + 15, from 8 (l % 2) + 4 (l / 2) on of lane l. odd: of
 * a lane with an odd number. Returns the row's amax. All lanes of a warp. */
template <class function>
PTX_FN float quantize_quad(const float *sum, int low, bool odd, const function &store)
{
    float amax = 0;
#pragma unroll
    for (int j = 0; j < 32; j++)
        amax = quantize_larger(amax, sum[j / 2 * 4 + low + j % 2]);
    amax = quantize_largest_of(amax, 4);
    const float up = quantize_up(amax);
    /* Of 16 columns a lane has two codes in each half: of the first half's four the lower of two
     * lanes makes a word, of the second's the upper. */
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float *d = sum + j * 8 + low;
        const uint32_t first = quantize_pair(d[0], d[1], up),
                       second = quantize_pair(d[4], d[5], up),
                       other = __shfl_xor_sync(0xffffffff, odd ? first : second, 1);
        store(j, odd ? other | second << 16 : first | other << 16);
    }
    return amax;
}
