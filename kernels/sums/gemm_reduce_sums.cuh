/* What consumers of kernels/sums/gemm_reduce.cuh do with sums: they add what others have of a tile,
 * which comes through the ring, and store it where it goes. */
#pragma once

#include "kernels/sums/gemm_reduce_source.cuh"

/* What others have of the tile comes through the ring like its operands, so that nobody waits for
 * memory, and nothing waits for others' flags before the products are under way.
 *
 * In a cluster each CTA's producer loads what the other CTA's consumers add: as with B, a stage is
 * then full only when both producers had it empty. (If a CTA filled its stage alone, its consumers
 * could give it back a second time while a warp of the other CTA had told only one of the two that
 * it is done; the barrier would take the one for the other.) So a load is never of nothing: where
 * the tile has no such rows it is of the first. */
template <class op, int sums> ENGINE_MEMBER bool reduce_source<op, sums>::has_addends(uint32_t i)
{
    if (op::joint || op::tiles(plan)->shots == 1)
        return false; /* what is added comes by `exchange` */
    if (i == 0)
        await_work(0);
    const struct reduce_work *w = work(i);
    if constexpr (op::cuts)
        if (w->kind == REDUCE_CUT)
            return false; /* ... by `cut` */
    if (!w->terms[0].count && !w->terms[1].count)
        return false;
    if constexpr (op::cuts)
        cta.cta = ptx_opaque(blockIdx.x); /* not kept for a wait that fails */
    if (!ending)
        ending = gemm_rs_before(MK_FRESH(op::tiles(plan)), &cta, &w->tile);
    return true;
}

template <class op, int sums>
template <class shape>
ENGINE_MEMBER void reduce_source<op, sums>::load_addends(uint32_t i, struct gemm_ring *ring,
                                                         uint32_t rank)
{
    typedef reduce_parts<shape> parts;
    const struct reduce_work *w = work(i);
    const uint32_t group = w->runs * fragment_bytes<shape::number>;
    if (direct()) { /* a stage of 16 bytes says that it is here */
        const char *from = launch->heap + w->terms[!w->terms[0].count].source;
        pipeline_wait_empty<shape::stages>(ring->barriers, &ring->at, &operands->watch, i);
        const uint32_t full = pipeline_full<shape::stages>(ring->barriers, ring->at.stage),
                       to = ring->shared + ring->at.stage * shape::stage_bytes;
        ptx_mbar_expect(full, 16);
        if (shape::cluster > 1)
            ptx_bulk_load_cluster(to, from, 16, full, (uint16_t)(2 >> rank));
        else
            ptx_bulk_load(to, from, 16, full);
        pipeline_step<shape::stages>(&ring->at);
        return;
    }
    const uint32_t groups = (w->tile.rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS;
    for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++)
        for (uint32_t term = 0; term < w->terms[level].count; term++) {
            const char *from = launch->heap + w->terms[level].source +
                               term * MK_FRESH(op::tiles(plan))->slab_pitch;
            for (uint32_t part = 0; part < 2 * parts::stages; part++) {
                pipeline_wait_empty<shape::stages>(ring->barriers, &ring->at, &operands->watch, i);
                uint32_t full = pipeline_full<shape::stages>(ring->barriers, ring->at.stage),
                         to = ring->shared + ring->at.stage * shape::stage_bytes, first;
                ptx_mbar_expect(full, parts::part(groups, rank, part, &first) * group);
                uint32_t count =
                    parts::part(groups, shape::cluster > 1 ? 1 - rank : 0, part, &first);
                if (shape::cluster > 1)
                    ptx_bulk_load_cluster(to, from + (uint64_t)first * group, count * group, full,
                                          (uint16_t)(2 >> rank));
                else
                    ptx_bulk_load(to, from + (uint64_t)first * group, count * group, full);
                pipeline_step<shape::stages>(&ring->at);
            }
        }
}

