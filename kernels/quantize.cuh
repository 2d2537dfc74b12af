/* The arithmetic of mk_quantize (core/mkernel.h has the rule) on a GPU, for whoever has the numbers
 * of a block in registers. */
#ifndef MK_KERNELS_QUANTIZE_CUH
#define MK_KERNELS_QUANTIZE_CUH

#include "core/quantize.h"
#include "kernels/ptx.cuh"

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

/* Two codes, of `low` in the lower byte; up: quantize_up(amax). v * up + v * 0 is v * up, but NaN
 * where v is not finite. */
PTX_FN uint32_t quantize_pair(float low, float high, float up)
{
    return ptx_pack_e4m3(fmaf(low, up, low * 0.0f), fmaf(high, up, high * 0.0f));
}

#endif
