/* Conformance: one small kernel for each primitive of kernels/ptx.cuh and kernels/hopper/wgmma.cuh,
 * with inputs that are the same everywhere. A case's result is a hash of all that it has written.
 * tests/golden/hopper_conformance.txt has the hashes that the emulated Hopper gives
 * (tests/test_hopper_conform.c, which has this file compiled for it); `check` on a GPU says whether
 * hardware gives the same.
 *
 *     gpu_conform print          every case and its hash
 *     gpu_conform check FILE     compares; exit status 0: all equal, 1: not, 77: no GPU here
 *
 * Each case runs in a process of its own (`gpu_conform case NUMBER`). */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/mma/ring.cuh"
#include "kernels/hopper/wgmma.cuh"

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

PTX_FN void wait(uint32_t bar, uint32_t parity)
{
    while (!ptx_mbar_try(bar, parity))
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

struct place {
    int32_t x, y, z, w, v;
    uint32_t offset, bytes;
};

template <int rank>
__global__ void conform_load(const __grid_constant__ CUtensorMap map, struct place at,
                             uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t to = begin(memory, BARRIER) + at.offset;
    if (threadIdx.x == 0) {
        ptx_mbar_expect(BARRIER, at.bytes);
        if (rank == 2)
            ptx_tma_load_2d(to, &map, BARRIER, at.x, at.y);
        else if (rank == 3)
            ptx_tma_load_3d(to, &map, BARRIER, at.x, at.y, at.z);
        else if (rank == 4)
            ptx_tma_load_4d(to, &map, BARRIER, at.x, at.y, at.z, at.w);
        else
            ptx_tma_load_5d(to, &map, BARRIER, at.x, at.y, at.z, at.w, at.v);
    }
    wait(BARRIER, 0);
    dump(out, to, at.bytes);
}

/* mode 0: store, 1: add. */
template <int mode>
__global__ void conform_store(const __grid_constant__ CUtensorMap map, struct place at,
                              const uint32_t *in)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t from = begin(memory, BARRIER) + at.offset;
    fill(from, in, at.bytes);
    if (threadIdx.x == 0) {
        if (mode)
            ptx_tma_add_3d(&map, from, at.x, at.y, at.z);
        else
            ptx_tma_store_3d(&map, from, at.x, at.y, at.z);
        ptx_bulk_commit();
        ptx_bulk_wait_all();
    }
}

/* mode 0: there and back; 1, 2: added as bf16, as fp32. */
template <int mode> __global__ void conform_bulk(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t shared = begin(memory, BARRIER);
    if (threadIdx.x == 0) {
        ptx_mbar_expect(BARRIER, 4096);
        ptx_bulk_load(shared, in + 64, 2048, BARRIER);
        ptx_bulk_load(shared + 2048, in + 1024, 2048, BARRIER);
        wait(BARRIER, 0);
        if (mode == 0)
            ptx_bulk_store(out + 4, shared, 4096);
        else if (mode == 1)
            ptx_bulk_add_bf16(out + 4, shared, 4096);
        else
            ptx_bulk_add_f32(out + 4, shared, 4096);
        ptx_bulk_commit();
        ptx_bulk_wait_all();
    }
}

__global__ void conform_multicast(const __grid_constant__ CUtensorMap map, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t shared = begin(memory, BARRIER), rank = ptx_cluster_rank();
    ptx_cluster_sync();
    if (threadIdx.x == 0) {
        ptx_mbar_expect(BARRIER, 2 * 64 * 128);
        ptx_tma_load_3d_cluster(shared + rank * 64 * 128, &map, BARRIER, 8, (int32_t)rank * 40 - 8,
                                0, 3);
    }
    wait(BARRIER, 0);
    dump(out + rank * 4096, shared, 2 * 64 * 128);
    ptx_cluster_sync();
}

/* Two groups of copies by threads, of 16 bytes, 8 and none each: the rest is zeros. */
__global__ void conform_copy(const uint32_t *in, uint32_t *out)
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

/* One product of each of `steps` steps of K. */
struct layout {
    uint32_t code, a_leading, a_stride, b_leading, b_stride, a_step, b_step, steps;
};

PTX_FN uint64_t describe(uint32_t at, uint32_t leading, uint32_t stride, uint32_t code)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)code << 62;
}

