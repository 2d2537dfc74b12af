/* Conformance: one small kernel for each primitive of kernels/engine/ptx.cuh, kernels/hopper/wgmma.cuh and
 * kernels/mma/mma.cuh, with inputs that are the same everywhere. A case's result is a hash of all
 * that it has written. tests/golden/hopper_conformance.txt has the hashes that the emulated Hopper
 * gives (tests/test_hopper_conform.c, which has this file compiled for it); `check` on a GPU says
 * whether hardware gives the same. Cases of compute capability 8.0 are run from PTX of compute_80,
 * too; on a GPU that is no Hopper so alone, and the others are skipped.
 *
 *     gpu_conform print          every case and its hash
 *     gpu_conform check FILE     compares; exit status 0: all equal, 1: not, 77: no GPU here
 *
 * Each case runs in a process of its own (`gpu_conform case NUMBER`, `ptx NUMBER`). */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/helpers/conform_80.cuh"
#include "tests/helpers/conform_ptx.cuh"

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
    wait(BARRIER, mbar_phase_of(0));
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
        wait(BARRIER, mbar_phase_of(0));
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
    wait(BARRIER, mbar_phase_of(0));
    dump(out + rank * 4096, shared, 2 * 64 * 128);
    ptx_cluster_sync();
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

template <int n, int b_mn_major, bool registers, bool f16 = false>
__global__ void conform_wgmma(const uint32_t *in, struct layout l, uint32_t *out)
{
    PTX_SHARED_DYNAMIC(memory);
    uint32_t shared = begin(memory, BARRIER);
    float d[n / 2];
    uint32_t a[4][4];
    fill(shared, in, 65536);
    if (f16)
        turn_to_f16(shared, 65536);
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
        else if constexpr (f16)
            wgmma_f16<b_mn_major>(
                d, describe(shared + k * l.a_step, l.a_leading, l.a_stride, l.code), b, 1);
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
        if constexpr (registers)
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
#define HOPPER_CASES(X)                                                                            \
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
    X(e4m3_64, launch(conform_e4m3<64, false>, 1, in, 0, out))                                     \
    X(e4m3_128, launch(conform_e4m3<128, false>, 1, in, 0, out))                                   \
    X(e4m3_256, launch(conform_e4m3<256, false>, 1, in, 0, out))                                   \
    X(e4m3_cut, launch(conform_e4m3<128, false>, 1, in, 1, out))                                   \
    X(e4m3_small, launch(conform_e4m3<128, false>, 1, in, 2, out))                                 \
    X(e4m3_nan, launch(conform_e4m3<128, false>, 1, in, 3, out))                                   \
    X(e4m3_registers, launch(conform_e4m3<64, true>, 1, in, 0, out))                               \
    X(wgmma_256_f16_nk, launch(conform_wgmma<256, 0, false, true>, 1, in,                          \
                               layout{1, 0, 1024, 0, 1024, 32, 32, 4}, out))                       \
    X(wgmma_64_f16_kn, launch(conform_wgmma<64, 1, false, true>, 1, in,                            \
                              layout{1, 0, 1024, 8192, 1024, 32, 2048, 4}, out))
#define CASES(X) HOPPER_CASES(X) CASES_80(X)

extern "C" const char *conform_name(uint32_t number)
{
    static const char *const names[] = {CASES(CONFORM_NAME)};
    return number < sizeof names / sizeof *names ? names[number] : NULL;
}

/* Launches case `number`; `in` and `out` as conform_inputs has filled them. 0 or 1. */
extern "C" int conform_launch(uint32_t number, const uint32_t *in, uint32_t *out)
{
    uint32_t i = 0;
    CASES(CONFORM_TRY)
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
/* tests/engines/conform_80.cu. */
extern "C" int conform_80_launch(uint32_t number, const uint32_t *in, uint32_t *out);

#define CONFORM_ONE(name, call) +1
enum { HOPPER_COUNT = 0 HOPPER_CASES(CONFORM_ONE) };

/* Runs one case on the GPU, by this file's code or from PTX of compute_80, and prints its hash, or
 * why there is none. */
static int run_case(int from_ptx, uint32_t number)
{
    static uint16_t in[IN_BYTES / 2], out[OUT_BYTES / 2];
    void *device_in, *device_out;
    if (cudaMalloc(&device_in, IN_BYTES) != cudaSuccess ||
        cudaMalloc(&device_out, OUT_BYTES) != cudaSuccess)
        return 3;
    conform_inputs(in, out);
    cudaMemcpy(device_in, in, IN_BYTES, cudaMemcpyHostToDevice);
    cudaMemcpy(device_out, out, OUT_BYTES, cudaMemcpyHostToDevice);
    int failed = from_ptx
                     ? conform_80_launch(number - HOPPER_COUNT, (const uint32_t *)device_in,
                                         (uint32_t *)device_out)
                     : conform_launch(number, (const uint32_t *)device_in, (uint32_t *)device_out);
    cudaError_t error = cudaDeviceSynchronize();
    if (failed || error != cudaSuccess) {
        if (error == cudaSuccess)
            error = cudaGetLastError();
        printf("%s\n", error == cudaSuccess ? "refused by the driver" : cudaGetErrorString(error));
        return 1;
    }
    cudaMemcpy(out, device_out, OUT_BYTES, cudaMemcpyDeviceToHost);
    printf("%016llx\n", (unsigned long long)conform_hash(out));
    return 0;
}

/* What `gpu_conform case NUMBER` (or `ptx NUMBER`) prints: a case that faults takes its process
 * along, not the other cases. */
static void ask_case(const char *program, const char *how, uint32_t number, char *answer, int size)
{
    char command[4096];
    snprintf(command, sizeof command, "timeout 20 '%s' %s %u", program, how, number);
    FILE *p = popen(command, "r");
    if (!p || !fgets(answer, size, p))
        snprintf(answer, (size_t)size, "no answer within 20 s\n");
    if (p)
        pclose(p);
    answer[strcspn(answer, "\n")] = 0;
}

/* Cases that were run, and how many were wrong; and what may be run here. */
struct conform {
    const char *program;
    int check; /* against the golden file; else cases are printed */
    uint32_t run, wrong, skipped;
};

/* wanted: the hash of the golden file. */
static void look_at(struct conform *c, const char *how, uint32_t number, const char *wanted)
{
    const char *note = strcmp(how, "ptx") ? "" : " (PTX of compute_80)";
    char answer[256];
    ask_case(c->program, how, number, answer, sizeof answer);
    const int right = c->check ? !strcmp(answer, wanted) : strlen(answer) == 16;
    c->run++;
    c->wrong += !right;
    if (!c->check)
        printf("%s %s%s\n", conform_name(number), answer, note);
    else if (!right)
        printf("%s%s: %s, and should be %s\n", conform_name(number), note, answer, wanted);
}

int main(int argc, char **argv)
{
    struct cudaDeviceProp gpu;
    struct conform c = {};
    c.program = argv[0];
    c.check = argc == 3 && !strcmp(argv[1], "check");
    if (argc == 3 && (!strcmp(argv[1], "case") || !strcmp(argv[1], "ptx")))
        return run_case(argv[1][0] == 'p', (uint32_t)strtoul(argv[2], NULL, 10));
    if (!c.check && !(argc == 2 && !strcmp(argv[1], "print"))) {
        fprintf(stderr, "usage: gpu_conform print | check FILE\n");
        return 2;
    }
    if (cudaGetDeviceProperties(&gpu, 0) != cudaSuccess || gpu.major < 8)
        return 77;
    FILE *golden = c.check ? fopen(argv[2], "r") : NULL;
    if (c.check && !golden) {
        fprintf(stderr, "gpu_conform: %s cannot be read\n", argv[2]);
        return 2;
    }
    for (uint32_t number = 0; conform_name(number); number++) {
        char name[64] = "", wanted[32] = "no line of the golden file";
        if (c.check && fscanf(golden, "%63s %31s", name, wanted) == 2 &&
            strcmp(name, conform_name(number)))
            snprintf(wanted, sizeof wanted, "a line of its own");
        if (gpu.major == 9) {
            look_at(&c, "case", number, wanted);
        } else if (number < HOPPER_COUNT) {
            printf("%s%s",
                   c.skipped ? ", " : "skipped, of compute capability 9.0: ", conform_name(number));
            c.skipped++;
        }
        if (number + 1 == HOPPER_COUNT && c.skipped)
            printf("\n");
        if (number >= HOPPER_COUNT)
            look_at(&c, "ptx", number, wanted);
    }
    if (c.check)
        printf("%u of %u equal, %u skipped\n", c.run - c.wrong, c.run, c.skipped);
    return c.wrong != 0;
}
#endif
