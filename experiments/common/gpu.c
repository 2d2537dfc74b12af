#include "experiments/common/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Of cuda.h, which a build without CUDA lacks. The numbers are ABI. */
enum {
    ATTRIBUTE_CLOCK = 13,
    ATTRIBUTE_SMS = 16,
    ATTRIBUTE_WATCHED = 17, /* CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT */
    ATTRIBUTE_MEMORY_CLOCK = 36,
    ATTRIBUTE_MEMORY_BITS = 37,
    ATTRIBUTE_L2 = 38,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_SHARED = 97, /* CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_DMA_BUF = 124,
    ATTRIBUTE_MPS = 133,
    BETWEEN_ATOMICS = 3 /* CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED */
};

struct driver {
    int (*init)(unsigned flags);
    int (*version)(int *version);
    int (*count)(int *count);
    int (*get)(int *device, int ordinal);
    int (*name)(char *name, int length, int device);
    int (*memory)(size_t *bytes, int device);
    int (*attribute)(int *value, int attribute, int device);
    int (*bus)(char *text, int length, int device);
    int (*reaches)(int *can, int device, int peer);
    int (*between)(int *value, int attribute, int device, int peer);
};

/* Of nvml.h. */
struct nvml {
    int (*init)(void);
    int (*close)(void);
    int (*find)(const char *bus, void **device);
    int (*link)(void *device, unsigned link, unsigned *active);
};

#define NVLINKS_MOST 18          /* of a Hopper GPU */
#define NVLINK_BYTES_PER_S 25e9  /* each, per direction: NVLink 4 */
#define SM_FLOP_PER_CLOCK 4096.0 /* dense bf16, four tensor cores */

static uint32_t gpu_count_nvlinks(const struct nvml *n, const char *bus)
{
    void *device;
    uint32_t count = 0;
    if (n->find(bus, &device))
        return 0;
    for (unsigned i = 0, active; i < NVLINKS_MOST; i++)
        count += !n->link(device, i, &active) && active == 1;
    return count;
}

static void gpu_ask_nvml(struct gpu_list *out, const struct driver *d)
{
    struct nvml n;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    n.init = (int (*)(void))dlsym(library, "nvmlInit_v2");
    n.close = (int (*)(void))dlsym(library, "nvmlShutdown");
    n.find = (int (*)(const char *, void **))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    n.link = (int (*)(void *, unsigned, unsigned *))dlsym(library, "nvmlDeviceGetNvLinkState");
    if (n.init && n.close && n.find && n.link && d->bus && !n.init()) {
        for (uint32_t i = 0; i < out->count; i++) {
            char bus[32];
            int device;
            if (!d->get(&device, (int)i) && !d->bus(bus, sizeof bus, device))
                out->devices[i].nvlinks = gpu_count_nvlinks(&n, bus);
        }
        n.close();
    }
    dlclose(library);
}

double gpu_peak_flops(const struct gpu_device *g)
{
    return gpu_is_hopper(g) ? g->sms * SM_FLOP_PER_CLOCK * (double)g->clock : 0;
}

double gpu_peak_nvlink(const struct gpu_device *g)
{
    return gpu_is_hopper(g) ? g->nvlinks * NVLINK_BYTES_PER_S : 0;
}

static int gpu_load(void *library, struct driver *d)
{
    d->init = (int (*)(unsigned))dlsym(library, "cuInit");
    d->version = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
    d->count = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    d->get = (int (*)(int *, int))dlsym(library, "cuDeviceGet");
    d->name = (int (*)(char *, int, int))dlsym(library, "cuDeviceGetName");
    d->memory = (int (*)(size_t *, int))dlsym(library, "cuDeviceTotalMem_v2");
    d->attribute = (int (*)(int *, int, int))dlsym(library, "cuDeviceGetAttribute");
    d->bus = (int (*)(char *, int, int))dlsym(library, "cuDeviceGetPCIBusId");
    d->reaches = (int (*)(int *, int, int))dlsym(library, "cuDeviceCanAccessPeer");
    d->between = (int (*)(int *, int, int, int))dlsym(library, "cuDeviceGetP2PAttribute");
    return d->init && d->version && d->count && d->get && d->name && d->memory && d->attribute;
}

/* Whether each of the first `count` reaches every other. */
static int gpu_peers(const struct driver *d, uint32_t count)
{
    for (uint32_t i = 0; i < count * count; i++) {
        int own, other, can = 1, atomics = 1;
        if (i / count == i % count || d->get(&own, (int)(i / count)) ||
            d->get(&other, (int)(i % count)))
            continue;
        if (d->reaches && !d->reaches(&can, own, other) && !can)
            return 0;
        if (d->between && !d->between(&atomics, BETWEEN_ATOMICS, own, other) && !atomics)
            return 0;
    }
    return 1;
}

void gpu_probe(struct gpu_list *out)
{
    struct driver d;
    int count = 0;
    memset(out, 0, sizeof *out);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(out->missing, sizeof out->missing,
                 "libcuda.so.1 is not installed (NVIDIA's driver)");
        return;
    }
    if (!gpu_load(library, &d)) {
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
    out->peers = gpu_peers(&d, out->count);
    for (uint32_t i = 0; i < out->count; i++) {
        struct gpu_device *g = &out->devices[i];
        int device = 0, sms = 0, khz = 0, memory_khz = 0, bits = 0, cache = 0, shared = 0;
        size_t memory = 0;
        d.get(&device, (int)i);
        d.name(g->name, sizeof g->name, device);
        if (d.bus && d.bus(g->bus, sizeof g->bus, device))
            g->bus[0] = 0;
        d.memory(&memory, device);
        d.attribute(&g->major, ATTRIBUTE_MAJOR, device);
        d.attribute(&g->minor, ATTRIBUTE_MINOR, device);
        d.attribute(&sms, ATTRIBUTE_SMS, device);
        d.attribute(&g->dma_buf, ATTRIBUTE_DMA_BUF, device);
        d.attribute(&g->mps, ATTRIBUTE_MPS, device);
        d.attribute(&g->watched, ATTRIBUTE_WATCHED, device);
        if (!d.attribute(&khz, ATTRIBUTE_CLOCK, device) && khz > 0)
            g->clock = (uint64_t)khz * 1000;
        /* two transfers a clock */
        if (!d.attribute(&memory_khz, ATTRIBUTE_MEMORY_CLOCK, device) &&
            !d.attribute(&bits, ATTRIBUTE_MEMORY_BITS, device) && memory_khz > 0 && bits > 0)
            g->memory_rate = 2e3 * memory_khz * bits / 8;
        if (!d.attribute(&shared, ATTRIBUTE_SHARED, device) && shared > 0)
            g->shared = (uint32_t)shared;
        if (!d.attribute(&cache, ATTRIBUTE_L2, device) && cache > 0)
            g->cache = (uint64_t)cache;
        g->sms = (uint32_t)sms;
        g->memory = memory;
    }
}

void gpu_probe_links(struct gpu_list *list)
{
    struct driver d;
    void *library = list->count ? dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library && gpu_load(library, &d) && !d.init(0))
        gpu_ask_nvml(list, &d);
    if (library)
        dlclose(library);
}

uint32_t gpu_hoppers(const struct gpu_list *list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++)
        count += (uint32_t)gpu_is_hopper(&list->devices[i]);
    return count;
}

uint32_t gpu_with_mma(const struct gpu_list *list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++)
        count += (uint32_t)gpu_has_mma(&list->devices[i]);
    return count;
}
