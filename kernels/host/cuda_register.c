#include "kernels/host/cuda_register.h"
#include "kernels/host/cuda_driver.h"

#include "backends/memory.h"
#include "core/comm/gpus.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { WAYS = 2, UNDER_WAY = 512 /* copies of one way */ };

/* Each way has a stream: one direction does not wait for the other, and a stream's order is the
 * order that is promised. Ticket: number of the copy * 2 + way. */
static struct {
    int open, device;
    cudaStream_t streams[WAYS];
    cudaEvent_t events[WAYS][UNDER_WAY]; /* by number modulo UNDER_WAY */
    uint64_t started[WAYS], ended[WAYS];
} state;

/* The export covers whole pages of the host; the registration begins inside it. CUDA driver API,
 * cuMemGetHandleForAddressRange. */
static int cuda_register_export_dmabuf(void *base, uint64_t bytes, int *fd, uint64_t *offset)
{
    CUresult (*get)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
    int supported = 0;
    if (cuda_driver_find("cuMemGetHandleForAddressRange", &get) ||
        cuda_driver_find("cuDeviceGetAttribute", &attribute) ||
        cudaSetDevice(state.device) != cudaSuccess ||
        attribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, state.device) || !supported)
        return -EOPNOTSUPP;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)base & ~(page - 1);
    uint64_t end = ((uintptr_t)base + bytes + page - 1) & ~(page - 1);
    *fd = -1;
    if (get(fd, from, end - from, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) || *fd < 0)
        return -EOPNOTSUPP;
    *offset = (uintptr_t)base - from;
    return 0;
}

/* OWNER: the GPU whose memory it is sees a NIC's writes in the order in which they came, so its own
 * threads may poll the flag and then read the data; that is all that the kernels do with what a NIC
 * has written. (ALL_DEVICES would also allow other GPUs to read it over NVLink.) NONE: data written
 * before the flag may still be invisible when the flag is not, until the host calls
 * cuFlushGPUDirectRDMAWrites; a kernel that polls has no such moment. */
static int cuda_register_writes_in_order(void)
{
    int order = cudaGPUDirectRDMAWritesOrderingNone;
    char why[64];
    if (!gpus_peers_wanted(why, sizeof why)) /* as with a GeForce: no NIC writes there at all */
        return 0;
    if (cudaDeviceGetAttribute(&order, cudaDevAttrGPUDirectRDMAWritesOrdering, state.device) !=
        cudaSuccess)
        return 0;
    return order >= cudaGPUDirectRDMAWritesOrderingOwner;
}

static int cuda_register_bus_id(char *out, size_t size)
{
    return cudaDeviceGetPCIBusId(out, (int)size, state.device) == cudaSuccess ? 0 : -ENODEV;
}

static void *cuda_register_pinned(uint64_t bytes)
{
    void *memory = NULL;
    if (cudaSetDevice(state.device) != cudaSuccess ||
        cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) != cudaSuccess)
        return NULL;
    memset(memory, 0, bytes);
    return memory;
}

static void cuda_register_unpin(void *memory)
{
    cudaFreeHost(memory);
}

/* 1: everything of this way up to `number` has ended. */
static int ended(int way, uint64_t number)
{
    while (state.ended[way] <= number) {
        cudaError_t status = cudaEventQuery(state.events[way][state.ended[way] % UNDER_WAY]);
        if (status == cudaErrorNotReady)
            return 0;
        if (status != cudaSuccess)
            return -EIO;
        state.ended[way]++;
    }
    return 1;
}

static int64_t cuda_register_copy(void *to, const void *from, uint64_t bytes, enum memory_way way)
{
    static const enum cudaMemcpyKind kinds[WAYS] = {cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice};
    uint64_t number = state.started[way];
    if (number - state.ended[way] == UNDER_WAY) {
        int room = ended((int)way, state.ended[way]);
        if (room <= 0)
            return room ? room : -EAGAIN;
    }
    if (cudaSetDevice(state.device) != cudaSuccess ||
        cudaMemcpyAsync(to, from, bytes, kinds[way], state.streams[way]) != cudaSuccess ||
        cudaEventRecord(state.events[way][number % UNDER_WAY], state.streams[way]) != cudaSuccess)
        return -EIO;
    state.started[way]++;
    return (int64_t)(number * WAYS + way);
}

static int cuda_register_copied(int64_t ticket)
{
    return ended((int)(ticket % WAYS), (uint64_t)ticket / WAYS);
}

static const struct mr_memory_ops ops = {.export_dmabuf = cuda_register_export_dmabuf,
                                         .writes_in_order = cuda_register_writes_in_order,
                                         .bus_id = cuda_register_bus_id,
                                         .pinned = cuda_register_pinned,
                                         .unpin = cuda_register_unpin,
                                         .copy = cuda_register_copy,
                                         .copied = cuda_register_copied};

int cuda_register_open(void)
{
    if (state.open)
        return -EBUSY;
    memset(&state, 0, sizeof state);
    state.open = 1;
    int failed = cudaGetDevice(&state.device) != cudaSuccess;
    for (int way = 0; way < WAYS && !failed; way++) {
        failed =
            cudaStreamCreateWithFlags(&state.streams[way], cudaStreamNonBlocking) != cudaSuccess;
        for (int i = 0; i < UNDER_WAY && !failed; i++)
            failed = cudaEventCreateWithFlags(&state.events[way][i], cudaEventDisableTiming) !=
                     cudaSuccess;
    }
    if (failed) {
        cuda_register_close();
        return -EIO;
    }
    mr_provide(MK_MEMORY_CUDA, &ops);
    return 0;
}

void cuda_register_close(void)
{
    if (!state.open)
        return;
    mr_provide(MK_MEMORY_CUDA, NULL);
    for (int way = 0; way < WAYS; way++) {
        for (int i = 0; i < UNDER_WAY && state.events[way][i]; i++)
            cudaEventDestroy(state.events[way][i]);
        if (state.streams[way])
            cudaStreamDestroy(state.streams[way]);
    }
    state.open = 0;
}
