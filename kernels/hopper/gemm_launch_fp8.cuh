/* The same as gemm_launch.cuh for kernels of FP8: B is [N, K], scales are of blocks, and shared
 * memory begins where the first stage does. An operator is a struct as there. */
#ifndef MK_KERNELS_GEMM_LAUNCH_FP8_CUH
#define MK_KERNELS_GEMM_LAUNCH_FP8_CUH

#include "core/gemm_tiles_fp8.h"
#include "kernels/hopper/gemm_launch.cuh"
#include "kernels/hopper/gemm_promote.cuh"

template <class op, class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm_fp8_kernel(const __grid_constant__ typename op::plan plan,
                    const __grid_constant__ struct gpu_launch launch,
                    const __grid_constant__ struct gemm_operands operands,
                    const __grid_constant__ typename op::maps maps)
{
    PTX_SHARED_DYNAMIC_ALIGNED(memory, 1024);
    ptx_launch_next();
    if (blockIdx.x < launch.split.ctas[MK_COMPUTE])
        op::template compute<shape>(&plan, &launch, &operands, &maps, memory);
    else if (blockIdx.x < mk_total_blocks(&launch.split)) /* the grid is rounded up to clusters */
        op::template communicate<shape>(&plan, &launch, memory);
    __syncthreads();
    if (threadIdx.x == 0)
        cta_leave(&launch);
}

template <class op, class function>
static int gemm_fp8_dispatch(const struct gemm_form *form, function call)
{
#define GEMM_FP8_TRY(rows, columns, cluster_, stages, boxes)                                       \
    if (form->tile_m == rows * cluster_ && form->tile_n == columns && form->cluster == cluster_)   \
        return call(                                                                               \
            gemm_shape<rows, columns, cluster_, 0, stages, boxes, MK_BF16, GEMM_E4M3_BLOCKS>());
    MK_FP8_TILES(GEMM_FP8_TRY)
    MK_FP8_FEW_ROWS_TILES(GEMM_FP8_TRY)
#undef GEMM_FP8_TRY
    return -EINVAL;
}

template <class op>
static int gemm_fp8_prepare(const typename op::plan *plan, const struct mk_problem *q, char *error,
                            size_t error_size)
{
    const struct gemm_form form = op::form(plan);
    int err = gemm_fp8_dispatch<op>(&form, [=](auto shape) {
        typedef decltype(shape) built;
        return gpu_admit(gemm_fp8_kernel<op, built>,
                         (uint32_t)mk_round_up(mk_total_blocks(&q->tuning.split), built::cluster),
                         built::cluster, GEMM_THREADS, gemm_op_shared_bytes<op, built>(), error,
                         error_size);
    });
    return gpu_prepared(err, form.tile_m, form.tile_n, form.cluster, error, error_size);
}

template <class op>
static int gemm_fp8_launch(const typename op::plan *plan, const struct gpu_launch *launch,
                           cudaStream_t stream)
{
    const struct gemm_form form = op::form(plan);
    return gemm_fp8_dispatch<op>(&form, [=](auto shape) {
        typedef decltype(shape) built;
        typename op::maps maps;
        struct gemm_operands operands;
        gemm_limit_waits(&operands, launch);
        int err = op::template describe<built>(&maps, &operands, plan, launch);
        if (err)
            return err;
        return gemm_launch_when(
            true, gemm_fp8_kernel<op, built>,
            (uint32_t)mk_round_up(mk_total_blocks(&launch->split), built::cluster), built::cluster,
            gemm_op_shared_bytes<op, built>(), stream, *plan, *launch, operands, maps);
    });
}

#endif
