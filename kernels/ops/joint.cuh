/* One shot of GEMM+ReduceScatter and GEMM+AllReduce (core/roles/gemm_rs.h) as consumers of either
 * engine have it in their registers: a thread sends its sums to the ranks that want them, adds
 * what these have sent of its own elements, and stores rows that no engine can.
 *
 * What is known of a tile is a struct `work` in shared memory:
 *
 *   struct mk_tile tile
 *   uint64_t to       the heap offset of its place in the first slab, of any rank
 *   uint32_t runs     of a group of rows, in fragments (kernels/fragments.cuh)
 *   uint64_t epoch    the launch's number
 *
 * sum: blocks of 16 rows a warp, 64 rows apart; row: of the tile, the first of the warp's first.
 * None of these blocks but joint_add where sums go in words: it waits for each, within the launch's
 * bounds. */
#ifndef MK_KERNELS_JOINT_CUH
#define MK_KERNELS_JOINT_CUH

#include "kernels/ops/gemm_reduce_roles.cuh"

#include "kernels/fragments_tree.cuh"

/* Whether `rank` ends with any of the 16 rows from `row` of the tile on. */
REDUCE_MEMBER bool joint_wanted(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                uint32_t rank, uint32_t row)
{
    uint32_t left = row < tile->rows ? tile->rows - row : 0;
    return gemm_rs_wants(p, rank, tile->row + row, left < FRAGMENT_ROWS ? left : FRAGMENT_ROWS);
}

/* Where the sum goes to all, the thread's own are rounded as others get them: all ranks then add
 * the same. Nodes of a tree are cut where they are added, and a root that nothing is added to is not. */
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
template <class op, class work, int blocks, int count>
REDUCE_MEMBER bool joint_store_own(const typename op::plan *plan, const struct gpu_launch *launch,
                                   const work *w, float (&sum)[blocks][count], uint32_t row)
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t first = p->topo.rank * p->shard_rows, lane = threadIdx.x % 32;
    if (gemm_rs_wants(p, p->topo.rank, w->tile.row, w->tile.rows) && w->tile.row >= first)
        return false;
#pragma unroll
    for (int m = 0; m < blocks; m++)
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            uint32_t in = row + m * 64 + eight * 8 + lane / 4, at = w->tile.row + in - first;
            if (in >= w->tile.rows || at >= p->shard_rows) /* below the first: above all */
                continue;
            char *to = (char *)launch->arguments[MK_SPACE_ARG2] +
                       ((uint64_t)at * p->n + w->tile.col + lane % 4 * 2) * 2;
#pragma unroll
            for (int j = 0; j < count / 4; j++)
                if (j * 8 < w->tile.cols)
                    *(uint32_t *)(to + j * 16) =
                        ptx_pack_bf16(sum[m][j * 4 + eight * 2], sum[m][j * 4 + eight * 2 + 1]);
        }
    return true;
}

/* Stores the thread's sums at all who want them. Words say themselves that they are there; of
 * others somebody tells when all threads have stored (gemm_rs_announce). worded: the plan may have
 * words. */
template <class op, int number, bool worded, class work, int blocks, int count,
          class lane = struct fragment_lane>
REDUCE_MEMBER void joint_send(const typename op::plan *plan, const struct gpu_launch *launch,
                              const work *w, float (&sum)[blocks][count], uint32_t row,
                              lane l = lane())
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t gpus = p->topo.gpus, local = p->topo.rank; /* one node */
    const bool words = worded && p->words;
#pragma unroll 1
    for (uint32_t step = 1; step < gpus; step++) {
        uint32_t peer = local + gpus - step < gpus ? local + gpus - step : local - step;
        char *to = launch->peers[peer] + w->to + gemm_rs_joint_slab(p, peer, local);
#pragma unroll
        for (int m = 0; m < blocks; m++) {
            uint32_t runs =
                joint_wanted(op::tiles(plan), &w->tile, peer, row + m * 64) ? w->runs : 0;
            if (words)
                fragments_store_words<number>(
                    to + fragment_offset<number>(row + m * 64, 2 * w->runs), sum[m], runs,
                    (uint32_t)w->epoch);
            else
                fragments_store<number>(to + fragment_offset<number>(row + m * 64, w->runs), sum[m],
                                        runs, l);
        }
    }
}

