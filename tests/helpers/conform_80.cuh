/* Conformance cases of what every GPU of compute capability 8.0 and up has: ldmatrix, mma.sync,
 * cp.async, mbarriers that count arrivals, shuffles, rounding. tests/gpu_conform.cu has them beside
 * those of Hopper, as its own device's code, and tests/engines/conform_80.cu as PTX of compute_80
 * alone, which a driver compiles for whatever GPU there is. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include <type_traits>

#include "kernels/mma/ring.cuh"

enum { THREADS = 128, IN_BYTES = 65536, OUT_BYTES = 65536, SHARED_BYTES = 81920 };

/* ---- kernels: 128 threads, `in` of small bf16 integers ---- */

PTX_FN uint32_t begin(uint8_t *memory, uint32_t bar)
{
    if (threadIdx.x == 0) {
        ptx_mbar_init(bar, 1);
        ptx_mbar_init_fence();
    }
    __syncthreads();
    return (ptx_shared(memory) + 1023) & ~1023u;
}

static_assert(!std::is_convertible<uint32_t, struct mbar_phase>::value,
              "a phase is made by kernels/engine/barrier_types.cuh, not from any number");

PTX_FN void wait(uint32_t bar, struct mbar_phase phase)
{
    while (!ptx_mbar_try(bar, phase))
        ;
}

PTX_SHARED(uint64_t, conform_barrier, 1);
PTX_SHARED(uint64_t, conform_ring_barriers, 4);
#define BARRIER ptx_shared(&conform_barrier[0])

PTX_FN void fill(uint32_t shared, const uint32_t *in, uint32_t bytes)
{
    for (uint32_t i = threadIdx.x; i < bytes / 4; i += THREADS)
        ptx_store_shared(shared + i * 4, in[i]);
    ptx_fence_async_shared();
    __syncthreads();
}

PTX_FN void dump(uint32_t *out, uint32_t shared, uint32_t bytes)
{
    for (uint32_t i = threadIdx.x; i < bytes / 4; i += THREADS)
        out[i] = ptx_load_shared(shared + i * 4);
}

/* Two groups of copies by threads, of 16 bytes, 8 and none each: the rest is zeros. */
static __global__ void conform_copy(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t shared = begin(memory, BARRIER), i = threadIdx.x;
    for (uint32_t group = 0; group < 2; group++) {
        for (uint32_t part = 0; part < 3; part++)
            ptx_copy_async_16(shared + ((group * 3 + part) * THREADS + i) * 16,
                              in + ((group * 3 + part) * THREADS + (i * 37 + group) % THREADS) * 4,
                              16 - part * 8);
        ptx_copy_async_commit();
    }
    ptx_copy_async_wait<1>();
    __syncthreads();
    dump(out, shared, 3 * THREADS * 16);
    ptx_copy_async_wait<0>();
    __syncthreads();
    dump(out + 3 * THREADS * 4, shared + 3 * THREADS * 16, 3 * THREADS * 16);
}

/* Five groups of copies, waited for one by one: the n-th wait says that the n-th is there. Of a
 * copy 0 to 16 bytes are brought, and zeros stand for the rest. */
static __global__ void conform_groups(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    const uint32_t shared = begin(memory, BARRIER), i = threadIdx.x;
    for (uint32_t group = 0; group < 5; group++) {
        ptx_copy_async_16(shared + (group * THREADS + i) * 16,
                          in + (group * THREADS + (i * 11 + group) % THREADS) * 4,
                          (i + group) % 5 * 4);
        if (group % 2) /* a group of two copies */
            ptx_copy_async_16(shared + ((5 + group / 2) * THREADS + i) * 16, in + (i ^ group) * 4,
                              16);
        ptx_copy_async_commit();
    }
#pragma unroll
    for (uint32_t group = 0; group < 5; group++) {
        if (group == 0)
            ptx_copy_async_wait<4>();
        else if (group == 1)
            ptx_copy_async_wait<3>();
        else if (group == 2)
            ptx_copy_async_wait<2>();
        else if (group == 3)
            ptx_copy_async_wait<1>();
        else
            ptx_copy_async_wait<0>();
        *(uint4 *)(out + (group * THREADS + i) * 4) =
            ptx_load_shared_4(shared + (group * THREADS + i) * 16);
        if (group % 2)
            *(uint4 *)(out + ((5 + group / 2) * THREADS + i) * 4) =
                ptx_load_shared_4(shared + ((5 + group / 2) * THREADS + i) * 16);
    }
}

