/* Sums of blocks of K that are added in a tree (core/cta/sum_tree.h): what a consumer warpgroup of kernels/hopper/gemm.cuh does
 * with the stages of a tile where its source says that there are blocks.
 *
 * The tensor core begins each block at zero: a left child of its node in the tile's sums, a right one in registers of its own,
 * which are added to them when it is whole. Of nodes above, none waits of 2 blocks, one of 4, two of 8. */
#pragma once

#include "core/plan/gemm_tiles.h"
#include "kernels/engine/fragments_tree.cuh"
#include "kernels/hopper/gemm.cuh"

/* The tile's stage k is there. */
template <class shape, class tile_source>
PTX_FN void gemm_await_stage(const struct gemm_operands *op, tile_source *source,
                             struct gemm_ring *ring, const struct mk_tile *tile, uint32_t i,
                             uint32_t half, uint32_t k)
{
    pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, op->limit_ns);
    /* (whether a thread is the first, not even a predicate is kept for) */
    if (k == 0 && ptx_opaque(threadIdx.x) % 128 == 0)
        source->begin(i, tile);
    if (i > 0 && k == (op->stages_of_k > 2 ? 2 : op->stages_of_k - 1) &&
        ptx_opaque(threadIdx.x) % 128 == 0)
        source->publish(i - 1, half);
}

/* The same number. Where the other registers of a source leave none for it, it is asked for anew at each stage. */
template <class tile_source> PTX_FN uint32_t gemm_lane(uint32_t lane)
{
    return tile_source::asks_lane ? ptx_opaque(threadIdx.x) % 32 : lane;
}

/* The tile's stages from *k up to `end`, summed from zero: whole in `sum` when it returns, and the stages given back. */
template <class shape, class tile_source>
PTX_FN void gemm_sum_block(const struct gemm_operands *op, tile_source *source,
                           struct gemm_ring *ring, float (&sum)[shape::blocks][shape::sums],
                           const struct mk_tile *tile, uint32_t i, uint32_t half, uint32_t *k,
                           uint32_t end)
{
    const uint32_t begin = *k, kept = threadIdx.x % 32;
    uint32_t previous = 0;
#pragma unroll
    for (int j = 0; j < shape::tile_n / 2; j++)
        sum[0][j] = 0; /* or they would be kept while other ranks' sums are added */
#pragma unroll 1
    for (; *k < end; ++*k) {
        gemm_await_stage<shape>(op, source, ring, tile, i, half, *k);
        gemm_multiply_stage<shape>(sum, ring->shared + ring->at.stage * shape::stage_bytes, half, 1,
                                   shape::first_row(half));
        wgmma_wait<1>();
        if (*k > begin)
            pipeline_release<shape::stages, shape::cluster>(ring->barriers, previous,
                                                            gemm_lane<tile_source>(kept));
        previous = ring->at.stage;
        pipeline_step<shape::stages>(&ring->at);
    }
    wgmma_wait<0>();
    pipeline_release<shape::stages, shape::cluster>(ring->barriers, previous,
                                                    gemm_lane<tile_source>(kept));
    wgmma_settle(sum[0]);
}

/* Left nodes that wait for their right neighbours, one on each of two levels. Where a thread has 64 sums there are no registers for
 * them: the lower one waits in shared memory behind all else, where the thread reads what it wrote; the upper one, which one rank
 * alone has, in the thread's own memory, once a tile. (Both there, a tile of 256x128 took 3.5 us longer, of 23; one H100.) */
