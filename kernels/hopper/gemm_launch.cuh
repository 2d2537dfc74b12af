/* How what runs on the GEMM engine gets onto a GPU: the choice of the tile shape that a kernel was
 * built for, the kernel of an operator and its launch. Host side, but for the kernel
 * itself.
 *
 * An operator is a struct `op` with
 *
 *   typedef ... plan
 *       Its plan, a kernel parameter.
 *   typedef ... views
 *       Views of its own matrices beside those of struct gemm_operands (kernels/engine/engine.cuh); a
 *       kernel parameter.
 *   static constexpr bool fp24
 *       Kernels with partial sums of MK_FP24 are built too, for plans whose form asks for them.
 *   static constexpr bool splits, middle
 *       There are kernels of MK_SPLIT_TILES, MK_MIDDLE_TILES.
 *   static constexpr bool several_shapes
 *       A kernel has the shapes of all tiles, as what depends on none of them is most of it.
 *   static constexpr uint32_t shared_bytes
 *       Dynamic shared memory that CTAs which do not compute need, or sums that wait (gemm_tree.cuh).
 *   struct engine_form form(const plan *)
 *       The plan's tile.
 *   int describe<shape>(views *, struct gemm_operands *, const plan *, const struct gpu_launch *)
 *       Fills the views and operands, but for the limits of waits and B's layout. 0, or what
 *       tensormap.h says.
 *   void compute<shape>(plan, launch, operands, views, memory)
 *       On the GPU: all threads of a compute block, with shape::shared_bytes at `memory`.
 *   static constexpr bool of_all_blocks
 *       compute is for all threads of any other block, too; else there is
 *   void communicate<shape>(plan, launch, memory)
 *       On the GPU: all threads of any other block.
 */
#pragma once

#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>

#include "kernels/host/admit.h"
#include "kernels/hopper/engine.cuh"

/* ---- an operator's one persistent kernel ---- */

/* All threads of a block of the grid, which is rounded up to clusters. */
template <class op, class shape>
PTX_FN void gemm_op_block(const typename op::plan *plan, const struct gpu_launch *launch,
                          const struct gemm_operands *operands, const typename op::views *views,
                          uint8_t *memory)
{
    ptx_launch_next();
    if (blockIdx.x <
        (op::of_all_blocks ? mk_total_blocks(&launch->split) : launch->split.ctas[MK_COMPUTE]))
        op::template compute<shape>(plan, launch, operands, views, memory);
    else if constexpr (!op::of_all_blocks)
        if (blockIdx.x < mk_total_blocks(&launch->split))
            op::template communicate<shape>(plan, launch, memory);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(launch);
}

template <class op, class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm_op_kernel(const __grid_constant__ typename op::plan plan,
                   const __grid_constant__ struct gpu_launch launch,
                   const __grid_constant__ struct gemm_operands operands,
                   const __grid_constant__ typename op::views views)
{
    PTX_SHARED_DYNAMIC(memory);
    gemm_op_block<op, shape>(&plan, &launch, &operands, &views, memory);
}

template <class op, class shape> constexpr uint32_t gemm_op_shared_bytes()
{
    return shape::shared_bytes > op::shared_bytes ? shape::shared_bytes : op::shared_bytes;
}

/* Calls `call` with an object of the gemm_shape that has B's layout (its kernel may be of either). */
template <int rows, int columns, int cluster, int stages, int boxes, int number, int products,
          class function>
static int gemm_shape_as_laid(int transposed, function call)
{
    typedef gemm_shape<rows, columns, cluster, ENGINE_B_NK, stages, boxes, number, products> nk;
    return transposed ? call(nk()) : call(typename nk::template laid<ENGINE_B_KN>());
}

/* The same of the number that the form asks for. */
template <class op, int rows, int columns, int cluster, int stages, int boxes, class function>
static int gemm_op_shape(const struct engine_form *form, int transposed, function call)
{
    if constexpr (op::fp24)
        if (form->number == MK_FP24)
            return gemm_shape_as_laid<rows, columns, cluster, stages, boxes, MK_FP24, GEMM_BF16>(
                transposed, call);
    return gemm_shape_as_laid<rows, columns, cluster, stages, boxes, MK_BF16, GEMM_BF16>(transposed,
                                                                                         call);
}

/* The shapes of the kernel that a shape is in: all of a table that have its layout and its number, or itself. */
#define GEMM_OP_SHAPE(rows, columns, cluster_, stages, boxes)                                      \
    , gemm_shape<rows, columns, cluster_, shape::b_kn, stages, boxes, shape::number,               \
                 shape::products>
