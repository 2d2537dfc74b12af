/* Sums of a tile as a consumer warpgroup's registers hold them (kernels/hopper/wgmma.cuh), in
 * memory: each thread stores its own, and the thread at the same place of another CTA adds them to
 * its own.
 *
 * A tile lies in groups of 16 rows, one after the other, which is what a warp holds of 64. In a
 * group a run has 16 columns, of which each lane holds eight sums; then the next columns. A run of
 * bf16 or fp16 are 16 bytes of each of the 32 lanes, one after the other. One of MK_FP24 begins in the same
 * way, with the upper halves of fp32; their third bytes follow, 8 of each lane. So all stores and
 * loads are whole 512 or 256 bytes of a warp, no shared memory is passed, and rows from a multiple
 * of 16 on are consecutive bytes. */
#pragma once

#include "core/cta/cta.h"
#include "kernels/engine/half.cuh"

enum { FRAGMENT_ROWS = 16, FRAGMENT_COLUMNS = 16, FRAGMENT_SUMS = 8 };

/* Words of 4 bytes that eight sums take, and bytes of a run. */
template <int number> constexpr int fragment_words = number == MK_FP24 ? 6 : 4;
template <int number> constexpr uint32_t fragment_bytes = 32 * 4 * fragment_words<number>;

/* Eight sums of a lane. */
template <int number> struct fragment {
    uint32_t word[fragment_words<number>];
};

/* Where the calling thread's first bytes of the group of rows that begins at `row` lie, from the
 * tile's beginning on; row: a multiple of 16. */
template <int number> PTX_FN uint32_t fragment_offset(uint32_t row, uint32_t runs)
{
    return row / FRAGMENT_ROWS * runs * fragment_bytes<number> + threadIdx.x % 32 * 16;
}

/* From a lane's 16 bytes of a run to its 8 behind all lanes' 16 */
PTX_FN uint32_t fragment_rest(void)
{
    return 512 - threadIdx.x % 32 * 8;
}

/* Who says it: the thread as it is known; or as it was asked for anew (ptx_opaque), of which no addresses are kept from tile to
 * tile. */
struct fragment_lane {
    __device__ __forceinline__ uint32_t rest() const
    {
        return fragment_rest();
    }
};
struct fragment_lane_anew {
    uint32_t thread;
    __device__ __forceinline__ uint32_t rest() const
    {
        return 512 - thread % 32 * 8;
    }
};

/* The eight sums from d on. Of MK_FP24 the lowest byte is cut off, so a NaN stays one: wgmma makes
 * none that has bits there alone. */
template <int number> PTX_FN struct fragment<number> fragment_pack(const float *d) {
    struct fragment<number> f;
    if constexpr (number == MK_FP24) {
        const uint4 a = ptx_copy_4(d), b = ptx_copy_4(d + 4);
        const uint32_t u[FRAGMENT_SUMS] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.word[i] = u[2 * i] >> 16 | (u[2 * i + 1] & 0xffff0000);
#pragma unroll
        for (int i = 0; i < 2; i++)
            f.word[4 + i] = (u[4 * i] >> 8 & 0xff) | (u[4 * i + 1] & 0xff00) |
                            (u[4 * i + 2] << 8 & 0xff0000) | (u[4 * i + 3] << 16 & 0xff000000);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            f.word[i] = half_pack<number>(d[2 * i], d[2 * i + 1]);
    }
    return f;
}

/* Four words of each of a quad's lanes: word k of lane q becomes word q of lane k. q: the lane's number
 * in its quad. */
PTX_FN void
quad_transpose(uint32_t (&word)[4], uint32_t q)
{
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (!(k &
                  bit)) { /* words k and k + bit are swapped across lanes that differ in `bit` */
                const bool high = q & bit;
                const uint32_t out = high ? word[k] : word[k + bit],
                               in = __shfl_xor_sync(0xffffffff, out, bit);
                word[k] = high ? in : word[k];
                word[k + bit] = high ? word[k + bit] : in;
            }
}

/* Stores eight sums; `at`: the thread's first bytes of the run. */
template <int number, class lane = struct fragment_lane>
PTX_FN void fragment_put(char *at, const struct fragment<number> &f, lane l = lane())
{
    *(uint4 *)at = make_uint4(f.word[0], f.word[1], f.word[2], f.word[3]);
    if constexpr (number == MK_FP24)
        *(uint2 *)(at + l.rest()) = make_uint2(f.word[4], f.word[5]);
}

/* Stores the thread's sums of 16 rows; `to`: its first bytes. */
template <int number, int count, class lane = struct fragment_lane>
PTX_FN void fragments_store(char *to, const float (&sum)[count], uint32_t runs, lane l = lane())
{
#pragma unroll
    for (int i = 0; i < count / FRAGMENT_SUMS; i++) {
        const struct fragment<number> f = fragment_pack<number>(&sum[i * FRAGMENT_SUMS]);
        if (i < runs)
            fragment_put<number>(to + i * fragment_bytes<number>, f, l);
    }
}

/* Where `round`, makes the thread's sums of 16 rows what others get of them. (By selection: where a
 * branch writes accumulators, ptxas serialises the products, C7520.) */
template <int number, int count> PTX_FN void fragments_round(float (&sum)[count], bool round)
{
    if constexpr (number == MK_FP24) {
#pragma unroll
        for (int j = 0; j < count; j++)
            sum[j] = round ? __uint_as_float(__float_as_uint(sum[j]) & 0xffffff00) : sum[j];
    } else {
#pragma unroll
        for (int j = 0; j < count; j += 2) {
            uint32_t both = half_pack<number>(sum[j], sum[j + 1]);
            sum[j] = round ? half_low<number>(both) : sum[j];
            sum[j + 1] = round ? half_high<number>(both) : sum[j + 1];
        }
    }
}

