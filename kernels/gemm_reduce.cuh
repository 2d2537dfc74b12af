/* What GEMM+ReduceScatter and GEMM+AllReduce have in common on a GPU: tiles that go to a peer's
 * heap.
 *
 * The GEMM engine stores a tile by TMA into its CTA's outbox, a few tiles in this GPU's memory (in
 * L2, mostly). A warp that the engine leaves free takes it from there to the reducer by plain
 * 16-byte stores, and announces it. So the tensor cores wait for NVLink only where the outbox is
 * full, and no TMA load stands in line behind a store that NVLink does not take yet. Two more free
 * warps run inter_reduce and intra_comm, where these are co-resident; else they are CTAs of their
 * own.
 *
 * What differs is a struct `op` with
 *
 *   typedef ... plan
 *       The op's plan.
 *   const struct gemm_rs_plan *tiles(const plan *)
 *       The part of it that is gemm_rs's.
 *   void role(const plan *, struct mk_cta *)
 *       On the GPU: runs cta->role, MK_INTER_REDUCE or MK_INTRA_COMM. */
#ifndef MK_KERNELS_GEMM_REDUCE_CUH
#define MK_KERNELS_GEMM_REDUCE_CUH

#include "kernels/cta_reduce.cuh"
#include "kernels/gemm_launch.cuh"
#include "kernels/gemm_track.cuh"

#include "core/roles/gemm_rs.h"

/* A part (64 rows or more) of a tile in the outbox is there; it has been taken. One for each of the
 * two parts. */
struct reduce_barriers {
    uint64_t there[GEMM_RS_OUTBOX][2], taken[GEMM_RS_OUTBOX][2];
};
PTX_SHARED(struct reduce_barriers, reduce_shared, 1);

/* One thread, before the CTA's first barrier. */
PTX_FN void reduce_begin_outbox(void)
{
    for (uint32_t i = 0; i < GEMM_RS_OUTBOX; i++)
        for (uint32_t half = 0; half < 2; half++) {
            ptx_mbar_init(ptx_shared(&reduce_shared->there[i][half]), 1);
            ptx_mbar_init(ptx_shared(&reduce_shared->taken[i][half]), 1);
        }
}

/* The tiles of this CTA (or cluster). What a consumer keeps here costs registers beside the
 * accumulators. */
template <class op> struct reduce_source : tracked_source {
    /* Auxiliary warps need as many as the consumers do. */
    static constexpr int producer_registers = 168, consumer_registers = 168;

    const typename op::plan *plan;
    const CUtensorMap *map_a;
    const struct gemm_operands *operands;
    uint32_t first, step, number;

    GEMM_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        uint32_t t = first + i * step;
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        if (t >= p->tiles)
            return false;
        gemm_rs_tile(p, t, tile);
        return true;
    }

    GEMM_MEMBER const CUtensorMap *a(const struct mk_tile *) const
    {
        return map_a;
    }

    GEMM_MEMBER struct gemm_place place(uint32_t i, const struct mk_tile *, uint32_t) const
    {
        return {0, 0, (int32_t)(blockIdx.x * GEMM_RS_OUTBOX + i % GEMM_RS_OUTBOX)};
    }

    GEMM_MEMBER void room(uint32_t i, uint32_t half) const
    {
        ptx_mbar_wait(ptx_shared(&reduce_shared->taken[i % GEMM_RS_OUTBOX][half]),
                      (i / GEMM_RS_OUTBOX & 1) ^ 1, operands->limit_ns);
        ptx_fence_async(); /* ordinary loads have read what TMA now overwrites */
    }

    GEMM_MEMBER void stored(uint32_t i, uint32_t half) const
    {
        ptx_bulk_wait_all();
        ptx_fence_async();
        ptx_mbar_arrive(ptx_shared(&reduce_shared->there[i % GEMM_RS_OUTBOX][half]));
    }

    GEMM_MEMBER void send_tiles(uint32_t sender, uint32_t senders);
    GEMM_MEMBER void auxiliary_warp(uint32_t warp);
};

/* Takes this CTA's parts of tiles from its outbox to their reducers and announces them: a warp. Of
 * two warps (`senders`) each takes the rows of one consumer; only the first has a track. */
template <class op>
GEMM_MEMBER void reduce_source<op>::send_tiles(uint32_t sender, uint32_t senders)
{
    const struct gemm_rs_plan *p = op::tiles(plan);
    const uint32_t part_rows = p->tile_m / p->cluster / 2, pitch = p->tile_n * p->element_bytes;
    struct mk_cta cta;
    struct mk_tile tile;
    if (sender) /* the track is the first's */
        cta_identify(&cta, launch, blockIdx.x, 32);
    else
        cta_begin(&cta, launch, blockIdx.x, 32);
    for (uint32_t i = 0; next(i, &tile); i++) {
        uint32_t place = i % GEMM_RS_OUTBOX;
        p = MK_FRESH(p);
        const char *from = launch->heap + p->outbox +
                           (uint64_t)(blockIdx.x * GEMM_RS_OUTBOX + place) * 2 * part_rows * pitch;
        char *to = launch->peers[tile.c_local] + gemm_rs_tile_offset(p, &tile, cta.epoch);
        for (uint32_t half = sender; half < 2; half += senders) {
            uint32_t row = (blockIdx.x % p->cluster * 2 + half) * part_rows;
            uint32_t rows = row >= tile.rows              ? 0
                            : tile.rows - row < part_rows ? tile.rows - row
                                                          : part_rows;
            barrier_wait(&operands->watch, ptx_shared(&reduce_shared->there[place][half]),
                         i / GEMM_RS_OUTBOX & 1, GPU_BARRIER_THERE, place, i);
            if (half == sender)
                cta_copy_open(&cta, tile.c_local, tile.id * p->pieces);
            lanes_copy_rows<LANES_AHEAD, LANES_BEHIND>(
                cta_lane(&cta), 32, from + half * part_rows * pitch, pitch,
                to + row * tile.cols * p->element_bytes, tile.cols * p->element_bytes, rows,
                tile.cols * p->element_bytes / 16,
                tile.c_local == mk_local_of(&p->topo, p->topo.rank) ? 0 : p->pace * senders);
            __syncwarp();
            if (cta_leads(&cta))
                ptx_mbar_arrive(ptx_shared(&reduce_shared->taken[place][half]));
        }
        gemm_rs_after(p, &cta, &tile, MK_TILE_PARTS / p->cluster / senders);
    }
    if (!sender)
        cta_end(&cta);
}

