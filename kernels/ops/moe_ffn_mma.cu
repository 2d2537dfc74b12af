/* The MoE feed-forward layer on engine mma, for every GPU of compute capability 8.0 and up. Roles,
 * tables, tiles and sums are those of kernels/ops/moe_ffn.cu. The producer's lanes copy each row of A
 * from where its token lies (up) or where up has stored it (down); all consumer threads of a
 * warpgroup have stored a tile before one of them tells of it, so there is nothing to tell late. */
#include "kernels/epilogue.cuh"
#include "kernels/op.h"

#include "kernels/mma/launch.cuh"
#include "kernels/ops/mma_tickets.cuh"
#include "kernels/ops/moe_ffn_sums.cuh"
#include "kernels/ops/moe_take.cuh"

GPU_OPERATOR(moe_ffn_mma)

/* Beside B1 and the activation, which are B and C of struct mma_operands. */
struct moe_ffn_matrices {
    struct mma_matrix x, b2, made;
    uint32_t stages_of_down; /* of its K */
};

struct moe_ffn_mma_source : moe_taking<moe_ffn_mma_source, mma_ticket_source<moe_ffn_mma_source>> {
    static constexpr bool two_runs = true, announces = true;
    const struct moe_ffn_plan *plan;
    const struct moe_ffn_matrices *matrices;
    uint32_t halves;                /* warpgroups that multiply */
    uint32_t stage, col, row, rows; /* of a consumer's tile */

    MMA_MEMBER void open(uint32_t thread)
    {
        if (thread == 0)
            moe_taking::open();
    }

    MMA_MEMBER void opened()
    {
        if (blockIdx.x >= mk_total_blocks(&launch->split) - launch->split.ctas[MK_INTER_REDUCE])
            last = head()->apart;
    }

    MMA_MEMBER int await(const struct mk_tile_entry *e)
    {
        return e->column < plan->up_tiles
                   ? moe_await_rows(dispatch, &cta, e->row)
                   : moe_ffn_await(plan, &cta, moe_ffn_acted_flag(plan, e->row), e->row,
                                   plan->up_tiles);
    }

    MMA_MEMBER void describe(const struct mk_tile_entry *e, struct mk_tile *tile)
    {
        mma_ticket_source::describe(e, tile);
        stage = e->column < plan->up_tiles ? MOE_FFN_UP : MOE_FFN_DOWN;
        col =
            stage == MOE_FFN_UP ? e->column * (tile_n / 2) : (e->column - plan->up_tiles) * tile_n;
        row = e->row;
        rows = e->rows;
        tile->stage = stage;
        tile->col = col;
    }

    MMA_MEMBER const char *row_of_a(const struct mk_tile *tile, uint32_t i) const
    {
        const struct mma_matrix *acted = &operands->c;
        return tile->stage == MOE_FFN_UP ? moe_taking::row_of_a(tile, i)
                                         : acted->base + (tile->row + i) * acted->pitch;
    }

