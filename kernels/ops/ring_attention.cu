/* Ring attention: O = softmax(Q K^T / sqrt(D)) V over the K and V of all ranks in one launch.
 * Thread blocks take roles by their number: compute is the attention engine over the schedule's
 * query tiles, which all blocks take from one counter; the others run their part of
 * core/roles/ring_attention.h with all their threads, and when that is done compute too. Where
 * there are one, two or three times as many intra_comm as compute CTAs, warps that the engine
 * leaves free run that role, so that every SM computes from the start. */
#include "kernels/admit.h"
#include "kernels/op.h"

#include "kernels/cta.cuh"

#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "core/attention_tiles.h"
#include "core/roles/ring_attention.h"
#include "kernels/hopper/attention.cuh"
#include "kernels/hopper/tensormap.h"
#include "kernels/tile_track.cuh"

GPU_OPERATOR(ring_attention)

/* K and V, this rank's own and by epoch & 1 those that have come. A kernel parameter. */
struct ring_attention_maps {
    CUtensorMap own[2], gathered[2][2];
};

/* What the producer thread (cta) and the first thread of the first consumer warpgroup (track) keep.
 * Not in registers: with three consumer warpgroups there are too few. */
struct ring_attention_state {
    struct mk_cta cta;
    uint32_t awaited_run; /* of its keys, those from row awaited_row on have come; 0: none */
    int32_t awaited_row;
    uint32_t blocks; /* of the tile, so far, of this rank's own keys */
    int all_here;    /* all keys of the tile */
    int ending;
    struct tile_track track;
};
PTX_SHARED(struct ring_attention_state, ring_attention_shared, 1);

/* With two stages, the first block for which the producer waits. */
enum { LOOK_AT_BLOCK = 3 };

/* What follows `maps` is the producer thread's alone. */
struct ring_attention_tiles : attention_source {
    const struct ring_attention_plan *plan;
    const struct gpu_launch *launch;
    const struct ring_attention_maps *maps;

    ATTENTION_MEMBER void open()
    {
        struct mk_cta *cta = &ring_attention_shared->cta;
        uint32_t number = gpu_cta_of_block(&launch->split, blockIdx.x);
        if (number >= launch->split.ctas[MK_COMPUTE]) /* has had another role before */
            cta_resume(cta, launch, number, 1);
        else
            cta_begin(cta, launch, number, 1);
        cta->role = MK_COMPUTE;
        ring_attention_shared->ending = 0;
        if (!plan->query_tiles && number < launch->split.ctas[MK_COMPUTE])
            ring_attention_await_share(plan, cta);
    }

    ATTENTION_MEMBER void close()
    {
        cta_end(&ring_attention_shared->cta);
    }

    /* Every block takes until there is none: so many numbers a launch. */
    ATTENTION_MEMBER int32_t take()
    {
        uint64_t first = (ring_attention_shared->cta.epoch - 1) * (plan->query_tiles + gridDim.x);
        uint64_t i = atomicAdd((unsigned long long *)launch->taken, 1ull) - first;
        ring_attention_shared->awaited_run = ring_attention_shared->blocks = 0;
        ring_attention_shared->all_here = 0;
        return i < plan->query_tiles ? (int32_t)ring_attention_order(plan, (uint32_t)i)
                                     : (int32_t)ATTENTION_NONE;
    }

    ATTENTION_MEMBER void tile(int32_t query, struct attention_tile *tile) const
    {
        struct ring_attention_query q = ring_attention_query(plan, query);
        tile->head = q.head;
        tile->row = q.row;
        tile->slab = q.batch * plan->halves + q.half;
        tile->rows = q.rows;
    }

    /* Of each rank in its turn the half that the queries are in, then the other. */
    ATTENTION_MEMBER bool keys(const struct attention_tile &tile, uint32_t run,
                               struct attention_keys *keys) const
    {
        uint32_t step = run / plan->halves, q_half = tile.slab % plan->halves;
        uint32_t half = q_half ^ (run % plan->halves), rank = ring_attention_source(plan, step);
        uint32_t kv_head = ring_attention_kv_head(plan, tile.head);
        enum ring_attention_mask mask = ring_attention_mask(plan, q_half, rank, half);
        if (step >= mk_world(&plan->topo))
            return false;
        if (step == 0) {
            keys->k = &maps->own[0];
            keys->v = &maps->own[1];
            keys->head = kv_head;
            keys->slab = tile.slab - q_half + half;
        } else {
            const CUtensorMap *gathered = maps->gathered[ring_attention_shared->cta.epoch & 1];
            keys->k = &gathered[0];
            keys->v = &gathered[1];
            keys->head =
                (tile.slab / plan->halves * plan->kv_heads + kv_head) * plan->halves + half;
            keys->slab = rank;
        }
        keys->row = 0;
        keys->keys = mask == RING_ATTENTION_NONE ? 0 : plan->half;
        keys->diagonal = mask == RING_ATTENTION_DIAGONAL ? tile.row : (int32_t)ATTENTION_FULL;
        return true;
    }

