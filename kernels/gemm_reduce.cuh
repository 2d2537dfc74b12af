/* What GEMM+ReduceScatter and GEMM+AllReduce have in common on a GPU: tiles that go to a peer's heap.
 *
 * The GEMM engine stores a tile by TMA into its CTA's outbox, a few tiles in this GPU's memory (in L2, mostly). A warp that
 * the engine leaves free takes it from there to the reducer by plain 16-byte stores, and announces it. So the tensor cores
 * wait for NVLink only where the outbox is full, and no TMA load stands in line behind a store that NVLink does not take yet.
 * Two more free warps run inter_reduce and intra_comm, where these ride; else they are CTAs of their own.
 *
 * The including file defines, before it includes this:
 *   struct gemm_reduce_plan                       the op's plan, a macro
 *   reduce_tiles(plan)                            the part of it that is gemm_rs's
 *   reduce_role(plan, cta)                        runs cta->role: MK_INTER_REDUCE or MK_INTRA_COMM */
#ifndef MK_KERNELS_GEMM_REDUCE_CUH
#define MK_KERNELS_GEMM_REDUCE_CUH

#include "kernels/gemm_tiling.h"
#include "kernels/gemm_track.cuh"

/* The warps beside the engine need as many as the consumers do. */
#define GEMM_PRODUCER_REGISTERS 168
#define GEMM_CONSUMER_REGISTERS 168

/* The tiles of this CTA (or cluster). What a consumer keeps here costs registers beside the accumulators. */
struct gemm_source {
    const struct gemm_reduce_plan *plan;
    const struct gpu_launch *launch;
    const CUtensorMap *a;
    uint64_t limit_ns;
    uint32_t first, step, number;
    uint32_t noted, start; /* gemm_track.cuh's */
};

/* A part (64 rows or more) of a tile in the outbox is there; it has been taken. One for each of the two parts. */
struct reduce_barriers {
    uint64_t there[GEMM_RS_OUTBOX][2], taken[GEMM_RS_OUTBOX][2];
};
__shared__ struct reduce_barriers reduce_shared;

/* One thread, before the CTA's first barrier. */
PTX_FN void reduce_begin_outbox(void)
{
    for (uint32_t i = 0; i < GEMM_RS_OUTBOX; i++)
        for (uint32_t half = 0; half < 2; half++) {
            ptx_mbar_init(ptx_shared(&reduce_shared.there[i][half]), 1);
            ptx_mbar_init(ptx_shared(&reduce_shared.taken[i][half]), 1);
        }
}

PTX_FN bool gemm_source_next(const struct gemm_source *s, uint32_t i, struct mk_tile *tile)
{
    uint32_t t = s->first + i * s->step;
    const struct gemm_rs_plan *p = MK_FRESH(reduce_tiles(s->plan));
    if (t >= p->tiles)
        return false;
    gemm_rs_tile(p, t, tile);
    return true;
}

PTX_FN const CUtensorMap *gemm_source_a(const struct gemm_source *s, const struct mk_tile *)
{
    return s->a;
}

PTX_FN void gemm_source_open(struct gemm_source *)
{
}

PTX_FN void gemm_source_close(struct gemm_source *)
{
}

PTX_FN void gemm_source_before(struct gemm_source *, uint32_t, const struct mk_tile *, uint32_t)
{
}

PTX_FN struct gemm_place gemm_source_place(const struct gemm_source *, uint32_t i, const struct mk_tile *,
                                           uint32_t)
{
    return {0, 0, (int32_t)(blockIdx.x * GEMM_RS_OUTBOX + i % GEMM_RS_OUTBOX)};
}

PTX_FN void gemm_source_room(const struct gemm_source *s, uint32_t i, uint32_t half)
{
    ptx_mbar_wait(ptx_shared(&reduce_shared.taken[i % GEMM_RS_OUTBOX][half]), (i / GEMM_RS_OUTBOX & 1) ^ 1,
                  s->limit_ns);
    ptx_fence_async(); /* ordinary loads have read what TMA now overwrites */
}