    MMA_MEMBER uint32_t second(const struct mk_tile *tile) const
    {
        return tile->stage == MOE_FFN_UP ? plan->inner : tile_n / 2;
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
        return &matrices->made; /* up stores in `finish` */
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

    /* Of up the first half of a thread's sums are the gate's. */
    template <class shape>
    MMA_MEMBER bool finish(uint32_t, float (&sum)[shape::blocks][shape::sums], uint32_t) const
    {
        static_assert(shape::blocks == 1 && shape::warp_columns == 1, "all columns, of 16 rows");
        if (stage == MOE_FFN_UP) {
            const struct mma_place place = {(int32_t)col, (int32_t)row, 0};
#pragma unroll
            for (int j = 0; j < shape::sums / 2; j++)
                sum[0][j] = epilogue_silu(sum[0][j]) * sum[0][j + shape::sums / 2];
            mma_store<shape, shape::columns / 2>(&operands->c, &place, sum, threadIdx.x / 32);
        } else if (plan->number == MK_FP32) {
            store_wide<shape>(sum);
        }
        return stage == MOE_FFN_UP || plan->number == MK_FP32;
    }

    MMA_MEMBER void after(uint32_t i, const struct mk_tile *tile, uint32_t half)
    {
        const uint32_t flag =
            stage == MOE_FFN_UP ? moe_ffn_acted_flag(plan, row) : moe_ffn_made_flag(plan, row);
        ptx_add_release_here(cta_flag(launch->heap, flag), rows * (MK_TILE_PARTS / halves));
        mma_op_source::after(i, tile, half);
    }
};

template <class shape>
__global__ void __launch_bounds__(mma_threads<shape, moe_ffn_mma_source>, 1)
    moe_ffn_mma_kernel(const __grid_constant__ struct moe_ffn_plan plan,
                       const __grid_constant__ struct gpu_launch launch,
                       const __grid_constant__ struct mma_operands operands,
                       const __grid_constant__ struct moe_ffn_matrices matrices)
{
    PTX_SHARED_DYNAMIC(memory);
    static_assert(shape::shared_bytes >= MK_MMA_ROUTE_SHARED, "what making tables takes");
    moe_begin_block(&plan.dispatch, &launch, memory);
    struct moe_ffn_mma_source source;
    source.dispatch = &plan.dispatch;
    source.plan = &plan;
    source.matrices = &matrices;
    source.launch = &launch;
    source.operands = &operands;
    source.rows_of_a = nullptr;
    source.producer = shape::warps * 32;
    source.tile_m = shape::tile_m;
    source.tile_n = shape::tile_n;
    source.columns = plan.up_tiles + plan.down_tiles;
    source.halves = shape::warps / 4;
    mma_tickets_open(shape::warps);
    mma_op_source::run<shape>(&operands, &source, memory);
    __syncthreads(); /* the lead's track is there */
    moe_ffn_add_up(&plan, &launch, memory, mma_threads<shape, moe_ffn_mma_source>);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

/* The B's of a rank's experts, [k, n] or [n, k] each as the shape has it. */
template <class shape>
static struct mma_matrix moe_ffn_experts(const char *b, uint32_t n, uint32_t k)
{
    const uint64_t along = k * 2ull, across = n * 2ull;
    return shape::b_kn ? mma_matrix{(char *)b, across, k * across, k, n}
                       : mma_matrix{(char *)b, along, n * along, n, k};
}

template <class shape>
static int moe_ffn_describe(struct mma_operands *op, struct moe_ffn_matrices *m,
                            const struct moe_ffn_plan *p, const struct gpu_launch *l)
{
    const uint32_t rows = p->dispatch.row_tiles * p->dispatch.tile_m, h = p->hidden,
                   inner = p->inner;
    op->b = moe_ffn_experts<shape>(l->arguments[MK_SPACE_ARG1], 2 * inner, h);
    op->c = {l->heap + p->acted, p->act_bytes, 0, rows, inner};
    m->x = {(char *)l->arguments[MK_SPACE_ARG0], 0, 0, rows, h};
    m->b2 = moe_ffn_experts<shape>(l->arguments[MK_SPACE_ARG4], h, inner);
    m->made = {l->heap + p->made, p->result_bytes, 0, rows, h};
    m->stages_of_down = (uint32_t)mk_ceil_div(inner, shape::tile_k);
    op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(h, shape::tile_k);
    gpu_limit_waits(op, l);
    return ((uintptr_t)m->x.base | (uintptr_t)op->b.base | (uintptr_t)m->b2.base) % 16 ? -EINVAL
                                                                                       : 0;
}

int moe_ffn_mma_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    const struct moe_ffn_plan *p = moe_ffn_plan_of(plan);
    int err = mma_op_dispatch<true>(
        p->dispatch.tile_m, p->tile_n, plan->problem.b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            return gpu_admit(
                moe_ffn_mma_kernel<built>, mk_total_blocks(&plan->problem.tuning.split), 1,
                mma_threads<built, moe_ffn_mma_source>, built::shared_bytes, error, error_size);
        });
    return gpu_prepared(err, p->dispatch.tile_m, p->tile_n, 0, error, error_size);
}

int moe_ffn_mma_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                       cudaStream_t stream)
{
    const struct moe_ffn_plan *p = moe_ffn_plan_of(plan);
    return mma_op_dispatch<true>(
        p->dispatch.tile_m, p->tile_n, plan->problem.b_transposed, [=](auto shape) {
            typedef decltype(shape) built;
            struct mma_operands operands;
            struct moe_ffn_matrices matrices;
            int err = moe_ffn_describe<built>(&operands, &matrices, p, launch);
            return err ? err
                       : gpu_launch_blocks(
                             moe_ffn_mma_kernel<built>, mk_total_blocks(&launch->split),
                             mma_threads<built, moe_ffn_mma_source>, built::shared_bytes, stream,
                             *p, *launch, operands, matrices);
        });
}