    ATTENTION_MEMBER float *lse(const struct attention_tile &tile) const
    {
        uint32_t batch = tile.slab / plan->halves, half = tile.slab % plan->halves;
        return (float *)launch->arguments[MK_SPACE_ARG4] +
               ((uint64_t)(batch * plan->heads + tile.head) * plan->rows + half * plan->half +
                tile.row);
    }

    /* Whether all keys of the tile are here already. The producer looks when it has filled its
     * stages for the first time, and would only wait for consumers: later a flag's microsecond is
     * one in which nothing is loaded. */
    ATTENTION_MEMBER bool look(const struct attention_tile &tile) const
    {
        const struct mk_cta *cta = &ring_attention_shared->cta;
        uint32_t head = ring_attention_chunk(plan, tile.slab / plan->halves,
                                             ring_attention_kv_head(plan, tile.head), 0, 0, 0),
                 flags = 2 * plan->halves * plan->half_chunks, here = 1;
        for (uint32_t step = 1; step < mk_world(&plan->topo); step++) {
            uint32_t rank = ring_attention_source(plan, step);
            here &= cta_look(cta, ring_attention_flag(plan, rank, head), flags,
                             ring_attention_target(plan, rank, cta->epoch));
        }
        if (here) {
            ptx_fence_acquire();
            ptx_fence_async();
        }
        return here;
    }

    ATTENTION_MEMBER void before(const struct attention_tile &tile, uint32_t run,
                                 const struct attention_keys &keys, int32_t first)
    {
        struct ring_attention_state *state = ring_attention_shared;
        if (run < plan->halves) { /* this rank's own */
            if (++state->blocks == LOOK_AT_BLOCK && !state->cta.track.events)
                state->all_here = look(tile);
            return;
        }
        /* From the last rows to the first: a block that begins in a chunk ends in it or in one that
         * was awaited. */
        if (state->all_here || state->ending ||
            (run == state->awaited_run && first >= state->awaited_row))
            return;
        state->awaited_run = run;
        state->awaited_row = first / plan->chunk_rows * plan->chunk_rows;
        state->ending = ring_attention_before_rows(
            plan, &state->cta, keys.slab, tile.slab / plan->halves,
            ring_attention_kv_head(plan, tile.head), (tile.slab ^ run) % plan->halves, first,
            min(first + plan->block_rows, plan->half));
    }

    ATTENTION_MEMBER void auxiliary_warp(uint32_t warp)
    {
        const struct mk_role_split *split = &launch->split;
        uint32_t auxiliary = warp - 1;
        if (blockIdx.x >= split->ctas[MK_COMPUTE] ||
            auxiliary >= mk_role_coresident(split, MK_INTRA_COMM))
            return;
        struct mk_cta other;
        cta_begin(&other, launch,
                  gpu_auxiliary_of_block(split, MK_INTRA_COMM, auxiliary, blockIdx.x), 32);
        other.pace = plan->pace;
        ring_attention_intra_comm(plan, &other);
        cta_end(&other);
    }

    ATTENTION_MEMBER void begin(int32_t, const struct attention_tile &, uint32_t group)
    {
        if (group == 0)
            tile_track_start(&ring_attention_shared->track);
    }

    ATTENTION_MEMBER void after(int32_t query, const struct attention_tile &, uint32_t group)
    {
        if (group == 0)
            tile_track_note(&ring_attention_shared->track, launch,
                            ring_attention_tile_number(plan, query, 0));
    }
};