template <int n, int b_mn_major, bool registers>
__global__ void conform_wgmma(const uint32_t *in, struct layout l, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t shared = begin(memory, BARRIER);
    float d[n / 2];
    uint32_t a[4][4];
    fill(shared, in, 65536);
    for (int i = 0; i < n / 2; i++)
        d[i] = (float)(int)(threadIdx.x + i) - 100;
    for (int i = 0; i < 16; i++)
        a[i / 4][i % 4] = in[threadIdx.x * 16 + i];
    wgmma_settle(d);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (k >= (int)l.steps)
            break;
        uint64_t b = describe(shared + 8192 + k * l.b_step, l.b_leading, l.b_stride, l.code);
        if (registers)
            wgmma_bf16_registers<b_mn_major>(d, a[k], b, 1);
        else
            wgmma_bf16<b_mn_major>(
                d, describe(shared + k * l.a_step, l.a_leading, l.a_stride, l.code), b, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(d);
    for (int i = 0; i < n / 2; i++)
        out[threadIdx.x * (n / 2) + i] = __float_as_uint(d[i]);
}

/* Four products of e4m3 on what was there before. mode 0: all codes but NaN, and sums of any size;
 * 1: the largest exponents on one side only, so that what is cut off differs by column; 2: small
 * numbers, subnormal ones among them; 3: NaN in some. */
template <int n, bool registers>
__global__ void conform_e4m3(const uint32_t *in, uint32_t mode, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t shared = begin(memory, BARRIER), a[4][4];
    float d[n / 2];
    for (uint32_t i = threadIdx.x; i < 65536 / 4; i += THREADS) {
        uint32_t word = in[i] ^ i * 0x9e3779b9u, packed = 0;
        word ^= word >> 15;
        word *= 0x2c1b3c6du;
        word ^= word >> 12;
        for (uint32_t b = 0; b < 4; b++) {
            uint32_t code = word >> 8 * b & 255;
            if (mode == 1)
                code = i < 2048 ? code & 0xbf : code | (i & 1 ? 0x40 : 0);
            if (mode == 2)
                code &= 0x8f;
            if ((code & 0x7f) == 0x7f && (mode != 3 || i % 61))
                code ^= 0x11;
            packed |= code << 8 * b;
        }
        ptx_store_shared(shared + i * 4, packed);
    }
    ptx_fence_async_shared();
    __syncthreads();
    for (int i = 0; i < n / 2; i++) {
        uint32_t r = (threadIdx.x * 131 + i) * 0x9e3779b9u;
        uint32_t exponent = mode == 2 ? 112 + (r >> 9) % 16 : 117 + (r >> 9) % 24;
        d[i] = r % 5 == 0 ? 0 : __uint_as_float((r << 31) | exponent << 23 | (r & 0x7fffff));
    }
    for (int i = 0; i < 16; i++)
        a[i / 4][i % 4] = ptx_load_shared(shared + (threadIdx.x * 16 + i) * 4);
    wgmma_settle(d);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint64_t b = describe(shared + 8192 + k * 32, 0, 1024, 1);
        if (registers)
            wgmma_e4m3_registers(d, a[k], b, 1);
        else
            wgmma_e4m3(d, describe(shared + k * 32, 0, 1024, 1), b, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(d);
    for (int i = 0; i < n / 2; i++)
        out[threadIdx.x * (n / 2) + i] = __float_as_uint(d[i]);
}

/* The products of conform_wgmma's 64 columns by ldmatrix and mma.sync, from the same operands in
 * the same places (rows of 128 bytes, swizzled): each thread holds the same sums. */
template <int b_mn_major> __global__ void conform_mma(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    const uint32_t shared = begin(memory, BARRIER), lane = threadIdx.x % 32,
                   row = threadIdx.x / 32 * 16 + lane % 16, column = lane / 16 * 8 + lane % 8;
    float d[32];
    uint32_t a[4], b[4];
    fill(shared, in, 65536);
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
            mma_bf16(d + n * 8, a, b);
            mma_bf16(d + n * 8 + 4, a, b + 2);
        }
    }
    for (int i = 0; i < 32; i++)
        out[threadIdx.x * 32 + i] = __float_as_uint(d[i]);
}