/* ldmatrix from rows of 128 and of 64 bytes, swizzled as the engine has them. */
template <int transposed> static __global__ void conform_ldmatrix(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    const uint32_t shared = begin(memory, BARRIER), lane = threadIdx.x % 32,
                   row = threadIdx.x / 32 * 16 + lane % 16, half = lane / 16;
    uint32_t r[4];
    fill(shared, in, 8192);
#pragma unroll
    for (uint32_t k = 0; k < 6; k++) {
        const uint32_t at =
            k < 4 ? shared + row * 128 + ((k * 2 + half) * 16 ^ mma_swizzle<128>(row))
                  : shared + row * 64 + (((k - 4) * 2 + half) * 16 ^ mma_swizzle<64>(row));
        if (transposed)
            ptx_ldmatrix_x4_transposed(at, r);
        else
            ptx_ldmatrix_x4(at, r);
        for (int i = 0; i < 4; i++)
            out[(threadIdx.x * 6 + k) * 4 + i] = r[i];
    }
}

/* A barrier of as many arrivals as there are threads: whether a phase has completed when none has
 * come, half, all; arrivals by themselves and, every other phase, when a thread's copy has
 * landed. */
static __global__ void conform_arrivals(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    const uint32_t shared = begin(memory, BARRIER), bar = ptx_shared(&conform_ring_barriers[0]);
    if (threadIdx.x == 0)
        ptx_mbar_init(bar, THREADS);
    __syncthreads();
    for (uint32_t phase = 0; phase < 6; phase++) {
        uint32_t seen = 0;
        for (uint32_t part = 0; part < 2; part++) {
            seen = seen << 2 | ptx_mbar_test(bar, mbar_phase_of(phase)) << 1 |
                   (uint32_t)ptx_mbar_test(bar, mbar_phase_of(phase + 1));
            __syncthreads();
            if (threadIdx.x % 2 == part) {
                mma_copy_16(shared + (phase * THREADS + threadIdx.x) * 16,
                            in + (phase * THREADS + threadIdx.x * 5 % THREADS) * 4,
                            threadIdx.x % 5 * 4);
                if (phase % 2)
                    mma_copies_arrive(bar);
                else
                    ptx_mbar_arrive(bar);
            }
            __syncthreads();
        }
        while (!mma_mbar_try(bar, mbar_phase_of(phase)))
            ;
        seen = seen << 2 | ptx_mbar_test(bar, mbar_phase_of(phase)) << 1 |
               (uint32_t)ptx_mbar_test(bar, mbar_phase_of(phase + 1));
        out[(phase * THREADS + threadIdx.x) * 4] = seen;
        if (phase % 2) /* what another thread's copy has brought */
            out[(phase * THREADS + threadIdx.x) * 4 + 1] =
                ptx_load_shared(shared + (phase * THREADS + (threadIdx.x ^ 37)) * 16 + 4);
        __syncthreads();
    }
}

/* The numbers of shared memory, which fp16 has, too, as fp16: products of them are the same. */
static __device__ void turn_to_f16(uint32_t shared, uint32_t bytes)
{
    for (uint32_t i = threadIdx.x; i < bytes / 4; i += THREADS) {
        const uint32_t pair = ptx_load_shared(shared + i * 4);
        ptx_store_shared(shared + i * 4, ptx_pack_f16(__uint_as_float(pair << 16),
                                                      __uint_as_float(pair & 0xffff0000)));
    }
    ptx_fence_async_shared();
    __syncthreads();
}

/* The products of wgmma's (tests/gpu_conform.cu) 64 columns by ldmatrix and mma.sync, from the same
 * operands in the same places (rows of 128 bytes, swizzled): each thread holds the same sums. */
