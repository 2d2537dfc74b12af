/* The second body of every function of tests/helpers/conform_ptx.cuh: calls of the emulated machine. */
#pragma once

#include "kernels/hopper/wgmma.cuh"

PTX_CALL(void, ptx_tma_load_2d,
         (uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y, HOPPER_AT),
         hopper_load_box(dst, bar, 0, 0, map, x, y));
PTX_CALL(void, ptx_tma_load_5d,
         (uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y, int32_t z,
          int32_t w, int32_t v, HOPPER_AT),
         hopper_load_box(dst, bar, 0, 0, map, x, y, z, w, v));
PTX_CALL(void, ptx_tma_add_3d,
         (const CUtensorMap *map, uint32_t src, int32_t x, int32_t y, int32_t z, HOPPER_AT),
         hopper_store_box(src, HOPPER_ADD, map, x, y, z));
PTX_CALL(void, ptx_bulk_add_bf16, (void *dst, uint32_t src, uint32_t bytes, HOPPER_AT),
         hopper_bulk_store(dst, src, bytes, HOPPER_ADD, HOPPER_BF16));
PTX_CALL(void, ptx_bulk_add_f32, (void *dst, uint32_t src, uint32_t bytes, HOPPER_AT),
         hopper_bulk_store(dst, src, bytes, HOPPER_ADD, HOPPER_F32));
PTX_CALL(void, ptx_stmatrix_x4_transposed,
         (uint32_t dst, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3, HOPPER_AT),
         const uint32_t r[4] = {r0, r1, r2, r3};
         hopper_stmatrix(dst, r, 4, 1));

template <int count>
PTX_FN void wgmma_e4m3_registers(float (&d)[count], const uint32_t *a, uint64_t b,
                                 uint32_t accumulate, HOPPER_AT)
{
    HOPPER_HERE;
    const struct hopper_product p = {d, a, 0, b, 2 * count, accumulate, 0, 0, 1};
    hopper_wgmma(&p);
}
