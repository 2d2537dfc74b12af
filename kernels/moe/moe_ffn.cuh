/* The MoE feed-forward layer in one launch. Thread blocks take roles by their number, and take on
 * others when they are through: intra_comm and inter_send run their part of
 * core/roles/moe_dispatch.h with all their threads; then they compute, as compute's do from the
 * beginning, and those of inter_reduce until what is left is mostly this rank's own; last of all
 * they add up what experts have made of tokens.
 *
 * Compute is the GEMM engine over the table of tiles that the schedule makes. Up: rows of A are
 * gathered from where tokens lie, a tile's columns of B are as many of gate as of up, so that the
 * same thread has the sums of both, and what is stored is silu(gate) * up. Down: A is what up has
 * stored. Kernels of bf16 and of FP8.
 *
 * Here is what both engines have alike: where matrices lie, tiles and what is made of their
 * sums. How the activation leaves registers, and who is told of it, differs (moe_ffn_wgmma.cuh,
 * moe_ffn_mma.cuh). */
#pragma once

#include "kernels/engine/epilogue.cuh"
#include "kernels/host/op.h"

#include "kernels/moe/moe_ffn_sums.cuh"
#include "kernels/moe/moe_take.cuh"

/* Tokens; of down its A (what up stores), B and C. Of up B and C are in the engine's operands. A
 * kernel parameter. */
template <class engine> struct moe_ffn_views {
    typename engine::rows_view x;
    typename engine::a_view acted;
    typename engine::view b, c;
    uint32_t stages_of_down; /* of its K */
};

/* Of a consumer's tile. */
struct moe_ffn_place {
    uint32_t stage, col, row, rows;
};

/* Its tiles. `derived` has
 *
 *   void keep(const struct moe_ffn_place &), struct moe_ffn_place kept() const
 *       Keeps the place of the thread's tile, which consumers are then told.
 *   bool store_act<shape>(sums, half), void store_wide<shape>(sums, half)
 *       All threads of a consumer warpgroup: stores the activation, which the first half of the
 *       sums is, false: the engine does; and results in fp32, by store_rows. */
