/* PTX that no kernel calls, and on which hardware and the emulation agree all the same
 * (tests/gpu_conform.cu): wrappers as kernels/engine/ptx.cuh and kernels/hopper/wgmma.cuh have them. */
#pragma once

#include "kernels/hopper/wgmma.cuh"

/* Boxes of tensors of 2 and of 5 dimensions. */
PTX_FN void ptx_tma_load_2d(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x,
                            int32_t y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y)
                 : "memory");
}

PTX_FN void ptx_tma_load_5d(uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x,
                            int32_t y, int32_t z, int32_t w, int32_t v)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v)
                 : "memory");
}

/* Adds the part of the box that lies inside the tensor to what is there, element by element, in the
 * tensor's type and in no order. Belongs to this thread's next bulk group. */
PTX_FN void ptx_tma_add_3d(const CUtensorMap *map, uint32_t src, int32_t x, int32_t y, int32_t z)
{
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, "
                 "%3, %4}], [%1];" ::"l"(map),
                 "r"(src), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

/* The same for a run of bytes: 16-byte aligned, a multiple of 16. */
PTX_FN void ptx_bulk_add_bf16(void *dst, uint32_t src, uint32_t bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(
            dst),
        "r"(src), "r"(bytes)
        : "memory");
}

PTX_FN void ptx_bulk_add_f32(void *dst, uint32_t src, uint32_t bytes)
{
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(dst),
        "r"(src), "r"(bytes)
        : "memory");
}

/* As ptx_stmatrix_x4, with each matrix transposed: register m holds two neighbours of column l / 4. */
PTX_FN void ptx_stmatrix_x4_transposed(uint32_t dst, uint32_t r0, uint32_t r1, uint32_t r2,
                                       uint32_t r3)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(dst),
        "r"(r0), "r"(r1), "r"(r2), "r"(r3)
        : "memory");
}

/* Products of 64 x 32 and 32 x 64 of e4m3. A in registers: lane l of warp w holds four neighbours of
 * row 16 w + l / 4 (a[0], a[2]; eight rows on: a[1], a[3]) from column 4 (l % 4) on (a[2], a[3]: sixteen
 * columns on), the first in the lowest byte. */
PTX_FN void wgmma_e4m3_registers(float (&d)[32], const uint32_t *a, uint64_t b, uint32_t accumulate)
{
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %37, 0;\n"
                 " wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" WGMMA_R32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
                 : WGMMA_OUT32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
