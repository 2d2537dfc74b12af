/* What gemm_launch.cuh launches for FP8: B is [N, K], scales are of blocks, and shared
 * memory begins where the first stage does. An operator is a struct as there. */
#pragma once

#include "core/plan/gemm_tiles_fp8.h"
#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/hopper/gemm_promote.cuh"

template <class op, class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm_fp8_kernel(const __grid_constant__ typename op::plan plan,
                    const __grid_constant__ struct gpu_launch launch,
                    const __grid_constant__ struct gemm_operands operands,
                    const __grid_constant__ typename op::views views)
{
    PTX_SHARED_DYNAMIC_ALIGNED(memory, 1024);
    gemm_op_block<op, shape>(&plan, &launch, &operands, &views, memory);
}

/* gemm_op_shape, of FP8. */
template <class op, int rows, int columns, int cluster, int stages, int boxes, class function>
static int gemm_fp8_shape(const struct engine_form *form, function call)
{
    if constexpr (op::fp24)
        if (form->number == MK_FP24)
            return call(gemm_shape<rows, columns, cluster, 0, stages, boxes, MK_FP24, GEMM_E4M3>());
    return call(gemm_shape<rows, columns, cluster, 0, stages, boxes, MK_BF16, GEMM_E4M3>());
}

/* For gemm_operator. */
template <class op> struct gemm_fp8_kernels {
    template <class shape> using shapes = typename shape::either; /* of several are none built */

    template <class shapes> static auto kernel()
    {
        return gemm_fp8_kernel<op, shapes>;
    }

    template <class function>
    static int dispatch(const struct engine_form *form, int, function call)
    {
#define GEMM_FP8_TRY(rows, columns, cluster_, stages, boxes)                                       \
    if (form->tile_m == rows * cluster_ && form->tile_n == columns && form->cluster == cluster_)   \
        return gemm_fp8_shape<op, rows, columns, cluster_, stages, boxes>(form, call);
        if constexpr (op::fp24) { /* it adds over ranks */
            MK_FP8_SUM_TILES(GEMM_FP8_TRY)
        } else {
            MK_FP8_TILES(GEMM_FP8_TRY)
        }
        MK_FP8_FEW_ROWS_TILES(GEMM_FP8_TRY)
#undef GEMM_FP8_TRY
        return -EINVAL;
    }
};
