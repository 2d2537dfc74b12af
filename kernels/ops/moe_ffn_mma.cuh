/* The MoE feed-forward layer on engine mma. Roles, tables, tiles and sums are those of
 * kernels/ops/moe_ffn.cu. The producer's lanes copy each row of A from where its token lies (up) or
 * where up has stored it (down); all consumer threads of a warpgroup have stored a tile before one of
 * them tells of it, so there is nothing to tell late.
 *
 * Of bf16, and of FP8, whose rows count as bf16 of half as many elements. 128 columns of the activation
 * share a scale, and so 256 of a tile, of which a lane has room for 64: a tile's columns are multiplied
 * in four passes, over all of K each. What a thread makes of the activation in a pass, eight columns of
 * two rows, it keeps; behind the last a row's 128 lie in four lanes, which quantise them as the other
 * engine's do (kernels/quantize.cuh). */
#pragma once

#define SUMS_EACH_TERMS 2
#include "kernels/epilogue.cuh"
#include "kernels/op.h"
#include "kernels/quantize.cuh"

#include "kernels/mma/launch_fp8.cuh"
#include "kernels/ops/mma_tickets.cuh"
#include "kernels/ops/moe_ffn_sums.cuh"
#include "kernels/ops/moe_take.cuh"

GPU_OPERATOR(moe_ffn_bf16_mma)
GPU_OPERATOR(moe_ffn_fp8_mma)

/* Beside B1 and the activation, which are B and C of struct mma_operands. */
struct moe_ffn_matrices {
    struct mma_matrix x, b2, made;
    uint32_t stages_of_down; /* of its K */
};

/* Of FP8: what a thread keeps of a row's activation and of that 8 further on, and the tile whose
 * passes these are. Of bf16 nothing. */
template <bool scaled> struct moe_ffn_mma_kept {
};
template <> struct moe_ffn_mma_kept<true> {
    struct mk_tile_entry entry;
    float acted[64];
};