template <class shape> struct gemm_waiting {
    static constexpr int count = shape::tile_n / 2;
    static constexpr bool apart = count > 32;
    static constexpr uint32_t offset = (shape::track_offset + 127) / 128 * 128,
                              shared_bytes =
                                  apart ? offset + 256 * count * 4 + 1024 : shape::shared_bytes;
    uint32_t shared; /* where the CTA's begins */
    float lower[apart ? 1 : count], upper[1][count];

    static ENGINE_MEMBER void join(float (&right)[count], const float *left)
    {
#pragma unroll
        for (int j = 0; j < count; j++) {
            right[j] = tree_cut(left[j]) + tree_cut(right[j]);
            if (apart && j % 16 == 15)
                __syncwarp(); /* or ptxas begins all loads first, and registers run out */
        }
    }

    /* Of the thread's 16 bytes in every 4096 the first; kept nowhere. */
    ENGINE_MEMBER uint32_t at() const
    {
        return shared + offset + (ptx_opaque(threadIdx.x) - 128) * 16;
    }

    ENGINE_MEMBER void wait_below(const float (&sum)[count])
    {
        const uint32_t to = apart ? at() : 0;
#pragma unroll
        for (int j = 0; j < count; j += 4)
            if constexpr (apart)
                ptx_store_shared_4(to + j * 1024, ptx_copy_4(&sum[j]));
            else
                for (int i = j; i < j + 4; i++)
                    lower[i] = sum[i];
    }

    ENGINE_MEMBER void join_below(float (&sum)[count])
    {
        if constexpr (apart) {
            const uint32_t from = at();
#pragma unroll
            for (int j = 0; j < count; j += 4) {
                const uint4 v = ptx_load_shared_4(from + j * 1024);
                const uint32_t left[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[j + i] = tree_cut(__uint_as_float(left[i])) + tree_cut(sum[j + i]);
            }
        } else {
            join(sum, lower);
        }
    }

    /* Node `number` of `nodes`, 4 at most, is in `sum`: goes up to where it is a left one, and waits there. The last one ends
     * at the root. */
    ENGINE_MEMBER void climb(float (&sum)[count], uint32_t number, uint32_t nodes)
    {
        const uint32_t level = apart ? ptx_opaque(0) : 0; /* or it would be kept in registers */
        if (number & 1)
            join_below(sum);
        else if (number + 1 < nodes)
            wait_below(sum);
        if (number == 1 && nodes > 2) {
#pragma unroll
            for (int j = 0; j < count; j++)
                upper[level][j] = sum[j];
        }
        if (number == 3)
            join(sum, upper[level]);
    }
};

/* Dynamic shared memory for any of the shapes. */
constexpr uint32_t gemm_tree_shared_bytes()
{
    uint32_t most = 0;
#define GEMM_TREE_BYTES(rows, columns, cluster, stages, boxes)                                     \
    typedef gemm_waiting<gemm_shape<rows, columns, cluster, 0, stages, boxes, MK_FP24>>            \
        of_##rows##_##columns##_##cluster;                                                         \
    if (most < of_##rows##_##columns##_##cluster::shared_bytes)                                    \
        most = of_##rows##_##columns##_##cluster::shared_bytes;
    MK_TREE_TILES(GEMM_TREE_BYTES)
    MK_FEW_ROWS_TILES(GEMM_TREE_BYTES)
#undef GEMM_TREE_BYTES
    return most;
}

/* Of two parts a consumer has half of the blocks: the second's stages are counted from its first one on, and the first may have one
 * less. */
template <class shape, class tile_source>
PTX_FN void gemm_sum_blocks(const struct gemm_operands *op, tile_source *source,
                            struct gemm_ring *ring, float (&sum)[shape::blocks][shape::sums],
                            const struct mk_tile *tile, uint32_t i, uint32_t half)
{
    constexpr int count = shape::tile_n / 2;
    static_assert(shape::blocks == 1 && count <= 64, "registers for sums twice");
    const uint32_t blocks = source->blocks() / shape::parts,
                   first = shape::parts == 2 && half ? blocks : 0,
                   before = first ? source->block_end(first - 1) : 0;
    float right[1][count];
    gemm_waiting<shape> waiting;
    waiting.shared = ring->shared;
    uint32_t k = 0;
#pragma unroll 1
    for (uint32_t block = 0; block < blocks; block += 2) {
        gemm_sum_block<shape>(op, source, ring, sum, tile, i, half, &k,
                              source->block_end(first + block) - before);
        if (blocks == 1)
            break;
        gemm_sum_block<shape>(op, source, ring, right, tile, i, half, &k,
                              source->block_end(first + block + 1) - before);
        tree_add(sum[0], right[0]);
        waiting.climb(sum[0], block / 2, blocks / 2);
    }
    if (shape::parts == 2 && k < op->stages_of_k) {
        gemm_await_stage<shape>(op, source, ring, tile, i, half, k);
        __syncwarp();
        pipeline_release<shape::stages, shape::cluster>(ring->barriers, ring->at.stage,
                                                        threadIdx.x % 32);
        pipeline_step<shape::stages>(&ring->at);
    }
}
