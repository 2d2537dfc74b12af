/* Random inputs on the device, for tests of the library on GPUs. */
#pragma once

#include <cuda_runtime.h>

#include <stdint.h>
#include <stdlib.h>

static uint32_t random_below(uint64_t *state, uint32_t most)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33) % most;
}

/* Device memory with numbers around 0, of bf16 or, wide, fp32; NULL: there is none. */
static void *device_numbers(uint64_t bytes, int wide, uint64_t seed)
{
    void *memory = NULL;
    uint32_t *host = (uint32_t *)malloc(bytes);
    for (uint64_t i = 0; host && i < bytes / 4; i++) {
        uint32_t bits = 0x3e000000u | random_below(&seed, 0x1000000) | random_below(&seed, 2) << 31;
        host[i] = wide ? bits : bits >> 16 | (bits & 0xffff0000u);
    }
    if (!host || cudaMalloc(&memory, bytes) || cudaMemcpy(memory, host, bytes, cudaMemcpyDefault))
        memory = NULL;
    free(host);
    return memory;
}
