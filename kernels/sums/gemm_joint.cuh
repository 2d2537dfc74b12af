/* GEMM+ReduceScatter and GEMM+AllReduce in one shot (core/roles/gemm_rs.h), for few rows: the rest
 * of kernels/sums/gemm_reduce.cuh. In the epilogue the consumers store their sums at the ranks that
 * add them, straight from their registers, wait for the sums of other ranks, and add these
 * (kernels/sums/joint.cuh). This file has the auxiliary warps: they publish the sums and, where a
 * CTA has several tiles, push them out of its outbox. */
#pragma once

#include "kernels/sums/gemm_reduce_source.cuh"

/* Joint: stores the thread's sums at every rank that adds them, and waits for those ranks' sums. */
template <class op, int sums>
template <class shape>
ENGINE_MEMBER void reduce_source<op, sums>::exchange(const struct reduce_work *w,
                                                     float (&sum)[shape::blocks][shape::sums],
                                                     uint32_t row, uint32_t half) const
{
    joint_send<op, shape::number>(plan, launch, w, sum, joint_rows{row}, reduce_lane<op>());
    ptx_bar_sync(named_warpgroup(half));
    if (threadIdx.x % 128 == 0)
        ptx_mbar_arrive(barrier(reduce_shared->there, w->number, half));
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half),
                  mbar_phase_of_ring<GEMM_RS_OUTBOX>(w->number), operands->limit_ns);
}

/* Pushes a consumer's rows of a joint tile from the outbox to every rank that adds them: a warp.
 * first: of the tile, the first of `rows`. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::push_joint(struct mk_cta *own,
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

/* Two elements of C, `at` bytes from its first on, with the residual where the plan has one. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::store_passed(uint64_t at, uint32_t two) const
{
    if constexpr (inside)
        if (joint_norm_shared->inside) {
            float squares = 0;
            two = norm_add(two, *(const uint32_t *)(joint_norm_shared->residual + at), &squares);
        }
    *(uint32_t *)((char *)launch->arguments[MK_SPACE_ARG2] + at) = two;
}

/* What follows a consumer's passed tile: it waits until others' sums of the i-th tile have come,
 * and stores C, in rank order what all have of the thread's own rows. row: of the tile, the warp's
 * first; within: of 64. */
template <class op, int sums>
template <class shape>
ENGINE_MEMBER void reduce_source<op, sums>::add_passed(uint32_t i, uint32_t row, uint32_t within,
                                                       uint32_t half) const
{
    constexpr int all = shape::tile_n / FRAGMENT_COLUMNS, most = sums == MK_FP24 ? 2 : 4,
                  ahead = all < most ? all : most;
    const struct reduce_work *w = work(i);
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t lane = threadIdx.x % 32, gpus = p->topo.gpus, place = p->topo.rank,
                   before = place > 1 ? place : 0; /* x + y is y + x */
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half),
                  mbar_phase_of_ring<GEMM_RS_OUTBOX>(w->number), operands->limit_ns);
#pragma unroll 1
    for (int m = 0; m < shape::blocks; m++, row += 64, within += 64) {
        const char *mine = outbox(w->number, half) + fragment_offset<sums>(within, w->runs),
                   *theirs = launch->heap + w->to + fragment_offset<sums>(row, w->runs);
        const uint64_t at =
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
                        store_passed(at + ((uint64_t)down * p->n + column) * 2,
                                     half_pack<op::element>(d[j][four * 2], d[j][four * 2 + 1]));
                }
        }
    }
}

