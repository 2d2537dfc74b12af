/* GEMM+ReduceScatter and GEMM+AllReduce in one shot (core/roles/gemm_rs.h), for few rows: the rest
 * of kernels/gemm_reduce.cuh. The consumers store their sums at the ranks that want them, straight
 * from their registers, wait for those of others, and add these. */
#ifndef MK_KERNELS_GEMM_JOINT_CUH
#define MK_KERNELS_GEMM_JOINT_CUH

#include "kernels/gemm_reduce.cuh"

/* Joint, where a rank ends with its rows alone: stores what these have of the tile, if others' are
 * before them (a tensor store cannot begin outside C) or if there is nothing to store; false: the
 * engine can. */
template <class op>
template <class shape>
GEMM_MEMBER bool reduce_source<op>::store_own(const struct reduce_work *w,
                                              float (&sum)[shape::blocks][shape::tile_n / 2],
                                              uint32_t row) const
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t first = p->topo.rank * p->shard_rows, lane = threadIdx.x % 32;
    if (gemm_rs_wants(p, p->topo.rank, w->tile.row, w->tile.rows) && w->tile.row >= first)
        return false;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            uint32_t in = row + m * 64 + eight * 8 + lane / 4, at = w->tile.row + in - first;
            if (in >= w->tile.rows || at >= p->shard_rows) /* below the first: above all */
                continue;
            char *to = (char *)launch->arguments[MK_SPACE_ARG2] +
                       ((uint64_t)at * p->n + w->tile.col + lane % 4 * 2) * 2;
#pragma unroll
            for (int j = 0; j < shape::tile_n / 8; j++)
                if (j * 8 < w->tile.cols)
                    *(uint32_t *)(to + j * 16) =
                        ptx_pack_bf16(sum[m][j * 4 + eight * 2], sum[m][j * 4 + eight * 2 + 1]);
        }
    return true;
}

/* Joint: stores the thread's sums at all who want them, and waits for theirs, unless these say
 * themselves whether they are here. */
template <class op>
template <class shape>
GEMM_MEMBER void reduce_source<op>::exchange(const struct reduce_work *w,
                                             float (&sum)[shape::blocks][shape::tile_n / 2],
                                             uint32_t row, uint32_t half) const
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t gpus = p->topo.gpus, local = p->topo.rank, words = p->words; /* one node */
#pragma unroll 1
    for (uint32_t step = 1; step < gpus; step++) {
        uint32_t peer = local + gpus - step < gpus ? local + gpus - step : local - step;
        char *to = launch->peers[peer] + gemm_rs_joint_offset(p, &w->tile, peer, w->to);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
            uint32_t runs = wanted(&w->tile, peer, row + m * 64) ? w->runs : 0;
            if (words)
                fragments_store_words<shape::number>(
                    to + fragment_offset<shape::number>(row + m * 64, 2 * w->runs), sum[m], runs,
                    (uint32_t)w->to);
            else
                fragments_store<shape::number>(
                    to + fragment_offset<shape::number>(row + m * 64, w->runs), sum[m], runs);
        }
    }
    if (words)
        return;
    ptx_bar_sync(1 + half, 128);
    if (threadIdx.x % 128 == 0)
        ptx_mbar_arrive(barrier(reduce_shared->there, w->number, half));
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half), w->number / GEMM_RS_OUTBOX & 1,
                  operands->limit_ns);
}

/* Looks at words of a tile until they are of this launch, within the launch's bounds. */
struct joint_waiting {
    const struct gpu_launch *launch;
    const struct gemm_rs_plan *plan;
    uint32_t tile, number; /* its id; the launch's */

    GEMM_MEMBER void operator()(uint32_t term, const char *at, uint4 *v) const
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

/* Joint: adds to the thread's sums what others have of the tile, in rank order; row: its first of
 * the tile. */
template <class op>
template <class shape>
GEMM_MEMBER void reduce_source<op>::add_joint(const struct reduce_work *w,
                                              float (&sum)[shape::blocks][shape::tile_n / 2],
                                              uint32_t row) const
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    /* x + y is y + x */
    uint32_t count = p->topo.gpus - 1, place = p->topo.rank, before = place > 1 ? place : 0;
    uint64_t at = p->staged[w->to & 1] +
                  (gemm_rs_tile_area(p, w->tile.id).first * p->element_bytes << p->words);
    const struct joint_waiting await = {launch, p, w->tile.id, (uint32_t)w->to};
#pragma unroll
    for (int m = 0; m < shape::blocks; m++) {
        uint32_t runs = wanted(&w->tile, place, row + m * 64) ? w->runs : 0;
        const char *from =
            launch->heap + at + fragment_offset<shape::number>(row + m * 64, w->runs << p->words);
        if (p->words) {
            fragments_add_words<shape::number>(sum[m], from, p->slab_pitch, count, before, runs,
                                               await);
            continue;
        }
        if (before)
            fragments_add_before<shape::number>(sum[m], from, p->slab_pitch, before, runs);
        fragments_add_behind<shape::number, 4>(sum[m], from + before * p->slab_pitch, p->slab_pitch,
                                               count - before, runs);
    }
}

/* Says to those who want the consumers' sums of the i-th tile that they are there, and then to
 * these that the others' are: a warp, one of `senders`. */
template <class op>
GEMM_MEMBER void reduce_source<op>::exchange_tile(struct mk_cta *own, uint32_t i, uint32_t sender,
                                                  uint32_t senders, int *ending)
{
    const struct mk_tile *tile = &work(i)->tile;
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    /* of 64 rows the first consumer has all */
    uint32_t halves = p->tile_m == 64 ? 1 : 2;
    for (uint32_t half = sender; half < halves; half += senders) {
        barrier_wait(&operands->watch, barrier(reduce_shared->there, i, half),
                     i / GEMM_RS_OUTBOX & 1, GPU_BARRIER_THERE, i % GEMM_RS_OUTBOX, i);
        p = MK_FRESH(p);
        gemm_rs_announce(p, own, tile, MK_TILE_PARTS / p->cluster / halves);
    }
    if (sender < halves && !*ending)
        *ending = gemm_rs_await(MK_FRESH(p), own, tile);
    for (uint32_t half = sender; half < halves; half += senders)
        if (cta_leads(own))
            ptx_mbar_arrive(barrier(reduce_shared->taken, i, half));
}

#endif
