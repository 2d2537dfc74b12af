/* What follows a product of the GEMM engine where e4m3 and scales of 1 x 128 are stored in place of
 * bf16: a warpgroup's 64 x 128 sums, which are a block of 64 rows. A row's lie in four lanes, 32 in
 * each. */
#pragma once

#include "kernels/hopper/gemm_promote.cuh"
#include "kernels/engine/quantize.cuh"

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
        const uint32_t at = box + r * 128 + lane % 2 * 8 + lane / 2 * 4;
        const float amax = quantize_quad(sum, low, lane % 2, [&](int j, uint32_t word) {
            ptx_store_shared(at + (j ^ (r % 8)) * 16, word);
        });
        if (lane == 0)
            scales[r] = quantize_scale(amax);
    }
}
