/* The kernel of an operator that only moves: every thread block has a role by its number and runs
 * it on one thread, which copies by TMA: it has an SM to itself and moves as much as a block can.
 *
 * kernels/ops/NAME.cu includes this and the schedule, core/roles/NAME.h, and says GPU_MOVER(NAME).
 */
#ifndef MK_KERNELS_MOVE_CUH
#define MK_KERNELS_MOVE_CUH

#include "kernels/admit.h"
#include "kernels/op.h"

#include "kernels/cta.cuh"

#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>

enum { MOVE_THREADS = 32 };

/* `op` has the type of the plan and, on the GPU, void run(const plan *, struct mk_cta *). */
template <class op>
__global__ void __launch_bounds__(MOVE_THREADS, 1)
    move_kernel(const __grid_constant__ typename op::plan plan,
                const __grid_constant__ struct gpu_launch launch)
{
    PTX_SHARED_DYNAMIC(memory);
    struct mk_cta cta;
    if (threadIdx.x != 0)
        return;
    cta_begin(&cta, &launch, blockIdx.x, 1);
    cta_begin_copies(&cta, ptx_shared(memory));
    if (cta.role != MK_INTER_SEND || !cta_begin_commands(&cta))
        op::run(&plan, &cta);
    cta_end(&cta);
    cta_leave(&launch);
}

template <class op>
static int move_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    int err = gpu_admit(move_kernel<op>, mk_total_blocks(&plan->problem.tuning.split), 1,
                        MOVE_THREADS, GPU_COPY_SHARED_BYTES, error, error_size);
    if (err == -EIO)
        snprintf(error, error_size, "the GPU refuses the kernel: %s",
                 cudaGetErrorString(cudaGetLastError()));
    return err == -ENOSPC ? -EINVAL : err;
}

template <class op>
static int move_launch(const typename op::plan *plan, const struct gpu_launch *launch,
                       cudaStream_t stream)
{
    for (int argument = MK_SPACE_ARG0; argument <= MK_SPACE_ARG1; argument++)
        if ((uintptr_t)launch->arguments[argument] % 16)
            return -EINVAL;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(mk_total_blocks(&launch->split));
    config.blockDim = dim3(MOVE_THREADS);
    config.dynamicSmemBytes = GPU_COPY_SHARED_BYTES;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, move_kernel<op>, *plan, *launch) == cudaSuccess ? 0 : -EIO;
}

#define GPU_MOVER(name)                                                                            \
    GPU_OPERATOR(name)                                                                             \
    struct name##_mover {                                                                          \
        typedef struct name##_plan plan;                                                           \
        PTX_FN void run(const plan *p, struct mk_cta *cta)                                         \
        {                                                                                          \
            name##_run(p, cta);                                                                    \
        }                                                                                          \
    };                                                                                             \
    int name##_prepare(const struct mk_plan *plan, char *error, size_t error_size)                 \
    {                                                                                              \
        return move_prepare<name##_mover>(plan, error, error_size);                                \
    }                                                                                              \
    int name##_launch(const struct mk_plan *plan, const struct gpu_launch *launch,                 \
                      cudaStream_t stream)                                                         \
    {                                                                                              \
        return move_launch<name##_mover>(name##_plan_of(plan), launch, stream);                    \
    }

#endif