/* Looks at words of a tile until they are of this launch, within the launch's bounds. */
struct joint_waiting {
    const struct gpu_launch *launch;
    const struct gemm_rs_plan *plan;
    uint32_t tile, number; /* its id; the launch's */

    REDUCE_MEMBER void operator()(uint32_t term, const char *at, uint4 *v) const
    {
        if (v->y == number && v->w == number)
            return;
        uint64_t start = ptx_globaltimer(), checked = start;
        int shown = 0;
        do {
            const uint64_t *word = (const uint64_t *)at + (v->y == number);
            uint64_t seen = ptx_load_relaxed(word) >> 32, now = ptx_globaltimer();
            if (seen == number) {
                *v = ptx_load_words(at);
            } else if (now - checked > 50000) {
                struct mk_cta own;
                checked = now;
                cta_identify(&own, launch, blockIdx.x, 1);
                if (cta_wait_ends(
                        &own, start, now, seen < number ? seen * MK_TILE_PARTS : 0,
                        own.epoch * MK_TILE_PARTS,
                        gemm_rs_partial_flag(plan, 0, term + (term >= plan->topo.rank), tile),
                        MK_CAUSE_DATA, &shown))
                    return; /* the launch fails as a whole */
            }
        } while (v->y != number || v->w != number);
        if (shown)
            ((volatile struct gpu_report *)launch->report)->progress[blockIdx.x] = (uint64_t)number
                                                                                   << 32;
    }
};

/* Ranks that are added up before a rank's own sums: x + y is y + x. */
REDUCE_MEMBER uint32_t joint_before(const struct gemm_rs_plan *p)
{
    return p->topo.rank > 1 ? p->topo.rank : 0;
}

/* Adds to the thread's sums what others have of the tile, in rank order. Of words it waits for
 * each; of others the calling warpgroup knows that they are here (gemm_rs_await). loads: so many
 * are under way; 0: the caller adds what comes behind its own and is in no words. */
template <class op, int number, bool worded, int loads, class work, int blocks, int count>
REDUCE_MEMBER void joint_add(const typename op::plan *plan, const struct gpu_launch *launch,
                             const work *w, float (&sum)[blocks][count], uint32_t row)
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t terms = p->topo.gpus - 1, place = p->topo.rank, before = joint_before(p);
    const bool words = worded && p->words;
    const struct joint_waiting await = {launch, p, w->tile.id, (uint32_t)w->epoch};
#pragma unroll
    for (int m = 0; m < blocks; m++) {
        uint32_t runs = joint_wanted(op::tiles(plan), &w->tile, place, row + m * 64) ? w->runs : 0;
        const char *from =
            launch->heap + w->to + fragment_offset<number>(row + m * 64, w->runs << words);
        if (words) {
            fragments_add_words<number>(sum[m], from, p->slab_pitch, terms, before, runs, await);
            continue;
        }
        if (before)
            fragments_add_before<number>(sum[m], from, p->slab_pitch, before, runs);
        if constexpr (loads > 0)
            fragments_add_behind<number, loads>(sum[m], from + before * p->slab_pitch,
                                                p->slab_pitch, terms - before, runs);
    }
}

/* The same where the ranks' sums are leaves of a tree, which are in no words. loads: so many are under way. */
template <class op, int number, int loads, class work, int blocks, int count,
          class lane = struct fragment_lane>
REDUCE_MEMBER void joint_join(const typename op::plan *plan, const struct gpu_launch *launch,
                              const work *w, float (&sum)[blocks][count], uint32_t row,
                              lane l = lane())
{
    const struct gemm_rs_plan *p = op::tiles(plan);
#pragma unroll
    for (int m = 0; m < blocks; m++) {
        const struct tree_leaves<lane> others = {
            launch->heap + w->to + fragment_offset<number>(row + m * 64, w->runs), p->slab_pitch,
                p->topo.rank, l
        };
        if (joint_wanted(p, &w->tile, p->topo.rank, row + m * 64))
            tree_join<loads>(sum[m], others, p->topo.gpus, w->runs);
    }
}

#endif
