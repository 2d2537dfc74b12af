/*
 * The Hopper tensor core instruction, wgmma: D (64 x N, fp32, registers) += A (64 x 16, bf16) times
 * B (16 x N, bf16), both f16, or of 32 of K of e4m3, A and B in shared memory and named by 64-bit
 * descriptors. PTX ISA 9.7.15 throughout.
 *
 * D's layout: lane l of warp w of the warpgroup holds in d[i] row 16 w + l / 4 + 8 ((i / 2) % 2),
 * column 8 (i / 4) + 2 (l % 4) + i % 2.
 */
#pragma once

#include "kernels/engine/ptx.cuh"
#include "kernels/hopper/wgmma_descriptor.cuh"

/* Before the first wgmma, and whenever ordinary code has touched the accumulators (9.7.15.7.1). */
PTX_FN void wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

PTX_FN void wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most `pending` committed groups are still running: the others have read their
 * shared memory and written their accumulators. */
template <int pending> PTX_FN void wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* The compiler doesn't know that wgmma_wait ends writes to d: no reading of d moves above this. And
 * before a wgmma_fence: what d is computed from stays above it. */
template <int count> PTX_FN void wgmma_settle(float (&d)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <int count> PTX_FN void wgmma_settle(uint32_t (&a)[count])
{
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}

#define WGMMA_D4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define WGMMA_D8(i) WGMMA_D4(i), WGMMA_D4((i) + 4)
#define WGMMA_D16(i) WGMMA_D8(i), WGMMA_D8((i) + 8)
#define WGMMA_D32(i) WGMMA_D16(i), WGMMA_D16((i) + 16)
#define WGMMA_D64(i) WGMMA_D32(i), WGMMA_D32((i) + 32)
#define WGMMA_R32                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_R40                                                                                  \
    WGMMA_R32                                                                                      \
    ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_R48                                                                                  \
    WGMMA_R40                                                                                      \
    ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_R64                                                                                  \
    WGMMA_R48                                                                                      \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_R72                                                                                  \
    WGMMA_R64                                                                                      \
    ", %64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_R80                                                                                  \
    WGMMA_R72                                                                                      \
    ", %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_R88                                                                                  \
    WGMMA_R80                                                                                      \
    ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_R96                                                                                  \
    WGMMA_R88                                                                                      \
    ", %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_R128                                                                                 \
    WGMMA_R96                                                                                      \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
    "%111, "                                                                                       \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"

/*
 * One asynchronous product of 64 x 16 and 16 x n. d is overwritten where `accumulate` is 0, else
 * added to. b_mn_major says that B's tile has N along its rows (the transpose bit). d, and what A
 * has in registers, must not be touched between this and a wgmma_wait that covers it.
 *
 *   wgmma_bf16             A in shared memory
 *   wgmma_f16              likewise
 *   wgmma_bf16_registers   A in registers: lane l of warp w holds row 16 w + l / 4 (a[0], a[2];
 *   eight rows on: a[1], a[3]),
 *                          columns 2 (l % 4) and the next (a[2], a[3]: eight columns on), the first
 *                          in the lower half. So a[r] packs d[8 k + 2 r] and the next of a product
 *                          before: its k-th 16 columns (9.7.15.5.1.1)
 *   wgmma_e4m3             64 x 32 and 32 x n of e4m3, both K-major (8-bit types have no transpose
 * bit). The sum is fixed point with 13 fractional bits at the largest term's exponent, cut toward
 * zero (sim/hopper/e4m3.c): who adds more than some hundred products takes it out in between
 *
 * c0 to c3, c4, c5 and c6 are the numbers of the operands that follow d's.
 */
#define WGMMA_PRODUCTS(count, n, names, outputs, c0, c1, c2, c3, c4, c5, c6)                       \
    template <int b_mn_major>                                                                      \
    PTX_FN void wgmma_bf16(float(&d)[count], uint64_t a, uint64_t b, uint32_t accumulate)          \
    {                                                                                              \
        asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #c2 ", 0;\n"                           \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names           \
                     "}, %" #c0 ", %" #c1 ", p, 1, 1, 0, %" #c3 ";\n}"                             \
                     : outputs                                                                     \
                     : "l"(a), "l"(b), "r"(accumulate), "n"(b_mn_major));                          \
    }                                                                                              \
    template <int b_mn_major>                                                                      \
    PTX_FN void wgmma_f16(float(&d)[count], uint64_t a, uint64_t b, uint32_t accumulate)           \
    {                                                                                              \
        asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #c2 ", 0;\n"                           \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" names "}, %" #c0  \
                     ", %" #c1 ", p, 1, 1, 0, %" #c3 ";\n}"                                        \
                     : outputs                                                                     \
                     : "l"(a), "l"(b), "r"(accumulate), "n"(b_mn_major));                          \
    }                                                                                              \
    template <int b_mn_major>                                                                      \
    PTX_FN void wgmma_bf16_registers(float(&d)[count], const uint32_t *a, uint64_t b,              \
                                     uint32_t accumulate)                                          \
    {                                                                                              \
        asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #c5 ", 0;\n"                           \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names           \
                     "}, {%" #c0 ", %" #c1 ", %" #c2 ", %" #c3 "}, %" #c4 ", p, 1, 1, %" #c6       \
                     ";\n}"                                                                        \
                     : outputs                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),        \
                       "n"(b_mn_major));                                                           \
    }                                                                                              \
    PTX_FN void wgmma_e4m3(float(&d)[count], uint64_t a, uint64_t b, uint32_t accumulate)          \
    {                                                                                              \
        asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #c2 ", 0;\n"                           \
                     " wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" names           \
                     "}, %" #c0 ", %" #c1 ", p, 1, 1;\n}"                                          \
                     : outputs                                                                     \
                     : "l"(a), "l"(b), "r"(accumulate));                                           \
    }

