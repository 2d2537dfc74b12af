/* MoE dispatch+GEMM: C = the tokens of each expert * its B, in one launch. Thread blocks take roles
 * by their number: compute is the GEMM engine over the table of tiles that the schedule makes,
 * which all blocks take from one counter; the others run their part of core/roles/moe_dispatch.h
 * with all their threads, and when that is done compute too. */
#include "kernels/op.h"

#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/ops/moe_source.cuh"

#include "core/roles/moe_dispatch_gemm.h"

GPU_OPERATOR(moe_dispatch_gemm)

struct moe_dispatch_gemm_source : moe_source<moe_dispatch_gemm_source> {
    GEMM_MEMBER int await(const struct mk_tile_entry *e)
    {
        return moe_await_rows(dispatch, &cta, e->row);
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
    moe_begin_block(&plan.dispatch, &launch, memory);
    struct moe_dispatch_gemm_source source;
    source.dispatch = &plan.dispatch;
    source.launch = &launch;
    source.operands = &operands;
    source.map_a = nullptr;
    source.tile_m = shape::tile_m;
    source.tile_n = shape::tile_n;
    source.columns = plan.col_tiles;
    if (threadIdx.x == 0)
        gemm_tickets_open(moe_dispatch_gemm_source::gathers);
    source.open_track();
    gemm_compute<shape>(&operands, &source, memory);
    source.close_track();
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
    gpu_limit_waits(op, l);
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
    int err = moe_dispatch_shape(p, plan->problem.b_transposed, [=](auto shape) {
        typedef decltype(shape) built;
        return gpu_admit(moe_dispatch_gemm_kernel<built>,
                         mk_total_blocks(&plan->problem.tuning.split), 1, GEMM_THREADS,
                         built::shared_bytes, error, error_size);
    });
    return gpu_prepared(err, p->dispatch.tile_m, p->tile_n, 0, error, error_size);
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
