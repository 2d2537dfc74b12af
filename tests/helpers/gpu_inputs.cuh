/* What the GPU tests of engines share: errors of CUDA's calls end the test, and random inputs. */
#pragma once

#include "core/base/random.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <errno.h> /* program_invocation_short_name */
#include <stdio.h>
#include <stdlib.h>

#define CUDA(call)                                                                                 \
    do {                                                                                           \
        cudaError_t err_ = (call);                                                                 \
        if (err_ != cudaSuccess) {                                                                 \
            fprintf(stderr, "%s: %s: %s (line %d)\n", program_invocation_short_name, #call,        \
                    cudaGetErrorString(err_), __LINE__);                                           \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

typedef __nv_bfloat16 bf16;

/* Normal random numbers (Box-Muller). */
static __global__ void fill(bf16 *p, uint64_t count, uint64_t seed)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t r = mk_mix(seed * 0x100000001b3ull + i + MK_RANDOM_STEP);
        float u = ((uint32_t)r + 1.0f) * 2.3283064e-10f, v = (uint32_t)(r >> 32) * 2.3283064e-10f;
        p[i] = __float2bfloat16(sqrtf(-2 * logf(fminf(u, 1.0f))) * cospif(2 * v));
    }
}
