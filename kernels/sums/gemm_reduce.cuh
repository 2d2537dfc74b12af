/* What GEMM+ReduceScatter and GEMM+AllReduce have in common on a GPU: a consumer warpgroup adds to
 * the sums in its registers what peers have of its tile, or gives them away to who adds them.
 *
 *   own tile   behind the tile's operands the producer thread waits for the peers' parts and brings
 *              them through the same stages. When the product is whole the consumers add these,
 *              in rank order, and the engine stores C
 *   sum        the same, for another node's owner: stored in this GPU's memory, to be put
 *   partial    goes to the CTA's outbox, a few tiles in this GPU's memory (in L2, mostly). A warp
 *              that the engine leaves free takes it from there to the rank that adds it, by paced
 *              16-byte stores. So the tensor cores wait for NVLink only where the outbox is full,
 *              and no TMA load stands in line behind a store that NVLink does not take yet
 *
 *   joint      of one shot: kernels/sums/joint.cuh and gemm_joint.cuh. Several tiles of a CTA pass the outbox, too
 *
 * The same warp (of two, each has the rows of one consumer) announces what is stored, and pushes
 * own tiles where the sum goes to all. The other warps are free for intra_comm.
 *
 * What differs is a struct `op` of kernels/sums/gemm_reduce_roles.cuh. */
#pragma once

#include "kernels/sums/gemm_joint.cuh"
#include "kernels/sums/gemm_reduce_sums.cuh"

/* ---- the warps beside the engine: senders, who describes tiles, and intra_comm ---- */

/* Takes the consumers' rows of the i-th tile from the outbox to who adds them, or announces what is
 * stored: a warp. Of two (`senders`) each has the rows of one consumer. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::send_tile(struct mk_cta *own, uint32_t i,
                                                      uint32_t sender, uint32_t senders)
{
    const struct reduce_work *w = work(i);
    const uint32_t kind = w->kind;
    const uint32_t number = w->number;
    if constexpr (op::cuts)
        if (kind == REDUCE_CUT) {
            cut_tile(own, i, sender, senders);
            return;
        }
    for (uint32_t half = sender; half < 2 && passes(kind); half += senders) {
        barrier_wait(&operands->watch, barrier(reduce_shared->there, number, half),
                     mbar_phase_of_ring<GEMM_RS_OUTBOX>(number), GPU_BARRIER_THERE,
                     number % GEMM_RS_OUTBOX, i);
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint32_t part_rows = p->tile_m / p->cluster / 2, parts = MK_TILE_PARTS / p->cluster / 2;
        uint32_t row = ((p->cluster == 2 ? blockIdx.x % 2 : 0) * 2 + half) * part_rows;
        uint32_t rows = row >= w->tile.rows              ? 0
                        : w->tile.rows - row < part_rows ? w->tile.rows - row
                                                         : part_rows;
        own->pace = pace_of(p, i, senders);
        if (kind == GEMM_RS_PARTIAL) {
            uint32_t group = w->runs * FRAGMENT_ROWS * FRAGMENT_COLUMNS * p->element_bytes;
            cta_copy_open(own, w->tile.c_local, w->tile.id * p->pieces);
            if (!straightens || !w->direct_store)
                lanes_copy_rows<8, 4>(
                    cta_lane(own), 32, outbox(number, half), 0,
                    launch->peers[w->tile.c_local] + w->to + row / FRAGMENT_ROWS * group, 0, 1,
                    (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS * group / 16, own->pace);
            __syncwarp();
            if (cta_leads(own)) /* before what is announced: the place is free */
                ptx_mbar_arrive(barrier(reduce_shared->taken, number, half));
            gemm_rs_after(MK_FRESH(p), own, &w->tile, parts);
        } else {
            op::after(plan, own, &w->tile, row, straightens && w->direct_store ? 0 : rows, parts);
            if (cta_leads(own))
                ptx_mbar_arrive(barrier(reduce_shared->taken, number, half));
        }
    }
}

/* The tiles of this CTA, one after the other. (A loop for each kind of plan: what one loop keeps
 * for both has no room in a sending warp's registers.) */
template <class op, int sums>
template <int form>
ENGINE_MEMBER void reduce_source<op, sums>::send_tiles(struct mk_cta *own, uint32_t sender,
                                                       uint32_t senders)
{
    int ending = 0;
    for (uint32_t i = 0; number_of(i) < MK_FRESH(op::tiles(plan))->tiles; i++) {
        await_work(i);
        if constexpr (form == REDUCE_SHARED)
            share_tile(own, i, sender, senders, &ending);
        else if constexpr (form == GEMM_RS_JOINT)
            exchange_tile(own, i, sender, senders, &ending);
        else
            send_tile(own, i, sender, senders);
        __syncwarp();
        if (cta_leads(own))
            ptx_mbar_arrive(ptx_shared(&reduce_shared->read[i % REDUCE_WORKS]));
    }
}

