/* The part of CUDA's runtime that kernels' launchers call, on the emulated machine that is current.
 * Launches are queued; whoever owns the machine runs it. */
#pragma once

#include <stdlib.h>
#include <tuple>

#include "cuda.h"
extern "C" {
#include "sim/hopper/hopper.h"
}

typedef void *cudaStream_t;
enum cudaError_t {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorUnknown
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
enum cudaLaunchAttributeID {
    cudaLaunchAttributeClusterDimension,
    cudaLaunchAttributeProgrammaticStreamSerialization
};
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault };

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        struct {
            uint32_t x, y, z;
        } clusterDim;
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

static inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }
static inline const char *cudaGetErrorString(cudaError_t) { return "the emulated machine refuses"; }
static inline cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int)
{
    *value = (int)hopper_sms();
    return cudaSuccess;
}

template <class F>
static inline cudaError_t cudaFuncSetAttribute(F *, cudaFuncAttribute, size_t bytes)
{
    return bytes <= 227 * 1024 ? cudaSuccess : cudaErrorInvalidValue;
}

/* An SM of the machine runs one block at a time; where there are as many spare ones, which stand
 * for the others' second halves, it is told to hold two small ones. Any SMs make a cluster. */
template <class F>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F *, int,
                                                                        size_t dynamic_shared)
{
    *blocks = hopper_spare() >= hopper_sms() && 2 * (dynamic_shared + 2048) <= 228 * 1024 ? 2 : 1;
    return cudaSuccess;
}
template <class F>
static inline cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, F *,
                                                         const cudaLaunchConfig_t *config)
{
    *clusters = (int)(hopper_sms() / config->attrs[0].val.clusterDim.x);
    return cudaSuccess;
}

/* Memory of a rank's that is freed with the machine. */
static inline cudaError_t cudaMalloc(void *to, size_t bytes)
{
    void *p = hopper_memory(hopper_current(), bytes);
    memcpy(to, &p, sizeof p);
    return p ? cudaSuccess : cudaErrorMemoryAllocation;
}
template <class T> static inline cudaError_t cudaMalloc(T **to, size_t bytes)
{
    return cudaMalloc((void *)to, bytes);
}
static inline cudaError_t cudaFree(void *) { return cudaSuccess; }

/* What the host waits for, it runs: all that was launched so far. */
static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return hopper_run(hopper_current()) ? cudaErrorUnknown : cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                                          cudaStream_t stream)
{
    cudaError_t error = cudaStreamSynchronize(stream);
    if (error == cudaSuccess)
        memcpy(to, from, bytes);
    return error;
}
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}
static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    cudaError_t error = cudaStreamSynchronize(stream);
    if (error == cudaSuccess)
        memset(to, value, bytes);
    return error;
}

/* A kernel and the copy of its arguments. */
template <class... P> struct hopper_call {
    void (*kernel)(P...);
    std::tuple<std::remove_const_t<P>...> arguments;
    static void run(void *self)
    {
        hopper_call *call = (hopper_call *)self;
        std::apply(call->kernel, call->arguments);
    }
};

template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             A &&...arguments)
{
    hopper_call<P...> call = {kernel, std::tuple<std::remove_const_t<P>...>(arguments...)};
    uint32_t cluster = 1;
    int early = 0;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = config->attrs[i].val.clusterDim.x;
        else
            early = config->attrs[i].val.programmaticStreamSerializationAllowed;
    const dim3 &g = config->gridDim, &b = config->blockDim;
    if (config->dynamicSmemBytes > 227 * 1024)
        return cudaErrorInvalidValue;
    return hopper_enqueue(hopper_call<P...>::run, &call, sizeof call, {g.x, g.y, g.z},
                          {b.x, b.y, b.z}, (uint32_t)config->dynamicSmemBytes, cluster, early,
                          __PRETTY_FUNCTION__)
               ? cudaErrorInvalidValue
               : cudaSuccess;
}

static inline CUresult hopper_encode_tiled(CUtensorMap *map, CUtensorMapDataType type,
                                           cuuint32_t rank, void *base, const cuuint64_t *sizes,
                                           const cuuint64_t *strides, const cuuint32_t *box,
                                           const cuuint32_t *steps,
                                           CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                           CUtensorMapFloatOOBfill fill)
{
    return hopper_tensormap_encode(map, type, rank, base, sizes, strides, box, steps, interleave,
                                   swizzle, fill)
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

static inline cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function,
                                                           unsigned, int,
                                                           cudaDriverEntryPointQueryResult *found)
{
    *found = cudaDriverEntryPointSuccess;
    *function = strcmp(name, "cuTensorMapEncodeTiled") ? NULL : (void *)hopper_encode_tiled;
    return *function ? cudaSuccess : cudaErrorInvalidValue;
}
