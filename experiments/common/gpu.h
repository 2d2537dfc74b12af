/* The GPUs of this machine, asked of libcuda where there is one. Works in builds without CUDA. */
#pragma once

#include <stdint.h>

#define GPU_MAX 16

struct gpu_device {
    char name[64];
    char bus[32];     /* PCI bus id, "0000:1B:00.0"; "": the driver does not say */
    int major, minor; /* compute capability */
    uint32_t sms;
    uint64_t memory;    /* bytes */
    uint64_t cache;     /* bytes of L2; 0: the driver does not say */
    uint32_t shared;    /* bytes of shared memory that a block may have; 0: likewise */
    double memory_rate; /* bytes per second, by its clock and width; 0: the driver does not say */
    uint64_t clock;     /* Hz, of the SMs at most; 0: the driver does not say */
    uint32_t nvlinks;   /* that are up: see gpu_probe_links */
    int dma_buf;        /* memory can be exported as a DMA-BUF */
    int mps;            /* kernels of several processes run on it at once, under MPS */
    int watched;        /* it has a display: its driver ends launches of several seconds */
};

struct gpu_list {
    int driver;     /* libcuda's CUDA version, 13000 for 13.0; 0: there is none */
    uint32_t count; /* at most GPU_MAX are described */
    struct gpu_device devices[GPU_MAX];
    int peers; /* each reaches every other's memory, atomically (as over NVLink); 1 GPU: yes */
    char missing[128]; /* why there is none */
};

/* Never fails: without a driver or a GPU the count is 0 and `missing` says why. Creates no CUDA
 * context. */
void gpu_probe(struct gpu_list *out);

/* Fills in nvlinks by NVML, which takes a while to start; 0 where there is none. */
void gpu_probe_links(struct gpu_list *list);

/* The most that a device can do, from what the driver says of it and what NVIDIA's H100 whitepaper
 * says of the architecture; 0: not known (not compute capability 9.0). Dense bf16 floating-point
 * operations per second; bytes per second into it over its NVLinks. */
double gpu_peak_flops(const struct gpu_device *g);
double gpu_peak_nvlink(const struct gpu_device *g);

/* Whether it has an engine: wgmma (compute capability 9.0), mma (8.0 and up); how many have. */
static inline int gpu_is_hopper(const struct gpu_device *g)
{
    return g->major == 9 && g->minor == 0;
}
static inline int gpu_has_mma(const struct gpu_device *g)
{
    return g->major >= 8;
}
uint32_t gpu_hoppers(const struct gpu_list *list);
uint32_t gpu_with_mma(const struct gpu_list *list);
