/* MoE dispatch+GEMM: C = the tokens of each expert * its B, in one launch. Thread blocks take roles
 * by their number: compute is the GEMM engine over the table of tiles that the schedule makes,
 * which all blocks take from one counter; the others run their part of core/roles/moe_dispatch.h
 * with all their threads, and when that is done compute too. Kernels of bf16 and of FP8. */
#pragma once

#include "kernels/op.h"

#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/ops/moe_source.cuh"

#include "core/roles/moe_dispatch_gemm.h"

GPU_OPERATOR(moe_dispatch_gemm)
GPU_OPERATOR(moe_dispatch_gemm_fp8)      /* of plans of FP8 */
GPU_OPERATOR(moe_dispatch_gemm_bf16_mma) /* of plans for engine mma */
GPU_OPERATOR(moe_dispatch_gemm_fp8_mma)

struct moe_dispatch_gemm_source : moe_source<moe_dispatch_gemm_source> {
    GEMM_MEMBER int await(const struct mk_tile_entry *e)
    {
        return moe_await_rows(dispatch, &cta, e->row);
    }
};

/* Of a block, which makes tables there before it multiplies. */
template <class shape> constexpr uint32_t moe_dispatch_shared_bytes()
{
    return shape::shared_bytes > MK_ROUTE_SHARED ? shape::shared_bytes : MK_ROUTE_SHARED;
}

/* All threads of a block. source: one of a kernel's own. */
template <class shape, class tile_source>
PTX_FN void
moe_dispatch_gemm_block(const struct moe_dispatch_gemm_plan *plan, const struct gpu_launch *launch,
                        const struct gemm_operands *operands, tile_source *source, uint8_t *memory)
{
    moe_begin_block(&plan->dispatch, launch, memory);
    source->dispatch = &plan->dispatch;
    source->launch = launch;
    source->operands = operands;
    source->map_a = nullptr;
    source->tile_m = shape::tile_m;
    source->tile_n = shape::tile_n;
    source->columns = plan->col_tiles;
    if (threadIdx.x == 0)
        gemm_tickets_open<tile_source>();
    source->open_track();
    gemm_compute<shape>(operands, source, memory);
    source->close_track();
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(launch);
}

template <class shape>
static int moe_describe(struct gemm_operands *op, const struct moe_dispatch_gemm_plan *p,
                        const struct gpu_launch *l)
{
    const uint64_t rows = (uint64_t)p->dispatch.row_tiles * p->dispatch.tile_m, k = p->hidden,
                   n = p->inner;
    const uint64_t c_extent[3] = {n, rows, 1};
    const uint32_t c_box[2] = {64, 64};
    int err = gemm_describe_groups<shape>(&op->b, l->arguments[MK_SPACE_ARG1], n, k,
                                          p->dispatch.rank_experts);
    if (!err)
        err = tensormap_bf16(&op->c, l->arguments[MK_SPACE_ARG3], c_extent, n, rows * n, c_box);
    op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(k, shape::stage_k);
    op->a_rows = (uint32_t)rows;
    op->a_rest = shape::tile_m;
    op->b_kn = shape::b_kn;
    gpu_limit_waits(op, l);
    return err;
}

/* For GPU_OPERATOR_BY (kernels/op.h). kernels has: kernel<shape>(), and dispatch(plan, transposed,
 * call), which calls `call` with an object of the shape that the plan asks for and returns what it
 * does; -EINVAL where there is none. */
template <class kernels> struct moe_dispatch_operator {
    static int prepare(const struct moe_dispatch_gemm_plan *p, const struct mk_problem *q,
                       char *error, size_t error_size)
    {
        int err = kernels::dispatch(p, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            return gpu_admit(kernels::template kernel<typename built::any_layout>(),
                             mk_total_blocks(&q->tuning.split), 1, GEMM_THREADS,
                             moe_dispatch_shared_bytes<built>(), error, error_size);
        });
        return gpu_prepared(err, p->dispatch.tile_m, p->tile_n, 0, error, error_size);
    }

    static int launch(const struct moe_dispatch_gemm_plan *p, const struct mk_problem *q,
                      const struct gpu_launch *launch, cudaStream_t stream)
    {
        return kernels::dispatch(p, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            struct gemm_operands operands;
            int err = moe_describe<built>(&operands, p, launch);
            return err ? err
                       : gemm_launch_kernel(kernels::template kernel<typename built::any_layout>(),
                                            mk_total_blocks(&launch->split), 1,
                                            moe_dispatch_shared_bytes<built>(), stream, *p, *launch,
                                            operands);
        });
    }
};
