/* Ring attention: O = softmax(Q K^T / sqrt(D)) V over the K and V of all ranks in one launch.
 * Thread blocks take roles by their number: compute is the attention engine over the schedule's
 * query tiles, which all blocks take from one counter; the others run their part of
 * core/roles/ring_attention.h with all their threads, and when that is done compute too. Where
 * the plan says intra_comm_warps, warps that the engine leaves free run that role, so that every SM
 * computes from the start. */
#include "kernels/host/admit.h"

#include "kernels/attention/ring_attention_tiles.cuh"

#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>

#include "core/plan/attention_tiles.h"
#include "kernels/hopper/attention.cuh"
#include "kernels/hopper/tensormap.h"

typedef struct ring_attention_tensors<CUtensorMap> ring_attention_maps;

struct ring_attention_source : ring_attention_tiles<struct attention_keys, CUtensorMap> {
    ATTENTION_MEMBER void auxiliary_warp(uint32_t warp)
    {
        push(warp - 1, 32);
    }
};

template <class shape>
__global__ void __launch_bounds__(shape::threads, 1)
    ring_attention_kernel(const __grid_constant__ struct ring_attention_plan plan,
                          const __grid_constant__ struct gpu_launch launch,
                          const __grid_constant__ struct attention_operands op,
                          const __grid_constant__ ring_attention_maps maps)
{
    PTX_SHARED_DYNAMIC(memory);
    struct ring_attention_source source;
    source.plan = &plan;
    source.launch = &launch;
    source.tensors = &maps;
    if (blockIdx.x >= launch.split.ctas[MK_COMPUTE]) {
        ring_attention_communicate(&plan, &launch, shape::threads);
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
static int describe(struct attention_operands *op, ring_attention_maps *m,
                    const struct ring_attention_plan *p, const struct gpu_launch *l)
{
    const uint64_t dim = p->head_dim, world = mk_world(&p->topo), heads = p->batch * p->kv_heads;
    /* Maps have at least a row: without any, no tile reads it. */
    const uint64_t rows = p->rows ? p->rows : 1, front = rows < p->half ? rows : p->half,
                   last = p->last ? p->last : 1;
    const uint64_t q_stride[3] = {dim, p->heads * dim, rows * p->heads * dim},
                   k_stride[3] = {dim, p->kv_heads * dim, rows * p->kv_heads * dim};
    /* What has come: halves of heads of batches, then ranks; and the block that is not whole, of
     * which there is one. */
    const uint64_t all_extent[4] = {dim, heads * p->halves, p->half, world},
                   all_stride[3] = {p->half * dim, dim, p->tensor_bytes},
                   last_extent[4] = {dim, heads, last, 1},
                   last_stride[3] = {p->pitch_rows * dim, dim, p->tensor_bytes};
    char *argument[4]; /* Q, K, V, O */
    for (int i = 0; i < 4; i++)
        argument[i] = p->rows ? (char *)l->arguments[MK_SPACE_ARG0 + i] : l->heap;
    uint64_t q_extent[4] = {dim, p->heads, rows, p->batch},
             k_extent[4] = {dim, p->kv_heads, rows, p->batch};
    int err = tensormap_heads(&op->q, argument[0], q_extent, q_stride, 64);
    if (!err)
        err = tensormap_heads(&op->o, argument[3], q_extent, q_stride, 64);
    q_extent[2] = front;
    if (!err)
        err = tensormap_heads(&m->front, argument[3], q_extent, q_stride, 64);
    for (int part = 0; part < 2 && !err; part++) {
        for (int half = 0; half < 2 && !err; half++) {
            k_extent[2] = half ? rows : front;
            err = tensormap_heads(&m->own[half][part], argument[1 + part], k_extent, k_stride,
                                  shape::keys);
        }
        for (int parity = 0; parity < 2 && !err && world > 1; parity++) {
            char *const come = l->heap + p->gathered[parity] + part * p->tensor_bytes;
            err = tensormap_heads(&m->gathered[parity][part], come, all_extent, all_stride,
                                  shape::keys);
            if (!err)
                err = tensormap_heads(&m->last[parity][part], come + ring_attention_last(p),
                                      last_extent, last_stride, shape::keys);
        }
    }
    op->scale = 1 / sqrtf((float)dim);
    gpu_limit_waits(op, l);
    return err;
}

template <class shape>
static int launch_shape(const struct ring_attention_plan *p, const struct gpu_launch *l,
                        cudaStream_t stream)
{
    struct attention_operands op;
    ring_attention_maps maps;
    int err = describe<shape>(&op, &maps, p, l);
    if (err)
        return err;
    return gpu_launch_grid(ring_attention_kernel<shape>,
                           {mk_total_blocks(&l->split), shape::threads, shape::shared_bytes},
                           stream, *p, *l, op, maps);
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
    const struct mk_kernel_choice q = mk_kernel_choice_of(plan);
    if (q.engine == MK_ENGINE_MMA)
        return ring_attention_mma_prepare(plan, error, error_size);
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    int err = dispatch(p, [=](auto shape) {
        typedef decltype(shape) built;
        return gpu_admit(ring_attention_kernel<built>, mk_total_blocks(&q.split), 1, built::threads,
                         built::shared_bytes, error, error_size);
    });
    return gpu_prepared(err, p->tile_rows, p->block_rows, 0, error, error_size);
}

int ring_attention_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                          cudaStream_t stream)
{
    if (mk_kernel_choice_of(plan).engine == MK_ENGINE_MMA)
        return ring_attention_mma_launch(plan, launch, stream);
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    return dispatch(p,
                    [=](auto shape) { return launch_shape<decltype(shape)>(p, launch, stream); });
}
