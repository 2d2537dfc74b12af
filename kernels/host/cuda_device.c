#include "kernels/host/cuda_device.h"

#include "core/comm/gpus.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int cuda_device_refuse(struct mk_comm *comm, const char *what)
{
    snprintf(comm->error, sizeof comm->error, "%s: %s", what,
             cudaGetErrorString(cudaGetLastError()));
    return -ENODEV;
}

/* Ranks of one host have the same name and the same boot; emulated nodes share one. */
struct host_id {
    char name[64], boot[40];
};

static void cuda_device_read_host(struct host_id *id)
{
    memset(id, 0, sizeof *id);
    gethostname(id->name, sizeof id->name - 1);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f)
        return;
    if (!fgets(id->boot, sizeof id->boot, f))
        id->boot[0] = 0;
    fclose(f);
}

/* Ranks before this one on its host. 0 or the bootstrap's error. */
static int cuda_device_count_before(struct mk_comm *comm, uint32_t *before)
{
    struct host_id mine, *all = calloc(mk_world(&comm->topo), sizeof *all);
    if (!all)
        return -ENOMEM;
    cuda_device_read_host(&mine);
    int result = bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine);
    *before = 0;
    for (uint32_t i = 0; i < comm->topo.rank && !result; i++)
        *before += !memcmp(&all[i], &mine, sizeof mine);
    free(all);
    return result;
}

/* What a rank says of its GPU. */
struct device_id {
    cudaUUID_t uuid;
    uint32_t sms, whole; /* that its process sees, that there are */
    uint32_t block_shared;
    int32_t at_once, watched, result; /* result: 0 or -errno of the rank's own part */
};

static int cuda_device_open(struct mk_comm *comm, uint32_t before, struct device_id *mine,
                            struct cuda_device *out)
{
    int devices = 0, sms = 0, mps = 0, watched = 0;
    struct cudaDeviceProp properties;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices)
        return cuda_device_refuse(comm, "no usable GPU");
    const uint32_t wanted = comm->config.device;
    if (wanted > (uint32_t)devices) {
        snprintf(comm->error, sizeof comm->error, "device says GPU %u, and %d of them are visible",
                 wanted - 1, devices);
        return -ENODEV;
    }
    int device = wanted ? (int)wanted - 1 : (int)(before % (uint32_t)devices);
    if (cudaSetDevice(device) != cudaSuccess)
        return cuda_device_refuse(comm, "the GPU cannot be opened");
    out->number = device;
    if (cudaDeviceGetAttribute(&out->major, cudaDevAttrComputeCapabilityMajor, device) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&out->minor, cudaDevAttrComputeCapabilityMinor, device) !=
            cudaSuccess ||
        out->major < 8) {
        snprintf(comm->error, sizeof comm->error,
                 "GPU %d has compute capability %d; the kernels are for 8.0 (Ampere) and up",
                 device, out->major);
        return -ENODEV;
    }
    if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
        cudaGetDeviceProperties(&properties, device) != cudaSuccess)
        return cuda_device_refuse(comm, "the GPU does not say how many SMs it has");
    if (cudaDeviceGetAttribute(&mps, cudaDevAttrMpsEnabled, device) != cudaSuccess)
        cudaGetLastError(); /* an older driver: it was only a question */
    if (cudaDeviceGetAttribute(&watched, cudaDevAttrKernelExecTimeout, device) != cudaSuccess)
        cudaGetLastError(); /* likewise */
    snprintf(comm->device, sizeof comm->device, "%.63s", properties.name);
    mine->uuid = properties.uuid;
    mine->sms = (uint32_t)sms;
    mine->block_shared = (uint32_t)properties.sharedMemPerBlockOptin;
    mine->whole = gpus_whole(mine->sms);
    mine->at_once = mps;
    mine->watched = watched;
    return 0;
}

int cuda_device_choose(struct mk_comm *comm, struct cuda_device *out)
{
    uint32_t world = mk_world(&comm->topo), before;
    struct device_id mine, *all;
    int result = cuda_device_count_before(comm, &before);
    memset(&mine, 0, sizeof mine);
    *out = (struct cuda_device){.turns = 1};
    if (result)
        return result;
    if (!(all = calloc(world, sizeof *all)))
        return -ENOMEM;
    mine.result = cuda_device_open(comm, before, &mine, out);
    result = bootstrap_allgather(comm->bootstrap, &mine, all, sizeof mine);
    if (mine.result)
        result = mine.result;
    for (uint32_t i = 0; i < world && !result; i++)
        if ((result = all[i].result))
            snprintf(comm->error, sizeof comm->error, "rank %u has no GPU to compute on", i);
    out->sms = mine.sms;
    out->block_shared = mine.block_shared;
    for (uint32_t i = 0; i < world && !result; i++) {
        uint32_t ranks = 0;
        for (uint32_t j = 0; j < world; j++)
            ranks += !memcmp(&all[i].uuid, &all[j].uuid, sizeof all[i].uuid);
        uint32_t share = gpus_share(all[i].sms, all[i].whole, ranks, all[i].at_once);
        if (share && (!out->share || share < out->share))
            out->share = share;
        if (all[i].sms < out->sms)
            out->sms = all[i].sms;
        if (all[i].block_shared < out->block_shared)
            out->block_shared = all[i].block_shared;
        if (!all[i].at_once && ranks > out->turns)
            out->turns = ranks;
        out->watched |= all[i].watched;
    }
    free(all);
    return result;
}