#define WGMMA_OUT32 WGMMA_D32(0)
#define WGMMA_OUT40 WGMMA_D32(0), WGMMA_D8(32)
#define WGMMA_OUT48 WGMMA_D32(0), WGMMA_D16(32)
#define WGMMA_OUT64 WGMMA_D64(0)
#define WGMMA_OUT72 WGMMA_D64(0), WGMMA_D8(64)
#define WGMMA_OUT80 WGMMA_D64(0), WGMMA_D16(64)
#define WGMMA_OUT88 WGMMA_D64(0), WGMMA_D16(64), WGMMA_D8(80)
#define WGMMA_OUT96 WGMMA_D64(0), WGMMA_D32(64)
#define WGMMA_OUT128 WGMMA_D64(0), WGMMA_D64(64)
WGMMA_PRODUCTS(32, 64, WGMMA_R32, WGMMA_OUT32, 32, 33, 34, 35, 36, 37, 38)
WGMMA_PRODUCTS(40, 80, WGMMA_R40, WGMMA_OUT40, 40, 41, 42, 43, 44, 45, 46)
WGMMA_PRODUCTS(48, 96, WGMMA_R48, WGMMA_OUT48, 48, 49, 50, 51, 52, 53, 54)
WGMMA_PRODUCTS(64, 128, WGMMA_R64, WGMMA_OUT64, 64, 65, 66, 67, 68, 69, 70)
WGMMA_PRODUCTS(72, 144, WGMMA_R72, WGMMA_OUT72, 72, 73, 74, 75, 76, 77, 78)
WGMMA_PRODUCTS(80, 160, WGMMA_R80, WGMMA_OUT80, 80, 81, 82, 83, 84, 85, 86)
WGMMA_PRODUCTS(88, 176, WGMMA_R88, WGMMA_OUT88, 88, 89, 90, 91, 92, 93, 94)
WGMMA_PRODUCTS(96, 192, WGMMA_R96, WGMMA_OUT96, 96, 97, 98, 99, 100, 101, 102)
WGMMA_PRODUCTS(128, 256, WGMMA_R128, WGMMA_OUT128, 128, 129, 130, 131, 132, 133, 134)