template <class op, class shape, class all>
using gemm_op_shapes = std::conditional_t<op::several_shapes, all, typename shape::either>;

/* An operator's kernels of bf16: of a shape; and of a form, `call` with an object of its shape.
 * What else has kernels says the same of them (gemm_launch_fp8.cuh, gemm_launch_fp16.cuh). */
template <class op> struct gemm_bf16_kernels {
    /* Of a pair that splits K a kernel of its own: in one with the others it made these 3.5 us slower,
     * of 26 with one row. Of both layouts where a kernel of one spills: they cost gemm_rs 2 us of 42.
     * Likewise of tiles of 192 columns. */
    template <class shape>
    using alone = std::conditional_t<op::several_shapes, typename shape::any_layout, shape>;
    template <class shape>
    using shapes =
        std::conditional_t<shape::apart, alone<shape>,
                           gemm_op_shapes<op, shape,
                                          gemm_shapes<void MK_GEMM_TILES(GEMM_OP_SHAPE)
                                                          MK_FEW_ROWS_TILES(GEMM_OP_SHAPE)>>>;

    template <class shapes> static auto kernel()
    {
        return gemm_op_kernel<op, shapes>;
    }

    template <class function>
    static int dispatch(const struct engine_form *form, int transposed, function call)
    {
#define GEMM_OP_TRY(rows, columns, cluster_, stages, boxes)                                        \
    if (form->tile_m == rows * cluster_ && form->tile_n == columns && form->cluster == cluster_)   \
        return gemm_op_shape<op, rows, columns, cluster_, stages, boxes>(form, transposed, call);
        MK_GEMM_TILES(GEMM_OP_TRY)
        MK_FEW_ROWS_TILES(GEMM_OP_TRY)
#define GEMM_OP_ALONE(rows, columns, cluster_, stages, boxes)                                      \
    if (form->number != MK_FP24 && form->tile_m == rows * cluster_ && form->tile_n == columns &&   \
        form->cluster == cluster_)                                                                 \
        return gemm_shape_as_laid<rows, columns, cluster_, stages, boxes, MK_BF16, GEMM_BF16>(     \
            transposed, call);
        if constexpr (op::splits)
            MK_SPLIT_TILES(GEMM_OP_ALONE)
        if constexpr (op::middle)
            MK_MIDDLE_TILES(GEMM_OP_ALONE)
#undef GEMM_OP_ALONE
#undef GEMM_OP_TRY
        return -EINVAL;
    }
};

/* For GPU_OPERATOR_BY (kernels/host/op.h). */
template <class op, class kernels = gemm_bf16_kernels<op>> struct gemm_operator {
    static int prepare(const typename op::plan *plan, const struct mk_kernel_choice *q, char *error,
                       size_t error_size)
    {
        const struct engine_form form = op::form(plan);
        int err = kernels::dispatch(&form, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            typedef typename kernels::template shapes<built> shapes;
            return gpu_admit(kernels::template kernel<shapes>(),
                             (uint32_t)mk_round_up(mk_total_blocks(&q->split), built::cluster),
                             built::cluster, GEMM_THREADS, gemm_op_shared_bytes<op, built>(), error,
                             error_size, gemm_op_shared_bytes<op, shapes>());
        });
        return gpu_prepared(err, form.tile_m, form.tile_n, form.cluster, error, error_size);
    }

    static int launch(const typename op::plan *plan, const struct mk_kernel_choice *q,
                      const struct gpu_launch *launch, cudaStream_t stream)
    {
        const struct engine_form form = op::form(plan);
        return kernels::dispatch(&form, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            typedef typename kernels::template shapes<built> shapes;
            typename op::views views;
            struct gemm_operands operands;
            gpu_limit_waits(&operands, launch);
            operands.b_kn = built::b_kn;
            operands.shape = shapes::template number_of<built>;
            int err = op::template describe<built>(&views, &operands, plan, launch);
            if (err)
                return err;
            uint32_t blocks =
                (uint32_t)mk_round_up(mk_total_blocks(&launch->split), built::cluster);
            return gpu_launch_grid(kernels::template kernel<shapes>(),
                                   {blocks, GEMM_THREADS, gemm_op_shared_bytes<op, built>(),
                                    built::cluster, gpu_comes_early(q)},
                                   stream, *plan, *launch, operands, views);
        });
    }
};