PTX_FN void gemm_source_stored(const struct gemm_source *, uint32_t i, uint32_t half)
{
    ptx_bulk_wait_all();
    ptx_fence_async();
    ptx_mbar_arrive(ptx_shared(&reduce_shared.there[i % GEMM_RS_OUTBOX][half]));
}

PTX_FN void gemm_source_begin(struct gemm_source *s, uint32_t, const struct mk_tile *)
{
    if (s->noted != GEMM_TRACK_NONE)
        s->start = (uint32_t)ptx_globaltimer();
}

PTX_FN void gemm_source_after(struct gemm_source *s, uint32_t, const struct mk_tile *tile, uint32_t)
{
    gemm_track_tile(s, tile);
}

/* Takes this CTA's parts of tiles from its outbox to their reducers and announces them: a warp. Of two warps (`senders`) each
 * takes the rows of one consumer; only the first has a track. */
PTX_FN void reduce_send_tiles(struct gemm_source *s, uint32_t sender, uint32_t senders)
{
    const struct gemm_rs_plan *p = reduce_tiles(s->plan);
    const uint32_t part_rows = p->tile_m / p->cluster / 2, pitch = p->tile_n * p->element_bytes;
    struct mk_cta cta;
    struct mk_tile tile;
    cta_begin(&cta, s->launch, blockIdx.x, 32);
    if (sender)
        cta.track.events = NULL;
    for (uint32_t i = 0; gemm_source_next(s, i, &tile); i++) {
        uint32_t place = i % GEMM_RS_OUTBOX;
        p = MK_FRESH(p);
        const char *from =
            s->launch->heap + p->outbox + (uint64_t)(blockIdx.x * GEMM_RS_OUTBOX + place) * 2 * part_rows * pitch;
        char *to = s->launch->peers[tile.c_local] + gemm_rs_tile_offset(p, &tile, cta.epoch);
        for (uint32_t half = sender; half < 2; half += senders) {
            uint32_t row = (blockIdx.x % p->cluster * 2 + half) * part_rows;
            uint32_t rows = row >= tile.rows ? 0 : tile.rows - row < part_rows ? tile.rows - row : part_rows;
            ptx_mbar_wait(ptx_shared(&reduce_shared.there[place][half]), i / GEMM_RS_OUTBOX & 1, s->limit_ns);
            if (half == sender)
                cta_copy_open(&cta, tile.c_local, tile.id * p->pieces);
            cta_copy_rows(&cta, from + half * part_rows * pitch, pitch, to + row * tile.cols * p->element_bytes,
                          tile.cols * p->element_bytes, rows, tile.cols * p->element_bytes / 16,
                          tile.c_local == mk_local_of(&p->topo, p->topo.rank) ? 0 : p->pace * senders);
            __syncwarp();
            if (cta_leads(&cta))
                ptx_mbar_arrive(ptx_shared(&reduce_shared.taken[place][half]));
        }
        gemm_rs_after(p, &cta, &tile, MK_TILE_PARTS / p->cluster / senders);
    }
    if (!sender)
        cta_end(&cta);
}

PTX_FN void gemm_source_beside(struct gemm_source *s, uint32_t warp)
{
    const struct mk_role_split *split = &s->launch->split;
    uint32_t reducers = mk_role_rides(split, MK_INTER_REDUCE), rider = warp - 2;
    uint32_t senders = reducers + mk_role_rides(split, MK_INTRA_COMM) < 2 ? 2 : 1;
    enum mk_role role = rider < reducers ? MK_INTER_REDUCE : MK_INTRA_COMM;
    if (role == MK_INTRA_COMM)
        rider -= reducers;
    if (warp == 1 || (warp == 3 && senders == 2)) {
        reduce_send_tiles(s, warp == 3, senders);
    } else if (rider < mk_role_rides(split, role)) {
        struct mk_cta cta;
        cta_begin(&cta, s->launch, gpu_rider_of_block(split, role, rider, blockIdx.x), 32);
        cta.number = s->number;
        cta.pace = role == MK_INTRA_COMM ? reduce_tiles(s->plan)->pace : 0;
        reduce_role(s->plan, &cta);
        cta_end(&cta);
    }
}

