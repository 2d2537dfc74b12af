/* Descriptors (tensor maps) of bf16 or other 16-bit and 8-bit tensors in global memory for the TMA unit. Host only.
 */
#pragma once

#include <cuda.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Describes `base` as extent[2] slabs of extent[1] rows of extent[0] elements, neighbouring rows
 * row_stride elements apart, slabs slab_stride elements apart; a load or store moves box[0] x
 * box[1] elements of one slab. What lies outside the extents is read as zeros and not written.
 * Shared memory has the 128-byte swizzle: box[0] is at most 64.
 *
 * base: device memory, 16-byte aligned. row_stride and slab_stride: multiples of 8. box[1]: at most
 * 256. Any thread; does not block; needs a current CUDA context's driver, not the context. Returns
 * 0, -EINVAL where the driver refuses the description, -ENOSYS where there is no driver that knows
 * tensor maps. Source: CUDA driver API, cuTensorMapEncodeTiled.
 */
int tensormap_bf16(CUtensorMap *map, const void *base, const uint64_t extent[3],
                   uint64_t row_stride, uint64_t slab_stride, const uint32_t box[2]);

/* The same for elements of a byte: box[0] is at most 128, strides are multiples of 16. */
int tensormap_bytes(CUtensorMap *map, const void *base, const uint64_t extent[3],
                    uint64_t row_stride, uint64_t slab_stride, const uint32_t box[2]);

/*
 * The same for the heads of attention, bf16: extent[3] slabs of extent[2] rows of extent[1] heads
 * of extent[0] elements. stride, in elements: from a head to the next, from a row, from a slab. A
 * load or store moves 64 elements of one head in box_rows rows of one slab; where a head ends
 * before the 64 do, zeros stand for the rest.
 */
int tensormap_heads(CUtensorMap *map, const void *base, const uint64_t extent[4],
                    const uint64_t stride[3], uint32_t box_rows);

#ifdef __cplusplus
}
#endif