template <int b_mn_major, bool f16 = false>
static __global__ void conform_mma(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    const uint32_t shared = begin(memory, BARRIER), lane = threadIdx.x % 32,
                   row = threadIdx.x / 32 * 16 + lane % 16, column = lane / 16 * 8 + lane % 8;
    float d[32];
    uint32_t a[4], b[4];
    fill(shared, in, 65536);
    if (f16)
        turn_to_f16(shared, 65536);
    for (int i = 0; i < 32; i++)
        d[i] = (float)(int)(threadIdx.x + i) - 100;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        ptx_ldmatrix_x4(shared + row * 128 + ((k * 2 + lane / 16) * 16 ^ mma_swizzle<128>(row)), a);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (b_mn_major)
                ptx_ldmatrix_x4_transposed(shared + 8192 + (k * 16 + lane % 16) * 128 +
                                               ((n * 2 + lane / 16) * 16 ^ mma_swizzle<128>(lane)),
                                           b);
            else
                ptx_ldmatrix_x4(shared + 8192 + (n * 16 + column) * 128 +
                                    ((k * 2 + lane / 8 % 2) * 16 ^ mma_swizzle<128>(column)),
                                b);
            if constexpr (f16) {
                mma_f16(d + n * 8, a, b);
                mma_f16(d + n * 8 + 4, a, b + 2);
            } else {
                mma_bf16(d + n * 8, a, b);
                mma_bf16(d + n * 8 + 4, a, b + 2);
            }
        }
    }
    for (int i = 0; i < 32; i++)
        out[threadIdx.x * 32 + i] = __float_as_uint(d[i]);
}

/* A ring of two stages that a warp fills, a piece of 16 bytes, 8 or none a lane, and another reads:
 * five laps. */
static __global__ void conform_ring(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    const uint32_t shared = (ptx_shared(memory) + 1023) & ~1023u, lane = threadIdx.x % 32,
                   barriers = ptx_shared(&conform_ring_barriers[0]);
    struct pipeline_position at = {};
    const struct barrier_watch watch = {NULL, 2000000000};
    if (threadIdx.x == 0)
        ring_init<2>(barriers, 32, 1);
    __syncthreads();
    for (uint32_t lap = 0; threadIdx.x < 64 && lap < 10; lap++, pipeline_step<2>(&at)) {
        const uint32_t stage = shared + at.stage * 1024 + lane * 16;
        if (threadIdx.x < 32) {
            ring_wait_empty<2>(barriers, &at, &watch, lap, GPU_BARRIER_EMPTY);
            mma_copy_16(stage, in + (lap * 64 + lane * 7 % 32) * 4, 16);
            mma_copy_16(stage + 512, in + (lap * 64 + 32 + lane * 5 % 32) * 4, lane % 3 * 8);
            mma_copies_arrive(pipeline_full<2>(barriers, at.stage));
        } else {
            ring_wait_full<2>(barriers, &at, 3000000000);
            *(uint4 *)(out + (lap * 64 + lane) * 4) =
                ptx_load_shared_4(shared + at.stage * 1024 + (lane ^ 9) * 16);
            *(uint4 *)(out + (lap * 64 + 32 + lane) * 4) =
                ptx_load_shared_4(shared + at.stage * 1024 + 512 + (lane ^ 17) * 16);
            __syncwarp();
            if (lane == 0)
                ptx_mbar_arrive(pipeline_empty<2>(barriers, at.stage));
        }
    }
    if (threadIdx.x < 32)
        ring_drain<2>(barriers, &at, &watch, 10, GPU_BARRIER_EMPTY);
}