template <class op> GEMM_MEMBER void reduce_source<op>::auxiliary_warp(uint32_t warp)
{
    const struct mk_role_split *split = &launch->split;
    uint32_t reducers = mk_role_coresident(split, MK_INTER_REDUCE), auxiliary = warp - 2;
    uint32_t senders = reducers + mk_role_coresident(split, MK_INTRA_COMM) < 2 ? 2 : 1;
    enum mk_role role = auxiliary < reducers ? MK_INTER_REDUCE : MK_INTRA_COMM;
    if (role == MK_INTRA_COMM)
        auxiliary -= reducers;
    if (warp == 1 || (warp == 3 && senders == 2)) {
        send_tiles(warp == 3, senders);
    } else if (auxiliary < mk_role_coresident(split, role)) {
        struct mk_cta cta;
        cta_begin(&cta, launch, gpu_auxiliary_of_block(split, role, auxiliary, blockIdx.x), 32);
        cta.number = number;
        cta.pace = role == MK_INTRA_COMM ? op::tiles(plan)->pace : 0;
        op::role(plan, &cta);
        cta_end(&cta);
    }
}

struct reduce_maps {
    CUtensorMap a;
};

/* What kernels/gemm_launch.cuh asks of an operator. */
template <class op> struct reduce_on_gpu {
    typedef typename op::plan plan;
    typedef struct reduce_maps maps;
    static constexpr bool fp32 = true;
    static constexpr uint32_t shared_bytes = 0;

    static struct gemm_form form(const plan *whole)
    {
        const struct gemm_rs_plan *p = op::tiles(whole);
        return {p->tile_m, p->tile_n, p->cluster, p->number};
    }

    template <class shape>
    static int describe(maps *m, struct gemm_operands *operands, const plan *whole,
                        const struct gpu_launch *l)
    {
        const struct gemm_rs_plan *p = op::tiles(whole);
        const uint64_t n = p->n, k = p->k, a_extent[3] = {k, p->shard_rows, mk_world(&p->topo)};
        const uint64_t outbox[3] = {shape::tile_n, shape::tile_m,
                                    GEMM_RS_OUTBOX * p->split.ctas[MK_COMPUTE]};
        const uint32_t a_box[2] = {GEMM_TILE_K, shape::tile_m};
        const uint32_t c_box[2] = {shape::c_number == MK_FP32 ? 32 : 64, 64};
        int err = tensormap_bf16(&m->a, l->arguments[MK_SPACE_ARG0], a_extent, k, p->shard_rows * k,
                                 a_box);
        if (!err)
            err = gemm_describe_b<shape>(&operands->b, l->arguments[MK_SPACE_ARG1], n, k);
        if (!err)
            err = (shape::c_number == MK_FP32 ? tensormap_fp32 : tensormap_bf16)(
                &operands->c, l->heap + p->outbox, outbox, shape::tile_n,
                shape::tile_n * shape::tile_m, c_box);
        operands->stages_of_k = operands->stages_of_slice = (uint32_t)mk_ceil_div(k, GEMM_TILE_K);
        return err;
    }

    template <class shape>
    static GEMM_MEMBER void compute(const plan *p, const struct gpu_launch *launch,
                                    const struct gemm_operands *operands, const maps *m,
                                    uint8_t *memory)
    {
        struct reduce_source<op> source;
        source.plan = p;
        source.launch = launch;
        source.map_a = &m->a;
        source.operands = operands;
        source.first = blockIdx.x / shape::cluster;
        source.step = launch->split.ctas[MK_COMPUTE] / shape::cluster;
        source.number = shape::c_number;
        if (threadIdx.x == 0)
            reduce_begin_outbox();
        tile_track_open(&source.track, launch);
        gemm_compute<shape>(operands, &source, memory);
        tile_track_close(&source.track, launch);
    }

    /* A thread block of its own: all its threads. */
    template <class shape>
    static GEMM_MEMBER void communicate(const plan *p, const struct gpu_launch *launch, uint8_t *)
    {
        struct mk_cta cta;
        cta_begin(&cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), GEMM_THREADS);
        cta.number = shape::c_number;
        int posts = cta.role == MK_INTER_REDUCE && op::tiles(p)->topo.nodes > 1;
        if (!posts || !cta_begin_commands(&cta))
            op::role(p, &cta);
        cta_end(&cta);
    }
};

#endif