/* Publishes the consumers' sums of the i-th tile to the ranks that add them, then tells the
 * consumers when those ranks' sums have come: a warp, one of `senders`. Where the tile passes the
 * outbox, the warp pushes it first. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::exchange_tile(struct mk_cta *own, uint32_t i,
                                                          uint32_t sender, uint32_t senders,
                                                          int *ending)
{
    const struct reduce_work *w = work(i);
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const bool pass = w->kind == REDUCE_PASSED;
    /* of 64 rows the first consumer has all */
    const uint32_t halves = p->tile_m / p->cluster == 64 ? 1 : 2,
                   part = p->tile_m / p->cluster / halves,
                   block = p->cluster == 2 ? blockIdx.x % 2 * halves * part : 0;
    own->pace = pace_of(p, i, senders);
    for (uint32_t half = sender; half < halves; half += senders) {
        uint32_t first = block + half * part,
                 left = first < w->tile.rows ? w->tile.rows - first : 0;
        barrier_wait(&operands->watch, barrier(reduce_shared->there, i, half),
                     mbar_phase_of_ring<GEMM_RS_OUTBOX>(i), GPU_BARRIER_THERE, i % GEMM_RS_OUTBOX,
                     i);
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

/* ---- tiles that ranks share (core/roles/gemm_ar_shared.h) ----
 *
 * In the epilogue the consumers store each rank's columns at that rank, straight from
 * their registers, and this rank's own in the outbox. A sending warp tells the others, waits for their parts of
 * this rank's columns, adds these, stores the sum at all ranks and tells them, while the consumers multiply the next tile.
 * Of the CTA's last tile the consumers add what is here, a warp its 16 rows, as they have nothing else to do. */

/* Fragments of a row that are one rank's. */
enum { SHARE_RUNS = 2 };

/* A consumer's sums of a tile. row: of the tile, the warp's first; within: of 64. */
template <class op, int sums>
template <class shape>
ENGINE_MEMBER void
reduce_source<op, sums>::share(uint32_t i, float (&sum)[shape::blocks][shape::sums], uint32_t row,
                               uint32_t within, uint32_t half) const
{
    const struct reduce_work *w = work(i);
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t gpus = p->topo.gpus, place = p->topo.rank; /* one node */
    uint32_t owner = w->first;
#pragma unroll
    for (int s = 0; s < shape::tile_n / FRAGMENT_COLUMNS / SHARE_RUNS; s++) {
        char *to = owner == place ? outbox(w->number, half) + fragment_offset<sums>(within, w->runs)
                                  : launch->peers[owner] + w->to +
                                        gemm_rs_joint_slab(MK_FRESH(p), owner, place) +
                                        fragment_offset<sums>(row, w->runs);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
#pragma unroll
            for (int j = s * SHARE_RUNS; j < (s + 1) * SHARE_RUNS; j++) {
                const struct fragment<sums> f = fragment_pack<sums>(&sum[m][j * FRAGMENT_SUMS]);
                if (j < w->runs && row + m * 64 < w->tile.rows)
                    fragment_put<sums>(
                        to + m * (64 / FRAGMENT_ROWS) * w->runs * fragment_bytes<sums> +
                            j * fragment_bytes<sums>,
                        f, reduce_lane<op>());
            }
        owner = owner + 1 < gpus ? owner + 1 : 0;
    }
    ptx_bar_sync(named_warpgroup(half));
    if (threadIdx.x % 128 == 0)
        ptx_mbar_arrive(barrier(reduce_shared->there, w->number, half));
    if (number_of(i + 1) < MK_FRESH(op::tiles(plan))->tiles)
        return;
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half),
                  mbar_phase_of_ring<GEMM_RS_OUTBOX>(w->number), operands->limit_ns);
#pragma unroll 1
    for (int m = 0; m < shape::blocks; m++)
        share_add<sums == MK_FP24 ? 2 : 4>(w, row + m * 64,
                                           outbox(w->number, half) +
                                               fragment_offset<sums>(within + m * 64, w->runs));
    ptx_bar_sync(named_warpgroup(half));
    if (threadIdx.x % 128 == 0) /* as if it were the next tile */
        ptx_mbar_arrive(barrier(reduce_shared->there, w->number + 1, half));
}

/* Adds, in rank order, what all ranks have of this rank's columns of 16 rows of a tile, and stores the sums at all
 * ranks: a warp. row: of the tile, the first; mine: the thread's first bytes of them in the outbox; together: so many
 * ranks' are under way. */