/* Sends, announces and, in one shot, awaits what this CTA's tiles are made of: a warp, the
 * `sender`-th of `senders`, of which the first alone has a track. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::sending_warp(uint32_t sender, uint32_t senders)
{
    struct mk_cta own;
    if (sender)
        cta_identify(&own, launch, blockIdx.x, 32);
    else
        cta_begin(&own, launch, blockIdx.x, 32, GPU_TRACK_SENDER);
    if (op::shares && op::tiles(plan)->shared_columns)
        send_tiles<op::shares ? (int)REDUCE_SHARED : (int)GEMM_RS_JOINT>(&own, sender, senders);
    else if (op::joint || op::tiles(plan)->shots == 1)
        send_tiles<GEMM_RS_JOINT>(&own, sender, senders);
    else
        send_tiles<GEMM_RS_OWN>(&own, sender, senders);
    if (!sender)
        cta_end(&own);
}

/* A warp beside the engine, of an operator whose code is not shared. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::beside_engine(uint32_t warp)
{
    const struct mk_role_split *split = &launch->split;
    uint32_t others = split->intra_comm_warps, auxiliary = warp - 2;
    uint32_t senders = reduce_readers_of<op>(plan, launch);
    if (warp == reduce_describer<op>(launch, op::tiles(plan))) {
        if (ptx_elect())
            describe_all(true);
        __syncwarp();
        if (!op::shares || !op::tiles(plan)->shared_columns)
            return;
    }
    if (!senders)
        return; /* intra_comm has nothing to do either, in one shot or for one rank */
    if (warp == 1 || (warp == 3 && senders == 2)) {
        sending_warp(warp == 3, senders);
    } else if (auxiliary < others) {
        struct mk_cta other;
        cta_begin(&other, launch,
                  gpu_auxiliary_of_block(split, MK_INTRA_COMM, auxiliary, blockIdx.x), 32);
        other.pace = op::tiles(plan)->pace;
        op::intra_comm(plan, &other);
        cta_end(&other);
    }
}

/* The same where it is; and a block of its own, all its threads. */
template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::beside_or_alone(uint32_t warp)
{
    const struct mk_role_split *split = &launch->split;
    uint32_t others = split->intra_comm_warps, auxiliary = warp - 2;
    uint32_t senders = reduce_readers_of<op>(plan, launch);
    struct mk_cta other;
    if (!computes()) {
        cta_begin(&other, launch, gpu_cta_of_block(split, blockIdx.x), GEMM_THREADS);
    } else {
        if (warp == 2) {
            const bool all = reduce_describer<op>(launch, op::tiles(plan)) == 2;
            if (ptx_elect())
                describe_all(all);
            __syncwarp();
            if (all && (!op::shares || !op::tiles(plan)->shared_columns))
                return;
        }
        if (!senders)
            return;
        if (warp == 1 || (warp == 3 && senders == 2)) {
            sending_warp(warp == 3, senders);
            return;
        }
        if (auxiliary >= others)
            return;
        cta_begin(&other, launch,
                  gpu_auxiliary_of_block(split, MK_INTRA_COMM, auxiliary, blockIdx.x), 32);
        other.pace = op::tiles(plan)->pace;
    }
    reduce_roles<op>(plan, &other);
}

template <class op, int sums>
ENGINE_MEMBER void reduce_source<op, sums>::auxiliary_warp(uint32_t auxiliary)
{
    if constexpr (op::shared_code)
        beside_or_alone(1 + auxiliary);
    else
        beside_engine(1 + auxiliary);
}

/* ---- the operator on a GPU ---- */

/* What kernels/hopper/gemm_launch.cuh asks of an operator. */
template <class op> struct reduce_on_gpu {
    typedef typename op::plan plan;
    typedef struct reduce_views<gemm_engine> views;
    static constexpr bool fp24 = true, splits = !op::cuts && !op::tree, middle = splits;
    static constexpr uint32_t shared_bytes = 0;
    static_assert(!op::shared_code || CTA_LANES_VARY, "the operator's file says so");
    static constexpr bool of_all_blocks = op::shared_code, several_shapes = op::shared_code;

    static struct engine_form form(const plan *whole)
    {
        const struct gemm_rs_plan *p = op::tiles(whole);
        return {p->tile_m, p->tile_n, p->cluster, p->number};
    }

    template <class shape>
    static int describe(views *v, struct gemm_operands *operands, const plan *whole,
                        const struct gpu_launch *l)
    {
        return reduce_describe<gemm_engine, op, shape>(v, operands, whole, l);
    }

    template <class shapes>
    static ENGINE_MEMBER void compute(const plan *p, const struct gpu_launch *launch,
                                      const struct gemm_operands *operands, const views *v,
                                      uint8_t *memory)
    {
        typedef reduce_of_tiles<op, (shapes::tile_n > PLAN_MOST_JOINT_COLUMNS), shapes::middle>
            of_tiles;
        struct reduce_source<of_tiles, shapes::number> source;
        source.plan = p;
        source.launch = launch;
        source.views = v;
        source.operands = operands;
        const bool computes = source.computes();
        if (computes && reduce_thread<op>(0))
            reduce_begin_outbox<op, reduce_source<of_tiles, shapes::number>>(
                reduce_readers_of<op>(p, launch), op::tiles(p)->cluster);
        if (computes && reduce_thread<op>(128))
            tile_track_open(&reduce_shared->track, launch);
        gemm_compute<shapes>(operands, &source, memory);
        if (!computes)
            return;
        if (reduce_thread<op>(128))
            tile_track_close(&reduce_shared->track, launch);
        if constexpr (of_tiles::norms)
            reduce_norm<op>(p, launch);
    }

    /* A thread block of its own: all its threads. */
    template <class shape>
    static ENGINE_MEMBER void communicate(const plan *p, const struct gpu_launch *launch, uint8_t *)
    {
        reduce_communicate<op>(p, launch, GEMM_THREADS);
    }
};
