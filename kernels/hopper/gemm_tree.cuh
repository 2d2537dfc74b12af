/* Sums of blocks of K that are added in a tree (core/sum_tree.h): what a consumer warpgroup of kernels/hopper/gemm.cuh does
 * with the stages of a tile where its source says that there are blocks.
 *
 * The tensor core begins each block at zero, in registers of its own. A block that is the left child of its node waits in the
 * tile's sums for the right one. Nodes above, two at most, wait in memory of the thread, where it reads nothing but what it
 * wrote: of 2 blocks there is none, of 4 one, stored and loaded once a tile. */
#ifndef MK_KERNELS_GEMM_TREE_CUH
#define MK_KERNELS_GEMM_TREE_CUH

#include "kernels/fragments_tree.cuh"
#include "kernels/hopper/gemm.cuh"

template <class shape, class tile_source>
PTX_FN void gemm_sum_blocks(const struct gemm_operands *op, tile_source *source,
                            struct gemm_ring *ring, float (&sum)[shape::blocks][shape::tile_n / 2],
                            const struct mk_tile *tile, uint32_t i, uint32_t half)
{
    constexpr int count = shape::tile_n / 2;
    static_assert(shape::blocks == 1 && shape::parts == 1 && count <= 64,
                  "registers for sums twice, and K in its order");
    const uint32_t blocks = source->blocks(), lane = threadIdx.x % 32;
    float raw[1][count];
    tree_waiting<count, 2> waiting;
    uint32_t k = 0;
#pragma unroll 1
    for (uint32_t block = 0; block < blocks; block++) {
        const uint32_t begin = k, end = source->block_end(block);
        uint32_t previous = 0;
#pragma unroll
        for (int j = 0; j < count; j++)
            raw[0][j] = 0; /* or they would be kept while other ranks' sums are added */
        for (; k < end; k++) {
            pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, op->limit_ns);
            if (k == 0 && threadIdx.x % 128 == 0)
                source->begin(i, tile);
            if (i > 0 && k == (op->stages_of_k > 2 ? 2 : op->stages_of_k - 1) &&
                threadIdx.x % 128 == 0)
                source->stored(i - 1, half);
            gemm_multiply_stage<shape>(raw, ring->shared + ring->at.stage * shape::stage_bytes,
                                       half, 1);
            wgmma_wait<1>();
            if (k > begin)
                pipeline_release<shape::stages, shape::cluster>(ring->barriers, previous, lane);
            previous = ring->at.stage;
            pipeline_step<shape::stages>(&ring->at);
        }
        wgmma_wait<0>();
        pipeline_release<shape::stages, shape::cluster>(ring->barriers, previous, lane);
        wgmma_settle(raw[0]);
        if (block & 1) {
            tree_add(sum[0], raw[0]);
            waiting.climb(sum[0], block >> 1, blocks >> 1);
        } else {
#pragma unroll
            for (int j = 0; j < count; j++)
                sum[0][j] = raw[0][j];
        }
    }
}

#endif
