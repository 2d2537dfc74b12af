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
 * What all need to know of a tile takes some forty integer divisions: 4 us, in which nothing is
 * multiplied, or nothing sent. So the producer thread works it out while it is a tile ahead, and
 * leaves it in shared memory.
 *
 * What differs is a struct `op` of kernels/sums/gemm_reduce_roles.cuh. */
#pragma once

#include "kernels/sums/gemm_joint.cuh"
#include "kernels/sums/gemm_reduce_send.cuh"
#include "kernels/sums/gemm_reduce_sums.cuh"
#include "kernels/sums/gemm_shared.cuh"

/* What kernels/hopper/gemm_launch.cuh asks of an operator. */
template <class op> struct reduce_on_gpu {
    typedef typename op::plan plan;
    typedef struct reduce_views<gemm_engine> views;
    static constexpr bool fp24 = true, splits = !op::cuts && !op::tree, middle = splits;
    static constexpr uint32_t shared_bytes = op::tree ? gemm_tree_shared_bytes() : 0;
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