template <class engine, class derived> struct moe_ffn_tiles : moe_taking<engine, derived> {
    static constexpr bool two_runs = true;

    const struct moe_ffn_plan *plan;
    const struct moe_ffn_views<engine> *views;

    using taking = moe_taking<engine, derived>;
    using taking::cta;
    using taking::dispatch;
    using taking::launch;
    using taking::tile_m;
    using taking::tile_n;

    ENGINE_MEMBER derived *self()
    {
        return static_cast<derived *>(this);
    }
    ENGINE_MEMBER decltype(auto) at() const
    {
        return static_cast<const derived *>(this)->kept();
    }

    ENGINE_MEMBER void opened()
    {
        if (blockIdx.x >= mk_total_blocks(&launch->split) - launch->split.ctas[MK_INTER_REDUCE])
            this->last = this->head()->apart;
    }

    ENGINE_MEMBER int await(const struct mk_tile_entry *e)
    {
        return moe_ffn_before(plan, &cta, e->column < plan->up_tiles, e->row);
    }

    /* pass: of the tile's passes over all of K, each of as many columns. */
    ENGINE_MEMBER void describe_pass(const struct mk_tile_entry *e, struct mk_tile *tile,
                                     uint32_t pass)
    {
        const uint32_t stage = e->column < plan->up_tiles ? MOE_FFN_UP : MOE_FFN_DOWN,
                       columns = stage == MOE_FFN_UP ? tile_n / 2 : tile_n,
                       number = stage == MOE_FFN_UP ? e->column : e->column - plan->up_tiles,
                       col = number * columns + pass * (columns / derived::passes);
        self()->keep({stage, col, e->row, e->rows});
        tile->stage = stage;
        tile->a_slab = 0;
        tile->slab = e->group;
        tile->row = e->row;
        tile->rows = e->rows;
        tile->col = col;
        tile->id = 0; /* consumers have no register for it: tile_id */
    }

    ENGINE_MEMBER uint32_t tile_id(const struct moe_ffn_place &of) const
    {
        return moe_ffn_tile_id(plan, of.row / tile_m, of.stage,
                               of.col / (of.stage == MOE_FFN_UP ? tile_n / 2 : tile_n));
    }

    ENGINE_MEMBER uint32_t flag_of(const struct moe_ffn_place &of) const
    {
        return of.stage == MOE_FFN_UP ? moe_ffn_acted_flag(plan, of.row)
                                      : moe_ffn_made_flag(plan, of.row);
    }

    ENGINE_MEMBER uint32_t second(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? plan->inner : tile_n / derived::passes / 2;
    }

    ENGINE_MEMBER uint32_t stages_of_k(const typename engine::operands *op,
                                       const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? op->stages_of_k : views->stages_of_down;
    }

    ENGINE_MEMBER const typename engine::view *b(const typename engine::operands *op,
                                                 const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? &op->b : &views->b;
    }

    ENGINE_MEMBER const typename engine::view *c(const typename engine::operands *op,
                                                 const struct mk_tile *) const
    {
        return at().stage == MOE_FFN_UP ? &op->c : &views->c;
    }

    ENGINE_MEMBER struct engine_place place(uint32_t, const struct mk_tile *, uint32_t first) const
    {
        const struct moe_ffn_place &to = at();
        return {(int32_t)to.col, (int32_t)(to.row + first), 0};
    }

    ENGINE_MEMBER bool gathered(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP;
    }

    /* Of FP8: of codes. */
    ENGINE_MEMBER uint32_t row_bytes() const
    {
        return derived::scaled ? plan->hidden : taking::row_bytes();
    }

    ENGINE_MEMBER struct engine_scales scales(uint32_t, const struct mk_tile *tile, uint32_t) const
    {
        const struct moe_ffn_plan *p = engine::fresh(plan);
        const struct gpu_launch *l = engine::fresh(launch);
        const bool up = tile->stage == MOE_FFN_UP;
        const uint32_t blocks = ((up ? p->hidden : p->inner) + 127) / 128,
                       pitch = (blocks + 3) / 4 * 4,
                       across = ((up ? p->inner : p->hidden) + 127) / 128;
        /* a pass behind the last column has the last one's, and is dropped */
        const uint32_t block =
            derived::passes == 1 || tile->col / 128 < across ? tile->col / 128 : across - 1;
        const float *b = (const float *)l->arguments[up ? MK_SPACE_ARG6 : MK_SPACE_ARG7];
        return {up ? nullptr : (const float *)(l->heap + p->act_scales) + tile->row,
                b + ((uint64_t)tile->slab * (up ? 2 * across : across) + block) * pitch,
                p->dispatch.row_tiles * p->dispatch.tile_m,
                up ? across * pitch : pitch,
                engine::consumers_scale ? tile->rows
                : tile->rows > 64       ? 128u
                                  : 64u, /* bulk copies bring a consumer's, which are all there */
                up ? 256 : p->hidden - tile->col,
                blocks};
    }

    /* Of passes, whose columns of down are of one block. */
    ENGINE_MEMBER uint32_t to_second(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP
                   ? (plan->inner + 127) / 128 * (((plan->hidden + 127) / 128 + 3) / 4 * 4)
                   : 0;
    }

    /* Rows of results in fp32: each four lanes store 32 bytes of a row. first: the thread's
     * upper row of the tile. */
    template <int columns, int count>
    ENGINE_MEMBER void store_rows(const float (&sum)[count], uint32_t first, uint32_t lane) const
    {
        const uint32_t col = at().col, row = at().row, rows = at().rows;
        float *to = (float *)(launch->heap + plan->made) + (uint64_t)(row + first) * plan->hidden +
                    col + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < columns / 8; j++) {
            if (col + j * 8 >= plan->hidden)
                break;
            if (first < rows)
                *(float2 *)(to + j * 8) = make_float2(sum[j * 4], sum[j * 4 + 1]);
            if (first + 8 < rows)
                *(float2 *)(to + 8ull * plan->hidden + j * 8) =
                    make_float2(sum[j * 4 + 2], sum[j * 4 + 3]);
        }
    }

    /* Of up the first half of a thread's sums are the gate's. */
    template <class shape>
    ENGINE_MEMBER bool store_sums(uint32_t, float (&sum)[shape::blocks][shape::sums], uint32_t half,
                                  uint32_t)
    {
        static_assert(shape::blocks == 1, "64 rows of a warpgroup");
        if (at().stage == MOE_FFN_UP) {
#pragma unroll
            for (int j = 0; j < shape::sums / 2; j++)
                sum[0][j] = epilogue_silu(sum[0][j]) * sum[0][j + shape::sums / 2];
            return self()->template store_act<shape>(sum, half);
        }
        if (plan->number != MK_FP32)
            return false;
        self()->template store_wide<shape>(sum[0], half);
        return true;
    }
};