template <class op, int sums>
template <int together>
ENGINE_MEMBER void reduce_source<op, sums>::share_add(const struct reduce_work *w, uint32_t row,
                                                      const char *mine) const
{
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t lane = threadIdx.x % 32, q = lane % 4, gpus = p->topo.gpus, place = p->topo.rank;
    if (row >= w->tile.rows)
        return;
    const char *theirs = launch->heap + w->to + fragment_offset<sums>(row, w->runs);
#pragma unroll 1
    for (uint32_t share = place < w->first ? place + gpus - w->first : place - w->first;
         share * SHARE_RUNS < w->runs; share += gpus) {
        const uint32_t run = share * SHARE_RUNS;
        float d[SHARE_RUNS][FRAGMENT_SUMS] = {};
#pragma unroll 1
        for (uint32_t term = 0; term < gpus; term += together) {
            struct fragment<sums> f[together][SHARE_RUNS];
#pragma unroll
            for (int k = 0; k < together; k++) {
                const uint32_t t = term + k;
                const char *at = t == place ? mine : theirs + (t - (t > place)) * p->slab_pitch;
#pragma unroll
                for (int j = 0; j < SHARE_RUNS; j++)
                    f[k][j] = fragment_load<sums>(at, run + j, t < gpus ? w->runs : 0);
            }
#pragma unroll
            for (int k = 0; k < together; k++)
#pragma unroll
                for (int j = 0; j < SHARE_RUNS; j++)
                    fragment_add<sums>(d[j], f[k][j]);
        }
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            const uint32_t at = row + eight * 8 + lane / 4;
            const bool has = at < w->tile.rows && run * FRAGMENT_COLUMNS + q * 8 < w->tile.cols;
            const uint64_t to =
                op::shared_at(plan, &w->tile, at) + run * FRAGMENT_COLUMNS * 2 + q * 16;
            uint32_t word[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                word[k] = half_pack<op::element>(d[k / 2][k % 2 * 4 + eight * 2],
                                                 d[k / 2][k % 2 * 4 + eight * 2 + 1]);
            quad_transpose(word, q);
            uint32_t peer = place;
#pragma unroll 1
            for (uint32_t step = 0; step < gpus; step++) { /* itself last */
                peer = peer + 1 < gpus ? peer + 1 : 0;
                if (has)
                    *(uint4 *)(launch->peers[peer] + to) =
                        make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
    }
}

/* What follows the consumers' stores of the i-th tile: a warp, one of `senders`. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::share_tile(struct mk_cta *own, uint32_t i,
                                                       uint32_t sender, uint32_t senders,
                                                       int *ending)
{
    const struct reduce_work *w = work(i);
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    /* of 64 rows the first consumer has all */
    const uint32_t halves = p->tile_m / p->cluster == 64 ? 1 : 2,
                   part = p->tile_m / p->cluster / halves,
                   block = p->cluster == 2 ? blockIdx.x % 2 * halves * part : 0,
                   parts = MK_TILE_PARTS / p->cluster / halves;
    const bool last = number_of(i + 1) >= p->tiles;
    for (uint32_t half = sender; half < halves; half += senders) {
        barrier_wait(&operands->watch, barrier(reduce_shared->there, i, half),
                     mbar_phase_of_ring<GEMM_RS_OUTBOX>(i), GPU_BARRIER_THERE, i % GEMM_RS_OUTBOX,
                     i);
        gemm_rs_announce(MK_FRESH(p), own, &w->tile, parts);
    }
    if (sender < halves && !*ending)
        *ending = gemm_rs_await(MK_FRESH(p), own, &w->tile);
    for (uint32_t half = sender; half < halves && last; half += senders)
        if (cta_leads(own))
            ptx_mbar_arrive(barrier(reduce_shared->taken, i, half));
    for (uint32_t half = sender; half < halves; half += senders) {
        if (last) {
            barrier_wait(&operands->watch, barrier(reduce_shared->there, i + 1, half),
                         mbar_phase_of_ring<GEMM_RS_OUTBOX>(i + 1), GPU_BARRIER_THERE,
                         (i + 1) % GEMM_RS_OUTBOX, i);
        } else {
            const uint32_t group = w->runs * fragment_bytes<sums>;
            const char *mine = outbox(i, half) + fragment_offset<sums>(0, w->runs);
            cta_copy_open(own, launch->local, w->tile.id * p->pieces);
#pragma unroll 1
            for (uint32_t row = 0; row < part; row += FRAGMENT_ROWS, mine += group)
                share_add<2>(w, block + half * part + row, mine);
        }
        p = MK_FRESH(p);
        mk_cta_add_each(own, mk_locals(0, p->topo.gpus), op::shared_flag(plan, w->tile.id), parts);
        if (cta_leads(own) && !last)
            ptx_mbar_arrive(barrier(reduce_shared->taken, i, half));
    }
}
