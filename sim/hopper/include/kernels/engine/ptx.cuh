/* The second body of every function of kernels/engine/ptx.cuh, where their contracts stand: calls of the
 * emulated machine. Found before that file by the include path of the emulation. A function that is
 * missing here does not compile there. */
#pragma once

#include <cuda.h>
#include <stdint.h>

#include "core/base/bf16.h"
#include "core/base/fp16.h"

#define PTX_FN static __device__ __forceinline__

#include "kernels/engine/barrier_types.cuh"

/* One that is a call of the machine: its type, name and parameters, and the statement. */
#define PTX_CALL(type, name, parameters, ...)                                                      \
    PTX_FN type name parameters                                                                    \
    {                                                                                              \
        HOPPER_HERE;                                                                               \
        __VA_ARGS__;                                                                               \
    }
#define PTX_HOPPER 1

/* What a load of the machine brings. */
template <class T, class where>
static inline T hopper_loaded(void (*load)(where, void *, uint32_t), where from)
{
    T v;
    load(from, &v, sizeof v);
    return v;
}

/* ---- shared memory ---- */

/* A block's variables in shared memory: T name[count], by its place in every block's. */
template <class T, uint32_t count> struct hopper_static {
    const uint32_t place = hopper_static_place(sizeof(T) * count, alignof(T) < 8 ? 8 : alignof(T));
    operator T *() const { return (T *)hopper_static_shared(place); }
    T *operator->() const { return (T *)hopper_static_shared(place); }
};
#define PTX_SHARED(type, name, count) static const hopper_static<type, count> name
#define PTX_SHARED_DYNAMIC(name) uint8_t *name = (uint8_t *)hopper_dynamic_shared()
#define PTX_SHARED_DYNAMIC_ALIGNED(name, bytes)                                                    \
    uint8_t *name = (uint8_t *)hopper_dynamic_shared_aligned(bytes)

PTX_CALL(uint32_t, ptx_shared, (const void *p, HOPPER_AT), return hopper_shared_address(p));
PTX_CALL(void, ptx_store_shared, (uint32_t dst, uint32_t v, HOPPER_AT),
         hopper_shared_store(dst, &v, 4));
PTX_CALL(uint32_t, ptx_load_shared, (uint32_t src, HOPPER_AT),
         return hopper_loaded<uint32_t>(hopper_shared_load, src));
PTX_CALL(void, ptx_store_shared_4, (uint32_t dst, uint4 v, HOPPER_AT),
         hopper_shared_store(dst, &v, 16));
PTX_CALL(uint4, ptx_load_shared_4, (uint32_t src, HOPPER_AT),
         return hopper_loaded<uint4>(hopper_shared_load, src));

/* ---- time and place ---- */

PTX_FN uint32_t ptx_opaque(uint32_t v) { return v; }
PTX_CALL(uint64_t, ptx_globaltimer, (HOPPER_AT), return hopper_globaltimer());
PTX_FN uint32_t ptx_cluster_rank(void) { return hopper_cluster_rank(); }
PTX_CALL(bool, ptx_elect, (HOPPER_AT), return hopper_elect() != 0);

/* ---- flags ---- */

PTX_CALL(uint64_t, ptx_load_acquire, (const uint64_t *p, HOPPER_AT),
         return hopper_load_strong(p, 8, HOPPER_SYSTEM, 1));
PTX_CALL(uint64_t, ptx_load_relaxed, (const uint64_t *p, HOPPER_AT),
         return hopper_load_strong(p, 8, HOPPER_SYSTEM, 0));
PTX_CALL(void, ptx_fence_acquire, (HOPPER_AT), hopper_fence(HOPPER_SYSTEM));
PTX_CALL(void, ptx_store_release, (uint64_t * p, uint64_t v, HOPPER_AT),
         hopper_store_strong(p, v, 8, HOPPER_SYSTEM, 1));
PTX_CALL(void, ptx_add_release, (uint64_t * p, uint64_t v, HOPPER_AT),
         hopper_atomic(p, 8, HOPPER_ATOMIC_ADD, 0, v, HOPPER_SYSTEM, 0, 1));
PTX_CALL(void, ptx_add_release_here, (uint64_t * p, uint64_t v, HOPPER_AT),
         hopper_atomic(p, 8, HOPPER_ATOMIC_ADD, 0, v, HOPPER_GPU, 0, 1));
PTX_FN void ptx_prefetch_l2(const void *) {}
PTX_CALL(void, ptx_store_here, (uint64_t * p, uint64_t v, HOPPER_AT), hopper_store_word(p, v));
PTX_CALL(uint64_t, ptx_load_here, (const uint64_t *p, HOPPER_AT),
         return hopper_load_strong(p, 8, HOPPER_GPU, 0));
PTX_CALL(void, ptx_store_16, (void *dst, uint64_t low, uint64_t high, HOPPER_AT),
         hopper_store_command(dst, low, high));