template <bool scaled_>
struct moe_ffn_mma_source
    : moe_taking<moe_ffn_mma_source<scaled_>, mma_ticket_source<moe_ffn_mma_source<scaled_>>> {
    typedef moe_taking<moe_ffn_mma_source, mma_ticket_source<moe_ffn_mma_source>> taking;
    static constexpr bool two_runs = true, announces = true, scaled = scaled_;
    static constexpr uint32_t passes = scaled ? MK_MMA_FP8_PASSES : 1;

    using taking::cta;
    using taking::dispatch;
    using taking::launch;
    using taking::operands;
    using taking::tile_m;
    using taking::tile_n;

    const struct moe_ffn_plan *plan;
    const struct moe_ffn_matrices *matrices;
    uint32_t halves;                /* warpgroups that multiply */
    uint32_t stage, col, row, rows; /* of a consumer's tile */
    uint32_t pass;                  /* of its passes */
    struct moe_ffn_mma_kept<scaled> kept;

    MMA_MEMBER void open(uint32_t thread)
    {
        if (thread == 0)
            taking::open();
    }

    MMA_MEMBER bool next(uint32_t i, struct mk_tile *tile)
    {
        pass = i % passes;
        if constexpr (scaled)
            if (pass) {
                describe(&kept.entry, tile);
                return true;
            }
        return taking::next(i / passes, tile);
    }

    MMA_MEMBER void opened()
    {
        if (blockIdx.x >= mk_total_blocks(&launch->split) - launch->split.ctas[MK_INTER_REDUCE])
            this->last = this->head()->apart;
    }

    MMA_MEMBER int await(const struct mk_tile_entry *e)
    {
        return moe_ffn_before(plan, &cta, e->column < plan->up_tiles, e->row);
    }

    MMA_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        if constexpr (scaled)
            kept.entry = *e;
        mma_ticket_source<moe_ffn_mma_source>::describe(e, tile);
        stage = e->column < plan->up_tiles ? MOE_FFN_UP : MOE_FFN_DOWN;
        col = stage == MOE_FFN_UP
                  ? e->column * (tile_n / 2) + pass * (tile_n / passes / 2)
                  : (e->column - plan->up_tiles) * tile_n + pass * (tile_n / passes);
        row = e->row;
        rows = e->rows;
        tile->stage = stage;
        tile->col = col;
    }

    MMA_MEMBER const char *row_of_a(const struct mk_tile *tile, uint32_t i) const
    {
        const struct mma_matrix *acted = &operands->c;
        return tile->stage == MOE_FFN_UP ? taking::row_of_a(tile, i)
                                         : acted->base + (tile->row + i) * acted->pitch;
    }

    MMA_MEMBER uint32_t second(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? plan->inner : tile_n / passes / 2;
    }

    MMA_MEMBER struct mma_scales scales(const struct mk_tile *tile, uint32_t at) const
    {
        const bool up = tile->stage == MOE_FFN_UP;
        const uint32_t blocks = ((up ? plan->hidden : plan->inner) + 127) / 128,
                       pitch = (blocks + 3) / 4 * 4,
                       across = ((up ? plan->inner : plan->hidden) + 127) / 128;
        /* a pass behind the last column has the last one's, and is dropped */
        const uint32_t block = tile->col / 128 < across ? tile->col / 128 : across - 1;
        const float *b = (const float *)launch->arguments[up ? MK_SPACE_ARG6 : MK_SPACE_ARG7] +
                         ((uint64_t)tile->slab * (up ? 2 : 1) * across + block) * pitch;
        if (!up)
            return mma_scales_of_rows((const float *)(launch->heap + plan->act_scales) + tile->row,
                                      dispatch->row_tiles * dispatch->tile_m, at, tile->rows, b);
        struct mma_scales of = this->scales_of_tokens(tile, at, plan->hidden, b);
        of.second = across * pitch;
        return of;
    }

    MMA_MEMBER uint32_t stages_of_k(const struct mma_operands *op, const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? op->stages_of_k : matrices->stages_of_down;
    }

    MMA_MEMBER const struct mma_matrix *a(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? &matrices->x : &operands->c;
    }

    MMA_MEMBER const struct mma_matrix *b(const struct mma_operands *op,
                                          const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? &op->b : &matrices->b2;
    }

    MMA_MEMBER const struct mma_matrix *c(const struct mma_operands *, const struct mk_tile *) const
    {
        return &matrices->made; /* up stores in `store_sums` */
    }

    /* Rows of results in fp32: each four lanes store 32 bytes of a row. */
    template <class shape> MMA_MEMBER void store_wide(const float (&sum)[1][shape::sums]) const
    {
        const uint32_t lane = threadIdx.x % 32, first = shape::row(threadIdx.x / 32, 0) + lane / 4;
        float *to = (float *)matrices->made.base + (uint64_t)(row + first) * plan->hidden + col +
                    lane % 4 * 2;
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
    }

    /* What a pass has made of the activation; behind the last, codes and scales. Words of 4 codes of 16
     * columns are of lane l at 8 (l % 2) + 4 (l / 2). */
    template <class shape> MMA_MEMBER void keep(const float (&sum)[shape::sums])
    {
        constexpr int count = shape::sums / 2;
        static_assert(count * passes == 64, "a block of two rows");
#pragma unroll
        for (uint32_t of = 0; of < passes; of++)
#pragma unroll
            for (int j = 0; j < count; j++)
                if (pass == of)
                    kept.acted[of * count + j] = sum[j];
        if (pass + 1 < passes)
            return;
        const uint32_t lane = threadIdx.x % 4,
                       at = shape::row(threadIdx.x / 32, 0) + threadIdx.x % 32 / 4,
                       first = col / 128 * 128;
        float *scales = (float *)(launch->heap + plan->act_scales) +
                        (uint64_t)(first / 128) * (dispatch->row_tiles * dispatch->tile_m) + row;
#pragma unroll
        for (int low = 0; low < 4; low += 2) {
            const uint32_t r = at + low * 4;
            char *const to = operands->c.base + (uint64_t)(row + r) * operands->c.pitch + first;
            uint32_t words[8];
            const float amax = quantize_quad(kept.acted, low, lane % 2,
                                             [&](int j, uint32_t word) { words[j] = word; });
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                uint32_t v[4] = {words[j], words[j + 1], words[j + 2], words[j + 3]};
                mma_exchange(v);
                if (r < rows && first + (j + lane) * 16 < plan->inner)
                    *(uint4 *)(to + (j + lane) * 16) = make_uint4(v[0], v[2], v[1], v[3]);
            }
            if (r < rows && lane == 0)
                scales[r] = quantize_scale(amax);
        }
    }

    /* Of up the first half of a thread's sums are the gate's. */
    template <class shape>
    MMA_MEMBER bool store_sums(uint32_t, float (&sum)[shape::blocks][shape::sums], uint32_t)
    {
        static_assert(shape::blocks == 1 && shape::warp_columns == 1, "all columns, of 16 rows");
        if (stage == MOE_FFN_UP) {
            const struct mma_place place = {(int32_t)col, (int32_t)row, 0};
#pragma unroll
            for (int j = 0; j < shape::sums / 2; j++)
                sum[0][j] = epilogue_silu(sum[0][j]) * sum[0][j + shape::sums / 2];
            if constexpr (scaled)
                keep<shape>(sum[0]);
            else
                mma_store<shape, shape::columns / 2>(&operands->c, &place, operands->c.columns, sum,
                                                     threadIdx.x / 32);
        } else if (plan->number == MK_FP32) {
            store_wide<shape>(sum);
        }
        return stage == MOE_FFN_UP || plan->number == MK_FP32;
    }

    MMA_MEMBER void begin(uint32_t i, const struct mk_tile *tile)
    {
        if (!pass)
            mma_op_source::begin(i, tile);
    }

    MMA_MEMBER void after(uint32_t i, const struct mk_tile *tile, uint32_t half)
    {
        if (pass + 1 < passes)
            return;
        const uint32_t flag =
            stage == MOE_FFN_UP ? moe_ffn_acted_flag(plan, row) : moe_ffn_made_flag(plan, row);
        ptx_add_release_here(cta_flag(launch->heap, flag), rows * (MK_TILE_PARTS / halves));
        mma_op_source::after(i, tile, half);
    }
};

