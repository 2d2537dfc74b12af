/* MoE dispatch+GEMM on engine mma. Tables, tiles and what moves tokens are those of
 * kernels/ops/moe_dispatch_gemm.cu; the producer's lanes copy each row of A from where its token
 * lies. Of bf16, and of FP8, whose rows count as bf16 of half as many elements and have their scales
 * behind them. */
#pragma once

#include "kernels/op.h"

#include "kernels/mma/launch_fp8.cuh"
#include "kernels/ops/mma_tickets.cuh"
#include "kernels/ops/moe_take.cuh"

#include "core/roles/moe_dispatch_gemm.h"

GPU_OPERATOR(moe_dispatch_gemm_bf16_mma)
GPU_OPERATOR(moe_dispatch_gemm_fp8_mma)

template <bool scaled_>
struct moe_dispatch_gemm_mma_source
    : moe_taking<moe_dispatch_gemm_mma_source<scaled_>,
                 mma_ticket_source<moe_dispatch_gemm_mma_source<scaled_>>> {
    typedef moe_taking<moe_dispatch_gemm_mma_source,
                       mma_ticket_source<moe_dispatch_gemm_mma_source>>
        taking;
    static constexpr bool scaled = scaled_;

    const struct moe_dispatch_gemm_plan *plan;

    MMA_MEMBER int await(const struct mk_tile_entry *e)
    {
        return moe_await_rows(this->dispatch, &this->cta, e->row);
    }

    MMA_MEMBER void open(uint32_t thread)
    {
        if (thread == 0)
            taking::open();
    }

    MMA_MEMBER struct mma_scales scales(const struct mk_tile *tile, uint32_t row) const
    {
        const uint32_t h = plan->hidden, pitch = ((h + 127) / 128 + 3) / 4 * 4;
        const float *b = (const float *)this->launch->arguments[MK_SPACE_ARG5];
        return this->scales_of_tokens(
            tile, row, h,
            b + ((uint64_t)tile->slab * ((plan->inner + 127) / 128) + tile->col / 128) * pitch);
    }
};

template <class shape, bool scaled>
__global__ void __launch_bounds__(mma_threads<shape, moe_dispatch_gemm_mma_source<scaled>>, 1)
    moe_dispatch_gemm_mma_kernel(const __grid_constant__ struct moe_dispatch_gemm_plan plan,
                                 const __grid_constant__ struct gpu_launch launch,
                                 const __grid_constant__ struct mma_operands operands,
                                 const __grid_constant__ struct mma_matrix rows_of_a)
{
    PTX_SHARED_DYNAMIC(memory);
    static_assert(shape::shared_bytes >= MK_MMA_ROUTE_SHARED, "what making tables takes");
    moe_begin_block(&plan.dispatch, &launch, memory);
    struct moe_dispatch_gemm_mma_source<scaled> source;
    source.plan = &plan;
    source.dispatch = &plan.dispatch;
    source.rows_of_a = &rows_of_a;
    source.template begin_block<shape>(&launch, &operands, plan.col_tiles);
    mma_op_source::run<shape>(&operands, &source, memory);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

/* For mma_ticket_operator. */
template <bool scaled_> struct moe_dispatch_gemm_on_mma {
    typedef struct moe_dispatch_gemm_plan plan;
    typedef struct moe_dispatch_gemm_mma_source<scaled_> source;
    typedef struct mma_matrix matrices; /* A's rows */
    static constexpr bool scaled = scaled_, whole_rows = false;

    template <class shape> static auto kernel()
    {
        return moe_dispatch_gemm_mma_kernel<shape, scaled>;
    }

    template <class shape>
    static int describe(struct mma_matrix *a, struct mma_operands *op, const plan *p,
                        const struct gpu_launch *l)
    {
        const uint32_t rows = p->dispatch.row_tiles * p->dispatch.tile_m, n = p->inner,
                       k = scaled ? p->hidden / 2 : p->hidden; /* e4m3 in pairs */
        char *const x = (char *)l->arguments[MK_SPACE_ARG0],
                    *const b = (char *)l->arguments[MK_SPACE_ARG1],
                    *const c = (char *)l->arguments[MK_SPACE_ARG3];
        const uint64_t along = k * 2ull, across = n * 2ull;
        *a = {x, 0, 0, rows, k};
        op->b = shape::b_kn ? mma_matrix{b, across, k * across, k, n}
                            : mma_matrix{b, along, n * along, n, k};
        op->c = {c, across, 0, rows, n};
        op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(k, shape::tile_k);
        return ((uintptr_t)x | (uintptr_t)b | (uintptr_t)c) % 16 ? -EINVAL : 0;
    }
};
