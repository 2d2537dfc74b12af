/* The MoE feed-forward layer in one launch. Thread blocks take roles by their number, and take on
 * others when they are through: intra_comm and inter_send run their part of
 * core/roles/moe_dispatch.h with all their threads; then they compute, as compute's do from the
 * beginning, and those of inter_reduce until what is left is mostly this rank's own; last of all
 * they add up what experts have made of tokens.
 *
 * Compute is the GEMM engine over the table of tiles that the schedule makes. Up: rows of A are
 * gathered from where tokens lie, a tile's columns of B are as many of gate as of up, so that the
 * same thread has the sums of both, and what is stored is silu(gate) * up. Down: A is what up has
 * stored, by TMA. Kernels of bf16 and of FP8. */
#pragma once

#include "kernels/epilogue.cuh"
#include "kernels/op.h"

#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/ops/moe_ffn_sums.cuh"
#include "kernels/ops/moe_source.cuh"

GPU_OPERATOR(moe_ffn)
GPU_OPERATOR(moe_ffn_fp8)      /* of plans of FP8 */
GPU_OPERATOR(moe_ffn_bf16_mma) /* of plans for engine mma */
GPU_OPERATOR(moe_ffn_fp8_mma)

/* Of down: its A (what up stores, rows x I), B and C. Of up B and C are in struct gemm_operands. */
struct moe_ffn_maps {
    struct gemm_a a;
    CUtensorMap b, c;
};

/* What a consumer warpgroup has stored and not told of yet: how many, in the units of a flag. Its
 * registers are taken. */
struct moe_ffn_stored {
    uint32_t count, flag;
};
PTX_SHARED(struct moe_ffn_stored, moe_ffn_untold, 2);
PTX_SHARED(struct tile_track, moe_ffn_track, 1); /* the first consumer's alone */

/* Of a consumer's tile. */
struct moe_ffn_place {
    uint32_t stage, col, row, rows;
};

/* `derived` has: tile_k, of its shapes; void keep(const struct moe_ffn_place &), of a tile, which
 * kept() then returns to consumers; and bool store_act<shape>(sums, half), all threads of a consumer
 * warpgroup: stores the activation, which the first half of the sums is. False: the engine does. */
