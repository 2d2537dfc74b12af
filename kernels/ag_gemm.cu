/* AllGather+GEMM: C = gather(A) * B in one launch. CTAs take roles by their number: the compute role is the GEMM engine
 * over the schedule's tile source, the others run their part of core/roles/ag_gemm.h on one thread. Where there are one,
 * two or three times as many intra_comm as compute CTAs, warps that the engine leaves free run that role, so that every SM
 * computes. */
#include "kernels/ag_gemm.h"

#include <errno.h>
#include <stdio.h>

#include "kernels/cta.cuh"
#include "kernels/gemm_tiling.h"
#include "kernels/gemm_track.cuh"
#include "kernels/tensormap.h"

#include "core/roles/ag_gemm.h"

/* Where A lies, by epoch & 1 for what has arrived. A kernel parameter. */
struct ag_gemm_maps {
    CUtensorMap own, gathered[2];
};

/* The tiles of this CTA (or cluster). `cta` is the producer thread's alone; the first thread of the first consumer
 * warpgroup notes when each tile was computed. Every other thread only asks for tiles. What a consumer keeps here costs
 * registers beside the accumulators. */
struct gemm_source {
    const struct ag_gemm_plan *plan;
    const struct gpu_launch *launch;
    const struct ag_gemm_maps *maps;
    uint32_t first, step;
    struct mk_cta cta;
    int ending;
    uint32_t noted, start; /* gemm_track.cuh's */
};

PTX_FN void gemm_source_open(struct gemm_source *s)
{
    cta_begin(&s->cta, s->launch, blockIdx.x, 1);
    s->ending = 0;
}

PTX_FN void gemm_source_close(struct gemm_source *s)
{
    cta_end(&s->cta);
}

PTX_FN void gemm_source_beside(struct gemm_source *s, uint32_t warp)
{
    const struct mk_role_split *split = &s->plan->split;
    uint32_t rider = warp - 1;
    if (rider >= mk_role_rides(split, MK_INTRA_COMM))
        return;
    struct mk_cta cta;
    cta_begin(&cta, s->launch, (1 + rider) * split->ctas[MK_COMPUTE] + blockIdx.x, 32);
    cta.pace = s->plan->pace;
    ag_gemm_intra_comm(s->plan, &cta);
    cta_end(&cta);
}

PTX_FN bool gemm_source_next(const struct gemm_source *s, uint32_t i, struct mk_tile *tile)
{
    uint32_t t = s->first + i * s->step;
    if (t >= s->plan->tiles)
        return false;
    ag_gemm_tile(s->plan, t, tile);
    return true;
}

PTX_FN const CUtensorMap *gemm_source_a(const struct gemm_source *s, const struct mk_tile *tile)
{
    return tile->a == MK_SPACE_HEAP ? &s->maps->gathered[s->cta.epoch & 1] : &s->maps->own;
}

PTX_FN void gemm_source_before(struct gemm_source *s, uint32_t, const struct mk_tile *tile, uint32_t slice)
{
    if (!s->ending)
        s->ending = ag_gemm_before(s->plan, &s->cta, tile, slice);
}

PTX_FN void gemm_source_begin(struct gemm_source *s, uint32_t, const struct mk_tile *)
{
    if (s->noted != GEMM_TRACK_NONE)
        s->start = (uint32_t)ptx_globaltimer();
}

PTX_FN struct gemm_place gemm_source_place(const struct gemm_source *, uint32_t, const struct mk_tile *tile,
                                           uint32_t row)
{
    return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
}

PTX_FN void gemm_source_room(const struct gemm_source *, uint32_t, uint32_t)
{
}

PTX_FN void gemm_source_stored(const struct gemm_source *, uint32_t, uint32_t)
{
}

PTX_FN void gemm_source_after(struct gemm_source *s, uint32_t, const struct mk_tile *tile, uint32_t)
{
    gemm_track_tile(s, tile);
}