template <class shape, bool scaled>
__global__ void __launch_bounds__(mma_threads<shape, moe_ffn_mma_source<scaled>>, 1)
    moe_ffn_mma_kernel(const __grid_constant__ struct moe_ffn_plan plan,
                       const __grid_constant__ struct gpu_launch launch,
                       const __grid_constant__ struct mma_operands operands,
                       const __grid_constant__ struct moe_ffn_matrices matrices)
{
    PTX_SHARED_DYNAMIC(memory);
    static_assert(shape::shared_bytes >= MK_MMA_ROUTE_SHARED, "what making tables takes");
    moe_begin_block(&plan.dispatch, &launch, memory);
    struct moe_ffn_mma_source<scaled> source;
    source.dispatch = &plan.dispatch;
    source.plan = &plan;
    source.matrices = &matrices;
    source.rows_of_a = nullptr;
    source.halves = shape::warps / 4;
    source.template begin_block<shape>(&launch, &operands, plan.up_tiles + plan.down_tiles);
    mma_op_source::run<shape>(&operands, &source, memory);
    __syncthreads(); /* the lead's track is there */
    moe_ffn_add_up(&plan, &launch, memory, mma_threads<shape, moe_ffn_mma_source<scaled>>);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

/* The B's of a rank's experts, [k, n] or [n, k] each as the shape has it; k: e4m3 in pairs. */
template <class shape>
static struct mma_matrix moe_ffn_experts(const char *b, uint32_t n, uint32_t k)
{
    const uint64_t along = k * 2ull, across = n * 2ull;
    return shape::b_kn ? mma_matrix{(char *)b, across, k * across, k, n}
                       : mma_matrix{(char *)b, along, n * along, n, k};
}

/* For mma_ticket_operator. */
template <bool scaled_> struct moe_ffn_on_mma {
    typedef struct moe_ffn_plan plan;
    typedef struct moe_ffn_mma_source<scaled_> source;
    typedef struct moe_ffn_matrices matrices;
    static constexpr bool scaled = scaled_, whole_rows = true;

    template <class shape> static auto kernel()
    {
        return moe_ffn_mma_kernel<shape, scaled>;
    }

    template <class shape>
    static int describe(struct moe_ffn_matrices *m, struct mma_operands *op, const plan *p,
                        const struct gpu_launch *l)
    {
        const uint32_t rows = p->dispatch.row_tiles * p->dispatch.tile_m, h = p->hidden,
                       inner = p->inner, deep = scaled ? h / 2 : h,
                       thin = scaled ? inner / 2 : inner;
        op->b = moe_ffn_experts<shape>(l->arguments[MK_SPACE_ARG1], 2 * inner, deep);
        op->c = {l->heap + p->acted, p->act_bytes, 0, rows, thin};
        m->x = {(char *)l->arguments[MK_SPACE_ARG0], 0, 0, rows, deep};
        m->b2 = moe_ffn_experts<shape>(l->arguments[MK_SPACE_ARG4], h, thin);
        m->made = {l->heap + p->made, p->result_bytes, 0, rows, h};
        m->stages_of_down = (uint32_t)mk_ceil_div(thin, shape::tile_k);
        op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(deep, shape::tile_k);
        return ((uintptr_t)m->x.base | (uintptr_t)op->b.base | (uintptr_t)m->b2.base) % 16 ? -EINVAL
                                                                                           : 0;
    }
};