template <class derived> struct moe_ffn_source : moe_source<derived> {
    static constexpr bool two_runs = true, goes_on = true;
    const struct moe_ffn_plan *plan;
    const struct moe_ffn_maps *maps;

    using moe_source<derived>::cta;
    using moe_source<derived>::dispatch;
    using moe_source<derived>::launch;
    using moe_source<derived>::tile_m;
    using moe_source<derived>::tile_n;

    GEMM_MEMBER void opened()
    {
        if (blockIdx.x >= mk_total_blocks(&launch->split) - launch->split.ctas[MK_INTER_REDUCE])
            this->last = this->head()->apart;
    }

    GEMM_MEMBER decltype(auto) at() const
    {
        return static_cast<const derived *>(this)->kept();
    }

    /* Tokens, results, tables and code, which are read again, stay in L2 beside weights that are not. */
    GEMM_MEMBER void load_box(uint32_t to, const CUtensorMap *map, uint32_t full, int32_t x,
                              int32_t y, int32_t slab) const
    {
        if (dispatch->b_once)
            ptx_tma_load_3d_once(to, map, full, x, y, slab);
        else
            ptx_tma_load_3d(to, map, full, x, y, slab);
    }

    GEMM_MEMBER int await(const struct mk_tile_entry *e)
    {
        return moe_ffn_before(plan, &cta, e->column < plan->up_tiles, e->row);
    }

    GEMM_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        const uint32_t stage = e->column < plan->up_tiles ? MOE_FFN_UP : MOE_FFN_DOWN,
                       col = stage == MOE_FFN_UP ? e->column * (tile_n / 2)
                                                 : (e->column - plan->up_tiles) * tile_n;
        static_cast<derived *>(this)->keep({stage, col, e->row, e->rows});
        tile->stage = stage;
        tile->a_slab = 0;
        tile->slab = e->group;
        tile->row = e->row;
        tile->rows = e->rows;
        tile->col = col;
        tile->id = 0; /* consumers have no register for it: see `after` */
    }

    GEMM_MEMBER bool gathered(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP;
    }

    GEMM_MEMBER uint32_t second(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? plan->inner : tile_n / 2;
    }

    GEMM_MEMBER uint32_t stages_of_k(const struct gemm_operands *op,
                                     const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? op->stages_of_k
                                         : (plan->inner + derived::tile_k - 1) / derived::tile_k;
    }

    GEMM_MEMBER const struct gemm_a *a(const struct mk_tile *) const
    {
        return &maps->a;
    }

    GEMM_MEMBER const CUtensorMap *b(const struct gemm_operands *op,
                                     const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? &op->b : &maps->b;
    }

    GEMM_MEMBER const CUtensorMap *c(const struct gemm_operands *op, const struct mk_tile *) const
    {
        return at().stage == MOE_FFN_UP ? &op->c : &maps->c;
    }

    template <class shape> GEMM_MEMBER uint32_t boxes(const struct mk_tile *) const
    {
        return shape::tile_n / (at().stage == MOE_FFN_UP ? 128 : 64);
    }

    GEMM_MEMBER struct gemm_place place(uint32_t, const struct mk_tile *, uint32_t first) const
    {
        const struct moe_ffn_place &to = at();
        return {(int32_t)to.col, (int32_t)(to.row + first), 0};
    }

    /* Rows of results in fp32: each four lanes store 32 bytes of a row. */
    template <class shape>
    GEMM_MEMBER void store_wide(const float (&sum)[shape::blocks][shape::tile_n / 2],
                                uint32_t half) const
    {
        const uint32_t thread = gemm_again<shape>(threadIdx.x) % 128, lane = thread % 32,
                       col = at().col, row = at().row, rows = at().rows;
        uint32_t first = shape::first_row(half) + thread / 32 * 16 + lane / 4;
        float *to = (float *)(launch->heap + plan->made) + (uint64_t)(row + first) * plan->hidden +
                    col + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < shape::tile_n / 8; j++) {
            if (col + j * 8 >= plan->hidden)
                break;
            if (first < rows)
                *(float2 *)(to + j * 8) = make_float2(sum[0][j * 4], sum[0][j * 4 + 1]);
            if (first + 8 < rows)
                *(float2 *)(to + 8ull * plan->hidden + j * 8) =
                    make_float2(sum[0][j * 4 + 2], sum[0][j * 4 + 3]);
        }
        ptx_bar_sync(named_warpgroup(half)); /* who tells of them tells of all */
    }

    template <class shape>
    GEMM_MEMBER bool store_sums(uint32_t, float (&sum)[shape::blocks][shape::tile_n / 2],
                                uint32_t half, uint32_t) const
    {
        static_assert(shape::blocks == 1, "64 rows of a warpgroup");
        if (at().stage == MOE_FFN_UP) {
#pragma unroll
            for (int j = 0; j < shape::tile_n / 4; j++)
                sum[0][j] = epilogue_silu(sum[0][j]) * sum[0][j + shape::tile_n / 4];
            return static_cast<const derived *>(this)->template store_act<shape>(sum[0], half);
        }
        if (plan->number == MK_FP32) {
            store_wide<shape>(sum, half);
            return true;
        }
        return false;
    }

    /* Down of a group may come right behind its up, and wait for what this block has stored: so it
     * is told of while the next tile is loaded, but before that where the next one is not known. */
    GEMM_MEMBER void tell() const
    {
        struct moe_ffn_stored *untold = &moe_ffn_untold[derived::thread() / 128 - 1];
        if (!untold->count)
            return;
        ptx_bulk_wait_all();
        ptx_add_release_here(cta_flag(launch->heap, untold->flag), untold->count);
        untold->count = 0;
    }

    GEMM_MEMBER void publish_early(uint32_t i) const
    {
        if (derived::thread() % 128 == 0 &&
            !ptx_mbar_test(ptx_shared(&gemm_ticket_shared->given[i % GEMM_TICKETS]),
                           mbar_phase_of_ring<GEMM_TICKETS>(i)))
            tell();
        __syncwarp();
    }

    GEMM_MEMBER void publish(uint32_t, uint32_t) const
    {
        tell();
    }

    GEMM_MEMBER void begin(uint32_t, const struct mk_tile *)
    {
        if (derived::thread() == 128)
            tile_track_start(moe_ffn_track);
    }

    GEMM_MEMBER void after(uint32_t, const struct mk_tile *, uint32_t half)
    {
        const uint32_t stage = at().stage, col = at().col, row = at().row, rows = at().rows;
        if (threadIdx.x == 128)
            tile_track_note(moe_ffn_track, launch,
                            moe_ffn_tile_id(plan, row / tile_m, stage,
                                            col / (stage == MOE_FFN_UP ? tile_n / 2 : tile_n)));
        moe_ffn_untold[half] = {rows * (MK_TILE_PARTS / 2), stage == MOE_FFN_UP
                                                                ? moe_ffn_acted_flag(plan, row)
                                                                : moe_ffn_made_flag(plan, row)};
    }
};

