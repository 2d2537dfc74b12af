/* Whether a kernel may be launched on the current device, and its launch. Host side, C++. */
#pragma once

#include <cuda_runtime.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/engine/launch.h"

/* Raises the limit of dynamic shared memory of a kernel, once per device. 0 or -EIO. */
template <class... parameters>
static int gpu_allow_shared(void (*kernel)(parameters...), uint32_t shared_bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                shared_bytes) == cudaSuccess
               ? 0
               : -EIO;
}

/* Blocks of the kernel that the device runs at once when nothing else runs on it; 0: CUDA does not
 * say. */
template <class... parameters>
static uint32_t gpu_resident_blocks(void (*kernel)(parameters...), uint32_t cluster,
                                    uint32_t threads, uint32_t shared_bytes)
{
    int device = 0, sms = 0, count = 0;
    if (cluster > 1) {
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(cluster);
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = shared_bytes;
        config.attrs = &attribute;
        config.numAttrs = 1;
        return cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess
                   ? (uint32_t)count * cluster
                   : 0;
    }
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, (int)threads, shared_bytes) !=
            cudaSuccess)
        return 0;
    return (uint32_t)count * (uint32_t)sms;
}

/* For <op>_prepare: raises the limit of shared memory and asks whether `blocks` blocks, in clusters
 * of `cluster`, can all run at once: each waits for others of this and of other ranks, so a block
 * that has to wait for an SM may wait for ever. 0, -EIO (ask cudaGetLastError), or -ENOSPC with a
 * sentence. */
template <class... parameters>
static int gpu_admit(void (*kernel)(parameters...), uint32_t blocks, uint32_t cluster,
                     uint32_t threads, uint32_t shared_bytes, char *error, size_t size,
                     uint32_t limit = 0)
{
    if (gpu_allow_shared(kernel, limit ? limit : shared_bytes))
        return -EIO;
    uint32_t most = gpu_resident_blocks(kernel, cluster, threads, shared_bytes);
    if (!most)
        return -EIO;
    if (blocks <= most)
        return 0;
    snprintf(error, size,
             "%u thread blocks in clusters of %u, of which this GPU runs %u at once, and all must: "
             "sms=%u makes a plan that fits",
             blocks, cluster, most, most);
    return -ENOSPC;
}

/* What <op>_prepare returns: `err` of gpu_admit, or -EINVAL where there is no kernel for these
 * tiles; with a sentence. cluster: 0 where no kernel has clusters. */
static inline int gpu_prepared(int err, uint32_t tile_m, uint32_t tile_n, uint32_t cluster,
                               char *error, size_t error_size)
{
    if (err == -EINVAL && cluster)
        snprintf(error, error_size, "no kernel is built for tiles of %u x %u on %u CTAs", tile_m,
                 tile_n, cluster);
    else if (err == -EINVAL)
        snprintf(error, error_size, "no kernel is built for tiles of %u x %u", tile_m, tile_n);
    else if (err == -ENOSPC) /* which has said so */
        err = -EINVAL;
    else if (err)
        snprintf(error, error_size, "the GPU refuses the kernel: %s",
                 cudaGetErrorString(cudaGetLastError()));
    return err;
}

/* The limits of an engine's waits, which are longer than any chain of waits for flags. */
template <class operands> static void gpu_limit_waits(operands *op, const struct gpu_launch *l)
{
    op->watch = {l->report->stuck, l->longest_ns + 2000000000};
    op->limit_ns = l->longest_ns + 3000000000;
}

/* What a kernel is launched with. cluster: 0 or of so many blocks each, which divide `blocks`.
 * early: of a kernel that calls ptx_await_launches before it touches memory, so that its blocks may
 * come while those of the launch before it leave. */
struct gpu_grid {
    uint32_t blocks, threads, shared_bytes, cluster;
    bool early;
};

/* Whether launches of a plan may come early, by a kernel that can: on Hopper, where the plan has
 * all SMs. Else those that it leaves are promised to another plan or rank, and a launch that came
 * early would hold them while the launch before it waits for exactly that one. */
static inline bool gpu_comes_early(const struct mk_kernel_choice *q)
{
    return q->engine == MK_ENGINE_WGMMA && !q->sms_most;
}

/* 0 or -EIO (ask cudaGetLastError). */
template <class... parameters>
static int gpu_launch_grid(void (*kernel)(parameters...), const struct gpu_grid &grid,
                           cudaStream_t stream, const parameters &...arguments)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid.blocks);
    config.blockDim = dim3(grid.threads);
    config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    if (grid.cluster) {
        cudaLaunchAttribute *a = &attributes[config.numAttrs++];
        a->id = cudaLaunchAttributeClusterDimension;
        a->val.clusterDim.x = grid.cluster;
        a->val.clusterDim.y = a->val.clusterDim.z = 1;
    }
    if (grid.early) {
        cudaLaunchAttribute *a = &attributes[config.numAttrs++];
        a->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a->val.programmaticStreamSerializationAllowed = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess ? 0 : -EIO;
}
