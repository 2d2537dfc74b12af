/* What launch.cuh launches for fp16: the kernels of bf16 with other shapes. An operator is a struct as
 * there. */
#pragma once

#include "core/plan/gemm_tiles_fp16.h"
#include "kernels/mma/launch.cuh"

/* For mma_operator. */
template <class op> struct mma_fp16_kernels : mma_bf16_kernels<op> {
    template <class function>
    static int dispatch(const struct mk_kernel_choice *t, int transposed, function call)
    {
#define MMA_FP16_TRY(rows, columns, k, stages, warps)                                              \
    if (t->tile_m == rows && t->tile_n == columns)                                                 \
        return mma_op_shape<false, op::gates, rows, columns, k, stages, warps, MK_FP16>(           \
            transposed, call);
        MK_MMA_FP16_TILES(MMA_FP16_TRY)
#undef MMA_FP16_TRY
        return -EINVAL;
    }
};
