/*
 * The PTX instructions of every GPU of compute capability 8.0 and up that the second engine uses
 * and kernels/engine/ptx.cuh has not, one function each, with its contract. Of ptx.cuh itself this engine
 * takes what such GPUs have too: mbarriers without bytes, ldmatrix, packing, ordered accesses.
 */
#pragma once

#include "kernels/engine/barrier.cuh"

/* D += A B for a warp: A 16 x 16, B 16 x 8, bf16; D 16 x 8, fp32. Lane l = 4 g + q holds of D rows
 * g and g + 8, columns 2 q and 2 q + 1 (d[0], d[1]; d[2], d[3]); of A two neighbours along K in a
 * register: row g, K 2 q; row g + 8; then both at K + 8; of B column g, K 2 q; then K + 8 (PTX ISA
 * 9.7.14.5.8, mma.m16n8k16). Four warps' D lie as a warpgroup's D of wgmma. */
PTX_FN void mma_bf16(float *d, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The same of fp16. */
PTX_FN void mma_f16(float *d, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The same of e4m3, 32 of K: four neighbours along K in a register, from K 4 q and 16 + 4 q on. Of
 * compute capability 8.9 and up; the tensor core's sum has 14 bits there, all of fp32 on 9.0 and
 * 12.0 (9.7.14.5.10, mma.m16n8k32). */
PTX_FN void mma_e4m3(float *d, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* A number of global memory from L2, as ptx_load_16_l2. */
PTX_FN float mma_load_l2(const float *src)
{
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(src) : "memory");
    return v;
}

/* As ptx_copy_async_16, and L2 fetches the 128 bytes around. Through L2, so that it finds what
 * peers have written. */
PTX_FN void mma_copy_16(uint32_t dst, const void *src, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(bytes)
                 : "memory");
}

/* This thread's arrival at the barrier, one of those that it was initialised for, comes when all
 * its copies so far have landed; the thread goes on (9.7.13.15.14, cp.async.mbarrier.arrive). */
PTX_FN void mma_copies_arrive(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}

/* True when the phase has completed. (The wait that suspends a thread came with
 * Hopper.) */
PTX_FN bool mma_mbar_try(uint32_t bar, struct mbar_phase phase)
{
    return ptx_mbar_test(bar, phase);
}

/* at ^= bits, done where it stands: a sum that is worked out ahead keeps a register. */
template <uint32_t bits> PTX_FN void mma_turn(uint32_t *at)
{
    asm volatile("xor.b32 %0, %0, %1;" : "+r"(*at) : "n"(bits));
}
