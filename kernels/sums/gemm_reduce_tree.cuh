/* GEMM+ReduceScatter and GEMM+AllReduce whose sums are in a tree (core/cta/sum_tree.h): the rest of
 * kernels/sums/gemm_reduce.cuh for kernels of such plans. */
#pragma once

#include "kernels/sums/gemm_reduce.cuh"

#include "kernels/hopper/gemm_tree.cuh"
#include "kernels/sums/joint_tree.cuh"

/* What others have of a tile: level by level, each rank's or node's a leaf at its own place. */
template <class op, int sums>
template <class shape>
ENGINE_MEMBER void
reduce_source<op, sums>::add_in_tree(uint32_t i, float (&sum)[shape::blocks][shape::sums],
                                     uint32_t half, uint32_t rank, struct gemm_ring *ring) const
{
    const struct reduce_work *w = work(i);
    const uint32_t row =
        (rank * 2 + half) * shape::blocks * 64 + threadIdx.x % 128 / 32 * FRAGMENT_ROWS;
    if (!__shfl_sync(0xffffffff, w->terms[0].count + w->terms[1].count, 0))
        return;
    pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, operands->limit_ns);
    __syncwarp();
    pipeline_release<shape::stages, shape::cluster>(ring->barriers, ring->at.stage,
                                                    threadIdx.x % 32);
    pipeline_step<shape::stages>(&ring->at);
#pragma unroll 1
    for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++) {
        const struct gemm_rs_terms *t = &w->terms[level];
        const struct tree_leaves<struct fragment_lane_anew> others = {
            launch->heap + t->source + fragment_offset<shape::number>(row, w->runs),
                MK_FRESH(op::tiles(plan))->slab_pitch, t->place,
            {
                ptx_opaque(threadIdx.x)
            }
        };
        if (row < w->tile.rows)
            tree_join<4>(sum[0], others, t->count + 1, w->runs);
    }
}

/* For kernels/hopper/gemm_launch.cuh. */
template <class roles> struct reduce_tree_on_gpu : reduce_on_gpu<reduce_in_tree<roles>> {
    static constexpr uint32_t shared_bytes = gemm_tree_shared_bytes();
};

/* The kernels. */
template <class op> struct gemm_tree_kernels : gemm_bf16_kernels<op> {
    template <class shape> using shapes = typename shape::either; /* of several are none built */

    template <class function>
    static int dispatch(const struct engine_form *form, int transposed, function call)
    {
#define GEMM_TREE_TRY(rows, columns, cluster_, stages, boxes)                                      \
    if (form->tile_m == rows * cluster_ && form->tile_n == columns && form->cluster == cluster_)   \
        return gemm_shape_as_laid<rows, columns, cluster_, stages, boxes, MK_FP24, GEMM_BF16>(     \
            transposed, call);
        MK_TREE_TILES(GEMM_TREE_TRY)
        MK_FEW_ROWS_TILES(GEMM_TREE_TRY)
#undef GEMM_TREE_TRY
        return -EINVAL;
    }
};
