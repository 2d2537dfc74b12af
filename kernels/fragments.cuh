/* Sums of a tile as a consumer warpgroup's registers hold them (kernels/wgmma.cuh), in memory: each
 * thread stores its own, and the thread at the same place of another CTA adds them to its own.
 *
 * A tile lies in groups of 16 rows, one after the other, which is what a warp holds of 64. In a
 * group 16 bytes of each of the 32 lanes follow each other, 512 bytes that hold 16 columns of bf16
 * or 8 of fp32; then the next columns. So all stores and loads are whole 512 bytes of a warp, no
 * shared memory is passed, and rows from a multiple of 16 on are one run of bytes. */
#ifndef MK_KERNELS_FRAGMENTS_CUH
#define MK_KERNELS_FRAGMENTS_CUH

#include "core/cta.h"
#include "kernels/ptx.cuh"

enum { FRAGMENT_ROWS = 16, FRAGMENT_BYTES = 512 };

/* fp32 sums in 16 bytes of memory; columns that a run of 512 bytes holds. */
template <int number> constexpr int fragment_sums = number == MK_FP32 ? 4 : 8;
template <int number> constexpr int fragment_columns = number == MK_FP32 ? 8 : 16;

/* Runs of 512 bytes of a group of rows, where the tile has `columns`. */
template <int number> PTX_FN uint32_t fragment_runs(uint32_t columns)
{
    return (columns + fragment_columns<number> - 1) / fragment_columns<number>;
}

/* Where the calling thread's first 16 bytes of the group of rows that begins at `row` lie, from the
 * tile's beginning on; row: a multiple of 16. */
PTX_FN uint32_t fragment_offset(uint32_t row, uint32_t runs)
{
    return row / FRAGMENT_ROWS * runs * FRAGMENT_BYTES + threadIdx.x % 32 * 16;
}

/* The 16 bytes of d. */
template <int number> PTX_FN uint4 fragment_pack(const float *d)
{
    constexpr int each = fragment_sums<number>;
    if (number == MK_FP32)
        return ptx_copy_4(d);
    return make_uint4(ptx_pack_bf16(d[0], d[1]), ptx_pack_bf16(d[2], d[3]),
                      ptx_pack_bf16(d[each - 4], d[each - 3]),
                      ptx_pack_bf16(d[each - 2], d[each - 1]));
}

/* Stores the thread's sums of 16 rows; `to`: its first 16 bytes. */
template <int number, int count>
PTX_FN void fragments_store(char *to, const float (&sum)[count], uint32_t runs)
{
    constexpr int each = fragment_sums<number>;
#pragma unroll
    for (int i = 0; i < count / each; i++) {
        uint4 v = fragment_pack<number>(&sum[i * each]);
        if (i < runs)
            *(uint4 *)(to + i * FRAGMENT_BYTES) = v;
    }
}

/* The same in words that carry the launch's number (ptx_store_words): twice the bytes, the second
 * 512 of each run behind the first. */
template <int number, int count>
PTX_FN void fragments_store_words(char *to, const float (&sum)[count], uint32_t runs,
                                  uint32_t launch)
{
    constexpr int each = fragment_sums<number>;
#pragma unroll
    for (int i = 0; i < count / each; i++) {
        uint4 v = fragment_pack<number>(&sum[i * each]);
        if (i < runs) {
            ptx_store_words(to + i * 2 * FRAGMENT_BYTES, v.x, v.y, launch);
            ptx_store_words(to + (i * 2 + 1) * FRAGMENT_BYTES, v.z, v.w, launch);
        }
    }
}

/* Where `round`, makes the thread's sums of 16 rows what others get of them as bf16. (By selection:
 * where a branch writes accumulators, ptxas serialises the products, C7520.) */
template <int count> PTX_FN void fragments_round(float (&sum)[count], bool round)
{
#pragma unroll
    for (int j = 0; j < count; j += 2) {
        uint32_t both = ptx_pack_bf16(sum[j], sum[j + 1]);
        sum[j] = round ? __uint_as_float(both << 16) : sum[j];
        sum[j + 1] = round ? __uint_as_float(both & 0xffff0000) : sum[j + 1];
    }
}

/* Adds what 16 bytes hold to d. */
template <int number> PTX_FN void fragment_add(float *d, uint4 v)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (number == MK_FP32) {
            d[i] += __uint_as_float(w[i]);
        } else {
            d[2 * i] += __uint_as_float(w[i] << 16);
            d[2 * i + 1] += __uint_as_float(w[i] & 0xffff0000);
        }
    }
}

