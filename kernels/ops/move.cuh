/* The kernels of an operator that only moves: every thread block has a role by its number. On
 * engine wgmma it runs it on one thread, which copies by TMA: it has an SM to itself and moves as
 * much as a block can. On engine mma all threads of the block copy, 16 bytes each; and on both
 * engines where the operator adds, too, or makes tables of where tokens go.
 *
 * kernels/ops/NAME.cu includes this and the schedule, core/roles/NAME.h, and says GPU_MOVER(NAME),
 * GPU_ADDER(NAME) of one that adds, with kernels/cta/cta_combine.cuh, or of one that makes tables, with
 * kernels/cta/cta_route.cuh, GPU_ROUTER(NAME, whether it adds). */
#pragma once

#include "kernels/host/admit.h"
#include "kernels/host/op.h"

/* 256 threads with as much under way as one that copies by TMA. Of a kernel that makes tables what
 * lanes copy is ids: it says less. */
#ifndef CTA_LANES_AHEAD
#define CTA_LANES_AHEAD 16
#endif
#include "core/cta/cta_route.h"
#include "kernels/cta/cta.cuh"

#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>

/* Threads of a block, how many of them run its role, and its bytes of shared memory. */
struct move_by_tma {
    static constexpr uint32_t threads = 32, lanes = 1;
    uint32_t shared_bytes = GPU_COPY_SHARED_BYTES;
};
struct move_by_lanes {
    static constexpr uint32_t threads = 256, lanes = threads;
    uint32_t shared_bytes = 0;
};

/* A block that makes tables, in that memory. */
struct move_by_tables {
    static constexpr uint32_t threads = 32 * MK_ROUTE_WARPS, lanes = threads;
    uint32_t shared_bytes;
};

/* `op` has the type of the plan, what it does beside moving and, on the GPU, void run(const plan *,
 * struct mk_cta *). */
/* What an operator that makes tables adds up may be for other nodes. */
template <class op> PTX_FN bool move_posts(const struct mk_cta *cta)
{
    return cta->role == MK_INTER_SEND || (op::routes && op::adds && cta->role == MK_INTER_REDUCE &&
                                          cta->launch->split.ctas[MK_INTER_SEND]);
}

template <class op, class by>
__global__ void __launch_bounds__(by::threads, 1)
    move_kernel(const __grid_constant__ typename op::plan plan,
                const __grid_constant__ struct gpu_launch launch)
{
    PTX_SHARED_DYNAMIC(memory);
    struct mk_cta cta;
    if (op::routes)
        ptx_launch_next(); /* which touches nothing before this launch has ended (cta_begin) */
    if (threadIdx.x >= by::lanes)
        return;
    cta_begin(&cta, &launch, blockIdx.x, by::lanes);
    if (by::lanes == 1)
        cta_begin_copies(&cta, ptx_shared(memory));
    if (op::routes)
        cta.scratch = memory;
    if (!move_posts<op>(&cta) || !cta_begin_commands(&cta))
        op::run(&plan, &cta);
    cta_end(&cta);
    cta_meet(&cta);
    if (cta_leads(&cta))
        cta_leave(&launch);
}

/* Calls `call` with how the plan's engine moves: with the one way of an operator that makes tables
 * or adds, so that no kernel is compiled for another. */
template <class op, class function>
static int move_dispatch(const struct mk_plan *plan, function call)
{
    const bool mma = mk_kernel_choice_of(plan).engine == MK_ENGINE_MMA;
    if constexpr (op::routes)
        return call(move_by_tables{mma ? MK_MMA_ROUTE_SHARED : MK_ROUTE_SHARED});
    else if constexpr (op::adds)
        return call(move_by_lanes());
    else
        return mma ? call(move_by_lanes()) : call(move_by_tma());
}

/* What admitting a kernel has come to (gpu_admit). */
static int move_prepared(int err, char *error, size_t error_size)
{
    if (err == -EIO)
        snprintf(error, error_size, "the GPU refuses the kernel: %s",
                 cudaGetErrorString(cudaGetLastError()));
    return err == -ENOSPC ? -EINVAL : err;
}

template <class op>
static int move_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    const struct mk_kernel_choice q = mk_kernel_choice_of(plan);
    int err = move_dispatch<op>(plan, [=](auto way) {
        typedef decltype(way) by;
        return gpu_admit(move_kernel<op, by>, mk_total_blocks(&q.split), 1, by::threads,
                         way.shared_bytes, error, error_size);
    });
    return move_prepared(err, error, error_size);
}

/* Of a kernel whose arguments, up to space `last`, are whole 16 bytes. 0, -EINVAL or -EIO. */
template <class... parameters>
static int move_launch_kernel(void (*kernel)(parameters...), const struct gpu_launch *launch,
                              int last, const struct gpu_grid &grid, cudaStream_t stream,
                              const parameters &...arguments)
{
    for (int argument = MK_SPACE_ARG0; argument <= last; argument++)
        if ((uintptr_t)launch->arguments[argument] % 16)
            return -EINVAL;
    return gpu_launch_grid(kernel, grid, stream, arguments...);
}

template <class op>
static int move_launch(const struct mk_plan *plan, const typename op::plan *own,
                       const struct gpu_launch *launch, cudaStream_t stream)
{
    const struct mk_kernel_choice q = mk_kernel_choice_of(plan);
    return move_dispatch<op>(plan, [=](auto way) {
        typedef decltype(way) by;
        return move_launch_kernel(move_kernel<op, by>, launch,
                                  op::routes ? MK_SPACE_ARG3 : MK_SPACE_ARG1,
                                  {mk_total_blocks(&launch->split), by::threads, way.shared_bytes,
                                   0, op::routes && gpu_comes_early(&q)},
                                  stream, *own, *launch);
    });
}

#define GPU_MOVER_OF(name, does_add, does_route)                                                   \
    struct name##_mover {                                                                          \
        typedef struct name##_plan plan;                                                           \
        static constexpr bool adds = does_add, routes = does_route;                                \
        PTX_FN void run(const plan *p, struct mk_cta *cta)                                         \
        {                                                                                          \
            name##_run(p, cta);                                                                    \
        }                                                                                          \
    };

#define GPU_MOVES(name, does_add, does_route)                                                      \
    GPU_OPERATOR(name)                                                                             \
    GPU_MOVER_OF(name, does_add, does_route)                                                       \
    int name##_prepare(const struct mk_plan *plan, char *error, size_t error_size)                 \
    {                                                                                              \
        return move_prepare<name##_mover>(plan, error, error_size);                                \
    }                                                                                              \
    int name##_launch(const struct mk_plan *plan, const struct gpu_launch *launch,                 \
                      cudaStream_t stream)                                                         \
    {                                                                                              \
        return move_launch<name##_mover>(plan, name##_plan_of(plan), launch, stream);              \
    }

#define GPU_MOVER(name) GPU_MOVES(name, false, false)
#define GPU_ADDER(name) GPU_MOVES(name, true, false)
#define GPU_ROUTER(name, does_add) GPU_MOVES(name, does_add, true)