/* A ring of two stages that a warp fills, a piece of 16 bytes, 8 or none a lane, and another reads:
 * five laps. */
__global__ void conform_ring(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    const uint32_t shared = (ptx_shared(memory) + 1023) & ~1023u, lane = threadIdx.x % 32,
                   barriers = ptx_shared(&conform_ring_barriers[0]);
    struct pipeline_position at = {0, 0};
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

/* stmatrix, then ldmatrix, plain and transposed. */
__global__ void conform_matrix(const uint32_t *in, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t shared = begin(memory, BARRIER), lane = threadIdx.x % 32, r[4];
    uint32_t at = shared + threadIdx.x / 32 * 2048 + (lane % 16) * 64 + lane / 16 * 16;
    const uint32_t *v = in + threadIdx.x * 4;
    ptx_stmatrix_x4(at, v[0], v[1], v[2], v[3]);
    ptx_stmatrix_x4_transposed(at + 1024, v[0], v[1], v[2], v[3]);
    __syncwarp();
    ptx_ldmatrix_x4(at, r);
    for (int i = 0; i < 4; i++)
        out[threadIdx.x * 16 + i] = r[i];
    ptx_ldmatrix_x4_transposed(at, r);
    for (int i = 0; i < 4; i++)
        out[threadIdx.x * 16 + 4 + i] = r[i];
    ptx_ldmatrix_x4(at + 1024, r);
    for (int i = 0; i < 4; i++)
        out[threadIdx.x * 16 + 8 + i] = r[i];
    ptx_ldmatrix_x4_transposed(at + 1024, r);
    for (int i = 0; i < 4; i++)
        out[threadIdx.x * 16 + 12 + i] = r[i];
}

__global__ void conform_warp(const uint32_t *in, uint32_t *out)
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
__global__ void conform_pack(uint32_t *out)
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

/* ---- cases ---- */

typedef CUresult (*encode_tiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                 const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                 const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* A dense tensor but for a gap of 16 bytes behind each row. */
static int encode(CUtensorMap *map, CUtensorMapDataType type, uint32_t element, uint32_t rank,
                  const void *base, const uint64_t *sizes, const uint32_t *box,
                  CUtensorMapSwizzle swizzle)
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &found) != cudaSuccess)
        return 1;
    cuuint64_t extents[5], strides[5];
    cuuint32_t boxes[5], steps[5];
    for (uint32_t i = 0; i < rank; i++) {
        extents[i] = sizes[i];
        boxes[i] = box[i];
        steps[i] = 1;
        strides[i] = i ? strides[i - 1] * sizes[i] : (sizes[0] * element + 31) / 16 * 16;
    }
    return ((encode_tiled)function)(map, type, rank, (void *)base, extents, strides, boxes, steps,
                                    CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                    CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS;
}

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
    config.numAttrs = 1;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES) !=
        cudaSuccess)
        return 1;
    return cudaLaunchKernelEx(&config, kernel, arguments...) != cudaSuccess;
}

static int load_case(const uint32_t *in, uint32_t *out, uint32_t rank, CUtensorMapSwizzle swizzle,
                     uint32_t inner, struct place at)
{
    static const uint64_t sizes[5] = {40, 13, 5, 3, 2};
    const uint32_t flat[5] = {inner, 32, 1, 1, 1}, deep[5] = {inner, 4, 2, 2, 2};
    CUtensorMap map;
    const uint32_t *box = rank > 3 ? deep : flat;
    at.bytes = inner * 2;
    for (uint32_t i = 1; i < rank; i++)
        at.bytes *= box[i];
    if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, rank, in, sizes, box, swizzle))
        return 1;
    return rank == 2   ? launch(conform_load<2>, 1, map, at, out)
           : rank == 3 ? launch(conform_load<3>, 1, map, at, out)
           : rank == 4 ? launch(conform_load<4>, 1, map, at, out)
                       : launch(conform_load<5>, 1, map, at, out);
}

