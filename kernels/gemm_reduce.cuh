/* What GEMM+ReduceScatter and GEMM+AllReduce have in common on a GPU: a consumer warpgroup adds to
 * the sums in its registers what peers have of its tile, or gives them away to who adds them.
 *
 *   own tile      the producer thread waits for the peers' parts before it loads the tile. When the
 *                 product is whole the consumers add these, in rank order, and the engine stores C
 *   sum           the same, for another node's owner: stored in this GPU's memory, to be put
 *   partial       goes to the CTA's outbox, a few tiles in this GPU's memory (in L2, mostly). A warp
 *                 that the engine leaves free takes it from there to the rank that adds it, by paced
 *                 16-byte stores. So the tensor cores wait for NVLink only where the outbox is full,
 *                 and no TMA load stands in line behind a store that NVLink does not take yet
 *
 * The same warp (of two, each has the rows of one consumer) announces what is stored, and pushes
 * own tiles where the sum goes to all. Two more warps are free for intra_comm.
 *
 * What differs is a struct `op` with
 *
 *   typedef ... plan
 *       The op's plan.
 *   static constexpr bool gathers
 *       Own tiles go to others, too.
 *   const struct gemm_rs_plan *tiles(const plan *)
 *       The part of it that is gemm_rs's.
 *   void after(const plan *, struct mk_cta *, const struct mk_tile *, uint32_t first, uint32_t rows,
 *              uint32_t parts)
 *       On the GPU: rows [first, first + rows), `parts` of MK_TILE_PARTS of the tile, are stored.
 *   void role(const plan *, struct mk_cta *)
 *       On the GPU: runs cta->role, MK_INTRA_COMM or MK_INTER_SEND. */
#ifndef MK_KERNELS_GEMM_REDUCE_CUH
#define MK_KERNELS_GEMM_REDUCE_CUH

#include "kernels/cta_reduce.cuh"
#include "kernels/fragments.cuh"
#include "kernels/gemm_launch.cuh"
#include "kernels/gemm_track.cuh"

#include "core/roles/gemm_rs.h"

/* Of a tile that passes the sending warps, each consumer's rows: they are stored; they have been
 * taken, so that the outbox has room again. */
struct reduce_barriers {
    uint64_t there[GEMM_RS_OUTBOX][2], taken[GEMM_RS_OUTBOX][2];
    struct mk_tile tile[2]; /* that each consumer is at */
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
    static constexpr int producer_registers = op::producer_registers, consumer_registers = 252 - op::producer_registers / 2;

    const typename op::plan *plan;
    const CUtensorMap *map_a;
    const struct gemm_operands *operands;
    uint32_t passed;   /* consumers: tiles that have gone by the sending warps, times two; */
                       /* and 1: the last is in TMA stores, which nobody knows of yet */
    struct mk_cta cta; /* the producer's */
    int ending;

    GEMM_MEMBER void open()
    {
        ptx_tensormap_prefetch(map_a);
        cta_begin(&cta, launch, blockIdx.x, 1);
        ending = 0;
    }

    GEMM_MEMBER void close()
    {
        cta_end(&cta);
    }

    GEMM_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint32_t t = blockIdx.x / p->cluster + i * (launch->split.ctas[MK_COMPUTE] / p->cluster);
        if (t >= p->tiles)
            return false;
        gemm_rs_tile(p, t, tile);
        return true;
    }

    GEMM_MEMBER const CUtensorMap *a(const struct mk_tile *) const
    {
        return map_a;
    }

    GEMM_MEMBER void before(uint32_t, const struct mk_tile *tile, uint32_t)
    {
        if (!ending)
            ending = gemm_rs_before(MK_FRESH(op::tiles(plan)), &cta, tile);
    }

    /* C has the rows of this rank, or all. */
    GEMM_MEMBER struct gemm_place place(uint32_t, const struct mk_tile *tile, uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row),
                op::gathers ? (int32_t)tile->slab : 0};
    }

    GEMM_MEMBER void begin(uint32_t i, const struct mk_tile *tile)
    {
        reduce_shared->tile[(threadIdx.x - 128) / 128] = *tile;
        tracked_source::begin(i, tile);
    }

    GEMM_MEMBER void recall(uint32_t half, struct mk_tile *tile) const
    {
        ptx_bar_sync(1 + half, 128);
        *tile = reduce_shared->tile[half];
    }

    GEMM_MEMBER uint32_t barrier(uint64_t (*of)[2], uint32_t number, uint32_t half) const
    {
        return ptx_shared(&of[number % GEMM_RS_OUTBOX][half]);
    }

    GEMM_MEMBER char *outbox(const struct gemm_rs_plan *p, uint32_t number, uint32_t half) const
    {
        uint64_t bytes =
            (uint64_t)p->tile_m / p->cluster / 2 * p->tile_n * p->element_bytes; /* of a consumer */
        return launch->heap + p->outbox +
               ((blockIdx.x * GEMM_RS_OUTBOX + number % GEMM_RS_OUTBOX) * 2 + half) * bytes;
    }

    GEMM_MEMBER uint64_t epoch() const
    {
        return *(volatile uint64_t *)launch->epoch + 1;
    }

    template <class shape>
    GEMM_MEMBER void add(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                         float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t row,
                         uint32_t runs) const;

    template <class shape>
    GEMM_MEMBER bool finish(uint32_t i, const struct mk_tile *tile,
                            float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t half,
                            uint32_t rank);

    GEMM_MEMBER void stored(uint32_t, uint32_t half)
    {
        if (!(passed & 1))
            return;
        ptx_bulk_wait_all();
        ptx_fence_async();
        ptx_mbar_arrive(barrier(reduce_shared->there, passed / 2 - 1, half));
        passed--;
    }

    GEMM_MEMBER void send_tiles(uint32_t sender, uint32_t senders);
    GEMM_MEMBER void beside(uint32_t warp);
};