template <class shape>
__global__ void __launch_bounds__(shape::threads, 1)
    ring_attention_kernel(const __grid_constant__ struct ring_attention_plan plan,
                          const __grid_constant__ struct gpu_launch launch,
                          const __grid_constant__ struct attention_operands op,
                          const __grid_constant__ struct ring_attention_maps maps)
{
    PTX_SHARED_DYNAMIC(memory);
    struct ring_attention_tiles source;
    source.plan = &plan;
    source.launch = &launch;
    source.maps = &maps;
    if (blockIdx.x >= launch.split.ctas[MK_COMPUTE]) {
        struct mk_cta cta;
        cta_begin(&cta, &launch, gpu_cta_of_block(&launch.split, blockIdx.x), shape::threads);
        if (cta.role == MK_INTRA_COMM)
            ring_attention_intra_comm(&plan, &cta);
        else if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
            ring_attention_inter_send(&plan, &cta);
        cta_end(&cta);
        __syncthreads(); /* the lead's track is there */
    }
    if (threadIdx.x == 128)
        tile_track_open(&ring_attention_shared->track, &launch);
    attention_compute<shape>(&op, &source, memory);
    if (threadIdx.x == 128)
        tile_track_close(&ring_attention_shared->track, &launch);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

template <class shape>
static int describe(struct attention_operands *op, struct ring_attention_maps *m,
                    const struct ring_attention_plan *p, const struct gpu_launch *l)
{
    const uint64_t dim = p->head_dim, half = p->half, slabs = p->batch * p->halves,
                   world = mk_world(&p->topo);
    const uint64_t q_extent[4] = {dim, p->heads, half, slabs},
                   k_extent[4] = {dim, p->kv_heads, half, slabs};
    const uint64_t q_stride[3] = {dim, p->heads * dim, half * p->heads * dim};
    const uint64_t k_stride[3] = {dim, p->kv_heads * dim, half * p->kv_heads * dim};
    /* What has come: halves of heads of batches, then ranks. */
    const uint64_t all_extent[4] = {dim, slabs * p->kv_heads, half, world};
    const uint64_t all_stride[3] = {half * dim, dim, p->tensor_bytes};
    int err = tensormap_heads(&op->q, l->arguments[MK_SPACE_ARG0], q_extent, q_stride, 64);
    if (!err)
        err = tensormap_heads(&op->o, l->arguments[MK_SPACE_ARG3], q_extent, q_stride, 64);
    for (int part = 0; part < 2 && !err; part++) {
        err = tensormap_heads(&m->own[part], l->arguments[MK_SPACE_ARG1 + part], k_extent, k_stride,
                              shape::keys);
        for (int parity = 0; parity < 2 && !err && world > 1; parity++)
            err = tensormap_heads(&m->gathered[parity][part],
                                  l->heap + p->gathered[parity] + part * p->tensor_bytes,
                                  all_extent, all_stride, shape::keys);
    }
    op->scale = 1 / sqrtf((float)dim);
    /* longer than any chain of waits for flags */
    op->watch = {l->report->stuck, l->longest_ns + 2000000000};
    op->limit_ns = l->longest_ns + 3000000000;
    return err;
}

template <class shape>
static int launch_shape(const struct ring_attention_plan *p, const struct gpu_launch *l,
                        cudaStream_t stream)
{
    struct attention_operands op;
    struct ring_attention_maps maps;
    int err = describe<shape>(&op, &maps, p, l);
    if (err)
        return err;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(mk_total_blocks(&l->split));
    config.blockDim = dim3(shape::threads);
    config.dynamicSmemBytes = shape::shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, ring_attention_kernel<shape>, *p, *l, op, maps) ==
                   cudaSuccess
               ? 0
               : -EIO;
}

/* Calls `call` with an object of the shape that the plan asks for; -EINVAL where there is none. */
template <class function> static int dispatch(const struct ring_attention_plan *p, function call)
{
#define TRY(dim, keys, groups, stages, own)                                                        \
    if (p->head_dim == dim && p->tile_rows == 64 * groups && p->block_rows == keys)                \
        return call(attention_shape<dim, keys, groups, stages, own>());
    MK_RING_ATTENTION_TILES(TRY)
#undef TRY
    return -EINVAL;
}

int ring_attention_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    int err = dispatch(p, [=](auto shape) {
        typedef decltype(shape) built;
        return gpu_admit(ring_attention_kernel<built>, mk_total_blocks(&plan->problem.tuning.split),
                         1, built::threads, built::shared_bytes, error, error_size);
    });
    if (err == -EINVAL)
        snprintf(error, error_size, "no kernel is built for tiles of %u x %u and heads of %u",
                 p->tile_rows, p->block_rows, p->head_dim);
    else if (err == -ENOSPC) /* which has said so */
        err = -EINVAL;
    else if (err)
        snprintf(error, error_size, "the GPU refuses the kernel: %s",
                 cudaGetErrorString(cudaGetLastError()));
    return err;
}

int ring_attention_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                          cudaStream_t stream)
{
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    return dispatch(p,
                    [=](auto shape) { return launch_shape<decltype(shape)>(p, launch, stream); });
}