PTX_CALL(uint4, ptx_load_16_l2, (const void *src, HOPPER_AT),
         return hopper_loaded<uint4>(hopper_global_load, src));

PTX_CALL(uint2, ptx_load_8_l2, (const void *src, HOPPER_AT),
         return hopper_loaded<uint2>(hopper_global_load, src));

PTX_FN uint4 ptx_copy_4(const float *d)
{
    return make_uint4(__float_as_uint(d[0]), __float_as_uint(d[1]), __float_as_uint(d[2]),
                      __float_as_uint(d[3]));
}

/* ---- barriers and fences ---- */

PTX_FN void ptx_launch_next(void) { hopper_launch_next(); }
PTX_CALL(void, ptx_await_launches, (HOPPER_AT), hopper_launch_wait());
PTX_FN void ptx_cluster_sync(HOPPER_AT)
{
    HOPPER_HERE;
    hopper_cluster_arrive(1);
    hopper_cluster_wait();
}
PTX_CALL(void, ptx_bar_sync, (struct named_barrier at, HOPPER_AT),
         hopper_barrier(at.id, at.threads, 0));
PTX_CALL(bool, ptx_bar_any, (struct named_barrier at, bool mine, HOPPER_AT),
         return hopper_barrier(at.id, at.threads, mine) != 0);
PTX_CALL(void, ptx_bar_arrive, (struct named_barrier at, HOPPER_AT),
         hopper_barrier_arrive(at.id, at.threads));
PTX_CALL(void, ptx_fence_async_shared, (HOPPER_AT), hopper_fence_async(1, 0));
PTX_CALL(void, ptx_fence_async, (HOPPER_AT), hopper_fence_async(1, 1));

/* ---- mbarriers ---- */

PTX_CALL(void, ptx_mbar_init, (uint32_t bar, uint32_t arrivals, HOPPER_AT),
         hopper_mbar_init(bar, arrivals));
PTX_CALL(void, ptx_mbar_init_fence, (HOPPER_AT), hopper_mbar_init_fence());
PTX_CALL(void, ptx_mbar_expect, (uint32_t bar, uint32_t bytes, HOPPER_AT),
         hopper_mbar_arrive(bar, 1, bytes, 1));
PTX_CALL(void, ptx_mbar_arrive, (uint32_t bar, HOPPER_AT), hopper_mbar_arrive(bar, 1, 0, 1));
PTX_CALL(void, ptx_mbar_arrive_at, (uint32_t bar, uint32_t rank, HOPPER_AT),
         hopper_mbar_arrive_at(bar, rank, 0));
PTX_CALL(void, ptx_mbar_arrive_at_release, (uint32_t bar, uint32_t rank, HOPPER_AT),
         hopper_mbar_arrive_at(bar, rank, 1));
PTX_CALL(void, ptx_store_async_4, (uint32_t dst, uint32_t bar, uint32_t rank, uint4 v, HOPPER_AT),
         hopper_store_async(dst, &v, 16, bar, rank));
PTX_CALL(bool, ptx_mbar_try, (uint32_t bar, struct mbar_phase phase, HOPPER_AT),
         return hopper_mbar_try(bar, phase.parity) != 0);
PTX_CALL(bool, ptx_mbar_test, (uint32_t bar, struct mbar_phase phase, HOPPER_AT),
         return hopper_mbar_test(bar, phase.parity) != 0);
PTX_CALL(void, ptx_fail, (HOPPER_AT), hopper_trap());

PTX_CALL(void, ptx_shared_left, (uint32_t at, uint32_t bytes, HOPPER_AT),
         hopper_shared_left(at, bytes));

/* A wait that never ends is found by the machine, which then has nothing to run. */
PTX_CALL(void, ptx_mbar_wait, (uint32_t bar, struct mbar_phase phase, uint64_t limit_ns, HOPPER_AT),
         hopper_mbar_wait(bar, phase.parity, limit_ns));

/* ---- the TMA unit ---- */

template <class... numbers>
static inline void hopper_load_box(uint32_t dst, uint32_t bar, int to_cluster, uint16_t ranks,
                                   const CUtensorMap *map, numbers... at)
{
    const struct hopper_box b = {map, sizeof...(at), {at...}};
    hopper_tma_load(dst, &b, bar, to_cluster, ranks);
}
template <class... numbers>
static inline void hopper_store_box(uint32_t src, enum hopper_reduction how, const CUtensorMap *map,
                                    numbers... at)
{
    const struct hopper_box b = {map, sizeof...(at), {at...}};
    hopper_tma_store(&b, src, how);
}
PTX_CALL(void, ptx_tma_load_3d,
         (uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y, int32_t z,
          HOPPER_AT),
         hopper_load_box(dst, bar, 0, 0, map, x, y, z));
PTX_CALL(void, ptx_tma_load_3d_once,
         (uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y, int32_t z,
          HOPPER_AT),
         hopper_load_box(dst, bar, 0, 0, map, x, y, z));