/* Adds to the thread's sums what others have of the tile; row: its first of the tile. */
template <class op>
template <class shape>
GEMM_MEMBER void reduce_source<op>::add(const struct gemm_rs_plan *p, const struct mk_tile *tile,
                                        float (&sum)[shape::blocks][shape::tile_n / 2],
                                        uint32_t row, uint32_t runs) const
{
    for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++) {
        p = MK_FRESH(p);
        struct gemm_rs_terms terms = gemm_rs_level(p, tile, level, epoch());
        /* x + y is y + x. The shuffles tell the compiler that all lanes go the same way. */
        uint32_t count = gemm_rs_kind_of(p, tile) == GEMM_RS_PARTIAL ? 0 : terms.count;
        uint32_t before = __shfl_sync(0xffffffff, count && terms.place > 1 ? terms.place : 0, 0);
        uint32_t behind = __shfl_sync(0xffffffff, count, 0) - before;
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
            const char *from = launch->heap + terms.source + fragment_offset(row + m * 64, runs);
            uint32_t there = row + m * 64 < tile->rows ? runs : 0;
            if (before)
                fragments_add_before<shape::number>(sum[m], from, p->slab_pitch, before, there);
            fragments_add_behind<shape::number>(sum[m], from + before * p->slab_pitch,
                                                p->slab_pitch, behind, there);
        }
    }
}

template <class op>
template <class shape>
GEMM_MEMBER bool
reduce_source<op>::finish(uint32_t, const struct mk_tile *tile,
                          float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t half,
                          uint32_t rank)
{
    const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
    enum gemm_rs_kind kind = gemm_rs_kind_of(p, tile);
    uint32_t runs = __shfl_sync(0xffffffff, fragment_runs<shape::number>(tile->cols), 0);
    uint32_t within = threadIdx.x % 128 / 32 * FRAGMENT_ROWS; /* of 64 rows, the warp's first */
    uint32_t row = (rank * 2 + half) * shape::blocks * 64 + within;
    add<shape>(p, tile, sum, row, runs);
    if (kind == GEMM_RS_OWN && !op::gathers)
        return false;
    passed &= ~1u; /* what was unsaid has been said, by one of the threads */
    ptx_mbar_wait(barrier(reduce_shared->taken, passed / 2, half),
                  (passed / 2 / GEMM_RS_OUTBOX & 1) ^ 1, operands->limit_ns);
    passed += 2;
    if (kind == GEMM_RS_OWN) {
        passed++;
        return false;
    }
    char *to = kind == GEMM_RS_SUM
                   ? launch->heap + gemm_rs_tile_offset(p, tile, 0) + fragment_offset(row, runs)
                   : outbox(p, passed / 2 - 1, half) + fragment_offset(within, runs);
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
        fragments_store<shape::number>(to + m * (64 / FRAGMENT_ROWS) * runs * FRAGMENT_BYTES,
                                       sum[m], runs);
    ptx_bar_sync(1 + half, 128);
    if (threadIdx.x % 128 == 0)
        ptx_mbar_arrive(barrier(reduce_shared->there, passed / 2 - 1, half));
    return true;
}