/* sum += what shared memory holds from `from` on, the thread's first 16 bytes of 16 rows. */
template <int number, int count>
PTX_FN void fragments_add(float (&sum)[count], uint32_t from, uint32_t runs)
{
    constexpr int each = fragment_sums<number>;
#pragma unroll
    for (int i = 0; i < count / each; i++)
        if (i < runs)
            fragment_add<number>(&sum[i * each], ptx_load_shared_4(from + i * FRAGMENT_BYTES));
}

/* The thread's 16 bytes of the run-th of `runs` runs from `from` on; zeros where there is none. */
PTX_FN uint4 fragment_load(const char *from, uint32_t run, uint32_t runs)
{
    return run < runs ? ptx_load_16_l2(from + run * FRAGMENT_BYTES) : make_uint4(0, 0, 0, 0);
}

/* sum += term, for `terms` terms from `from` on, `pitch` bytes apart; the thread's sums of 16 rows.
 * Loads go ahead of additions, from term to term. */
template <int number, int loads, int count>
PTX_FN void fragments_add_behind(float (&sum)[count], const char *from, uint64_t pitch,
                                 uint32_t terms, uint32_t runs)
{
    constexpr int each = fragment_sums<number>, all = count / each,
                  most = number == MK_FP32 ? 4 : loads, ahead = all < most ? all : most;
    uint4 v[ahead];
    static_assert(all % ahead == 0, "places in v are constants");
#pragma unroll
    for (int i = 0; i < ahead; i++)
        v[i] = fragment_load(from, i, terms ? runs : 0);
#pragma unroll 1
    for (; terms; terms--, from += pitch) {
#pragma unroll
        for (int i = 0; i < all; i++) {
            fragment_add<number>(&sum[i * each], v[i % ahead]);
            v[i % ahead] = i + ahead < all
                               ? fragment_load(from, i + ahead, runs)
                               : fragment_load(from + pitch, i + ahead - all, terms > 1 ? runs : 0);
        }
    }
}

/* sum = ((term + term) + ..) + sum */
template <int number, int count>
PTX_FN void fragments_add_before(float (&sum)[count], const char *from, uint64_t pitch,
                                 uint32_t terms, uint32_t runs)
{
    constexpr int each = fragment_sums<number>, ahead = 2;
#pragma unroll
    for (int i = 0; i < count / each; i += ahead) {
        float before[ahead * each] = {};
        const char *at = from;
#pragma unroll 1
        for (uint32_t term = 0; term < terms; term++, at += pitch) {
            uint4 v[ahead];
#pragma unroll
            for (int j = 0; j < ahead; j++)
                v[j] = fragment_load(at, i + j, runs);
#pragma unroll
            for (int j = 0; j < ahead; j++)
                fragment_add<number>(&before[j * each], v[j]);
        }
#pragma unroll
        for (int j = 0; j < ahead * each; j++)
            sum[i * each + j] = before[j] + sum[i * each + j];
    }
}

/* The same of terms that come as words. `await(term, at, v)`: that both words of v, which were at
 * `at`, are here; it looks again until they are. Those before one's own are added up first. */
template <int number, int count, class waiting>
PTX_FN void fragments_add_words(float (&sum)[count], const char *from, uint64_t pitch,
                                uint32_t terms, uint32_t before, uint32_t runs,
                                const waiting &await)
{
    constexpr int each = fragment_sums<number>, all = count / each, loads = all < 4 ? all : 4;
    static_assert(all % loads == 0, "whole groups of loads");
#pragma unroll
    for (int i = 0; i < all; i += loads) {
        float ahead[loads * each] = {};
#pragma unroll 1
        for (uint32_t term = 0; term < terms; term++) {
            const char *at = from + term * pitch + i * 2 * FRAGMENT_BYTES;
            uint4 v[2 * loads];
#pragma unroll
            for (int j = 0; j < 2 * loads; j++)
                if (i + j / 2 < runs)
                    v[j] = ptx_load_words(at + j * FRAGMENT_BYTES);
#pragma unroll
            for (int j = 0; j < loads; j++) {
                if (i + j >= runs)
                    continue;
                await(term, at + j * 2 * FRAGMENT_BYTES, &v[2 * j]);
                await(term, at + (j * 2 + 1) * FRAGMENT_BYTES, &v[2 * j + 1]);
                uint4 both = make_uint4(v[2 * j].x, v[2 * j].z, v[2 * j + 1].x, v[2 * j + 1].z);
                float *d = &sum[(i + j) * each];
                if (term < before) {
                    fragment_add<number>(&ahead[j * each], both);
                    if (term == before - 1)
#pragma unroll
                        for (int k = 0; k < each; k++)
                            d[k] += ahead[j * each + k];
                } else {
                    fragment_add<number>(d, both);
                }
            }
        }
    }
}

#endif
