/* Ring attention on engine mma, for every GPU of compute capability 8.0 and up: the schedule, roles
 * and tiles of kernels/attention/ring_attention.cu. The engine leaves no warp free, so what is
 * co-resident with a compute CTA comes before it: all threads of the block push, and compute then.
 * Deadlock freedom stays: intra_comm waits for puts alone, and inter_send has blocks of its own.
 * Where an SM has shared memory for two blocks, a CTA of the plan is two (plan->paired). */
#include "kernels/host/admit.h"

#include "kernels/attention/ring_attention_tiles.cuh"

#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>

#include "core/plan/attention_tiles.h"
#include "kernels/mma/attention.cuh"

typedef struct ring_attention_tensors<struct mma_heads> ring_attention_heads;

template <class shape>
using ring_attention_mma_source =
    ring_attention_tiles<struct mma_attention_keys, struct mma_heads, (shape::ctas > 1)>;

template <class shape>
__global__ void __launch_bounds__(shape::threads, shape::ctas)
    ring_attention_mma_kernel(const __grid_constant__ struct ring_attention_plan plan,
                              const __grid_constant__ struct gpu_launch launch,
                              const __grid_constant__ struct mma_attention_operands op,
                              const __grid_constant__ ring_attention_heads heads)
{
    static_assert(shape::shared_bytes + sizeof(struct ring_attention_state) <= 99 * 1024,
                  "what a CTA of sm_86 has");
    PTX_SHARED_DYNAMIC(memory);
    ring_attention_mma_source<shape> source;
    if (shape::ctas > mma_attention_most_ctas)
        return ptx_fail();
    source.plan = &plan;
    source.launch = &launch;
    source.tensors = &heads;
    if (blockIdx.x >= launch.split.ctas[MK_COMPUTE] && !source.second())
        ring_attention_communicate(&plan, &launch, shape::threads);
    else
        for (uint32_t auxiliary = 0; source.push(auxiliary, shape::threads); auxiliary++)
            ;
    /* Thread 0 was the lead and is the producer, so its track needs no barrier. */
    if (threadIdx.x == 0)
        tile_track_open(&ring_attention_shared->track, &launch, 0, source.track());
    mma_attention<shape>(&op, &source, memory);
    if (threadIdx.x == 0)
        tile_track_close(&ring_attention_shared->track, &launch, source.track());
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

/* -EINVAL: a pointer that 16 does not divide. */
static int describe(struct mma_attention_operands *op, ring_attention_heads *h,
                    const struct ring_attention_plan *p, const struct gpu_launch *l)
{
    const uint64_t head = p->head_bytes, q_row = p->heads * head, k_row = p->row_bytes;
    char *const q = (char *)l->arguments[MK_SPACE_ARG0], *const o =
                                                             (char *)l->arguments[MK_SPACE_ARG3];
    uintptr_t all = (uintptr_t)q | (uintptr_t)o;
    op->q = {q, q_row, head, p->rows * q_row};
    op->o = {o, q_row, head, p->rows * q_row};
    h->front = op->o;
    op->columns = p->head_dim;
    op->scale = 1 / sqrtf((float)p->head_dim);
    for (int part = 0; part < 2; part++) {
        char *const own = (char *)l->arguments[MK_SPACE_ARG1 + part];
        h->own[0][part] = h->own[1][part] = {own, k_row, head, p->rows * k_row};
        all |= (uintptr_t)own;
        /* What has come: halves of heads of batches, then ranks; and the block that is not whole. */
        for (int parity = 0; parity < 2; parity++) {
            char *const come = l->heap + p->gathered[parity] + part * p->tensor_bytes;
            h->gathered[parity][part] = {come, head, p->half * head, 2 * p->tensor_bytes};
            h->last[parity][part] = {come + ring_attention_last(p), head, p->pitch_rows * head, 0};
        }
    }
    return all % 16 ? -EINVAL : 0;
}

/* Calls `call` with an object of the shape that the plan asks for; -EINVAL where there is none. */
template <class function> static int dispatch(const struct ring_attention_plan *p, function call)
{
#define TRY_ON(pair, ctas, dim, keys, warps, blocks, held)                                         \
    if (p->paired == pair && p->head_dim == dim && p->tile_rows == 16 * warps * blocks &&          \
        p->block_rows == keys)                                                                     \
        return call(mma_attention_shape<dim, keys, warps, blocks, held, ctas>());
#define TRY(...) TRY_ON(0, 1, __VA_ARGS__)
#define TRY_PAIR(...) TRY_ON(1, 2, __VA_ARGS__)
    MK_MMA_ATTENTION_TILES(TRY)
    MK_MMA_ATTENTION_PAIRS(TRY_PAIR)
#undef TRY_PAIR
#undef TRY
#undef TRY_ON
    return -EINVAL;
}

int ring_attention_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    const struct mk_kernel_choice q = mk_kernel_choice_of(plan);
    int err = dispatch(p, [=](auto shape) {
        typedef decltype(shape) built;
        return gpu_admit(ring_attention_mma_kernel<built>, built::ctas * mk_total_blocks(&q.split),
                         1, built::threads, built::shared_bytes, error, error_size);
    });
    return gpu_prepared(err, p->tile_rows, p->block_rows, 0, error, error_size);
}

int ring_attention_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                              cudaStream_t stream)
{
    const struct ring_attention_plan *p = ring_attention_plan_of(plan);
    return dispatch(p, [=](auto shape) {
        typedef decltype(shape) built;
        struct mma_attention_operands op;
        ring_attention_heads heads;
        int err = describe(&op, &heads, p, launch);
        if (err)
            return err;
        return gpu_launch_grid(
            ring_attention_mma_kernel<built>,
            {built::ctas * mk_total_blocks(&launch->split), built::threads, built::shared_bytes},
            stream, *p, *launch, op, heads);
    });
}
