/* How a lane of the second engine comes to 16 bytes of a row: what mma.sync leaves in four lanes.
 */
#pragma once

#include "kernels/mma/mma.cuh"

/* The four lanes of a quad give each other words: of v[i], which each has, lane i gets all. */
PTX_FN void mma_exchange(uint32_t (&v)[4])
{
    const uint32_t lane = threadIdx.x;
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int low = bit == 1 ? j * 2 : j, high = low + bit;
            const bool upper = (lane & bit) != 0;
            const uint32_t got = __shfl_xor_sync(0xffffffff, upper ? v[low] : v[high], bit);
            v[low] = upper ? got : v[low];
            v[high] = upper ? v[high] : got;
        }
}
