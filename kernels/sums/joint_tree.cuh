/* kernels/sums/joint.cuh where the ranks' sums are leaves of a tree (core/cta/sum_tree.h), for both engines. */
#pragma once

#include "kernels/engine/fragments_tree.cuh"
#include "kernels/sums/joint.cuh"

template <class op, int number, int loads, class work, class warp_part, int blocks, int count,
          class lane>
REDUCE_MEMBER void joint_join(const typename op::plan *plan, const struct gpu_launch *launch,
                              const work *w, float (&sum)[blocks][count], const warp_part &part,
                              lane l)
{
    const struct gemm_rs_plan *p = op::tiles(plan);
#pragma unroll
    for (int m = 0; m < blocks; m++) {
        const struct tree_leaves<lane> others = {
            launch->heap + w->to + part.template offset<number>(m, w->runs), p->slab_pitch,
                p->topo.rank, l
        };
        if (joint_wanted(p, &w->tile, p->topo.rank, part.row + m * part.apart))
            tree_join<loads>(sum[m], others, p->topo.gpus, part.runs(w->runs));
    }
}