/* All threads of a block. source: one of a kernel's own. */
template <class shape, class tile_source>
PTX_FN void moe_ffn_block(const struct moe_ffn_plan *plan, const struct gpu_launch *launch,
                          const struct gemm_operands *operands, const struct moe_ffn_maps *maps,
                          tile_source *source, uint8_t *memory)
{
    static_assert(shape::shared_bytes >= MK_ROUTE_SHARED, "what making tables takes");
    static_assert(shape::tile_k == tile_source::tile_k, "stages of K");
    moe_begin_block(&plan->dispatch, launch, memory);
    source->dispatch = &plan->dispatch;
    source->plan = plan;
    source->maps = maps;
    source->launch = launch;
    source->operands = operands;
    source->map_a = nullptr;
    source->tile_m = shape::tile_m;
    source->tile_n = shape::tile_n;
    source->columns = 0;
    if (threadIdx.x == 0) {
        moe_ffn_untold[0].count = moe_ffn_untold[1].count = 0;
        gemm_tickets_open<tile_source>();
    }
    if (threadIdx.x == 128)
        tile_track_open(moe_ffn_track, launch);
    gemm_compute<shape>(operands, source, memory);
    if (threadIdx.x == 128)
        tile_track_close(moe_ffn_track, launch);
    __syncthreads(); /* the lead's track is there */
    moe_ffn_add_up(plan, launch, memory, GEMM_THREADS);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(launch);
}

template <class shape>
static int moe_ffn_describe(struct gemm_operands *op, struct moe_ffn_maps *maps,
                            const struct moe_ffn_plan *p, const struct gpu_launch *l)
{
    const uint64_t rows = (uint64_t)p->dispatch.row_tiles * p->dispatch.tile_m, h = p->hidden,
                   inner = p->inner, experts = p->dispatch.rank_experts;
    const uint64_t acted[3] = {inner, rows, 1}, made[3] = {h, rows, 1};
    const uint32_t c_box[2] = {64, 64}, act_box[2] = {shape::tile_k, 64};
    int err = gemm_describe_groups<shape>(&op->b, l->arguments[MK_SPACE_ARG1], 2 * inner, h,
                                          experts, shape::tile_n / 2);
    if (!err)
        err = gemm_describe_groups<shape>(&maps->b, l->arguments[MK_SPACE_ARG4], h, inner, experts,
                                          shape::tile_n / 2);
    if (!err)
        err = gemm_describe<shape>(&op->c, l->heap + p->acted, acted, inner, rows * inner, act_box);
    if (!err)
        err = gemm_describe_a<shape>(&maps->a, op, l->heap + p->acted, inner, rows, 1, rows * inner,
                                     0);
    maps->c = op->c; /* not used where results are fp32 */
    if (!err && p->number == MK_BF16)
        err = tensormap_bf16(&maps->c, l->heap + p->made, made, h, rows * h, c_box);
    op->stages_of_k = (uint32_t)mk_ceil_div(h, shape::tile_k);
    op->stages_of_slice = UINT32_MAX;
    op->b_kn = shape::b_kn;
    gpu_limit_waits(op, l);
    return err;
}

/* For GPU_OPERATOR_BY (kernels/op.h). kernels has: kernel<shape>(), and dispatch(plan, transposed,
 * call), which calls `call` with an object of the shape that the plan asks for and returns what it
 * does; -EINVAL where there is none. */
template <class kernels> struct moe_ffn_operator {
    static int prepare(const struct moe_ffn_plan *p, const struct mk_problem *q, char *error,
                       size_t error_size)
    {
        int err = kernels::dispatch(p, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            return gpu_admit(kernels::template kernel<typename built::any_layout>(),
                             mk_total_blocks(&q->tuning.split), 1, GEMM_THREADS,
                             built::shared_bytes, error, error_size);
        });
        return gpu_prepared(err, p->dispatch.tile_m, p->tile_n, 0, error, error_size);
    }

    static int launch(const struct moe_ffn_plan *p, const struct mk_problem *q,
                      const struct gpu_launch *launch, cudaStream_t stream)
    {
        return kernels::dispatch(p, q->b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            struct gemm_operands operands;
            struct moe_ffn_maps maps;
            int err = moe_ffn_describe<built>(&operands, &maps, p, launch);
            return err ? err
                       : gemm_launch_kernel(kernels::template kernel<typename built::any_layout>(),
                                            mk_total_blocks(&launch->split), 1, built::shared_bytes,
                                            stream, *p, *launch, operands, maps);
        });
    }
};