/* All threads of a block. source: one of a kernel's own. */
template <class engine, class shape, class tile_source>
PTX_FN void moe_ffn_block(const struct moe_ffn_plan *plan, const struct gpu_launch *launch,
                          const typename engine::operands *operands,
                          const struct moe_ffn_views<engine> *views, tile_source *source,
                          uint8_t *memory)
{
    static_assert(shape::shared_bytes >= moe_route_shared<engine>, "what making tables takes");
    moe_begin_block(&plan->dispatch, launch, memory);
    source->dispatch = &plan->dispatch;
    source->plan = plan;
    source->views = views;
    source->rows_of_a = engine::gathered(&views->x);
    source->template begin_block<shape>(launch, operands, 0);
    source->open_track();
    engine::template compute<shape>(operands, source, memory);
    source->close_track();
    __syncthreads(); /* the lead's track is there */
    moe_ffn_add_up(plan, launch, memory, engine_threads<engine, shape, tile_source>);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(launch);
}

template <class engine, class shape, class tile_source>
__global__ void __launch_bounds__(engine_threads<engine, shape, tile_source>, 1)
    moe_ffn_kernel(const __grid_constant__ struct moe_ffn_plan plan,
                   const __grid_constant__ struct gpu_launch launch,
                   const __grid_constant__ typename engine::operands operands,
                   const __grid_constant__ struct moe_ffn_views<engine> views)
{
    PTX_SHARED_DYNAMIC(memory);
    tile_source source;
    moe_ffn_block<engine, shape>(&plan, &launch, &operands, &views, &source, memory);
}

/* For ticket_operator. */
template <class engine, class tile_source> struct moe_ffn_on {
    typedef struct moe_ffn_plan plan;
    typedef struct moe_ffn_views<engine> views;
    static constexpr bool scaled = tile_source::scaled;

    template <class shape> static constexpr uint32_t threads()
    {
        return engine_threads<engine, shape, tile_source>;
    }

    template <class shape> static constexpr uint32_t shared_bytes()
    {
        return shape::shared_bytes;
    }

    template <class shape> static auto kernel()
    {
        return moe_ffn_kernel<engine, typename engine::template built<shape, scaled>, tile_source>;
    }

    template <class shape>
    static int describe(views *v, typename engine::operands *op, const plan *p,
                        const struct gpu_launch *l)
    {
        const uint64_t rows = (uint64_t)p->dispatch.row_tiles * p->dispatch.tile_m,
                       experts = p->dispatch.rank_experts, x_bytes = p->hidden * (scaled ? 1 : 2);
        const char *acted = l->heap + p->acted;
        int err = engine::template describe_rows<shape>(&v->x, op, l->arguments[MK_SPACE_ARG0],
                                                        x_bytes, rows);
        if (!err)
            err = engine::template describe_b<shape>(&op->b, op, l->arguments[MK_SPACE_ARG1],
                                                     2 * p->inner, x_bytes, experts, 2);
        if (!err)
            err = engine::template describe_b<shape>(&v->b, op, l->arguments[MK_SPACE_ARG4],
                                                     p->hidden, p->act_bytes, experts, 2);
        if (!err)
            err = engine::template describe_c_as_a<shape>(&op->c, op, acted, p->act_bytes, rows);
        if (!err)
            err = engine::template describe_a<shape>(&v->acted, op, acted, p->act_bytes, rows);
        v->c = op->c; /* not used where results are fp32 */
        if (!err && p->number == MK_BF16)
            err = engine::template describe_c<shape>(&v->c, op, l->heap + p->made, p->hidden * 2ull,
                                                     p->hidden, rows);
        engine::template describe_k<shape>(op, p->act_bytes, p->act_bytes);
        v->stages_of_down = op->stages_of_k;
        engine::template describe_k<shape>(op, x_bytes, x_bytes);
        return err;
    }
};