PTX_CALL(void, ptx_tma_load_4d,
         (uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y, int32_t z,
          int32_t w, HOPPER_AT),
         hopper_load_box(dst, bar, 0, 0, map, x, y, z, w));
PTX_CALL(void, ptx_tma_load_3d_cluster,
         (uint32_t dst, const CUtensorMap *map, uint32_t bar, int32_t x, int32_t y, int32_t z,
          uint16_t ranks, HOPPER_AT),
         hopper_load_box(dst, bar, 1, ranks, map, x, y, z));
PTX_CALL(void, ptx_tma_store_3d,
         (const CUtensorMap *map, uint32_t src, int32_t x, int32_t y, int32_t z, HOPPER_AT),
         hopper_store_box(src, HOPPER_STORE, map, x, y, z));
PTX_CALL(void, ptx_tma_store_4d,
         (const CUtensorMap *map, uint32_t src, int32_t x, int32_t y, int32_t z, int32_t w,
          HOPPER_AT),
         hopper_store_box(src, HOPPER_STORE, map, x, y, z, w));
PTX_CALL(void, ptx_bulk_load,
         (uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, HOPPER_AT),
         hopper_bulk_load(dst, src, bytes, bar, 0, 0));
PTX_CALL(void, ptx_bulk_load_cluster,
         (uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, uint16_t ranks, HOPPER_AT),
         hopper_bulk_load(dst, src, bytes, bar, 1, ranks));
PTX_CALL(void, ptx_bulk_store, (void *dst, uint32_t src, uint32_t bytes, HOPPER_AT),
         hopper_bulk_store(dst, src, bytes, HOPPER_STORE, HOPPER_BYTES));
PTX_CALL(void, ptx_bulk_commit, (HOPPER_AT), hopper_bulk_commit());
template <int pending>
PTX_CALL(void, ptx_bulk_wait_read, (HOPPER_AT), hopper_bulk_wait(pending, 1));
PTX_CALL(void, ptx_bulk_wait_all, (HOPPER_AT), hopper_bulk_wait(0, 0));
PTX_CALL(void, ptx_tensormap_prefetch, (const CUtensorMap *map, HOPPER_AT),
         hopper_tensormap_prefetch(map));

PTX_CALL(void, ptx_copy_async_16, (uint32_t dst, const void *src, uint32_t bytes, HOPPER_AT),
         hopper_copy_async(dst, src, 16, bytes));
PTX_CALL(void, ptx_copy_async_4, (uint32_t dst, const void *src, HOPPER_AT),
         hopper_copy_async(dst, src, 4, 4));
PTX_CALL(void, ptx_copy_async_commit, (HOPPER_AT), hopper_copy_commit());
template <int pending> PTX_CALL(void, ptx_copy_async_wait, (HOPPER_AT), hopper_copy_wait(pending));

/* ---- registers and the way out of them ---- */

template <int registers>
PTX_CALL(void, ptx_registers_dec, (HOPPER_AT), hopper_registers(registers, 0));
template <int registers>
PTX_CALL(void, ptx_registers_inc, (HOPPER_AT), hopper_registers(registers, 1));
PTX_CALL(void, ptx_stmatrix_x4,
         (uint32_t dst, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3, HOPPER_AT),
         const uint32_t r[4] = {r0, r1, r2, r3};
         hopper_stmatrix(dst, r, 4, 0));
PTX_CALL(void, ptx_ldmatrix_x4, (uint32_t src, uint32_t (&r)[4], HOPPER_AT),
         hopper_ldmatrix(src, r, 4, 0));
PTX_CALL(void, ptx_ldmatrix_x4_transposed, (uint32_t src, uint32_t (&r)[4], HOPPER_AT),
         hopper_ldmatrix(src, r, 4, 1));

/* Every NaN becomes 0x7fff, as on an H200. */
PTX_FN uint32_t ptx_pack_bf16(float low, float high)
{
    uint32_t l = low != low ? 0x7fff : mk_bf16_from_float(low);
    uint32_t h = high != high ? 0x7fff : mk_bf16_from_float(high);
    return h << 16 | l;
}
PTX_FN uint32_t ptx_pack_f16(float low, float high)
{
    uint32_t l = low != low ? 0x7fff : mk_fp16_from_float(low);
    uint32_t h = high != high ? 0x7fff : mk_fp16_from_float(high);
    return h << 16 | l;
}
PTX_FN float ptx_low_f16(uint32_t pair) { return mk_fp16_to_float((uint16_t)pair); }
PTX_FN float ptx_high_f16(uint32_t pair) { return mk_fp16_to_float((uint16_t)(pair >> 16)); }

/* Within their bounds (kernels/engine/ptx.cuh), not to the bit. */
PTX_FN float ptx_exp2(float x)
{
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0 : y;
}
PTX_FN float ptx_log2(float x) { return log2f(x); }
PTX_FN float ptx_reciprocal(float x) { return 1 / x; }
PTX_FN void ptx_after(float) {}
