/* The tiles that the GPU's attention engine is built for: one table, which kernels, plans and error
 * texts read. */
#pragma once

/* X(dim, keys, groups, stages, own_o): of heads of up to `dim` elements, a block of `keys` rows of
 * K and V against 64 * groups rows of Q (kernels/hopper/attention_shape.cuh). The fastest of about
 * a dozen on an H200 with heads of 64 and 128. */
#define MK_ATTENTION_TILES(X)                                                                      \
    X(64, 128, 3, 2, true) X(128, 128, 2, 2, true) X(192, 96, 2, 2, false) X(256, 80, 2, 2, false)

/* The same where the producer waits for other GPUs too, and warps beside it push: they need
 * registers, which three warpgroups leave with fewer keys at a time. The last is for sums that are
 * the same everywhere. */
#define MK_RING_ATTENTION_TILES(X)                                                                 \
    X(64, 96, 3, 2, true) X(64, 176, 2, 2, true) X(128, 128, 2, 2, true) X(64, 128, 2, 2, true)

/* Of engine mma, X(dim, keys, warps, blocks, held): a block of `keys` rows of K and V against
 * 16 * warps * blocks rows of Q, one CTA an SM of 100 KB (kernels/mma/attention.cuh). */
#define MK_MMA_ATTENTION_TILES(X) X(64, 64, 8, 2, 4) X(128, 32, 8, 2, 0) X(128, 64, 8, 1, 8)

/* Those of which an SM holds two blocks, where a block could have MK_MMA_ATTENTION_PAIR bytes of
 * shared memory: each CTA of the plan is two blocks, softmax of one falls under products of the
 * other. */
#define MK_MMA_ATTENTION_PAIRS(X) X(128, 64, 4, 2, 0)
#define MK_MMA_ATTENTION_PAIR(dim, keys, warps, blocks)                                            \
    (2 * ((16 * (warps) * (blocks) + 4 * (keys)) * 2 * (dim) + 2048))

/* Where a row's bits are the same everywhere keys are multiplied so many at a time, from places of
 * the sequence that they divide: a row's largest score so far, by which it rounds weights, follows
 * from that. Of engine mma tiles have half as many. */
#define MK_SAME_KEYS 128u
#define MK_SAME_KEYS_MMA 64u