static __global__ void conform_warp(const uint32_t *in, uint32_t *out)
{
    uint32_t v = in[threadIdx.x], *to = out + threadIdx.x * 16, all = 0xffffffff;
    to[0] = __shfl_sync(all, v, threadIdx.x * 7 % 32);
    to[1] = __shfl_xor_sync(all, v, 5);
    to[2] = __shfl_up_sync(all, v, 3);
    to[3] = __shfl_down_sync(all, v, 9);
    to[4] = __shfl_sync(all, v, 3, 8);
    to[5] = __shfl_xor_sync(all, v, 12, 16);
    to[6] = __ballot_sync(all, v & 1);
    to[7] = __reduce_max_sync(all, v);
    to[8] = __reduce_min_sync(all, v);
    to[9] = __reduce_add_sync(all, v);
    to[10] = (uint32_t)__any_sync(all, v == in[3]) | (uint32_t)__all_sync(all, v > 1) << 1;
    to[11] = __match_any_sync(all, v & 3);
    to[12] = ptx_elect();
    to[13] = (uint32_t)__syncthreads_or(threadIdx.x == 77);
    to[14] = __popc(v);
    to[15] = __umulhi(v, v * 3);
}

/* Rounding to bf16: every exponent, halves, the largest, infinities, NaN, denormal numbers. */
static __global__ void conform_pack(uint32_t *out)
{
    for (uint32_t i = threadIdx.x; i < 16384; i += THREADS) {
        uint32_t low = (i << 18) | (i % 5 == 0   ? 0x8000
                                    : i % 5 == 1 ? 0x7fff
                                    : i % 5 == 2 ? 0x8001
                                    : i % 5 == 3 ? 0x18000
                                                 : i * 40503 % 65536);
        out[i] = ptx_pack_bf16(__uint_as_float(low), __uint_as_float(low ^ 0x80012345));
    }
}

/* The same to fp16, and of all codes the number. */
static __global__ void conform_pack_f16(uint32_t *out)
{
    for (uint32_t i = threadIdx.x; i < 16384; i += THREADS) {
        const uint32_t low = i << 18 | (i % 3 == 0   ? 0x1000
                                        : i % 3 == 1 ? 0xfff
                                                     : i * 40503 % 65536);
        uint32_t word = ptx_pack_f16(__uint_as_float(low), __uint_as_float(low ^ 0x80012345));
        for (uint32_t code = i * 4; code < i * 4 + 4; code += 2) {
            const uint32_t pair = code | (code + 1) << 16;
            const float x = ptx_low_f16(pair), y = ptx_high_f16(pair);
            word = word * 31 + (x == x ? __float_as_uint(x) : 1); /* of NaN not the bits */
            word = word * 31 + (y == y ? __float_as_uint(y) : 1);
        }
        out[i] = word;
    }
}

/* ---- cases ---- */

template <class... P, class... A>
static int launch(void (*kernel)(P...), uint32_t cluster, A... arguments)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(cluster);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = SHARED_BYTES;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1; /* an attribute that GPUs before Hopper refuse */
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES) !=
        cudaSuccess)
        return 1;
    return cudaLaunchKernelEx(&config, kernel, arguments...) != cudaSuccess;
}

#define CASES_80(X)                                                                                \
    X(warp, launch(conform_warp, 1, in, out))                                                      \
    X(pack, launch(conform_pack, 1, out))                                                          \
    X(copy_async, launch(conform_copy, 1, in, out))                                                \
    X(copy_groups, launch(conform_groups, 1, in, out))                                             \
    X(ldmatrix, launch(conform_ldmatrix<0>, 1, in, out))                                           \
    X(ldmatrix_transposed, launch(conform_ldmatrix<1>, 1, in, out))                                \
    X(arrivals, launch(conform_arrivals, 1, in, out))                                              \
    X(mma_64_nk, launch(conform_mma<0>, 1, in, out))                                               \
    X(mma_64_kn, launch(conform_mma<1>, 1, in, out))                                               \
    X(mma_64_f16_nk, launch(conform_mma<0, true>, 1, in, out))                                     \
    X(mma_64_f16_kn, launch(conform_mma<1, true>, 1, in, out))                                     \
    X(pack_f16, launch(conform_pack_f16, 1, out))                                                  \
    X(ring, launch(conform_ring, 1, in, out))

#define CONFORM_NAME(name, call) #name,
#define CONFORM_TRY(name, call)                                                                    \
    if (i++ == number)                                                                             \
        return call;
