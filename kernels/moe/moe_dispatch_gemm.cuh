/* MoE dispatch+GEMM: C = the tokens of each expert * its B, in one launch. Thread blocks take roles
 * by their number: compute is the GEMM engine over the table of tiles that the schedule makes,
 * which all blocks take from one counter; the others run their part of core/roles/moe_dispatch.h
 * with all their threads, and when that is done compute too. Kernels of bf16 and of FP8, on either
 * engine, whose tickets the file of a kernel includes. */
#pragma once

#include "kernels/host/op.h"

#include "kernels/moe/moe_take.cuh"

#include "core/roles/moe_dispatch_gemm.h"

/* Its tiles. base: moe_taking, or what a kernel has in its place. */
template <class engine, bool scaled_,
          template <class> class base = moe_taking_by<engine>::template source>
struct moe_dispatch_gemm_source : base<moe_dispatch_gemm_source<engine, scaled_, base>> {
    typedef base<moe_dispatch_gemm_source> taking;
    static constexpr bool scaled = scaled_;

    const struct moe_dispatch_gemm_plan *plan;

    ENGINE_MEMBER int await(const struct mk_tile_entry *e)
    {
        return moe_await_rows(this->dispatch, &this->cta, e->row);
    }

    /* Of FP8 of codes. */
    ENGINE_MEMBER uint32_t row_bytes() const
    {
        return scaled ? plan->hidden : taking::row_bytes();
    }

    ENGINE_MEMBER struct engine_scales scales(uint32_t, const struct mk_tile *tile,
                                              uint32_t row) const
    {
        const struct moe_dispatch_gemm_plan *p = engine::fresh(plan);
        const uint32_t blocks = (p->hidden + 127) / 128, pitch = (blocks + 3) / 4 * 4,
                       down = (p->inner + 127) / 128;
        const float *b = (const float *)engine::fresh(this->launch)->arguments[MK_SPACE_ARG5];
        return {nullptr,
                b + ((uint64_t)tile->slab * down + tile->col / 128) * pitch,
                0,
                pitch,
                tile->rows - row,
                p->inner - tile->col,
                blocks};
    }
};

/* All threads of a block. source: one of a kernel's own. */
template <class engine, class shape, class tile_source>
PTX_FN void moe_dispatch_gemm_block(const struct moe_dispatch_gemm_plan *plan,
                                    const struct gpu_launch *launch,
                                    const typename engine::operands *operands,
                                    const typename engine::rows_view *rows, tile_source *source,
                                    uint8_t *memory)
{
    moe_begin_block(&plan->dispatch, launch, memory);
    source->plan = plan;
    source->dispatch = &plan->dispatch;
    source->rows_of_a = engine::gathered(rows);
    source->template begin_block<shape>(launch, operands, plan->col_tiles);
    source->open_track();
    engine::template compute<shape>(operands, source, memory);
    source->close_track();
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(launch);
}

template <class engine, class shape, bool scaled>
__global__ void
__launch_bounds__(engine_threads<engine, shape, moe_dispatch_gemm_source<engine, scaled>>, 1)
    moe_dispatch_gemm_kernel(const __grid_constant__ struct moe_dispatch_gemm_plan plan,
                             const __grid_constant__ struct gpu_launch launch,
                             const __grid_constant__ typename engine::operands operands,
                             const __grid_constant__ typename engine::rows_view rows)
{
    PTX_SHARED_DYNAMIC(memory);
    struct moe_dispatch_gemm_source<engine, scaled> source;
    moe_dispatch_gemm_block<engine, shape>(&plan, &launch, &operands, &rows, &source, memory);
}

/* For ticket_operator. */
template <class engine, bool scaled> struct moe_dispatch_gemm_on {
    typedef struct moe_dispatch_gemm_plan plan;
    typedef typename engine::rows_view views;

    template <class shape> static constexpr uint32_t threads()
    {
        return engine_threads<engine, shape, moe_dispatch_gemm_source<engine, scaled>>;
    }

    /* A block makes tables there before it multiplies. */
    template <class shape> static constexpr uint32_t shared_bytes()
    {
        return shape::shared_bytes > moe_route_shared<engine> ? shape::shared_bytes
                                                              : moe_route_shared<engine>;
    }

    template <class shape> static auto kernel()
    {
        return moe_dispatch_gemm_kernel<engine, typename engine::template built<shape, scaled>,
                                        scaled>;
    }

    template <class shape>
    static int describe(views *rows_of_a, typename engine::operands *op, const plan *p,
                        const struct gpu_launch *l)
    {
        const uint64_t rows = (uint64_t)p->dispatch.row_tiles * p->dispatch.tile_m, n = p->inner,
                       row_bytes = p->hidden * (scaled ? 1ull : 2ull);
        int err = engine::template describe_rows<shape>(rows_of_a, op, l->arguments[MK_SPACE_ARG0],
                                                        row_bytes, rows);
        if (!err)
            err = engine::template describe_b<shape>(&op->b, op, l->arguments[MK_SPACE_ARG1], n,
                                                     row_bytes, p->dispatch.rank_experts);
        if (!err)
            err = engine::template describe_c<shape>(&op->c, op, l->arguments[MK_SPACE_ARG3], n * 2,
                                                     n, rows);
        engine::template describe_k<shape>(op, row_bytes, row_bytes);
        return err;
    }
};