#include "kernels/gemm.cuh"

template <class shape>
PTX_FN void reduce_compute(const struct gemm_reduce_plan *plan, const struct gpu_launch *launch,
                           const struct gemm_operands *op, const CUtensorMap *a, uint8_t *memory)
{
    struct gemm_source source;
    source.plan = plan;
    source.launch = launch;
    source.a = a;
    source.limit_ns = op->limit_ns;
    source.first = blockIdx.x / shape::cluster;
    source.step = launch->split.ctas[MK_COMPUTE] / shape::cluster;
    source.number = shape::c_number;
    if (threadIdx.x == 0)
        reduce_begin_outbox();
    source.noted = gemm_track_begin(launch);
    gemm_compute<shape>(op, &source, memory);
    gemm_track_end(launch, source.noted);
}

/* A thread block of its own: all its threads. */
template <class shape>
PTX_FN void reduce_communicate(const struct gemm_reduce_plan *plan, const struct gpu_launch *launch)
{
    struct mk_cta cta;
    cta_begin(&cta, launch, gpu_cta_of_block(&launch->split, blockIdx.x), GEMM_THREADS);
    cta.number = shape::c_number;
    int posts = cta.role == MK_INTER_REDUCE && reduce_tiles(plan)->topo.nodes > 1;
    if (!posts || !cta_begin_commands(&cta))
        reduce_role(plan, &cta);
    cta_end(&cta);
}

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    reduce_kernel(const __grid_constant__ struct gemm_reduce_plan plan,
                  const __grid_constant__ struct gpu_launch launch,
                  const __grid_constant__ struct gemm_operands op, const __grid_constant__ CUtensorMap a)
{
    extern __shared__ uint8_t memory[];
    if (blockIdx.x < launch.split.ctas[MK_COMPUTE])
        reduce_compute<shape>(&plan, &launch, &op, &a, memory);
    else if (blockIdx.x < mk_total_blocks(&launch.split)) /* the grid is rounded up to clusters */
        reduce_communicate<shape>(&plan, &launch);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

template <class shape>
static int reduce_describe(CUtensorMap *a, struct gemm_operands *op, const struct gemm_rs_plan *p,
                           const struct gpu_launch *l)
{
    const uint64_t world = mk_world(&p->topo), n = p->n, k = p->k;
    const uint64_t a_extent[3] = {k, p->shard_rows, world};
    const uint64_t nk[3] = {k, n, 1}, kn[3] = {n, k, 1};
    const uint64_t outbox[3] = {shape::tile_n, shape::tile_m, GEMM_RS_OUTBOX * p->split.ctas[MK_COMPUTE]};
    const uint32_t a_box[2] = {GEMM_TILE_K, shape::tile_m};
    const uint32_t nk_box[2] = {GEMM_TILE_K, shape::tile_n / shape::cluster}, kn_box[2] = {64, GEMM_TILE_K};
    const uint32_t c_box[2] = {shape::c_number == MK_FP32 ? 32 : 64, 64};
    const void *b = l->arguments[MK_SPACE_ARG1];
    int err = tensormap_bf16(a, l->arguments[MK_SPACE_ARG0], a_extent, k, p->shard_rows * k, a_box);
    if (!err)
        err = shape::b_kn ? tensormap_bf16(&op->b, b, kn, n, n * k, kn_box)
                          : tensormap_bf16(&op->b, b, nk, k, n * k, nk_box);
    if (!err)
        err = (shape::c_number == MK_FP32 ? tensormap_fp32 : tensormap_bf16)(
            &op->c, l->heap + p->outbox, outbox, shape::tile_n, shape::tile_n * shape::tile_m, c_box);
    op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(k, GEMM_TILE_K);
    op->limit_ns = l->timeout_ns + 2000000000; /* longer than any wait for a flag */
    return err;
}

template <class shape> static int reduce_prepare_shape(void)
{
    return cudaFuncSetAttribute(reduce_kernel<shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shape::shared_bytes) == cudaSuccess
               ? 0
               : -EIO;
}

template <class shape>
static int reduce_launch_shape(const struct gemm_reduce_plan *plan, const struct gpu_launch *l,
                               cudaStream_t stream)
{
    CUtensorMap a;
    struct gemm_operands op;
    int err = reduce_describe<shape>(&a, &op, reduce_tiles(plan), l);
    if (err)
        return err;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape::cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(mk_round_up(mk_total_blocks(&l->split), shape::cluster));
    config.blockDim = dim3(GEMM_THREADS);
    config.dynamicSmemBytes = shape::shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, reduce_kernel<shape>, *plan, *l, op, a) == cudaSuccess ? 0 : -EIO;
}