static int store_case(const uint32_t *in, uint32_t *out, int add, int fp32,
                      CUtensorMapSwizzle swizzle, struct place at)
{
    static const uint64_t sizes[3] = {40, 13, 5};
    uint32_t inner = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                     : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                            : 32;
    const uint32_t box[3] = {inner / (fp32 ? 4 : 2), 16, 1};
    CUtensorMap map;
    at.bytes = inner * 16;
    if (encode(&map, fp32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
               fp32 ? 4 : 2, 3, out, sizes, box, swizzle))
        return 1;
    return add ? launch(conform_store<1>, 1, map, at, in)
               : launch(conform_store<0>, 1, map, at, in);
}

static int multicast_case(const uint32_t *in, uint32_t *out)
{
    static const uint64_t sizes[3] = {100, 60, 2};
    static const uint32_t box[3] = {64, 64, 1};
    CUtensorMap map;
    if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, 3, in, sizes, box,
               CU_TENSOR_MAP_SWIZZLE_128B))
        return 1;
    return launch(conform_multicast, 2, map, out);
}

#define SWIZZLE(bits) CU_TENSOR_MAP_SWIZZLE_##bits
#define CASES(X)                                                                                   \
    X(load_3d_128b, load_case(in, out, 3, SWIZZLE(128B), 64, {0, 0, 0}))                           \
    X(load_3d_128b_outside, load_case(in, out, 3, SWIZZLE(128B), 64, {8, -3, 4}))                  \
    X(load_3d_128b_left_of_it, load_case(in, out, 3, SWIZZLE(128B), 64, {-24, 7, 1}))              \
    X(load_3d_128b_at_512, load_case(in, out, 3, SWIZZLE(128B), 64, {0, 0, 2, 0, 0, 512}))         \
    X(load_3d_64b, load_case(in, out, 3, SWIZZLE(64B), 32, {16, -1, 1}))                           \
    X(load_3d_64b_at_256, load_case(in, out, 3, SWIZZLE(64B), 32, {0, 2, 1, 0, 0, 256}))           \
    X(load_3d_32b, load_case(in, out, 3, SWIZZLE(32B), 16, {8, 3, 3}))                             \
    X(load_3d_plain, load_case(in, out, 3, SWIZZLE(NONE), 24, {24, 5, 4}))                         \
    X(load_3d_wholly_outside, load_case(in, out, 3, SWIZZLE(128B), 64, {0, 0, 9}))                 \
    X(load_2d, load_case(in, out, 2, SWIZZLE(128B), 64, {-8, -2}))                                 \
    X(load_4d, load_case(in, out, 4, SWIZZLE(128B), 64, {8, 11, 4, 2}))                            \
    X(load_5d, load_case(in, out, 5, SWIZZLE(64B), 32, {8, -1, 3, 2, 1}))                          \
    X(store_128b, store_case(in, out, 0, 0, SWIZZLE(128B), {8, 4, 2}))                             \
    X(store_64b, store_case(in, out, 0, 0, SWIZZLE(64B), {24, 5, 0}))                              \
    X(store_32b_fp32, store_case(in, out, 0, 1, SWIZZLE(32B), {4, 2, 4}))                          \
    X(add_bf16, store_case(in, out, 1, 0, SWIZZLE(128B), {8, 3, 1}))                               \
    X(add_fp32, store_case(in, out, 1, 1, SWIZZLE(128B), {4, 3, 1}))                               \
    X(multicast, multicast_case(in, out))                                                          \
    X(bulk_copy, launch(conform_bulk<0>, 1, in, out))                                              \
    X(bulk_add_bf16, launch(conform_bulk<1>, 1, in, out))                                          \
    X(bulk_add_fp32, launch(conform_bulk<2>, 1, in, out))                                          \
    X(matrix, launch(conform_matrix, 1, in, out))                                                  \
    X(warp, launch(conform_warp, 1, in, out))                                                      \
    X(pack, launch(conform_pack, 1, out))                                                          \
    X(wgmma_64_nk,                                                                                 \
      launch(conform_wgmma<64, 0, false>, 1, in, layout{1, 0, 1024, 0, 1024, 32, 32, 4}, out))     \
    X(wgmma_128_nk,                                                                                \
      launch(conform_wgmma<128, 0, false>, 1, in, layout{1, 0, 1024, 0, 1024, 32, 32, 4}, out))    \
    X(wgmma_256_nk,                                                                                \
      launch(conform_wgmma<256, 0, false>, 1, in, layout{1, 0, 1024, 0, 1024, 32, 32, 4}, out))    \
    X(wgmma_96_nk,                                                                                 \
      launch(conform_wgmma<96, 0, false>, 1, in, layout{1, 0, 1024, 0, 1024, 32, 32, 4}, out))     \
    X(wgmma_64_kn, launch(conform_wgmma<64, 1, false>, 1, in,                                      \
                          layout{1, 0, 1024, 8192, 1024, 32, 2048, 4}, out))                       \
    X(wgmma_128_kn, launch(conform_wgmma<128, 1, false>, 1, in,                                    \
                           layout{1, 0, 1024, 8192, 1024, 32, 2048, 4}, out))                      \
    X(wgmma_256_kn, launch(conform_wgmma<256, 1, false>, 1, in,                                    \
                           layout{1, 0, 1024, 8192, 1024, 32, 2048, 4}, out))                      \
    X(wgmma_64b_nk,                                                                                \
      launch(conform_wgmma<128, 0, false>, 1, in, layout{2, 0, 512, 0, 512, 32, 32, 2}, out))      \
    X(wgmma_32b_nk,                                                                                \
      launch(conform_wgmma<128, 0, false>, 1, in, layout{3, 0, 256, 0, 256, 0, 0, 1}, out))        \
    X(wgmma_plain_nk,                                                                              \
      launch(conform_wgmma<64, 0, false>, 1, in, layout{0, 128, 256, 128, 256, 0, 0, 1}, out))     \
    X(wgmma_64b_kn,                                                                                \
      launch(conform_wgmma<128, 1, false>, 1, in, layout{2, 0, 512, 4096, 512, 32, 1024, 2}, out)) \
    X(wgmma_32b_kn,                                                                                \
      launch(conform_wgmma<64, 1, false>, 1, in, layout{3, 0, 256, 2048, 256, 0, 0, 1}, out))      \
    X(wgmma_plain_kn,                                                                              \
      launch(conform_wgmma<64, 1, false>, 1, in, layout{0, 128, 256, 1024, 128, 0, 0, 1}, out))    \
    X(wgmma_64_registers,                                                                          \
      launch(conform_wgmma<64, 0, true>, 1, in, layout{1, 0, 1024, 0, 1024, 32, 32, 4}, out))      \
    X(wgmma_128_registers_kn, launch(conform_wgmma<128, 1, true>, 1, in,                           \
                                     layout{1, 0, 1024, 8192, 1024, 32, 2048, 4}, out))            \
    X(wgmma_80_registers,                                                                          \
      launch(conform_wgmma<80, 0, true>, 1, in, layout{1, 0, 1024, 0, 1024, 32, 32, 4}, out))      \
    X(wgmma_192_nk,                                                                                \
      launch(conform_wgmma<192, 0, false>, 1, in, layout{1, 0, 1024, 0, 1024, 32, 32, 4}, out))    \
    X(copy_async, launch(conform_copy, 1, in, out))                                                \
    X(e4m3_64, launch(conform_e4m3<64, false>, 1, in, 0, out))                                     \
    X(e4m3_128, launch(conform_e4m3<128, false>, 1, in, 0, out))                                   \
    X(e4m3_256, launch(conform_e4m3<256, false>, 1, in, 0, out))                                   \
    X(e4m3_cut, launch(conform_e4m3<128, false>, 1, in, 1, out))                                   \
    X(e4m3_small, launch(conform_e4m3<128, false>, 1, in, 2, out))                                 \
    X(e4m3_nan, launch(conform_e4m3<128, false>, 1, in, 3, out))                                   \
    X(e4m3_registers, launch(conform_e4m3<64, true>, 1, in, 0, out))                               \
    X(mma_64_nk, launch(conform_mma<0>, 1, in, out))                                               \
    X(mma_64_kn, launch(conform_mma<1>, 1, in, out))                                               \
    X(ring, launch(conform_ring, 1, in, out))

