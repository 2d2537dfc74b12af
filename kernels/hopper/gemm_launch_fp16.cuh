/* What gemm_launch.cuh launches for fp16: the kernels of bf16 with other shapes, of fewer tiles. An
 * operator is a struct as there. */
#pragma once

#include "core/plan/gemm_tiles_fp16.h"
#include "kernels/hopper/gemm_launch.cuh"

/* gemm_op_shape, of fp16. */
template <class op, int rows, int columns, int cluster, int stages, int boxes, class function>
static int gemm_fp16_shape(const struct engine_form *form, int transposed, function call)
{
    if constexpr (op::fp24)
        if (form->number == MK_FP24) {
            if constexpr (columns <= 64) /* MK_FP16_PART_TILES */
                return gemm_shape_as_laid<rows, columns, cluster, stages, boxes, MK_FP24,
                                          GEMM_FP16>(transposed, call);
            return -EINVAL;
        }
    return gemm_shape_as_laid<rows, columns, cluster, stages, boxes, MK_FP16, GEMM_FP16>(transposed,
                                                                                         call);
}

/* For gemm_operator. */
template <class op> struct gemm_fp16_kernels : gemm_bf16_kernels<op> {
    template <class shape>
    using shapes =
        gemm_op_shapes<op, shape,
                       std::conditional_t<shape::number == MK_FP24,
                                          gemm_shapes<void MK_FP16_PART_TILES(GEMM_OP_SHAPE)>,
                                          gemm_shapes<void MK_FP16_SUM_TILES(GEMM_OP_SHAPE)>>>;

    template <class function>
    static int dispatch(const struct engine_form *form, int transposed, function call)
    {
#define GEMM_FP16_TRY(rows, columns, cluster_, stages, boxes)                                      \
    if (form->tile_m == rows * cluster_ && form->tile_n == columns && form->cluster == cluster_)   \
        return gemm_fp16_shape<op, rows, columns, cluster_, stages, boxes>(form, transposed, call);
        if constexpr (op::fp24) { /* it adds over ranks */
            MK_FP16_SUM_TILES(GEMM_FP16_TRY)
        } else {
            MK_FP16_TILES(GEMM_FP16_TRY)
        }
#undef GEMM_FP16_TRY
        return -EINVAL;
    }
};
