/* Nodes of a tree of sums (core/cta/sum_tree.h) in a thread's registers: those of its own blocks of K, and those of other ranks that
 * lie in memory as fragments (kernels/engine/fragments.cuh). A node is cut to three bytes where it is added, so that fragments of
 * MK_FP24 are whole. */
#pragma once

#include "core/cta/sum_tree.h"
#include "kernels/engine/fragments.cuh"

/* sum = the node over both. */
template <int count> PTX_FN void tree_add(float (&sum)[count], const float (&other)[count])
{
#pragma unroll
    for (int j = 0; j < count; j++)
        sum[j] = tree_cut(sum[j]) + tree_cut(other[j]);
}

/* Left nodes that wait for their right neighbours, one a level, in the thread's own memory. */
template <int count, int levels> struct tree_waiting {
    float4 node[levels][count / 4];

    /* Node `number` of `nodes` on the lowest of these levels is in `sum`: goes up to where it is a left one, and leaves it
     * there. The last one ends at the root. */
    __device__ __forceinline__ void climb(float (&sum)[count], uint32_t number, uint32_t nodes)
    {
        uint32_t level = 0;
#pragma unroll 1
        for (; number >> level & 1; level++)
#pragma unroll
            for (int j = 0; j < count / 4; j++) {
                const float4 left = node[level][j];
                sum[4 * j] = tree_cut(left.x) + tree_cut(sum[4 * j]);
                sum[4 * j + 1] = tree_cut(left.y) + tree_cut(sum[4 * j + 1]);
                sum[4 * j + 2] = tree_cut(left.z) + tree_cut(sum[4 * j + 2]);
                sum[4 * j + 3] = tree_cut(left.w) + tree_cut(sum[4 * j + 3]);
                if (count > 32 && j % 4 == 3)
                    __syncwarp(); /* or ptxas begins all loads first, and registers run out */
            }
        if (number + 1 < nodes)
#pragma unroll
            for (int j = 0; j < count / 4; j++)
                node[level][j] =
                    make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
    }
};

/* Eight sums of a lane. (Not added to zero: that would make +0 of -0.) */
PTX_FN void tree_unpack(float (&d)[FRAGMENT_SUMS], const struct fragment<MK_FP24> &f)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t third = f.word[4 + i / 2] >> i % 2 * 16;
        d[2 * i] = __uint_as_float(f.word[i] << 16 | (third << 8 & 0xff00));
        d[2 * i + 1] = __uint_as_float((f.word[i] & 0xffff0000) | (third & 0xff00));
    }
}

/* Other ranks' nodes of 16 rows: leaf `leaf` lies at `from`, `pitch` bytes from leaf to leaf, without the thread's own, which is
 * leaf `own`. */
template <class lane> struct tree_leaves {
    const char *from;
    uint64_t pitch;
    uint32_t own;
    lane l;

    __device__ __forceinline__ void load(float (&d)[FRAGMENT_SUMS], uint32_t leaf, uint32_t run,
                                         uint32_t runs) const
    {
        tree_unpack(d, fragment_load<MK_FP24>(from + (leaf - (leaf > own)) * pitch, run, runs, l));
    }

    /* The node over `below` leaves, the first of which is `leaf`. */
    template <int below>
    __device__ __forceinline__ void node(float (&d)[FRAGMENT_SUMS], uint32_t leaf, uint32_t run,
                                         uint32_t runs) const
    {
        if constexpr (below == 1) {
            load(d, leaf, run, runs);
        } else {
            float right[FRAGMENT_SUMS];
            node<below / 2>(d, leaf, run, runs);
            node<below / 2>(right, leaf + below / 2, run, runs);
            tree_add(d, right);
        }
    }

    /* sum = the root: of a fragment all levels, then the next one. */
    template <int count>
    __device__ __forceinline__ void climb_in_turn(float (&sum)[count], uint32_t leaves,
                                                  uint32_t runs) const
    {
#pragma unroll
        for (int i = 0; i < count / FRAGMENT_SUMS; i++) {
            float(&d)[FRAGMENT_SUMS] = *(float(*)[FRAGMENT_SUMS]) & sum[i * FRAGMENT_SUMS];
            float other[FRAGMENT_SUMS];
            if (leaves > 1) {
                node<1>(other, own ^ 1, i, runs);
                tree_add(d, other);
            }
            if (leaves > 2) {
                __syncwarp(); /* or ptxas begins the loads of all runs first, and registers run out */
                node<2>(other, (own ^ 2) & ~1u, i, runs);
                tree_add(d, other);
            }
            if (leaves > 4) {
                __syncwarp();
                node<4>(other, (own ^ 4) & ~3u, i, runs);
                tree_add(d, other);
            }
        }
    }

    /* sum = the node over its own `below` leaves and their sibling's. loads: of fragments, that are under way at a time. */
    template <int below, int loads, int count>
    __device__ __forceinline__ void climb(float (&sum)[count], uint32_t runs) const
    {
        constexpr int all = count / FRAGMENT_SUMS, most = loads > below ? loads / below : 1,
                      together = most < all ? most : all;
#pragma unroll
        for (int i = 0; i < all; i += together) {
            float other[together][FRAGMENT_SUMS];
#pragma unroll
            for (int j = 0; j < together; j++)
                node<below>(other[j], (own ^ below) & ~(below - 1u), i + j, runs);
            __syncwarp(); /* or ptxas begins the loads of all runs first, and registers run out */
#pragma unroll
            for (int j = 0; j < together; j++) {
                float(&d)[FRAGMENT_SUMS] =
                    *(float(*)[FRAGMENT_SUMS]) & sum[(i + j) * FRAGMENT_SUMS];
                tree_add(d, other[j]);
            }
        }
    }
};

/* sum = the root over 1, 2, 4 or 8 leaves, one of which it is. loads: so many are under way; 1: as few registers as can be. */
template <int loads, int count, class lane>
PTX_FN void tree_join(float (&sum)[count], const struct tree_leaves<lane> &others, uint32_t leaves,
                      uint32_t runs)
{
    if constexpr (loads == 1) {
        others.climb_in_turn(sum, leaves, runs);
        return;
    }
    if (leaves > 1)
        others.template climb<1, loads>(sum, runs);
    if (leaves > 2)
        others.template climb<2, loads>(sum, runs);
    if (leaves > 4)
        others.template climb<4, loads>(sum, runs);
}