template <class op, int sums>
template <class shape>
ENGINE_MEMBER void
reduce_source<op, sums>::add(uint32_t i, float (&sum)[shape::blocks][shape::sums], uint32_t half,
                             uint32_t rank, struct gemm_ring *ring) const
{
    typedef reduce_parts<shape> parts;
    await_work(i); /* the first tile's stages may have come before */
    if constexpr (op::joint)
        return;
    if constexpr (op::tree)
        if (direct()) {
            add_in_tree<shape>(i, sum, half, rank, ring);
            return;
        }
    if constexpr (op::cuts)
        if (__shfl_sync(0xffffffff, work(i)->kind, 0) == REDUCE_CUT)
            return;
    /* The shuffle tells the compiler that all lanes go the same way. */
    uint32_t left = 2 * parts::stages *
                    __shfl_sync(0xffffffff, work(i)->terms[0].count + work(i)->terms[1].count, 0);
#pragma unroll 1
    for (; left; left--) {
        uint32_t part = 2 * parts::stages - 1 - (left - 1) % (2 * parts::stages);
        pipeline_wait_full<shape::stages>(ring->barriers, &ring->at, operands->limit_ns);
        if (part / parts::stages == half) {
            const struct reduce_work *w = work(i);
            uint32_t at =
                         ring->shared + ring->at.stage * shape::stage_bytes + threadIdx.x % 32 * 16,
                     group = threadIdx.x % 128 / 32;
#pragma unroll
            for (int m = 0; m < shape::blocks; m++, group += 4)
                if (group / parts::of_stage == part % parts::stages &&
                    ((rank * 2 + half) * parts::groups + group) * FRAGMENT_ROWS < w->tile.rows) {
                    if (op::tree)
                        fragments_round<shape::number>(sum[m], true);
                    fragments_add<shape::number>(sum[m],
                                                 at + group % parts::of_stage * w->runs *
                                                          fragment_bytes<shape::number>,
                                                 w->runs);
                }
        }
        __syncwarp();
        /* In a cluster a release is a fence of the GPU's memory, some 2 us. Of the other consumer's
         * rows this one has read nothing. */
        if (part / parts::stages == half)
            pipeline_release_loaded<shape::stages, shape::cluster>(ring->barriers, ring->at.stage,
                                                                   threadIdx.x % 32);
        else
            pipeline_release<shape::stages, shape::cluster>(ring->barriers, ring->at.stage,
                                                            threadIdx.x % 32);
        pipeline_step<shape::stages>(&ring->at);
    }
}

/* Stores the thread's sums in C of all ranks of the node: of four runs of eight columns, of which the
 * quad's lanes have two each, a lane takes one, so that a row's four are 64 bytes. row: of the tile,
 * the warp's first. */
