/* What launch.cuh launches for FP8, of compute capability 8.9 and up: B is [N, K], scales are of
 * blocks, and tiles are others. An operator is a struct as there, whose source is scaled. */
#ifndef MK_KERNELS_MMA_LAUNCH_FP8_CUH
#define MK_KERNELS_MMA_LAUNCH_FP8_CUH

#include "kernels/mma/gemm_promote.cuh"
#include "kernels/mma/launch.cuh"

template <class function> static int mma_fp8_dispatch(const struct mk_tuning *t, function call)
{
#define MMA_FP8_TRY(rows, columns, k, stages, warps)                                               \
    if (t->tile_m == rows && t->tile_n == columns)                                                 \
        return call(mma_shape<rows, columns, 0, k, stages, warps, 1, MMA_OP_PRODUCERS>());
    MK_MMA_FP8_TILES(MMA_FP8_TRY)
#undef MMA_FP8_TRY
    return -EINVAL;
}

template <class op>
static int mma_fp8_prepare(const struct mk_problem *q, char *error, size_t error_size)
{
    const struct mk_tuning *t = &q->tuning;
    int err = mma_fp8_dispatch(t, [=](auto shape) {
        typedef decltype(shape) built;
        return gpu_admit(mma_op_kernel<op, built>, mk_total_blocks(&t->split), 1,
                         mma_threads<built, typename op::source>, built::shared_bytes, error,
                         error_size);
    });
    return gpu_prepared(err, t->tile_m, t->tile_n, 0, error, error_size);
}

template <class op>
static int mma_fp8_launch(const typename op::plan *plan, const struct mk_problem *q,
                          const struct gpu_launch *launch, cudaStream_t stream)
{
    return mma_fp8_dispatch(&q->tuning, [=](auto shape) {
        typedef decltype(shape) built;
        typename op::matrices matrices;
        struct mma_operands operands;
        gpu_limit_waits(&operands, launch);
        int err = op::template describe<built>(&matrices, &operands, plan, launch);
        return err ? err
                   : gpu_launch_blocks(mma_op_kernel<op, built>, mk_total_blocks(&launch->split),
                                       mma_threads<built, typename op::source>, built::shared_bytes,
                                       stream, *plan, *launch, operands, matrices);
    });
}

#endif
