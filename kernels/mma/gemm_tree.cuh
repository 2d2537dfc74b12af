/* Sums of blocks of K that are added in a tree (core/cta/sum_tree.h), on engine mma: what a consumer warp of kernels/mma/gemm.cuh does with
 * the stages of a tile where its source says that there are blocks. Registers have room for one tile's sums: all nodes that wait
 * do so in memory of the thread, which reads nothing there but what it wrote. */
#pragma once

#include "kernels/engine/fragments_tree.cuh"
#include "kernels/mma/gemm.cuh"

template <class shape, class tile_source, class first>
PTX_FN void mma_sum_blocks(float (&sum)[shape::blocks][shape::sums], const tile_source *source,
                           uint32_t shared, const struct mma_lane *lane,
                           struct pipeline_position *at, uint32_t stages_of_k, uint64_t limit_ns,
                           const first &landed)
{
    constexpr uint32_t parts = shape::tile_k / 32;
    static_assert(shape::blocks == 1, "a thread's sums are one run");
    struct mma_fragments<shape> f;
    struct mma_lane from;
    tree_waiting<shape::sums, 3> waiting;
    uint32_t block = 0, left = stages_of_k * parts;
#pragma unroll
    for (int j = 0; j < shape::sums; j++)
        sum[0][j] = 0;
    ring_wait_full<shape::stages>(shared + shape::barriers_offset, at, limit_ns);
    landed();
    mma_load_first<shape>(&f, lane, &from, shared + at->stage * shape::stage_bytes);
#pragma unroll 1
    for (uint32_t behind; left; block++) {
        behind = (stages_of_k - source->block_end(block)) * parts;
#pragma unroll 1
        for (; left > behind; left--)
            mma_multiply_32<shape>(sum, &f, shared, lane, &from, at, left % parts == 1 % parts,
                                   left > 1, limit_ns);
        waiting.climb(sum[0], block, source->blocks());
#pragma unroll
        for (int j = 0; j < shape::sums; j++)
            sum[0][j] = left ? 0 : sum[0][j];
    }
}