#include "kernels/gemm.cuh"

template <class shape>
PTX_FN void ag_gemm_compute(const struct ag_gemm_plan *plan, const struct gpu_launch *launch,
                            const struct gemm_operands *op, const struct ag_gemm_maps *maps, uint8_t *memory)
{
    struct gemm_source source;
    source.plan = plan;
    source.launch = launch;
    source.maps = maps;
    source.first = blockIdx.x / shape::cluster;
    source.step = plan->split.ctas[MK_COMPUTE] / shape::cluster;
    source.noted = gemm_track_begin(launch);
    gemm_compute<shape>(op, &source, memory);
    gemm_track_end(launch, source.noted);
}

PTX_FN void ag_gemm_communicate(const struct ag_gemm_plan *plan, const struct gpu_launch *launch,
                                uint8_t *memory)
{
    struct mk_cta cta;
    cta_begin(&cta, launch, gpu_cta_of_block(&plan->split, blockIdx.x), 1);
    cta_begin_copies(&cta, ptx_shared(memory));
    if (cta.role == MK_INTRA_COMM)
        ag_gemm_intra_comm(plan, &cta);
    else if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
        ag_gemm_inter_send(plan, &cta);
    cta_end(&cta);
}

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    ag_gemm_kernel(const __grid_constant__ struct ag_gemm_plan plan,
                   const __grid_constant__ struct gpu_launch launch,
                   const __grid_constant__ struct gemm_operands op,
                   const __grid_constant__ struct ag_gemm_maps maps)
{
    extern __shared__ uint8_t memory[];
    if (blockIdx.x < plan.split.ctas[MK_COMPUTE])
        ag_gemm_compute<shape>(&plan, &launch, &op, &maps, memory);
    else if (threadIdx.x == 0 &&
             blockIdx.x < mk_total_blocks(&plan.split)) /* the grid is rounded up to clusters */
        ag_gemm_communicate(&plan, &launch, memory);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

template <class shape>
static int ag_gemm_describe(struct ag_gemm_maps *maps, struct gemm_operands *op, const struct ag_gemm_plan *p,
                            const struct gpu_launch *l)
{
    const uint64_t rows = p->shard_rows, world = mk_world(&p->topo), n = p->n, k = p->k;
    const uint64_t own[3] = {k, rows, 1}, all[3] = {k, rows, world}, c[3] = {n, rows, world};
    const uint64_t nk[3] = {k, n, 1}, kn[3] = {n, k, 1};
    const uint32_t a_box[2] = {GEMM_TILE_K, shape::tile_m}, c_box[2] = {64, 64};
    const uint32_t nk_box[2] = {GEMM_TILE_K, shape::tile_n / shape::cluster}, kn_box[2] = {64, GEMM_TILE_K};
    int err = tensormap_bf16(&maps->own, l->arguments[MK_SPACE_ARG0], own, k, rows * k, a_box);
    for (int i = 0; i < 2 && !err && world > 1; i++)
        err = tensormap_bf16(&maps->gathered[i], l->heap + p->gathered[i], all, k, p->shard_pitch / 2, a_box);
    const void *b = l->arguments[MK_SPACE_ARG1];
    if (!err)
        err = shape::b_kn ? tensormap_bf16(&op->b, b, kn, n, n * k, kn_box)
                          : tensormap_bf16(&op->b, b, nk, k, n * k, nk_box);
    if (!err)
        err = tensormap_bf16(&op->c, l->arguments[MK_SPACE_ARG2], c, n, rows * n, c_box);
    op->stages_of_k = (uint32_t)mk_ceil_div(k, GEMM_TILE_K);
    op->stages_of_slice = (uint32_t)mk_ceil_div(p->slice_bytes, GEMM_TILE_K * 2);
    op->limit_ns =
        l->timeout_ns + 2000000000; /* a producer may wait for a peer as long as the timeout says */
    return err;
}

template <class shape> static uint32_t ag_gemm_shared_bytes(void)
{
    return shape::shared_bytes > GPU_COPY_SHARED_BYTES ? shape::shared_bytes : GPU_COPY_SHARED_BYTES;
}

template <class shape> static int ag_gemm_prepare_shape(void)
{
    return cudaFuncSetAttribute(ag_gemm_kernel<shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                ag_gemm_shared_bytes<shape>()) == cudaSuccess
               ? 0
               : -EIO;
}

template <class shape>
static int ag_gemm_launch_shape(const struct ag_gemm_plan *p, const struct gpu_launch *l, cudaStream_t stream)
{
    struct ag_gemm_maps maps;
    struct gemm_operands op;
    int err = ag_gemm_describe<shape>(&maps, &op, p, l);
    if (err)
        return err;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape::cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(mk_round_up(mk_total_blocks(&p->split), shape::cluster));
    config.blockDim = dim3(GEMM_THREADS);
    config.dynamicSmemBytes = ag_gemm_shared_bytes<shape>();
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, ag_gemm_kernel<shape>, *p, *l, op, maps) == cudaSuccess ? 0 : -EIO;
}