template <class op, int sums>
template <class shape>
ENGINE_MEMBER void reduce_source<op, sums>::spread(const struct reduce_work *w,
                                                   float (&sum)[shape::blocks][shape::sums],
                                                   uint32_t row) const
{
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    const uint32_t lane = threadIdx.x % 32, gpus = p->topo.gpus, q = lane % 4;
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
#pragma unroll
        for (int eight = 0; eight < 2; eight++) {
            const uint32_t at = row + m * 64 + eight * 8 + lane / 4;
            const uint64_t from = op::spread_at(plan, &w->tile, at) + q * 16;
#pragma unroll
            for (int j = 0; j < shape::tile_n / 8; j += 4) {
                uint32_t word[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    word[k] = half_pack<op::element>(sum[m][(j + k) * 4 + eight * 2],
                                                     sum[m][(j + k) * 4 + eight * 2 + 1]);
                quad_transpose(word, q);
                if (at < w->tile.rows && (j + q) * 8 < w->tile.cols)
                    for (uint32_t rank = 0; rank < gpus; rank++)
                        *(uint4 *)(launch->peers[rank] + from + j * 16) =
                            make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
}

template <class op, int sums>
template <class shape>
ENGINE_MEMBER bool reduce_source<op, sums>::store_sums(uint32_t i,
                                                       float (&sum)[shape::blocks][shape::sums],
                                                       uint32_t half, uint32_t rank) const
{
    const struct reduce_work *w = work(i);
    uint32_t within = threadIdx.x % 128 / 32 * FRAGMENT_ROWS; /* of 64 rows, the warp's first */
    uint32_t row = (rank * (shape::joins ? 1 : 2) + half) * shape::blocks * 64 + within;
    uint32_t kind = __shfl_sync(0xffffffff, w->kind, 0);
    if (kind == GEMM_RS_OWN && !op::gathers)
        return false;
    if constexpr (op::cuts)
        if (kind == REDUCE_CUT) {
            cut<shape>(i, sum, row, half);
            return true;
        }
    /* The sending warps are done with who had this place before. (Of an own tile that does not pass
     * the number stays 0, of which nothing is waited for.) */
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half),
                  mbar_phase_before(mbar_phase_of_ring<GEMM_RS_OUTBOX>(w->number)),
                  operands->limit_ns);
    const uint32_t direct_store = straightens ? __shfl_sync(0xffffffff, w->direct_store, 0) : 0;
    if (kind == GEMM_RS_OWN && !direct_store)
        return false;
    if constexpr (op::shares && shape::tile_n <= PLAN_MOST_JOINT_COLUMNS)
        if (kind == REDUCE_SHARED) {
            share<shape>(i, sum, row, within, half);
            return true;
        }
    /* The consumer's other warps may still add the tile before the last one, of this place. (Where
     * K has many stages the ring keeps them together, where it has few it does not.) */
    if (op::gathers && kind == REDUCE_PASSED && i > 0)
        ptx_bar_sync(named_warpgroup(half));
    if constexpr (shape::tile_n <= PLAN_MOST_JOINT_COLUMNS) {
        joint_round<op, shape::number>(sum, kind >= GEMM_RS_JOINT);
        if constexpr (op::tree)
            if (kind == GEMM_RS_JOINT) {
                exchange<shape>(w, sum, row, half);
                joint_join<op, shape::number, 4>(plan, launch, w, sum, joint_rows{row},
                                                 reduce_lane<op>());
                return !op::gathers && joint_store_own<op>(plan, launch, w, sum, joint_rows{row});
            }
        if constexpr (inside && shape::tile_m <= PLAN_MOST_NORM_ROWS && !shape::splits)
            if (kind == GEMM_RS_JOINT) {
                const struct joint_norm<op, struct reduce_work> norm = {
                    joint_norm_shared, w, row
                };
                if (norm.o->inside)
                    norm.template prefetch<shape::blocks, shape::tile_n / 2>();
                exchange<shape>(w, sum, row, half);
                joint_add<op, shape::number, true>(plan, launch, w, sum, joint_rows{row});
                if (!norm.o->inside)
                    return false;
                norm.apply(sum, half * 4 + threadIdx.x % 128 / 32, 8 / shape::parts,
                           operands->limit_ns);
                return true;
            }
        if (kind == GEMM_RS_JOINT) {
            exchange<shape>(w, sum, row, half);
            joint_add<op, shape::number, true>(plan, launch, w, sum, joint_rows{row});
            return !op::gathers && joint_store_own<op>(plan, launch, w, sum, joint_rows{row});
        }
    }
    if (straightens && kind == GEMM_RS_OWN) {
        spread<shape>(w, sum, row);
    } else {
        char *to = kind == GEMM_RS_SUM || direct_store
                       ? (direct_store ? launch->peers[w->tile.c_local] : launch->heap) + w->to +
                             fragment_offset<shape::number>(row, w->runs)
                       : outbox(w->number, half) + fragment_offset<shape::number>(within, w->runs);
#pragma unroll
        for (int m = 0; m < shape::blocks; m++)
            fragments_store<shape::number>(
                to + m * (64 / FRAGMENT_ROWS) * w->runs * fragment_bytes<shape::number>, sum[m],
                !direct_store || row + m * 64 < w->tile.rows ? w->runs : 0, reduce_lane<op>());
    }
    ptx_bar_sync(named_warpgroup(half));
    if (threadIdx.x % 128 == 0)
        ptx_mbar_arrive(barrier(reduce_shared->there, w->number, half));
    if constexpr (op::gathers && shape::tile_n <= PLAN_MOST_JOINT_COLUMNS)
        if (kind == REDUCE_PASSED) {
            if (i > 0)
                add_passed<shape>(i - 1, row, within, half);
            if (number_of(i + 1) >= MK_FRESH(op::tiles(plan))->tiles)
                add_passed<shape>(i, row, within, half);
        }
    return true;
}
