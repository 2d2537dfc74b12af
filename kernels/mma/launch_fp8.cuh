/* What launch.cuh launches for FP8, of compute capability 8.9 and up: B is [N, K], scales are of
 * blocks, and tiles are others. An operator is a struct as there, whose source is scaled. */
#pragma once

#include "kernels/mma/gemm_promote.cuh"
#include "kernels/mma/launch.cuh"

/* Calls `call` with an object of the mma_shape of such tiles; -EINVAL where there is none. gated: of
 * one of a plan's passes. */
template <bool gated, class function>
static int mma_fp8_dispatch(uint32_t tile_m, uint32_t tile_n, function call)
{
#define MMA_FP8_TRY(rows, columns, k, stages, warps)                                               \
    if (tile_m == rows && tile_n == columns)                                                       \
        return call(mma_shape<rows, columns, ENGINE_B_NK, k, stages, warps, 1, MMA_OP_PRODUCERS>());
    if constexpr (gated) {
        MK_MMA_FP8_GATED_TILES(MMA_FP8_TRY)
    } else {
        MK_MMA_FP8_TILES(MMA_FP8_TRY)
    }
#undef MMA_FP8_TRY
    return -EINVAL;
}

/* For mma_operator. */
template <class op> struct mma_fp8_kernels {
    template <class shape> static auto kernel()
    {
        return mma_op_kernel<op, shape>;
    }

    template <class function>
    static int dispatch(const struct mk_kernel_choice *t, int, function call)
    {
        return mma_fp8_dispatch<false>(t->tile_m, t->tile_n, call);
    }
};
