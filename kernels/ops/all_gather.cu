/* AllGather: C = A of all ranks in one launch. Every thread block has a role by its number and runs
 * it on one thread, which copies by TMA: it has an SM to itself and moves as much as a block can.
 */
#include "kernels/op.h"

#include "kernels/cta.cuh"

#include "core/roles/all_gather.h"

#include <cuda_runtime.h>
#include <errno.h>
#include <stdio.h>

GPU_OPERATOR(all_gather)

enum { ALL_GATHER_THREADS = 32 };

__global__ void __launch_bounds__(ALL_GATHER_THREADS, 1)
    all_gather_kernel(const __grid_constant__ struct all_gather_plan plan,
                      const __grid_constant__ struct gpu_launch launch)
{
    PTX_SHARED_DYNAMIC(memory);
    struct mk_cta cta;
    if (threadIdx.x != 0)
        return;
    cta_begin(&cta, &launch, blockIdx.x, 1);
    cta_begin_copies(&cta, ptx_shared(memory));
    if (cta.role == MK_INTRA_COMM)
        all_gather_intra_comm(&plan, &cta);
    else if (cta.role == MK_INTER_SEND && !cta_begin_commands(&cta))
        all_gather_inter_send(&plan, &cta);
    else if (cta.role == MK_INTER_REDUCE)
        all_gather_inter_reduce(&plan, &cta);
    cta_end(&cta);
    cta_leave(&launch);
}

int all_gather_prepare(const struct mk_plan *plan, char *error, size_t error_size)
{
    if (cudaFuncSetAttribute(all_gather_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             GPU_COPY_SHARED_BYTES) == cudaSuccess)
        return 0;
    snprintf(error, error_size, "the GPU refuses the kernel: %s",
             cudaGetErrorString(cudaGetLastError()));
    return -EIO;
}

int all_gather_launch(const struct mk_plan *plan, const struct gpu_launch *launch,
                      cudaStream_t stream)
{
    for (int argument = MK_SPACE_ARG0; argument <= MK_SPACE_ARG1; argument++)
        if ((uintptr_t)launch->arguments[argument] % 16)
            return -EINVAL;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(mk_total_blocks(&launch->split));
    config.blockDim = dim3(ALL_GATHER_THREADS);
    config.dynamicSmemBytes = GPU_COPY_SHARED_BYTES;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, all_gather_kernel, *all_gather_plan_of(plan), *launch) ==
                   cudaSuccess
               ? 0
               : -EIO;
}