extern "C" const char *conform_name(uint32_t number)
{
#define CASE(name, call) #name,
    static const char *const names[] = {CASES(CASE)};
#undef CASE
    return number < sizeof names / sizeof *names ? names[number] : NULL;
}

/* Launches case `number`; `in` and `out` as conform_inputs has filled them. 0 or 1. */
extern "C" int conform_launch(uint32_t number, const uint32_t *in, uint32_t *out)
{
    uint32_t i = 0;
#define CASE(name, call)                                                                           \
    if (i++ == number)                                                                             \
        return call;
    CASES(CASE)
#undef CASE
    return 1;
}

/* Small integers in bf16, different in each place; where results go: 1 in bf16. */
extern "C" void conform_inputs(uint16_t *in, uint16_t *out)
{
    uint64_t state = 1;
    static const uint16_t values[] = {0xc040, 0xc000, 0xbf80, 0x3f80, 0x4000, 0x4040};
    for (uint32_t i = 0; i < IN_BYTES / 2; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        in[i] = values[(state >> 33) % 6];
    }
    for (uint32_t i = 0; i < OUT_BYTES / 2; i++)
        out[i] = 0x3f80;
}

extern "C" uint64_t conform_hash(const uint16_t *out)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (uint32_t i = 0; i < OUT_BYTES / 2; i++)
        h = (h ^ out[i]) * 0x100000001b3ull;
    return h;
}

