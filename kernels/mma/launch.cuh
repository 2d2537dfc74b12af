/* How an operator gets onto a GPU on engine mma: the choice of the tile shape that a kernel was
 * built for, its kernel and its launch. Host side, but for the kernel itself. It is what
 * kernels/hopper/gemm_launch.cuh is for the other engine, without clusters, and without launches
 * that begin while the one before leaves.
 *
 * An operator is a struct `op` with
 *
 *   typedef ... plan, source<shape>
 *       Its plan, a kernel parameter; and its tile source, for how many threads a block has.
 *   typedef ... views
 *       Views of its own matrices beside those of struct mma_operands (kernels/engine/engine.cuh); a
 *       kernel parameter.
 *   static constexpr bool tree, gates
 *       As its source's.
 *   int describe<shape>(views *, struct mma_operands *, const plan *, const struct gpu_launch *)
 *       Fills them, but for the limits of waits, B's layout and `bulk`. 0, or -EINVAL: a pointer
 *       that 16 does not divide.
 *   void compute<shape>(plan, launch, operands, views, memory)
 *       On the GPU: all threads of a compute block, with shape::shared_bytes at `memory`.
 *   void communicate<shape>(plan, launch, memory)
 *       On the GPU: all threads of any other block, which copy by all their lanes. */
#pragma once

#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>

#include "kernels/host/admit.h"
#include "kernels/mma/engine.cuh"

/* Warps that copy to the ring beside those that multiply. With the free ones that makes three on
 * each of an SM's schedulers, which leaves a thread 168 registers; the engine alone with tiles of
 * 256x128 took 2 % longer with two than with four (docs/FIGURES.md). */
enum { MMA_OP_PRODUCERS = 2 };

template <class op, class shape>
__global__ void __launch_bounds__(mma_threads<shape, typename op::template source<shape>>, 1)
    mma_op_kernel(const __grid_constant__ typename op::plan plan,
                  const __grid_constant__ struct gpu_launch launch,
                  const __grid_constant__ struct mma_operands operands,
                  const __grid_constant__ typename op::views views)
{
    PTX_SHARED_DYNAMIC(memory);
    if (blockIdx.x < launch.split.ctas[MK_COMPUTE])
        op::template compute<shape>(&plan, &launch, &operands, &views, memory);
    else
        op::template communicate<shape>(&plan, &launch, memory);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

/* Warps beside each other in a tile of so many columns: 32 rows of 64 columns are less to read than
 * 16 of 128 (on an H100 0.82 of cuBLASLt's s16816 kernels where those had 0.68; by TMA 0.93:
 * docs/FIGURES.md). Whole rows are for sources whose threads want their other columns. */
template <bool whole_rows, int columns>
constexpr int mma_op_warp_columns = !whole_rows && columns == 128 ? 2 : 1;

/* Calls `call` with an object of the mma_shape of these tiles that has B's layout (its kernel is of
 * either). gates: of a source that does. */
template <bool whole_rows, bool gates, int rows, int columns, int k, int stages, int warps,
          int element, class function>
static int mma_op_shape(int transposed, function call)
{
    constexpr int warp_columns = mma_op_warp_columns<whole_rows, columns>;
    typedef mma_shape<rows, columns, ENGINE_B_KN, k, stages, warps, warp_columns, MMA_OP_PRODUCERS,
                      1, element, gates && warp_columns == 2>
        kn;
    return transposed ? call(typename kn::template laid<ENGINE_B_NK>()) : call(kn());
}

/* The same of a plan's tiles; -EINVAL where there is none. */
template <bool whole_rows, bool gates = false, class function>
static int mma_op_dispatch(uint32_t tile_m, uint32_t tile_n, int transposed, function call)
{
#define MMA_OP_TRY(rows, columns, k, stages, warps)                                                \
    if (tile_m == rows && tile_n == columns)                                                       \
        return mma_op_shape<whole_rows, gates, rows, columns, k, stages, warps, MK_BF16>(          \
            transposed, call);
    MK_MMA_TILES(MMA_OP_TRY)
#undef MMA_OP_TRY
    return -EINVAL;
}

/* An operator's kernels of bf16: of a shape; and of a plan's tiles, `call` with an object of their
 * shape. What else has kernels says the same of them (launch_fp8.cuh,
 * launch_fp16.cuh). */
template <class op> struct mma_bf16_kernels {
    template <class shape> static auto kernel()
    {
        return mma_op_kernel<op, typename shape::either>;
    }

    template <class function>
    static int dispatch(const struct mk_kernel_choice *t, int transposed, function call)
    {
        return mma_op_dispatch<op::tree, op::gates>(t->tile_m, t->tile_n, transposed, call);
    }
};

/* For GPU_OPERATOR_BY (kernels/host/op.h). */
template <class op, class kernels = mma_bf16_kernels<op>> struct mma_operator {
    static int prepare(const typename op::plan *, const struct mk_kernel_choice *q, char *error,
                       size_t error_size)
    {
        int err = kernels::dispatch(q, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            return gpu_admit(kernels::template kernel<built>(), mk_total_blocks(&q->split), 1,
                             mma_threads<built, typename op::template source<built>>,
                             built::shared_bytes, error, error_size);
        });
        return gpu_prepared(err, q->tile_m, q->tile_n, 0, error, error_size);
    }

    static int launch(const typename op::plan *plan, const struct mk_kernel_choice *q,
                      const struct gpu_launch *launch, cudaStream_t stream)
    {
        return kernels::dispatch(q, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            typename op::views views;
            struct mma_operands operands;
            gpu_limit_waits(&operands, launch);
            operands.b_kn = built::b_kn;
            operands.bulk = mma_device_bulk(q->block_shared != 0); /* there: in one plan of three */
            int err = op::template describe<built>(&views, &operands, plan, launch);
            if (err)
                return err;
            return gpu_launch_grid(kernels::template kernel<built>(),
                                   {mk_total_blocks(&launch->split),
                                    mma_threads<built, typename op::template source<built>>,
                                    built::shared_bytes},
                                   stream, *plan, *launch, operands, views);
        });
    }
};