/* Rows and columns of a CTA's part of a tile, CTAs that share it; stages and boxes of C that fill an SM's 227 KB. */
#define REDUCE_BUILT(X) X(128, 256, 2, 4, 2) X(128, 128, 2, 6, 2) X(128, 128, 1, 6, 2) X(128, 64, 1, 8, 2)

static bool reduce_is(const struct gemm_rs_plan *p, uint32_t rows, uint32_t columns, uint32_t cluster)
{
    return p->tile_m == rows * cluster && p->tile_n == columns && p->cluster == cluster;
}

/* Of one tile shape: call_shape<...>arguments for the layout of B and the numbers of partial sums. */
#define REDUCE_TRY(call, arguments, tm, tn, cl, st, boxes)                                                            \
    if (reduce_is(p, tm, tn, cl)) {                                                                                   \
        if (p->number == MK_FP32)                                                                                     \
            return transposed ? call<gemm_shape<tm, tn, cl, 0, st, boxes, MK_FP32>> arguments                         \
                              : call<gemm_shape<tm, tn, cl, 1, st, boxes, MK_FP32>> arguments;                        \
        return transposed ? call<gemm_shape<tm, tn, cl, 0, st, boxes>> arguments                                      \
                          : call<gemm_shape<tm, tn, cl, 1, st, boxes>> arguments;                                     \
    }

static int reduce_prepare_any(const struct gemm_rs_plan *p, int transposed)
{
#define REDUCE_PREPARE(tm, tn, cl, st, boxes) REDUCE_TRY(reduce_prepare_shape, (), tm, tn, cl, st, boxes)
    REDUCE_BUILT(REDUCE_PREPARE)
    return -EINVAL;
}

static int reduce_prepare(const struct gemm_reduce_plan *plan, int transposed, char *error, size_t error_size)
{
    const struct gemm_rs_plan *p = reduce_tiles(plan);
    int err = reduce_prepare_any(p, transposed);
    if (err == -EINVAL)
        snprintf(error, error_size,
                 "tiles of %u x %u for %u CTAs are not built for the GPU; 256x256 and 256x128 for 2, 128x128 "
                 "and 128x64 for 1 are",
                 p->tile_m, p->tile_n, p->cluster);
    else if (err)
        snprintf(error, error_size, "the GPU refuses the kernel: %s", cudaGetErrorString(cudaGetLastError()));
    return err;
}

static int reduce_launch(const struct gemm_reduce_plan *plan, int transposed, const struct gpu_launch *l,
                         cudaStream_t stream)
{
    const struct gemm_rs_plan *p = reduce_tiles(plan);
#define REDUCE_LAUNCH(tm, tn, cl, st, boxes)                                                                          \
    REDUCE_TRY(reduce_launch_shape, (plan, l, stream), tm, tn, cl, st, boxes)
    REDUCE_BUILT(REDUCE_LAUNCH)
    return -EINVAL;
}

#endif
