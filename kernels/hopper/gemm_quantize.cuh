/* What follows a product of the GEMM engine where e4m3 and scales of 1 x 128 are stored in place of
 * bf16: a warpgroup's 64 x 128 sums, which are a block of 64 rows. A row's lie in four lanes, 32 in
 * each. */
#ifndef MK_KERNELS_GEMM_QUANTIZE_CUH
#define MK_KERNELS_GEMM_QUANTIZE_CUH

#include "kernels/hopper/gemm_promote.cuh"
#include "kernels/quantize.cuh"

/* Codes of sum[0 .. 63] to a box of 64 rows x 128 in shared memory, with the 128-byte swizzle, and
 * scales[row] of its rows. All threads of a consumer warpgroup. */
PTX_FN void gemm_quantize_box(const float *sum, uint32_t box, float *scales)
{
    /* nothing that derives from the lane is kept from tile to tile */
    const uint32_t thread = ptx_opaque(threadIdx.x) % 128, lane = thread % 4,
                   row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int low = 0; low < 4; low += 2) { /* of the row, and of that 8 further on */
        const uint32_t r = row + low * 4;
        float amax = 0;
#pragma unroll
        for (int j = 0; j < 32; j++)
            amax = quantize_larger(amax, sum[j / 2 * 4 + low + j % 2]);
        amax = quantize_largest_of(amax, 4);
        const float up = quantize_up(amax);
        const bool odd = lane % 2;
        const uint32_t at = box + r * 128 + lane % 2 * 8 + lane / 2 * 4;
        /* Of 16 columns a lane has two codes in each half: of the first half's four the lower of two
         * lanes makes a word, of the second's the upper. */
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float *d = sum + j * 8 + low;
            const uint32_t first = quantize_pair(d[0], d[1], up),
                           second = quantize_pair(d[4], d[5], up),
                           other = __shfl_xor_sync(0xffffffff, odd ? first : second, 1);
            ptx_store_shared(at + (j ^ (r % 8)) * 16,
                             odd ? other | second << 16 : first | other << 16);
        }
        if (lane == 0)
            scales[r] = quantize_scale(amax);
    }
}

#endif
