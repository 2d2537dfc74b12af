/* What GEMM+ReduceScatter and GEMM+AllReduce have in common on a GPU: a consumer warpgroup adds to
 * the sums in its registers what peers have of its tile, or gives them away to who adds them.
 *
 *   own tile   the producer thread waits for the peers' parts before it loads the tile. When the
 *              product is whole the consumers add these, in rank order, and the engine stores C
 *   sum        the same, for another node's owner: stored in this GPU's memory, to be put
 *   partial    goes to the CTA's outbox, a few tiles in this GPU's memory (in L2, mostly). A warp
 *              that the engine leaves free takes it from there to the rank that adds it, by paced
 *              16-byte stores. So the tensor cores wait for NVLink only where the outbox is full,
 *              and no TMA load stands in line behind a store that NVLink does not take yet
 *
 * The same warp (of two, each has the rows of one consumer) announces what is stored, and pushes
 * own tiles where the sum goes to all. The other warps are free for intra_comm.
 *
 * What the consumers need to know of a tile takes some twenty integer divisions, and nothing is
 * multiplied meanwhile. So the producer thread, which is ahead, works it out and leaves it in
 * shared memory.
 *
 * What differs is a struct `op` with
 *
 *   typedef ... plan
 *       The op's plan.
 *   static constexpr bool gathers
 *       Own tiles go to others, too.
 *   static constexpr int loads_ahead
 *       Loads of 16 bytes of bf16 partial sums that a consumer has under way, four registers each:
 *       as many as are not spilled.
 *   const struct gemm_rs_plan *tiles(const plan *)
 *       The part of it that is gemm_rs's.
 *   void after(const plan *, struct mk_cta *, const struct mk_tile *, uint32_t first,
 *              uint32_t rows, uint32_t parts)
 *       On the GPU: rows [first, first + rows), `parts` of MK_TILE_PARTS of the tile, are stored.
 *   void role(const plan *, struct mk_cta *)
 *       On the GPU: runs cta->role, MK_INTRA_COMM or MK_INTER_SEND. */
#ifndef MK_KERNELS_GEMM_REDUCE_CUH
#define MK_KERNELS_GEMM_REDUCE_CUH

#include "kernels/cta.cuh"
#include "kernels/fragments.cuh"
#include "kernels/gemm_launch.cuh"
#include "kernels/tile_track.cuh"

#include "core/roles/gemm_rs.h"

/* What consumers do with a tile. */
struct reduce_work {
    struct mk_tile tile;
    enum gemm_rs_kind kind;
    uint32_t runs;   /* of a group of rows, in fragments (kernels/fragments.cuh) */
    uint32_t number; /* among the tiles that pass the sending warps */
    struct gemm_rs_terms terms[GEMM_RS_LEVELS];
    uint64_t sum; /* GEMM_RS_SUM: where it goes in this rank's heap */
};

/* Tiles that the producer may be ahead of consumers that have stored theirs. */
enum { REDUCE_WORKS = 4 };

struct reduce_shared {
    /* Of a tile that passes the sending warps, each consumer's rows: they are stored; they have
     * been taken, so that the outbox has room again. */
    uint64_t there[GEMM_RS_OUTBOX][2], taken[GEMM_RS_OUTBOX][2];
    struct reduce_work work[REDUCE_WORKS];
    uint64_t read[REDUCE_WORKS]; /* both consumers are done with it */
    struct tile_track track;     /* the first consumer's */
};
PTX_SHARED(struct reduce_shared, reduce_shared, 1);

/* One thread, before the CTA's first barrier. */
PTX_FN void reduce_begin_outbox(void)
{
    for (uint32_t i = 0; i < GEMM_RS_OUTBOX; i++)
        for (uint32_t half = 0; half < 2; half++) {
            ptx_mbar_init(ptx_shared(&reduce_shared->there[i][half]), 1);
            ptx_mbar_init(ptx_shared(&reduce_shared->taken[i][half]), 1);
        }
    for (uint32_t i = 0; i < REDUCE_WORKS; i++)
        ptx_mbar_init(ptx_shared(&reduce_shared->read[i]), 2);
}

