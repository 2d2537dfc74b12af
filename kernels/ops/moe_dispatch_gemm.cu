/* MoE dispatch+GEMM: C = the tokens of each expert * its B, in one launch. Thread blocks take roles
 * by their number: compute is the GEMM engine over the table of tiles that the schedule makes,
 * which all blocks take from one counter; the others run their part of core/roles/moe_dispatch.h
 * with all their threads, and when that is done compute too. */
#include "kernels/op.h"

#include "kernels/cta_route.cuh"
#include "kernels/cta_rows.cuh"
#include "kernels/gemm_launch.cuh"
#include "kernels/gemm_tickets.cuh"

#include "core/roles/moe_dispatch_gemm.h"

GPU_OPERATOR(moe_dispatch_gemm)

/* What follows `plan` is the producer thread's alone. */
struct moe_source : ticket_source<moe_source> {
    static constexpr bool gathers = true;
    const struct moe_dispatch_gemm_plan *plan;
    struct mk_cta cta;
    uint64_t upcoming, base;
    uint32_t count;
    int ending;

    GEMM_MEMBER uint64_t ask() const
    {
        return atomicAdd((unsigned long long *)launch->taken, 1ull);
    }

    GEMM_MEMBER void open()
    {
        if (blockIdx.x >= launch->split.ctas[MK_COMPUTE]) /* has had another role before */
            cta_resume(&cta, launch, blockIdx.x, 1);
        else
            cta_begin(&cta, launch, blockIdx.x, 1);
        cta.role = MK_COMPUTE;
        ending = moe_await_routed(&plan->dispatch, &cta);
        if (ending)
            return;
        uint64_t head = plan->dispatch.route.order_head;
        base = mk_cta_load64(&cta, head + offsetof(struct mk_route_head, begin));
        count = mk_cta_load(&cta, head + offsetof(struct mk_route_head, count));
        upcoming = ask();
    }

    GEMM_MEMBER void close()
    {
        cta_end(&cta);
    }

    /* A row of A lies where its token is: a row of X, or where another rank has brought it. */
    GEMM_MEMBER const char *row_of_a(const struct mk_tile *tile, uint32_t row) const
    {
        const struct moe_dispatch_plan *d = &plan->dispatch;
        uint32_t source = ((const uint32_t *)(launch->heap + d->route.source))[tile->row + row];
        return source < d->room ? launch->arguments[MK_SPACE_ARG0] + source * d->row_bytes
                                : launch->heap + d->landed + (source - d->room) * d->row_bytes;
    }

    GEMM_MEMBER uint32_t row_bytes() const
    {
        return (uint32_t)plan->dispatch.row_bytes;
    }

    /* The number of the one after this is on its way while this one is loaded. Every block asks
     * until there is none. Who is told of a tile may read its rows. */
    GEMM_MEMBER bool take(struct mk_tile_entry *e)
    {
        if (ending || upcoming - base >= count)
            return false;
        *e = gemm_table_load(
            (const struct mk_tile_entry *)(launch->heap + plan->dispatch.route.order) +
            (upcoming - base));
        upcoming = ask();
        ending = moe_await_rows(&plan->dispatch, &cta, e->row);
        return true;
    }
};

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    moe_dispatch_gemm_kernel(const __grid_constant__ struct moe_dispatch_gemm_plan plan,
                             const __grid_constant__ struct gpu_launch launch,
                             const __grid_constant__ struct gemm_operands operands)
{
    PTX_SHARED_DYNAMIC(memory);
    static_assert(shape::shared_bytes >= MK_ROUTE_SHARED, "what making tables takes");
    if (blockIdx.x >= launch.split.ctas[MK_COMPUTE]) {
        struct mk_cta cta;
        cta_begin(&cta, &launch, blockIdx.x, GEMM_THREADS);
        cta.scratch = memory;
        if (cta.role == MK_INTRA_COMM)
            moe_intra_comm(&plan.dispatch, &cta);
        else if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
            moe_inter_send(&plan.dispatch, &cta);
        cta_end(&cta);
        ptx_fence_async_shared(); /* TMA loads go where tables were made */
        __syncthreads();          /* and the lead's track is there */
    }
    struct moe_source source;
    source.plan = &plan;
    source.launch = &launch;
    source.operands = &operands;
    source.map_a = nullptr;
    source.tile_m = shape::tile_m;
    source.tile_n = shape::tile_n;
    source.columns = plan.col_tiles;
    if (threadIdx.x == 0)
        gemm_tickets_open(moe_source::gathers);
    tile_track_open(&source.track, &launch);
    gemm_compute<shape>(&operands, &source, memory);
    tile_track_close(&source.track, &launch);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
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
    op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(k, GEMM_TILE_K);
    /* longer than any wait for a flag */
    op->watch = {l->report->stuck, l->timeout_ns + 2000000000};
    op->limit_ns = l->timeout_ns + 3000000000;
    return err;
}

/* Calls `call` with an object of the shape that the plan asks for; -EINVAL where there is none. */
template <class function>
static int moe_dispatch_shape(const struct moe_dispatch_gemm_plan *p, int transposed, function call)
{
#define MOE_TRY(rows, columns, cluster_, stages, boxes)                                            \
    if (p->dispatch.tile_m == rows && p->tile_n == columns && p->cluster == cluster_)              \
        return transposed ? call(gemm_shape<rows, columns, cluster_, 0, stages, boxes>())          \
                          : call(gemm_shape<rows, columns, cluster_, 1, stages, boxes>());
    MK_GROUPED_TILES(MOE_TRY)
#undef MOE_TRY
    return -EINVAL;
}

int moe_dispatch_gemm_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    const struct moe_dispatch_gemm_plan *p = moe_dispatch_gemm_plan_of(plan);
    int err = moe_dispatch_shape(p, plan->problem.b_transposed, [](auto shape) {
        typedef decltype(shape) built;
        return gemm_allow_shared(moe_dispatch_gemm_kernel<built>, built::shared_bytes);
    });
    if (err == -EINVAL)
        snprintf(error, error_size, "no kernel is built for tiles of %u x %u", p->dispatch.tile_m,
                 p->tile_n);
    else if (err)
        snprintf(error, error_size, "the GPU refuses the kernel: %s",
                 cudaGetErrorString(cudaGetLastError()));
    return err;
}

int moe_dispatch_gemm_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                             cudaStream_t stream)
{
    const struct moe_dispatch_gemm_plan *p = moe_dispatch_gemm_plan_of(plan);
    return moe_dispatch_shape(p, plan->problem.b_transposed, [=](auto shape) {
        typedef decltype(shape) built;
        struct gemm_operands operands;
        int err = moe_describe<built>(&operands, p, launch);
        return err ? err
                   : gemm_launch_kernel(moe_dispatch_gemm_kernel<built>,
                                        mk_total_blocks(&launch->split), 1, built::shared_bytes,
                                        stream, *p, *launch, operands);
    });
}