#ifndef MK_EMULATED
/* Runs one case on the GPU and prints its hash, or why there is none. */
static int run_case(uint32_t number)
{
    static uint16_t in[IN_BYTES / 2], out[OUT_BYTES / 2];
    void *device_in, *device_out;
    if (cudaMalloc(&device_in, IN_BYTES) != cudaSuccess ||
        cudaMalloc(&device_out, OUT_BYTES) != cudaSuccess)
        return 3;
    conform_inputs(in, out);
    cudaMemcpy(device_in, in, IN_BYTES, cudaMemcpyHostToDevice);
    cudaMemcpy(device_out, out, OUT_BYTES, cudaMemcpyHostToDevice);
    int failed = conform_launch(number, (const uint32_t *)device_in, (uint32_t *)device_out);
    cudaError_t error = cudaDeviceSynchronize();
    if (failed || error != cudaSuccess) {
        printf("%s\n", error == cudaSuccess ? "refused by the driver" : cudaGetErrorString(error));
        return 1;
    }
    cudaMemcpy(out, device_out, OUT_BYTES, cudaMemcpyDeviceToHost);
    printf("%016llx\n", (unsigned long long)conform_hash(out));
    return 0;
}

/* What `gpu_conform case NUMBER` prints: a case that faults takes its process along, not the other
 * cases. */
static void ask_case(const char *program, uint32_t number, char *answer, int size)
{
    char command[4096];
    snprintf(command, sizeof command, "timeout 20 '%s' case %u", program, number);
    FILE *p = popen(command, "r");
    if (!p || !fgets(answer, size, p))
        snprintf(answer, (size_t)size, "no answer within 20 s\n");
    if (p)
        pclose(p);
    answer[strcspn(answer, "\n")] = 0;
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp properties;
    int check = argc == 3 && !strcmp(argv[1], "check");
    uint32_t equal = 0, number = 0, wrong = 0;
    if (argc == 3 && !strcmp(argv[1], "case"))
        return run_case((uint32_t)strtoul(argv[2], NULL, 10));
    if (!check && !(argc == 2 && !strcmp(argv[1], "print"))) {
        fprintf(stderr, "usage: gpu_conform print | check FILE\n");
        return 2;
    }
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major != 9)
        return 77;
    FILE *golden = check ? fopen(argv[2], "r") : NULL;
    if (check && !golden) {
        fprintf(stderr, "gpu_conform: %s cannot be read\n", argv[2]);
        return 2;
    }
    for (; conform_name(number); number++) {
        char name[64] = "", wanted[32] = "", answer[256];
        ask_case(argv[0], number, answer, sizeof answer);
        if (!check) {
            printf("%s %s\n", conform_name(number), answer);
            wrong += strlen(answer) != 16;
            continue;
        }
        if (fscanf(golden, "%63s %31s", name, wanted) == 2 && !strcmp(name, conform_name(number)) &&
            !strcmp(wanted, answer))
            equal++;
        else
            printf("%s: %s, and should be %s\n", conform_name(number), answer, wanted);
    }
    if (check)
        printf("%u of %u equal\n", equal, number);
    return check ? equal != number : wrong != 0;
}
#endif