/* The tiles of this CTA (or cluster). */
template <class op> struct reduce_source : gemm_source {
    /* Auxiliary warps need more than a producer does. */
    static constexpr int producer_registers = 120, consumer_registers = 192;

    const typename op::plan *plan;
    const struct gpu_launch *launch;
    const CUtensorMap *map_a;
    const struct gemm_operands *operands;
    /* the producer's */
    struct mk_cta cta;
    uint32_t passed; /* tiles that pass the sending warps, so far */
    int ending;

    GEMM_MEMBER void open()
    {
        ptx_tensormap_prefetch(map_a);
        cta_begin(&cta, launch, blockIdx.x, 1);
        passed = 0;
        ending = 0;
    }

    GEMM_MEMBER void close()
    {
        cta_end(&cta);
    }

    /* Consumers are told only whether there is one. */
    GEMM_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint32_t t = (p->cluster == 2 ? blockIdx.x / 2 : blockIdx.x) + i * p->batch;
        if (t >= p->tiles)
            return false;
        if (threadIdx.x < 128)
            gemm_rs_tile(p, t, tile);
        return true;
    }

    GEMM_MEMBER const CUtensorMap *a(const struct mk_tile *) const
    {
        return map_a;
    }

    GEMM_MEMBER void before(uint32_t i, const struct mk_tile *tile, uint32_t)
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        struct reduce_work *w = &reduce_shared->work[i % REDUCE_WORKS];
        enum gemm_rs_kind kind = gemm_rs_kind_of(p, tile);
        /* that a stage is free says nothing of what consumers have read elsewhere */
        ptx_mbar_wait(ptx_shared(&reduce_shared->read[i % REDUCE_WORKS]),
                      (i / REDUCE_WORKS & 1) ^ 1, operands->limit_ns);
        w->tile = *tile;
        w->kind = kind;
        w->runs = gemm_rs_grained_cols(p, tile->cols) / p->grain_cols;
        w->number = passed;
        passed += op::gathers || kind != GEMM_RS_OWN;
        w->sum = kind == GEMM_RS_SUM ? gemm_rs_tile_offset(p, tile, cta.epoch) : 0;
        for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++) {
            w->terms[level] = gemm_rs_level(p, tile, level, cta.epoch);
            if (kind == GEMM_RS_PARTIAL)
                w->terms[level].count = 0;
        }
        if (!ending)
            ending = gemm_rs_before(MK_FRESH(p), &cta, tile);
    }

    GEMM_MEMBER const struct reduce_work *work(uint32_t i) const
    {
        return &reduce_shared->work[i % REDUCE_WORKS];
    }

    /* C has the rows of this rank, or all. */
    GEMM_MEMBER struct gemm_place place(uint32_t i, const struct mk_tile *, uint32_t row) const
    {
        const struct mk_tile *tile = &work(i)->tile;
        return {(int32_t)tile->col, (int32_t)(tile->row + row),
                op::gathers ? (int32_t)tile->slab : 0};
    }

    GEMM_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (threadIdx.x == 128)
            tile_track_start(&reduce_shared->track);
    }

    GEMM_MEMBER void after(uint32_t i, const struct mk_tile *, uint32_t)
    {
        if (threadIdx.x == 128)
            tile_track_note(&reduce_shared->track, launch, work(i)->tile.id);
    }

    GEMM_MEMBER uint32_t barrier(uint64_t (*of)[2], uint32_t number, uint32_t half) const
    {
        return ptx_shared(&of[number % GEMM_RS_OUTBOX][half]);
    }

    /* Where consumer `half` leaves what it has of the number-th tile. */
    GEMM_MEMBER char *outbox(uint32_t number, uint32_t half) const
    {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        uint64_t bytes = (uint64_t)p->tile_m / p->cluster / 2 * p->tile_n * p->element_bytes;
        return launch->heap + p->outbox +
               ((blockIdx.x * GEMM_RS_OUTBOX + number % GEMM_RS_OUTBOX) * 2 + half) * bytes;
    }

    template <class shape>
    GEMM_MEMBER void add(const struct reduce_work *w,
                         float (&sum)[shape::blocks][shape::tile_n / 2], uint32_t row) const;

    template <class shape>
    GEMM_MEMBER bool finish(uint32_t i, float (&sum)[shape::blocks][shape::tile_n / 2],
                            uint32_t half, uint32_t rank) const;

    GEMM_MEMBER void stored(uint32_t i, uint32_t half) const
    {
        if (op::gathers && work(i)->kind == GEMM_RS_OWN) {
            ptx_bulk_wait_all();
            ptx_fence_async();
            ptx_mbar_arrive(barrier(reduce_shared->there, work(i)->number, half));
        }
        ptx_mbar_arrive(ptx_shared(&reduce_shared->read[i % REDUCE_WORKS]));
    }

    GEMM_MEMBER void send_tiles(uint32_t sender, uint32_t senders);
    GEMM_MEMBER void auxiliary_warp(uint32_t warp);
};

