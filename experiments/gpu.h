/* The GPUs of this machine, asked of libcuda where there is one. Works in builds without CUDA. */
#ifndef MK_GPU_H
#define MK_GPU_H

#include <stdint.h>

#define GPU_MAX 16

struct gpu_device {
    char name[64];
    int major, minor; /* compute capability */
    uint32_t sms;
    uint64_t memory; /* bytes */
    int dma_buf;     /* memory can be exported as a DMA-BUF */
};

struct gpu_list {
    int driver;     /* libcuda's CUDA version, 13000 for 13.0; 0: there is none */
    uint32_t count; /* at most GPU_MAX are described */
    struct gpu_device devices[GPU_MAX];
    char missing[128]; /* why there is none */
};

/* Never fails: without a driver or a GPU the count is 0 and `missing` says why. Creates no CUDA context. */
void gpu_probe(struct gpu_list *out);

/* How many of them can run the kernels of this build (compute capability 9.0). */
uint32_t gpu_hoppers(const struct gpu_list *list);

#endif
