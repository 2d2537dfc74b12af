#include <cuda_runtime.h>
#include <errno.h>

#include "core/base/e4m3.h"
#include "core/cta/half.h"
#include "core/base/quantize.h"
#include "experiments/common/check.h"
#include "experiments/common/inputs.h"
#include "experiments/job/gpu_tensors.h"

enum { THREADS = 256, BLOCKS = 1056 };

/* As many blocks as `items` have work for; each goes on with what lies a grid further. */
template <class... parameters, class... arguments>
static int tensors_launch(void (*kernel)(parameters...), uint64_t items, cudaStream_t stream,
                          arguments... of)
{
    uint64_t blocks = (items + THREADS - 1) / THREADS;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks < BLOCKS ? (unsigned)blocks : BLOCKS);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    return !items || cudaLaunchKernelEx(&config, kernel, (parameters)of...) == cudaSuccess ? 0
                                                                                           : -EIO;
}

static __global__ void fill_kernel(uint32_t element, uint16_t *out, uint64_t key, uint64_t first,
                                   uint64_t groups)
{
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < groups;
         i += (uint64_t)gridDim.x * THREADS)
        inputs_group(element, key, first + i, out + 4 * i);
}

int gpu_fill_half(uint32_t element, uint16_t *out, uint64_t key, uint64_t first, uint64_t count,
                  cudaStream_t stream)
{
    return tensors_launch(fill_kernel, count / 4, stream, element, out, key, first / 4, count / 4);
}

int gpu_fill(uint16_t *out, uint64_t key, uint64_t first, uint64_t count, cudaStream_t stream)
{
    return gpu_fill_half(MK_BF16, out, key, first, count, stream);
}

int gpu_poison(uint16_t *out, uint64_t count, cudaStream_t stream)
{
    return cudaMemsetAsync(out, 0xff, count * sizeof *out, stream) == cudaSuccess ? 0 : -EIO;
}

static __global__ void dequantize_kernel(const uint8_t *q, uint64_t rows, uint64_t k, int square,
                                         const float *scales, uint64_t pitch, float *x)
{
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < rows * k;
         i += (uint64_t)gridDim.x * THREADS) {
        const uint64_t row = i / k, block = i % k / MK_SCALE_BLOCK;
        x[i] = mk_e4m3_to_float(q[i]) * (square ? scales[row / MK_SCALE_BLOCK * pitch + block]
                                                : scales[block * pitch + row]);
    }
}

int gpu_dequantize(const uint8_t *q, uint64_t rows, uint64_t k, int square, const float *scales,
                   uint64_t pitch, float *x, cudaStream_t stream)
{
    return tensors_launch(dequantize_kernel, rows * k, stream, q, rows, k, square, scales, pitch,
                          x);
}

static __global__ void compare_kernel(uint32_t element, const uint16_t *c, const float *reference,
                                      uint64_t count, float unit, float absolute,
                                      struct gpu_difference *out)
{
    double difference2 = 0, reference2 = 0;
    unsigned long long wrong = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * THREADS) {
        float r = reference[i], d = mk_half_to_float(element, c[i]) - r;
        difference2 += (double)d * d;
        reference2 += (double)r * r;
        wrong += !(fabsf(d) <= fabsf(r) * unit + absolute);
    }
    for (int lane = 16; lane; lane /= 2) {
        difference2 += __shfl_xor_sync(0xffffffff, difference2, lane);
        reference2 += __shfl_xor_sync(0xffffffff, reference2, lane);
        wrong += __shfl_xor_sync(0xffffffff, wrong, lane);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&out->difference2, difference2);
        atomicAdd(&out->reference2, reference2);
        atomicAdd(&out->wrong, wrong);
    }
}

int gpu_compare(uint32_t element, const uint16_t *c, const float *reference, uint64_t count,
                float absolute, struct gpu_difference *out, cudaStream_t stream)
{
    struct gpu_difference *device = NULL;
    if (cudaMalloc(&device, sizeof *device) != cudaSuccess)
        return -EIO;
    cudaMemsetAsync(device, 0, sizeof *device, stream);
    int err = tensors_launch(compare_kernel, count, stream, element, c, reference, count,
                             (float)check_unit(element), absolute, device);
    if (cudaMemcpyAsync(out, device, sizeof *out, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess)
        err = -EIO;
    cudaFree(device);
    return err;
}

void *gpu_take(struct gpu_memory *memory, const void *from, uint64_t bytes)
{
    void *p = NULL;
    if (!memory->err && cudaMalloc(&p, bytes ? bytes : 4) != cudaSuccess) {
        cudaGetLastError(); /* no later call is to be blamed for it */
        memory->err = -ENOMEM;
    }
    if (memory->err)
        return NULL;
    memory->all[memory->count++] = p;
    if ((from ? cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice)
              : cudaMemsetAsync(p, 0, bytes, 0)) != cudaSuccess)
        memory->err = -EIO;
    return p;
}

void gpu_give_back(struct gpu_memory *memory)
{
    while (memory->count)
        cudaFree(memory->all[--memory->count]);
}