/* Takes this CTA's parts of tiles from its outbox to who adds them, and announces what is stored: a
 * warp. Of two warps (`senders`) each takes the rows of one consumer; only the first has a track. */
template <class op>
GEMM_MEMBER void reduce_source<op>::send_tiles(uint32_t sender, uint32_t senders)
{
    struct mk_cta own;
    struct mk_tile tile;
    uint32_t passes = 0;
    cta_begin(&own, launch, blockIdx.x, 32);
    own.track.events = NULL;
    for (uint32_t i = 0; next(i, &tile); i++) {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint32_t number = op::gathers ? i : passes;
        enum gemm_rs_kind kind = gemm_rs_kind_of(p, &tile);
        if (kind == GEMM_RS_OWN && !op::gathers)
            continue;
        for (uint32_t half = sender; half < 2; half += senders) {
            ptx_mbar_wait(barrier(reduce_shared->there, number, half), number / GEMM_RS_OUTBOX & 1,
                          operands->limit_ns);
            p = MK_FRESH(p);
            uint32_t part_rows = p->tile_m / p->cluster / 2;
            uint32_t row = (blockIdx.x % p->cluster * 2 + half) * part_rows;
            uint32_t rows = row >= tile.rows              ? 0
                            : tile.rows - row < part_rows ? tile.rows - row
                                                          : part_rows;
            own.pace = p->pace * senders;
            if (kind == GEMM_RS_PARTIAL) {
                uint32_t run = gemm_rs_grained_cols(p, tile.cols) * p->element_bytes;
                char *to = launch->peers[tile.c_local] + gemm_rs_tile_offset(p, &tile, epoch());
                lanes_copy_rows<8, 4>(
                    cta_lane(&own), 32, outbox(p, number, half), 0, to + (uint64_t)row * run, 0, 1,
                    (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS * FRAGMENT_ROWS * run / 16, own.pace);
                __syncwarp();
            } else {
                op::after(plan, &own, &tile, row, rows, MK_TILE_PARTS / p->cluster / 2);
            }
            if (cta_leads(&own))
                ptx_mbar_arrive(barrier(reduce_shared->taken, number, half));
            if (kind == GEMM_RS_PARTIAL)
                gemm_rs_after(MK_FRESH(p), &own, &tile, MK_TILE_PARTS / p->cluster / 2);
        }
        passes++;
    }
}

template <class op> GEMM_MEMBER void reduce_source<op>::beside(uint32_t warp)
{
    const struct mk_role_split *split = &launch->split;
    uint32_t riders = mk_role_rides(split, MK_INTRA_COMM), rider = warp - 2;
    uint32_t senders = riders < 2 ? 2 : 1;
    if (warp == 1 || (warp == 3 && senders == 2)) {
        send_tiles(warp == 3, senders);
    } else if (rider < riders) {
        struct mk_cta other;
        cta_begin(&other, launch, gpu_rider_of_block(split, MK_INTRA_COMM, rider, blockIdx.x), 32);
        other.pace = op::tiles(plan)->pace;
        op::role(plan, &other);
        cta_end(&other);
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
        const uint64_t n = p->n, k = p->k, rows = p->shard_rows, world = mk_world(&p->topo);
        const uint64_t a[3] = {k, rows, world}, c[3] = {n, rows, op::gathers ? world : 1};
        const uint32_t a_box[2] = {GEMM_TILE_K, shape::tile_m}, c_box[2] = {64, 64};
        int err = tensormap_bf16(&m->a, l->arguments[MK_SPACE_ARG0], a, k, rows * k, a_box);
        if (!err)
            err = gemm_describe_b<shape>(&operands->b, l->arguments[MK_SPACE_ARG1], n, k);
        if (!err)
            err = tensormap_bf16(&operands->c, l->arguments[MK_SPACE_ARG2], c, n, rows * n, c_box);
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
        source.passed = 0;
        if (threadIdx.x == 0)
            reduce_begin_outbox();
        gemm_track_begin(launch);
        gemm_compute<shape>(operands, &source, memory);
        gemm_track_end(launch);
    }

    /* A thread block of its own: all its threads. */
    template <class shape>
    static GEMM_MEMBER void communicate(const plan *p, const struct gpu_launch *launch, uint8_t *)
    {
        struct mk_cta cta;
        cta_begin(&cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), GEMM_THREADS);
        if (cta.role != MK_INTER_SEND || !cta_begin_commands(&cta))
            op::role(p, &cta);
        cta_end(&cta);
    }
};

#endif
