/* GEMM+ReduceScatter and GEMM+AllReduce in one shot (core/roles/gemm_rs.h), for few rows: the rest
 * of kernels/ops/gemm_reduce.cuh. The consumers store their sums at the ranks that want them,
 * straight from their registers, wait for those of others, and add these. */
#ifndef MK_KERNELS_GEMM_JOINT_CUH
#define MK_KERNELS_GEMM_JOINT_CUH

#include "kernels/ops/gemm_reduce.cuh"

/* Joint, where a rank ends with its rows alone: stores what these have of the tile, if others' are
 * before them (a tensor store cannot begin outside C) or if there is nothing to store; false: the
 * engine can. */
template <class op, int sums>
template <class shape>
GEMM_MEMBER bool reduce_source<op, sums>::store_own(const struct reduce_work *w,
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
template <class op, int sums>
template <class shape>
GEMM_MEMBER void reduce_source<op, sums>::exchange(const struct reduce_work *w,
                                                   float (&sum)[shape::blocks][shape::tile_n / 2],
                                                   uint32_t row, uint32_t half) const
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t gpus = p->topo.gpus, local = p->topo.rank, words = p->words; /* one node */
#pragma unroll 1
    for (uint32_t step = 1; step < gpus; step++) {
        uint32_t peer = local + gpus - step < gpus ? local + gpus - step : local - step;
        char *to = launch->peers[peer] + w->to + gemm_rs_joint_slab(p, peer, local);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
            uint32_t runs = wanted(&w->tile, peer, row + m * 64) ? w->runs : 0;
            if (words)
                fragments_store_words<shape::number>(
                    to + fragment_offset<shape::number>(row + m * 64, 2 * w->runs), sum[m], runs,
                    (uint32_t)w->epoch);
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
template <class op, int sums>
template <class shape>
GEMM_MEMBER void reduce_source<op, sums>::add_joint(const struct reduce_work *w,
                                                    float (&sum)[shape::blocks][shape::tile_n / 2],
                                                    uint32_t row) const
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    /* x + y is y + x */
    uint32_t count = p->topo.gpus - 1, place = p->topo.rank, before = place > 1 ? place : 0;
    const struct joint_waiting await = {launch, p, w->tile.id, (uint32_t)w->epoch};
#pragma unroll
    for (int m = 0; m < shape::blocks; m++) {
        uint32_t runs = wanted(&w->tile, place, row + m * 64) ? w->runs : 0;
        const char *from = launch->heap + w->to +
                           fragment_offset<shape::number>(row + m * 64, w->runs << p->words);
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

/* Takes a consumer's rows of a joint tile from the outbox to all who want them: a warp. first: of
 * the tile, the first of `rows`. */
template <class op, int sums>
GEMM_MEMBER void reduce_source<op, sums>::push_joint(struct mk_cta *own,
                                                     const struct reduce_work *w, uint32_t half,
                                                     uint32_t first, uint32_t rows) const
{
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t gpus = p->topo.gpus, local = p->topo.rank, /* one node */
        group = w->runs * FRAGMENT_ROWS * FRAGMENT_COLUMNS * p->element_bytes;
    for (uint32_t step = 1; step < gpus; step++) {
        uint32_t peer = local + gpus - step < gpus ? local + gpus - step : local - step;
        cta_copy_open(own, peer, w->tile.id * p->pieces);
        lanes_copy_rows<4, 4>(cta_lane(own), 32, outbox(w->number, half), 0,
                              launch->peers[peer] + w->to + gemm_rs_joint_slab(p, peer, local) +
                                  first / FRAGMENT_ROWS * group,
                              0, 1, (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS * group / 16,
                              own->pace);
    }
}

/* What follows a consumer's passed tile: it waits until others' sums of the i-th tile have come,
 * and stores C, in rank order what all have of the thread's own rows. row: of the tile, the warp's
 * first; within: of 64. */
template <class op, int sums>
template <class shape>
GEMM_MEMBER void reduce_source<op, sums>::add_passed(uint32_t i, uint32_t row, uint32_t within,
                                                     uint32_t half) const
{
    constexpr int all = shape::tile_n / FRAGMENT_COLUMNS, most = sums == MK_FP24 ? 2 : 4,
                  ahead = all < most ? all : most;
    const struct reduce_work *w = work(i);
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t lane = threadIdx.x % 32, gpus = p->topo.gpus, place = p->topo.rank,
                   before = place > 1 ? place : 0; /* x + y is y + x */
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half), w->number / GEMM_RS_OUTBOX & 1,
                  operands->limit_ns);
#pragma unroll 1
    for (int m = 0; m < shape::blocks; m++, row += 64, within += 64) {
        const char *mine = outbox(w->number, half) + fragment_offset<sums>(within, w->runs),
                   *theirs = launch->heap + w->to + fragment_offset<sums>(row, w->runs);
        char *c =
            (char *)launch->arguments[MK_SPACE_ARG2] +
            ((uint64_t)(w->tile.row + row + lane / 4) * p->n + w->tile.col + lane % 4 * 2) * 2;
#pragma unroll 1
        for (uint32_t run = 0; run < w->runs && row < w->tile.rows; run += ahead) {
            float d[ahead][FRAGMENT_SUMS] = {};
#pragma unroll 1
            for (uint32_t term = 0; term < gpus; term += 2) { /* two under way */
                struct fragment<sums> f[2][ahead];
#pragma unroll
                for (int both = 0; both < 2; both++) {
                    const uint32_t t = term + both;
                    const char *at =
                        t == before ? mine : theirs + (t - (t > before)) * p->slab_pitch;
#pragma unroll
                    for (int j = 0; j < ahead; j++)
                        f[both][j] = fragment_load<sums>(at, run + j, t < gpus ? w->runs : 0);
                }
#pragma unroll
                for (int both = 0; both < 2; both++)
#pragma unroll
                    for (int j = 0; j < ahead; j++)
                        fragment_add<sums>(d[j], f[both][j]);
            }
#pragma unroll
            for (int j = 0; j < ahead; j++)
#pragma unroll
                for (int four = 0; four < 4; four++) {
                    uint32_t column = (run + j) * FRAGMENT_COLUMNS + four / 2 * 8,
                             down = four % 2 * 8;
                    if (column < w->tile.cols && row + down + lane / 4 < w->tile.rows)
                        *(uint32_t *)(c + ((uint64_t)down * p->n + column) * 2) =
                            ptx_pack_bf16(d[j][four * 2], d[j][four * 2 + 1]);
                }
        }
    }
}

/* Says to those who want the consumers' sums of the i-th tile that they are there, and then to
 * these that the others' are: a warp, one of `senders`. Where the tile passes, it takes them there,
 * too. */
template <class op, int sums>
GEMM_MEMBER void reduce_source<op, sums>::exchange_tile(struct mk_cta *own, uint32_t i,
                                                        uint32_t sender, uint32_t senders,
                                                        int *ending)
{
    const struct reduce_work *w = work(i);
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const bool pass = w->kind == REDUCE_PASSED;
    /* of 64 rows the first consumer has all */
    const uint32_t halves = p->tile_m == 64 ? 1 : 2, part = p->tile_m / p->cluster / halves,
                   block = p->cluster == 2 ? blockIdx.x % 2 * 2 * part : 0;
    own->pace = pace_of(p, i, senders);
    for (uint32_t half = sender; half < halves; half += senders) {
        uint32_t first = block + half * part,
                 left = first < w->tile.rows ? w->tile.rows - first : 0;
        barrier_wait(&operands->watch, barrier(reduce_shared->there, i, half),
                     i / GEMM_RS_OUTBOX & 1, GPU_BARRIER_THERE, i % GEMM_RS_OUTBOX, i);
        if constexpr (op::gathers)
            if (pass)
                push_joint(own, w, half, first, left < part ? left : part);
        p = MK_FRESH(p);
        gemm_rs_announce(p, own, &w->tile, MK_TILE_PARTS / p->cluster / halves);
    }
    if (sender < halves && !*ending)
        *ending = gemm_rs_await(MK_FRESH(p), own, &w->tile);
    for (uint32_t half = sender; half < halves; half += senders)
        if (cta_leads(own))
            ptx_mbar_arrive(barrier(reduce_shared->taken, i, half));
}

#endif