/* Adds to the thread's sums what others have of the tile; row: its first of the tile. */
template <class op>
template <class shape>
GEMM_MEMBER void reduce_source<op>::add(const struct reduce_work *w,
                                        float (&sum)[shape::blocks][shape::tile_n / 2],
                                        uint32_t row) const
{
#pragma unroll 1
    for (uint32_t level = 0; level < GEMM_RS_LEVELS; level++) {
        /* x + y is y + x. The shuffles tell the compiler that all lanes go the same way. */
        uint32_t count = __shfl_sync(0xffffffff, w->terms[level].count, 0);
        uint32_t place = __shfl_sync(0xffffffff, w->terms[level].place, 0);
        uint32_t before = count && place > 1 ? place : 0;
        uint64_t pitch = op::tiles(plan)->slab_pitch;
        if (!count)
            continue;
#pragma unroll
        for (int m = 0; m < shape::blocks; m++) {
            uint32_t runs = row + m * 64 < w->tile.rows ? w->runs : 0;
            const char *from =
                launch->heap + w->terms[level].source + fragment_offset(row + m * 64, w->runs);
            if (before)
                fragments_add_before<shape::number>(sum[m], from, pitch, before, runs);
            fragments_add_behind<shape::number, op::loads_ahead>(sum[m], from + before * pitch,
                                                                 pitch, count - before, runs);
        }
    }
}

template <class op>
template <class shape>
GEMM_MEMBER bool reduce_source<op>::finish(uint32_t i,
                                           float (&sum)[shape::blocks][shape::tile_n / 2],
                                           uint32_t half, uint32_t rank) const
{
    const struct reduce_work *w = work(i);
    uint32_t within = threadIdx.x % 128 / 32 * FRAGMENT_ROWS; /* of 64 rows, the warp's first */
    uint32_t row = (rank * 2 + half) * shape::blocks * 64 + within;
    add<shape>(w, sum, row);
    uint32_t kind = __shfl_sync(0xffffffff, w->kind, 0);
    if (kind == GEMM_RS_OWN && !op::gathers)
        return false;
    ptx_mbar_wait(barrier(reduce_shared->taken, w->number, half),
                  (w->number / GEMM_RS_OUTBOX & 1) ^ 1, operands->limit_ns);
    if (kind == GEMM_RS_OWN)
        return false;
    char *to = kind == GEMM_RS_SUM ? launch->heap + w->sum + fragment_offset(row, w->runs)
                                   : outbox(w->number, half) + fragment_offset(within, w->runs);
#pragma unroll
    for (int m = 0; m < shape::blocks; m++)
        fragments_store<shape::number>(to + m * (64 / FRAGMENT_ROWS) * w->runs * FRAGMENT_BYTES,
                                       sum[m], w->runs);
    ptx_bar_sync(1 + half, 128);
    if (threadIdx.x % 128 == 0)
        ptx_mbar_arrive(barrier(reduce_shared->there, w->number, half));
    return true;
}

