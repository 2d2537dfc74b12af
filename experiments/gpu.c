#include "experiments/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Of cuda.h, which a build without CUDA lacks. The numbers are ABI. */
enum { ATTRIBUTE_SMS = 16, ATTRIBUTE_MAJOR = 75, ATTRIBUTE_MINOR = 76, ATTRIBUTE_DMA_BUF = 124 };

struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*get)(int *device, int ordinal);
    int (*name)(char *name, int length, int device);
    int (*memory)(size_t *bytes, int device);
    int (*attribute)(int *value, int attribute, int device);
};

static int load(void *library, struct driver *d)
{
    d->init = (int (*)(unsigned))dlsym(library, "cuInit");
    d->version = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
    d->count = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    d->get = (int (*)(int *, int))dlsym(library, "cuDeviceGet");
    d->name = (int (*)(char *, int, int))dlsym(library, "cuDeviceGetName");
    d->memory = (int (*)(size_t *, int))dlsym(library, "cuDeviceTotalMem_v2");
    d->attribute = (int (*)(int *, int, int))dlsym(library, "cuDeviceGetAttribute");
    return d->init && d->version && d->count && d->get && d->name && d->memory && d->attribute;
}

void gpu_probe(struct gpu_list *out)
{
    struct driver d;
    int count = 0;
    memset(out, 0, sizeof *out);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(out->missing, sizeof out->missing, "libcuda.so.1 is not installed (NVIDIA's driver)");
        return;
    }
    if (!load(library, &d)) {
        snprintf(out->missing, sizeof out->missing, "libcuda.so.1 lacks functions of CUDA 12");
        dlclose(library);
        return;
    }
    d.version(&out->driver);
    int error = d.init(0);
    if (error || d.count(&count) || !count) {
        snprintf(out->missing, sizeof out->missing, "libcuda finds no GPU (cuInit says %d)", error);
        return;
    }
    out->count = (uint32_t)count < GPU_MAX ? (uint32_t)count : GPU_MAX;
    for (uint32_t i = 0; i < out->count; i++) {
        struct gpu_device *g = &out->devices[i];
        int device = 0, sms = 0;
        size_t memory = 0;
        d.get(&device, (int)i);
        d.name(g->name, sizeof g->name, device);
        d.memory(&memory, device);
        d.attribute(&g->major, ATTRIBUTE_MAJOR, device);
        d.attribute(&g->minor, ATTRIBUTE_MINOR, device);
        d.attribute(&sms, ATTRIBUTE_SMS, device);
        d.attribute(&g->dma_buf, ATTRIBUTE_DMA_BUF, device);
        g->sms = (uint32_t)sms;
        g->memory = memory;
    }
}

uint32_t gpu_hoppers(const struct gpu_list *list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++)
        count += list->devices[i].major == 9 && list->devices[i].minor == 0;
    return count;
}
