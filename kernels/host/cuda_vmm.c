#include "kernels/host/cuda_vmm.h"
#include "core/base.h"
#include "kernels/host/cuda_driver.h"

#include <cuda.h>
#include <errno.h>
#include <stdio.h>

static struct {
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice);
    CUresult (*words)(CUresult, const char **);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*forget)(CUdeviceptr, size_t);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*share)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                      unsigned long long);
    CUresult (*take)(CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType);
} driver;

static int cuda_vmm_find(char *error, size_t size)
{
    const struct {
        const char *name;
        void *function;
    } wanted[] = {{"cuDeviceGetAttribute", &driver.attribute},
                  {"cuGetErrorString", &driver.words},
                  {"cuMemGetAllocationGranularity", &driver.granularity},
                  {"cuMemCreate", &driver.create},
                  {"cuMemRelease", &driver.release},
                  {"cuMemAddressReserve", &driver.reserve},
                  {"cuMemAddressFree", &driver.forget},
                  {"cuMemMap", &driver.map},
                  {"cuMemUnmap", &driver.unmap},
                  {"cuMemSetAccess", &driver.access},
                  {"cuMemExportToShareableHandle", &driver.share},
                  {"cuMemImportFromShareableHandle", &driver.take}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (cuda_driver_find(wanted[i].name, wanted[i].function)) {
            snprintf(error, size, "MKERNEL_HEAP=vmm: the driver has no %s", wanted[i].name);
            return -ENODEV;
        }
    return 0;
}

static int cuda_vmm_refuse(int result, const char *what, CUresult why, char *error, size_t size)
{
    const char *words = NULL;
    if (driver.words(why, &words) || !words)
        words = "an error of the driver that has no name";
    snprintf(error, size, "%s: %s", what, words);
    return result;
}

int cuda_vmm_check(int device, char *error, size_t size)
{
    static const struct {
        CUdevice_attribute attribute;
        const char *what;
    } needs[] = {
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
         "memory that is shared by file descriptors"}};
    int result = cuda_vmm_find(error, size);
    for (size_t i = 0; i < sizeof needs / sizeof *needs && !result; i++) {
        int supported = 0;
        if (driver.attribute(&supported, needs[i].attribute, device) || !supported) {
            snprintf(error, size,
                     "MKERNEL_HEAP=vmm: this GPU has no %s; MKERNEL_HEAP=ipc needs none",
                     needs[i].what);
            result = -ENODEV;
        }
    }
    return result;
}

/* Maps memory at an address of its own, for this device to read and write. */
static CUresult cuda_vmm_place(int device, CUmemGenericAllocationHandle memory, uint64_t bytes,
                               void **base)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = 0;
    CUresult failed = driver.reserve(&at, bytes, 0, 0, 0);
    if (failed)
        return failed;
    failed = driver.map(at, bytes, 0, memory, 0);
    if (failed) {
        driver.forget(at, bytes);
        return failed;
    }
    failed = driver.access(at, bytes, &access, 1);
    if (failed) {
        driver.unmap(at, bytes);
        driver.forget(at, bytes);
        return failed;
    }
    *base = (void *)(uintptr_t)at;
    return CUDA_SUCCESS;
}

int cuda_vmm_make(int device, uint64_t bytes, int on_network, void **base, uint64_t *mapped,
                  int *fd, char *error, size_t size)
{
    CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemGenericAllocationHandle memory;
    int direct = 0;
    size_t unit = 0;
    *base = NULL;
    *fd = -1;
    if (on_network &&
        !driver.attribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                          device))
        what.allocFlags.gpuDirectRDMACapable = direct != 0;
    CUresult failed = driver.granularity(&unit, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (failed || !unit)
        return cuda_vmm_refuse(-EIO, "the GPU does not say in what units it gives memory", failed,
                               error, size);
    *mapped = mk_round_up(bytes, unit);
    failed = driver.create(&memory, *mapped, &what, 0);
    if (failed)
        return cuda_vmm_refuse(-ENOMEM, "no GPU memory for the symmetric heap", failed, error,
                               size);
    failed = driver.share(fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (!failed)
        failed = cuda_vmm_place(device, memory, *mapped, base);
    driver.release(memory); /* what maps it, and its descriptors, keep it */
    return failed
               ? cuda_vmm_refuse(-EIO, "the symmetric heap cannot be shared", failed, error, size)
               : 0;
}

int cuda_vmm_map(int device, int fd, uint64_t mapped, void **base, char *error, size_t size)
{
    CUmemGenericAllocationHandle memory;
    *base = NULL;
    CUresult failed =
        driver.take(&memory, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (!failed) {
        failed = cuda_vmm_place(device, memory, mapped, base);
        driver.release(memory);
    }
    return failed
               ? cuda_vmm_refuse(-EIO,
                                 "a peer's heap cannot be mapped (are all GPUs of the node linked "
                                 "by NVLink? if not, each is a node of its own: --gpus 1)",
                                 failed, error, size)
               : 0;
}

void cuda_vmm_unmap(void *base, uint64_t mapped)
{
    driver.unmap((CUdeviceptr)(uintptr_t)base, mapped);
    driver.forget((CUdeviceptr)(uintptr_t)base, mapped);
}