/* Takes this CTA's parts of tiles from its outbox to who adds them, and announces what is stored: a
 * warp. Of two warps (`senders`) each takes the rows of one consumer; only the first has a track.
 */
template <class op>
GEMM_MEMBER void reduce_source<op>::send_tiles(uint32_t sender, uint32_t senders)
{
    struct mk_cta own;
    struct mk_tile tile;
    uint32_t number = 0;
    if (sender) /* the track is the first's */
        cta_identify(&own, launch, blockIdx.x, 32);
    else
        cta_begin(&own, launch, blockIdx.x, 32, GPU_TRACK_SENDER);
    for (uint32_t i = 0; next(i, &tile); i++) {
        const struct gemm_rs_plan *p = MK_FRESH(op::tiles(plan));
        enum gemm_rs_kind kind = gemm_rs_kind_of(p, &tile);
        if (kind == GEMM_RS_OWN && !op::gathers)
            continue;
        for (uint32_t half = sender; half < 2; half += senders) {
            barrier_wait(&operands->watch, barrier(reduce_shared->there, number, half),
                         number / GEMM_RS_OUTBOX & 1, GPU_BARRIER_THERE, number % GEMM_RS_OUTBOX,
                         i);
            p = MK_FRESH(p);
            uint32_t part_rows = p->tile_m / p->cluster / 2, parts = MK_TILE_PARTS / p->cluster / 2;
            uint32_t row = (blockIdx.x % p->cluster * 2 + half) * part_rows;
            uint32_t rows = row >= tile.rows              ? 0
                            : tile.rows - row < part_rows ? tile.rows - row
                                                          : part_rows;
            own.pace = p->pace * senders;
            if (kind == GEMM_RS_PARTIAL) {
                uint32_t run = gemm_rs_grained_cols(p, tile.cols) * p->element_bytes;
                char *to = launch->peers[tile.c_local] + gemm_rs_tile_offset(p, &tile, own.epoch);
                cta_copy_open(&own, tile.c_local, tile.id * p->pieces);
                lanes_copy_rows<8, 4>(
                    cta_lane(&own), 32, outbox(number, half), 0, to + (uint64_t)row * run, 0, 1,
                    (rows + FRAGMENT_ROWS - 1) / FRAGMENT_ROWS * FRAGMENT_ROWS * run / 16,
                    own.pace);
                __syncwarp();
                if (cta_leads(&own)) /* before what is announced: the place is free */
                    ptx_mbar_arrive(barrier(reduce_shared->taken, number, half));
                gemm_rs_after(MK_FRESH(p), &own, &tile, parts);
            } else {
                op::after(plan, &own, &tile, row, rows, parts); /* it is announced: all have read */
                if (cta_leads(&own))
                    ptx_mbar_arrive(barrier(reduce_shared->taken, number, half));
            }
        }
        number++;
    }
    if (!sender)
        cta_end(&own);
}

template <class op> GEMM_MEMBER void reduce_source<op>::auxiliary_warp(uint32_t warp)
{
    const struct mk_role_split *split = &launch->split;
    uint32_t others = mk_role_coresident(split, MK_INTRA_COMM), auxiliary = warp - 2;
    uint32_t senders = others < 2 ? 2 : 1;
    if (warp == 1 || (warp == 3 && senders == 2)) {
        send_tiles(warp == 3, senders);
    } else if (auxiliary < others) {
        struct mk_cta other;
        cta_begin(&other, launch,
                  gpu_auxiliary_of_block(split, MK_INTRA_COMM, auxiliary, blockIdx.x), 32);
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
        if (threadIdx.x == 0)
            reduce_begin_outbox();
        if (threadIdx.x == 128)
            tile_track_open(&reduce_shared->track, launch);
        gemm_compute<shape>(operands, &source, memory);
        if (threadIdx.x == 128)
            tile_track_close(&reduce_shared->track, launch);
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
