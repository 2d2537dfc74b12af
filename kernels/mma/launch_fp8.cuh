/* What launch.cuh launches for FP8, of compute capability 8.9 and up: B is [N, K], scales are of
 * blocks, and tiles are others. An operator is a struct as there, whose source is scaled. */
#ifndef MK_KERNELS_MMA_LAUNCH_FP8_CUH
#define MK_KERNELS_MMA_LAUNCH_FP8_CUH

#include "kernels/mma/gemm_promote.cuh"
#include "kernels/mma/launch.cuh"

/* For mma_op_prepare and mma_op_launch. */
template <class op> struct mma_fp8_kernels {
    template <class shape> static auto kernel()
    {
        return mma_op_kernel<op, shape>;
    }

    template <class function> static int dispatch(const struct mk_tuning *t, int, function call)
    {
#define MMA_FP8_TRY(rows, columns, k, stages, warps)                                               \
    if (t->tile_m == rows && t->tile_n == columns)                                                 \
        return call(mma_shape<rows, columns, MMA_B_NK, k, stages, warps, 1, MMA_OP_PRODUCERS>());
        MK_MMA_FP8_TILES(MMA_FP8_TRY)
#undef MMA_FP8_TRY
        return -EINVAL;
    }
};

#endif
