/* CUDA's words for the C++ compiler of the host, so that the kernels compile as they are: what is a
 * function of the hardware calls the emulated machine (sim/hopper/device.h), the rest is
 * arithmetic. Only what the kernels use; what is missing does not compile. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "sim/hopper/device.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict

/* The line that called, for messages. */
#define HOPPER_AT const char *at_file = __builtin_FILE(), int at_line = __builtin_LINE()
#define HOPPER_HERE hopper_here(at_file, at_line)

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    uint32_t x, y, z;
    constexpr dim3(uint32_t a = 1, uint32_t b = 1, uint32_t c = 1) : x(a), y(b), z(c) {}
};
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define threadIdx (hopper_self->thread)
#define blockIdx (hopper_self->block)
/* Objects, not macros: members of launch configurations have the same names. */
template <struct hopper_xyz hopper_place::*of, uint32_t hopper_xyz::*axis>
struct hopper_coordinate {
    operator uint32_t() const { return hopper_self->*of.*axis; }
};
template <struct hopper_xyz hopper_place::*of> struct hopper_extent {
    hopper_coordinate<of, &hopper_xyz::x> x;
    hopper_coordinate<of, &hopper_xyz::y> y;
    hopper_coordinate<of, &hopper_xyz::z> z;
};
static const hopper_extent<&hopper_place::block_size> blockDim = {};
static const hopper_extent<&hopper_place::grid_size> gridDim = {};

/* A function that is a call of the machine: its type, name and parameters, and the statement. */
#define HOPPER_CALL(type, name, parameters, ...)                                                   \
    static inline type name parameters                                                             \
    {                                                                                              \
        HOPPER_HERE;                                                                               \
        __VA_ARGS__;                                                                               \
    }

/* ---- barriers, votes, shuffles ---- */

HOPPER_CALL(void, __syncthreads, (HOPPER_AT), hopper_barrier(0, 0, 0));
HOPPER_CALL(int, __syncthreads_or, (int v, HOPPER_AT), return hopper_barrier(0, 0, v != 0));
HOPPER_CALL(void, __syncwarp, (uint32_t mask = UINT32_MAX, HOPPER_AT),
            hopper_warp(HOPPER_SYNCWARP, mask, 0, 0));
HOPPER_CALL(uint32_t, __ballot_sync, (uint32_t mask, int v, HOPPER_AT),
            return (uint32_t)hopper_warp(HOPPER_BALLOT, mask, v != 0, 0));
HOPPER_CALL(int, __any_sync, (uint32_t mask, int v, HOPPER_AT),
            return hopper_warp(HOPPER_BALLOT, mask, v != 0, 0) != 0);
HOPPER_CALL(int, __all_sync, (uint32_t mask, int v, HOPPER_AT),
            return hopper_warp(HOPPER_BALLOT, mask, v == 0, 0) == 0);
HOPPER_CALL(uint32_t, __match_any_sync, (uint32_t mask, uint32_t v, HOPPER_AT),
            return (uint32_t)hopper_warp(HOPPER_MATCH, mask, v, 0));
#define HOPPER_REDUCTION(name, what)                                                               \
    HOPPER_CALL(uint32_t, name, (uint32_t mask, uint32_t v, HOPPER_AT),                            \
                return (uint32_t)hopper_warp(what, mask, v, 0))
HOPPER_REDUCTION(__reduce_max_sync, HOPPER_REDUCE_MAX)
HOPPER_REDUCTION(__reduce_min_sync, HOPPER_REDUCE_MIN)
HOPPER_REDUCTION(__reduce_add_sync, HOPPER_REDUCE_ADD)

template <class T>
static inline T hopper_shuffle(enum hopper_collective what, uint32_t mask, T v, uint32_t of,
                               uint32_t width)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = hopper_warp(what, mask, bits, width << 16 | (of & 0xffff));
    memcpy(&v, &bits, sizeof v);
    return v;
}
#define HOPPER_SHUFFLES(name, lane_type, what)                                                     \
    template <class T>                                                                             \
    HOPPER_CALL(T, name, (uint32_t mask, T v, lane_type lane, int width = 32, HOPPER_AT),          \
                return hopper_shuffle(what, mask, v, (uint32_t)lane, (uint32_t)width))
HOPPER_SHUFFLES(__shfl_sync, int, HOPPER_SHUFFLE)
HOPPER_SHUFFLES(__shfl_xor_sync, int, HOPPER_SHUFFLE_XOR)
HOPPER_SHUFFLES(__shfl_up_sync, uint32_t, HOPPER_SHUFFLE_UP)
HOPPER_SHUFFLES(__shfl_down_sync, uint32_t, HOPPER_SHUFFLE_DOWN)