/* Rows and columns of a CTA's part of a tile, CTAs that share it; stages and boxes of C that fill an SM's 227 KB. */
#define AG_GEMM_BUILT(X) X(128, 256, 2, 4, 2) X(128, 128, 2, 6, 2) X(128, 128, 1, 6, 2) X(128, 64, 1, 8, 2)

#define AG_GEMM_DISPATCH(call)                                                                               \
    AG_GEMM_BUILT(call)                                                                                      \
    return -EINVAL

static bool ag_gemm_is(const struct ag_gemm_plan *p, uint32_t rows, uint32_t columns, uint32_t cluster)
{
    return p->tile_m == rows * cluster && p->tile_n == columns && p->cluster == cluster;
}

static int ag_gemm_prepare_any(const struct mk_plan *plan)
{
    const struct ag_gemm_plan *p = &plan->u.ag_gemm;
#define AG_GEMM_PREPARE(tm, tn, cl, st, boxes)                                                               \
    if (ag_gemm_is(p, tm, tn, cl))                                                                           \
        return plan->problem.b_transposed ? ag_gemm_prepare_shape<gemm_shape<tm, tn, cl, 0, st, boxes>>()    \
                                          : ag_gemm_prepare_shape<gemm_shape<tm, tn, cl, 1, st, boxes>>();
    AG_GEMM_DISPATCH(AG_GEMM_PREPARE);
}

int ag_gemm_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    const struct ag_gemm_plan *p = &plan->u.ag_gemm;
    int err = ag_gemm_prepare_any(plan);
    if (err == -EINVAL)
        snprintf(error, error_size,
                 "tiles of %u x %u for %u CTAs are not built for the GPU; 256x256 and 256x128 for 2, 128x128 "
                 "and 128x64 "
                 "for 1 are",
                 p->tile_m, p->tile_n, p->cluster);
    else if (err)
        snprintf(error, error_size, "the GPU refuses the kernel: %s", cudaGetErrorString(cudaGetLastError()));
    return err;
}

int ag_gemm_launch(const struct mk_plan *plan, const struct gpu_launch *launch, cudaStream_t stream)
{
    const struct ag_gemm_plan *p = &plan->u.ag_gemm;
#define AG_GEMM_LAUNCH(tm, tn, cl, st, boxes)                                                                \
    if (ag_gemm_is(p, tm, tn, cl))                                                                           \
        return plan->problem.b_transposed                                                                    \
                   ? ag_gemm_launch_shape<gemm_shape<tm, tn, cl, 0, st, boxes>>(p, launch, stream)           \
                   : ag_gemm_launch_shape<gemm_shape<tm, tn, cl, 1, st, boxes>>(p, launch, stream);
    AG_GEMM_DISPATCH(AG_GEMM_LAUNCH);
}
