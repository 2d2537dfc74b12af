/* Sums over the threads of a block. */
#pragma once

#include "kernels/engine/ptx.cuh"

enum { BLOCK_SCAN_WORDS = 33 };

/* The sum of `value` over the lanes before this one. All lanes of the warp call. */
PTX_FN uint32_t warp_scan(uint32_t value)
{
    uint32_t lane = threadIdx.x % 32, sum = value;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
        uint32_t other = __shfl_up_sync(0xffffffff, sum, step);
        if (lane >= step)
            sum += other;
    }
    return sum - value;
}

/* The same over all threads before this one, which are a multiple of 32 and at most 1024; *all: of
 * all of them. `words`: BLOCK_SCAN_WORDS of shared memory, the caller's again after the block's
 * next barrier. */
PTX_FN uint32_t block_scan(uint32_t value, uint32_t threads, uint32_t *words, uint32_t *all)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, before = warp_scan(value);
    if (lane == 31)
        words[warp] = before + value;
    __syncthreads();
    if (warp == 0) {
        uint32_t sum = lane < threads / 32 ? words[lane] : 0, first = warp_scan(sum);
        words[lane] = first;
        if (lane == 31)
            words[32] = first + sum;
    }
    __syncthreads();
    *all = words[32];
    return words[warp] + before;
}

/* The last of `count` ascending begins (the first is 0) that is not behind `at`. */
PTX_FN uint32_t block_find(const uint32_t *begins, uint32_t count, uint32_t at)
{
    uint32_t low = 0, high = count;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (begins[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}
