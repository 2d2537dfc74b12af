/* The calls of NVIDIA's driver that softnic makes, as a table: filled from libcuda where the
 * program has loaded it, or by a test. Declared here and not taken from <cuda.h>, so that softnic
 * builds where there is no CUDA. CUDA driver API reference, sections "Memory Management", "Stream
 * Management", "Event Management", "Unified Addressing". */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    SOFTNIC_CUDA_SUCCESS = 0,
    SOFTNIC_CUDA_NOT_READY = 600,
    SOFTNIC_CUDA_MEMORY_TYPE = 2,    /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
    SOFTNIC_CUDA_IS_MANAGED = 8,     /* CU_POINTER_ATTRIBUTE_IS_MANAGED */
    SOFTNIC_CUDA_DEVICE_ORDINAL = 9, /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
    SOFTNIC_CUDA_DEVICE_MEMORY = 2,  /* CU_MEMORYTYPE_DEVICE */
    SOFTNIC_CUDA_STREAM_NON_BLOCKING = 1,
    SOFTNIC_CUDA_EVENT_DISABLE_TIMING = 2,
    SOFTNIC_CUDA_IPC_LAZY_PEER_ACCESS = 1,
    SOFTNIC_CUDA_STREAM_ORDER = 1,   /* CU_MEMCPY_SRC_ACCESS_ORDER_STREAM */
    SOFTNIC_CUDA_BESIDE_KERNELS = 1, /* CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE */
};

struct softnic_cuda_handle {
    char bytes[64];
};

/* Which GPU, the same in every process (ordinals are not, and an opened handle's memory has the
 * ordinal of the GPU that opened it). */
struct softnic_cuda_uuid {
    char bytes[16];
};

/* CUmemcpyAttributes. */
struct softnic_cuda_attributes {
    int order; /* of access to the source */
    int source_hint[2], target_hint[2];
    unsigned flags;
};

/* X(field, symbol, arguments): every call returns a CUresult. CUdeviceptr is uint64_t; contexts,
 * streams and events are pointers. */
#define SOFTNIC_CUDA_CALLS(X)                                                                      \
    X(pointer_attribute, cuPointerGetAttribute, (void *value, int attribute, uint64_t pointer))    \
    X(address_range, cuMemGetAddressRange_v2, (uint64_t * base, size_t * size, uint64_t pointer))  \
    X(ipc_get, cuIpcGetMemHandle, (struct softnic_cuda_handle * handle, uint64_t pointer))         \
    X(ipc_open, cuIpcOpenMemHandle_v2,                                                             \
      (uint64_t * pointer, struct softnic_cuda_handle handle, unsigned flags))                     \
    X(ipc_close, cuIpcCloseMemHandle, (uint64_t pointer))                                          \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                                         \
    X(device_uuid, cuDeviceGetUuid, (struct softnic_cuda_uuid * uuid, int device))                 \
    X(primary_retain, cuDevicePrimaryCtxRetain, (void **context, int device))                      \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (int device))                                 \
    X(context_push, cuCtxPushCurrent_v2, (void *context))                                          \
    X(context_pop, cuCtxPopCurrent_v2, (void **context))                                           \
    X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                              \
    X(stream_destroy, cuStreamDestroy_v2, (void *stream))                                          \
    X(event_create, cuEventCreate, (void **event, unsigned flags))                                 \
    X(event_destroy, cuEventDestroy_v2, (void *event))                                             \
    X(event_record, cuEventRecord, (void *event, void *stream))                                    \
    X(event_query, cuEventQuery, (void *event))                                                    \
    X(host_alloc, cuMemAllocHost_v2, (void **memory, size_t bytes))                                \
    X(host_free, cuMemFreeHost, (void *memory))                                                    \
    X(copy_device, cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *stream)) \
    X(copy_to_device, cuMemcpyHtoDAsync_v2,                                                        \
      (uint64_t to, const void *from, size_t bytes, void *stream))                                 \
    X(copy_to_host, cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream))

/* Calls that older drivers (before 12.8) lack: NULL there. */
#define SOFTNIC_CUDA_CALLS_MAYBE(X)                                                                \
    X(copy_batch, cuMemcpyBatchAsync,                                                              \
      (uint64_t * to, uint64_t * from, size_t * bytes, size_t count,                               \
       struct softnic_cuda_attributes * attributes, size_t * first, size_t attribute_count,        \
       size_t * failed, void *stream))

struct softnic_cuda {
#define X(field, symbol, arguments) int(*field) arguments;
    SOFTNIC_CUDA_CALLS(X)
    SOFTNIC_CUDA_CALLS_MAYBE(X)
#undef X
};

/* The table, or NULL where this process has not loaded libcuda (and so has no GPU memory). Never
 * loads it. Any thread. */
const struct softnic_cuda *softnic_cuda(void);

/* For tests: this table takes libcuda's place in this process, NULL ends that. Before devices are
 * opened. */
void softnic_provide_cuda(const struct softnic_cuda *table);