/* d += what a fragment holds. */
template <int number> PTX_FN void fragment_add(float *d, const struct fragment<number> &f)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (number == MK_FP24) {
            const uint32_t third = f.word[4 + i / 2] >> i % 2 * 16;
            d[2 * i] += __uint_as_float(f.word[i] << 16 | (third << 8 & 0xff00));
            d[2 * i + 1] += __uint_as_float((f.word[i] & 0xffff0000) | (third & 0xff00));
        } else {
            d[2 * i] += half_low<number>(f.word[i]);
            d[2 * i + 1] += half_high<number>(f.word[i]);
        }
    }
}

/* sum += what shared memory holds from `from` on, the thread's first bytes of 16 rows. */
template <int number, int count>
PTX_FN void fragments_add(float (&sum)[count], uint32_t from, uint32_t runs)
{
#pragma unroll
    for (int i = 0; i < count / FRAGMENT_SUMS; i++)
        if (i < runs) {
            uint32_t at = from + i * fragment_bytes<number>;
            uint4 v = ptx_load_shared_4(at);
            struct fragment<number> f = {
                {
                    v.x, v.y, v.z, v.w
                }
            };
            if constexpr (number == MK_FP24) {
                f.word[4] = ptx_load_shared(at + fragment_rest());
                f.word[5] = ptx_load_shared(at + fragment_rest() + 4);
            }
            fragment_add<number>(&sum[i * FRAGMENT_SUMS], f);
        }
}

/* The thread's bytes of the run-th of `runs` runs from `from` on; zeros where there is none. */
template <int number, class lane = struct fragment_lane>
PTX_FN struct fragment<number> fragment_load(const char *from, uint32_t run, uint32_t runs,
                                             lane l = lane()) {
    struct fragment<number> f = {
    };
    if (run < runs) {
        const char *at = from + run * fragment_bytes<number>;
        uint4 v = ptx_load_16_l2(at);
        f.word[0] = v.x;
        f.word[1] = v.y;
        f.word[2] = v.z;
        f.word[3] = v.w;
        if constexpr (number == MK_FP24) {
            uint2 w = ptx_load_8_l2(at + l.rest());
            f.word[4] = w.x;
            f.word[5] = w.y;
        }
    }
    return f;
}

/* sum += term, for `terms` terms from `from` on, `pitch` bytes apart; the thread's sums of 16 rows.
 * Loads go ahead of additions, from term to term. */
template <int number, int loads, int count>
PTX_FN void fragments_add_behind(float (&sum)[count], const char *from, uint64_t pitch,
                                 uint32_t terms, uint32_t runs)
{
    constexpr int all = count / FRAGMENT_SUMS, ahead = all < loads ? all : loads;
    struct fragment<number> f[ahead];
    static_assert(all % ahead == 0, "places in f are constants");
#pragma unroll
    for (int i = 0; i < ahead; i++)
        f[i] = fragment_load<number>(from, i, terms ? runs : 0);
#pragma unroll 1
    for (; terms; terms--, from += pitch) {
#pragma unroll
        for (int i = 0; i < all; i++) {
            fragment_add<number>(&sum[i * FRAGMENT_SUMS], f[i % ahead]);
            if constexpr (loads < 4) /* or ptxas begins all loads first, and registers run out */
                __syncwarp();
            f[i % ahead] = i + ahead < all ? fragment_load<number>(from, i + ahead, runs)
                                           : fragment_load<number>(from + pitch, i + ahead - all,
                                                                   terms > 1 ? runs : 0);
        }
    }
}

/* sum = ((term + term) + ..) + sum. runs: that are added at a time, of two terms each; a load's way
 * to memory is then waited for once for all of them. */
template <int number, int together, int count>
PTX_FN void fragments_add_before(float (&sum)[count], const char *from, uint64_t pitch,
                                 uint32_t terms, uint32_t runs)
{
    constexpr int all = count / FRAGMENT_SUMS, ahead = all < together ? all : together;
    static_assert(all % ahead == 0, "whole groups of loads");
#pragma unroll
    for (int i = 0; i < all; i += ahead) {
        float before[ahead * FRAGMENT_SUMS] = {};
        const char *at = from;
#pragma unroll 1
        for (uint32_t term = 0; term < terms; term += 2, at += 2 * pitch) {
            struct fragment<number> f[2][ahead];
#pragma unroll
            for (int both = 0; both < 2; both++)
#pragma unroll
                for (int j = 0; j < ahead; j++)
                    f[both][j] = fragment_load<number>(at + both * pitch, i + j,
                                                       term + both < terms ? runs : 0);
#pragma unroll
            for (int both = 0; both < 2; both++)
#pragma unroll
                for (int j = 0; j < ahead; j++)
                    fragment_add<number>(&before[j * FRAGMENT_SUMS], f[both][j]);
        }
#pragma unroll
        for (int j = 0; j < ahead * FRAGMENT_SUMS; j++)
            sum[i * FRAGMENT_SUMS + j] = before[j] + sum[i * FRAGMENT_SUMS + j];
    }
}

/* A number as MK_FP24 has it (core/cta/sum_tree.h). */
PTX_FN float tree_cut(float x)
{
    return __uint_as_float(__float_as_uint(x) & 0xffffff00);
}
