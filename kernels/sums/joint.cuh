/* The epilogue of one shot of GEMM+ReduceScatter and GEMM+AllReduce (core/roles/gemm_rs.h), in the
 * registers of either engine's consumers: a thread sends its sums to the ranks that add them, adds
 * their partial sums of its own elements, and stores rows that no engine can store.
 *
 * A struct `work` in shared memory describes the tile:
 *
 *   struct mk_tile tile
 *   uint64_t to       the heap offset of its place in the first slab, of any rank
 *   uint32_t runs     of a group of rows, in fragments (kernels/engine/fragments.cuh)
 *   uint64_t epoch    the launch's number
 *
 * sum: blocks of 16 rows a warp; `part` says where they are in the tile. None of these waits. */
#pragma once

#include "kernels/sums/gemm_reduce_roles.cuh"

#include "kernels/engine/fragments.cuh"

/* A warp's part of a tile, `warp_part`: the row that its first block begins with, rows from block
 * to block, and the run of 16 columns that its rows begin with. Of wgmma a warp has whole rows,
 * whose numbers are constants: kernels of gemm_ar have no register left for others. */
struct joint_rows {
    uint32_t row;
    static constexpr uint32_t apart = 64, first = 0;

    REDUCE_MEMBER uint32_t runs(uint32_t all) const
    {
        return all;
    }
    template <int number> REDUCE_MEMBER uint32_t offset(int m, uint32_t all) const
    {
        return fragment_offset<number>(row + m * apart, all);
    }
};

struct joint_part {
    uint32_t row, apart, first;

    /* Of so many runs of a row, the warp's. */
    REDUCE_MEMBER uint32_t runs(uint32_t all) const
    {
        return first < all ? all - first : 0;
    }
    /* Where the calling thread's first bytes of a block lie in a tile. */
    template <int number> REDUCE_MEMBER uint32_t offset(int m, uint32_t all) const
    {
        return fragment_offset<number>(row + m * apart, all) + first * fragment_bytes<number>;
    }
};

/* Whether `rank` ends with any of the 16 rows from `row` of the tile on. */
REDUCE_MEMBER bool joint_wanted(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                uint32_t rank, uint32_t row)
{
    uint32_t left = row < tile->rows ? tile->rows - row : 0;
    return gemm_rs_wants(p, rank, tile->row + row, left < FRAGMENT_ROWS ? left : FRAGMENT_ROWS);
}

/* Where the sum goes to all, the thread's own are rounded as others get them: all ranks then add
 * the same. Nodes of a tree are cut where they are added, and a root that nothing is added to is
 * not. */
template <class op, int number, int blocks, int count>
REDUCE_MEMBER void joint_round(float (&sum)[blocks][count], bool joint)
{
    if constexpr (op::gathers && !op::tree) {
#pragma unroll
        for (int m = 0; m < blocks; m++)
            fragments_round<number>(sum[m], joint);
    }
}

/* Where a rank ends with its rows alone: stores what these have of the tile, if others' are before
 * them (a tile cannot begin outside C) or if there is nothing to store; false: the engine can. */
template <class op, class work, class warp_part, int blocks, int count>
REDUCE_MEMBER bool joint_store_own(const typename op::plan *plan, const struct gpu_launch *launch,
                                   const work *w, float (&sum)[blocks][count],
                                   const warp_part &part)
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t first = p->topo.rank * p->shard_rows, lane = threadIdx.x % 32;
    if (gemm_rs_wants(p, p->topo.rank, w->tile.row, w->tile.rows) && w->tile.row >= first)
        return false;
#pragma unroll
    for (int m = 0; m < blocks; m++)
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            uint32_t in = part.row + m * part.apart + eight * 8 + lane / 4,
                     at = w->tile.row + in - first, column = part.first * FRAGMENT_COLUMNS;
            if (in >= w->tile.rows || at >= p->shard_rows) /* below the first: above all */
                continue;
            char *to = (char *)launch->arguments[MK_SPACE_ARG2] +
                       ((uint64_t)at * p->n + w->tile.col + column + lane % 4 * 2) * 2;
#pragma unroll
            for (int j = 0; j < count / 4; j++)
                if (column + j * 8 < w->tile.cols)
                    *(uint32_t *)(to + j * 16) = half_pack<op::element>(
                        sum[m][j * 4 + eight * 2], sum[m][j * 4 + eight * 2 + 1]);
        }
    return true;
}

/* Stores the thread's sums at every rank that adds them. They are published when all threads have
 * stored (gemm_rs_announce). */
template <class op, int number, class work, class warp_part, int blocks, int count,
          class lane = struct fragment_lane>
REDUCE_MEMBER void joint_send(const typename op::plan *plan, const struct gpu_launch *launch,
                              const work *w, float (&sum)[blocks][count], const warp_part &part,
                              lane l = lane())
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t gpus = p->topo.gpus, local = p->topo.rank; /* one node */
#pragma unroll 1
    for (uint32_t step = 1; step < gpus; step++) {
        uint32_t peer = local + gpus - step < gpus ? local + gpus - step : local - step;
        char *to = launch->peers[peer] + w->to + gemm_rs_joint_slab(p, peer, local);
#pragma unroll
        for (int m = 0; m < blocks; m++) {
            const bool wanted =
                joint_wanted(op::tiles(plan), &w->tile, peer, part.row + m * part.apart);
            fragments_store<number>(to + part.template offset<number>(m, w->runs), sum[m],
                                    wanted ? part.runs(w->runs) : 0, l);
        }
    }
}

/* Ranks that are added up before a rank's own sums: x + y is y + x. */
REDUCE_MEMBER uint32_t joint_before(const struct gemm_rs_plan *p)
{
    return p->topo.rank > 1 ? p->topo.rank : 0;
}

/* Adds to the thread's sums what others have of the tile, in rank order: the calling warpgroup
 * knows that it is here (gemm_rs_await). behind: also what comes behind its own; else the caller
 * does. */
template <class op, int number, bool behind, class work, class warp_part, int blocks, int count>
REDUCE_MEMBER void joint_add(const typename op::plan *plan, const struct gpu_launch *launch,
                             const work *w, float (&sum)[blocks][count], const warp_part &part)
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t terms = p->topo.gpus - 1, place = p->topo.rank, before = joint_before(p);
#pragma unroll
    for (int m = 0; m < blocks; m++) {
        const bool wanted =
            joint_wanted(op::tiles(plan), &w->tile, place, part.row + m * part.apart);
        const uint32_t runs = wanted ? part.runs(w->runs) : 0;
        const char *from = launch->heap + w->to + part.template offset<number>(m, w->runs);
        if (before)
            fragments_add_before<number, behind ? 4 : 2>(sum[m], from, p->slab_pitch, before, runs);
        if constexpr (behind)
            fragments_add_behind<number, 4>(sum[m], from + before * p->slab_pitch, p->slab_pitch,
                                            terms - before, runs);
    }
}

/* (kernels/sums/joint_tree.cuh.) The same where the ranks' sums are leaves of a tree. loads: so many are under way. */
template <class op, int number, int loads, class work, class warp_part, int blocks, int count,
          class lane = struct fragment_lane>
REDUCE_MEMBER void joint_join(const typename op::plan *plan, const struct gpu_launch *launch,
                              const work *w, float (&sum)[blocks][count], const warp_part &part,
                              lane l = lane());