[[noreturn]] static inline void __trap(HOPPER_AT)
{
    HOPPER_HERE;
    hopper_trap();
    __builtin_unreachable();
}

/* ---- fences and atomics: relaxed, at device scope ---- */

HOPPER_CALL(void, __threadfence, (HOPPER_AT), hopper_fence(HOPPER_GPU));
HOPPER_CALL(void, __threadfence_system, (HOPPER_AT), hopper_fence(HOPPER_SYSTEM));

template <class T> struct hopper_same {
    typedef T type; /* arguments convert to it */
};
template <class T>
static inline T hopper_atomic_of(T *p, enum hopper_atomic what, T compare, T value)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics have 4 or 8 bytes");
    return (T)hopper_atomic(p, sizeof(T), what, (uint64_t)compare, (uint64_t)value, HOPPER_GPU, 0,
                            0);
}
#define HOPPER_ATOMICS(name, what)                                                                 \
    template <class T>                                                                             \
    HOPPER_CALL(T, name, (T * p, typename hopper_same<T>::type v, HOPPER_AT),                      \
                return hopper_atomic_of<T>(p, what, 0, v))
HOPPER_ATOMICS(atomicAdd, HOPPER_ATOMIC_ADD)
HOPPER_ATOMICS(atomicMax, HOPPER_ATOMIC_MAX)
HOPPER_ATOMICS(atomicOr, HOPPER_ATOMIC_OR)
HOPPER_ATOMICS(atomicExch, HOPPER_ATOMIC_EXCHANGE)
template <class T>
HOPPER_CALL(T, atomicCAS,
            (T * p, typename hopper_same<T>::type compare, typename hopper_same<T>::type v,
             HOPPER_AT),
            return hopper_atomic_of<T>(p, HOPPER_ATOMIC_CAS, compare, v));

/* ---- arithmetic ---- */

template <class to, class from> static inline to hopper_bits(from v)
{
    static_assert(sizeof(to) == sizeof(from), "the same bits");
    to out;
    memcpy(&out, &v, sizeof out);
    return out;
}
static inline float __uint_as_float(uint32_t v) { return hopper_bits<float>(v); }
static inline uint32_t __float_as_uint(float v) { return hopper_bits<uint32_t>(v); }
static inline int __float_as_int(float v) { return hopper_bits<int>(v); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline int __ffs(uint32_t v) { return __builtin_ffs((int)v); }
static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}
static inline void __nanosleep(uint32_t) { hopper_globaltimer(); }
static inline long long clock64(void) { return (long long)hopper_globaltimer(); }

/* Not templates of a type both: kernels mix int and unsigned as nvcc's overloads let them. */
#define HOPPER_MIN_MAX(type)                                                                       \
    static inline type min(type a, type b) { return b < a ? b : a; }                               \
    static inline type max(type a, type b) { return a < b ? b : a; }
HOPPER_MIN_MAX(int)
HOPPER_MIN_MAX(unsigned)
HOPPER_MIN_MAX(unsigned long)
HOPPER_MIN_MAX(long)
HOPPER_MIN_MAX(float)

/* ---- tensor maps (driver API) ---- */

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
struct alignas(64) CUtensorMap {
    uint64_t opaque[16];
};
enum CUresult { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE };
enum CUtensorMapDataType {
    CU_TENSOR_MAP_DATA_TYPE_UINT8,
    CU_TENSOR_MAP_DATA_TYPE_UINT16,
    CU_TENSOR_MAP_DATA_TYPE_UINT32,
    CU_TENSOR_MAP_DATA_TYPE_INT32,
    CU_TENSOR_MAP_DATA_TYPE_UINT64,
    CU_TENSOR_MAP_DATA_TYPE_INT64,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
};
enum CUtensorMapInterleave {
    CU_TENSOR_MAP_INTERLEAVE_NONE,
    CU_TENSOR_MAP_INTERLEAVE_16B,
    CU_TENSOR_MAP_INTERLEAVE_32B
};
enum CUtensorMapSwizzle {
    CU_TENSOR_MAP_SWIZZLE_NONE,
    CU_TENSOR_MAP_SWIZZLE_32B,
    CU_TENSOR_MAP_SWIZZLE_64B,
    CU_TENSOR_MAP_SWIZZLE_128B
};
enum CUtensorMapL2promotion {
    CU_TENSOR_MAP_L2_PROMOTION_NONE,
    CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    CU_TENSOR_MAP_L2_PROMOTION_L2_256B
};
enum CUtensorMapFloatOOBfill {
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
};
