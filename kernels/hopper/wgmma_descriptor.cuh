/* Descriptors of matrices in shared memory, for wgmma.cuh: arithmetic alone, the same on a GPU and
 * on the emulated one. */
#pragma once

#include "kernels/engine/ptx.cuh"

/*
 * Descriptor of a tile in shared memory that a TMA load wrote with the 128-byte swizzle, 1024-byte
 * aligned (9.7.15.5.1).
 *
 * K-major (a row of 64 K elements is 128 bytes): groups of 8 rows lie 1024 bytes apart (the
 * "stride"); the "leading" offset is ignored. The next 16 K elements are 32 bytes on. MN-major (a
 * row is 64 elements along N, one row for each K): groups of 8 K lie 1024 bytes apart (the stride),
 * the next 64 elements along N `leading` bytes on. The next 16 K elements are 2048 bytes on.
 */
PTX_FN uint64_t wgmma_descriptor(uint32_t tile, uint32_t leading)
{
    return (uint64_t)((tile & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The descriptor `bytes` further on. (The address field does not overflow: shared memory ends below
 * 256 KB.) */
PTX_FN uint64_t wgmma_advance(uint64_t descriptor, uint32_t bytes)
{
    return descriptor + (bytes >> 4);
}
