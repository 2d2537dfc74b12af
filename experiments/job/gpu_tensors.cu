#include <cuda_runtime.h>
#include <errno.h>

#include "core/bf16.h"
#include "core/e4m3.h"
#include "core/quantize.h"
#include "experiments/common/inputs.h"
#include "experiments/job/gpu_tensors.h"
#include "kernels/ptx.cuh"

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

static __global__ void fill_kernel(uint16_t *out, uint64_t key, uint64_t first, uint64_t groups)
{
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < groups;
         i += (uint64_t)gridDim.x * THREADS)
        inputs_group(key, first + i, out + 4 * i);
}

int gpu_fill(uint16_t *out, uint64_t key, uint64_t first, uint64_t count, cudaStream_t stream)
{
    return tensors_launch(fill_kernel, count / 4, stream, out, key, first / 4, count / 4);
}

int gpu_poison(uint16_t *out, uint64_t count, cudaStream_t stream)
{
    return cudaMemsetAsync(out, 0xff, count * sizeof *out, stream) == cudaSuccess ? 0 : -EIO;
}

/* A block takes QUANTIZE_ROWS rows x 128 columns, half a warp a row and a lane 8 elements of it. */
enum { QUANTIZE_ROWS = THREADS / 16, QUANTIZE_TURNS = MK_SCALE_BLOCK / QUANTIZE_ROWS };
PTX_SHARED(float, quantize_amax, THREADS / 32);

static __device__ float quantize_largest(const uint4 &raw)
{
    const uint16_t *x = (const uint16_t *)&raw;
    float amax = 0;
    for (int i = 0; i < 8; i++) {
        float v = fabsf(mk_bf16_to_float(x[i]));
        if (v < INFINITY && v > amax) /* no NaN is */
            amax = v;
    }
    return amax;
}

/* Blocks of 1 x 128, or of 128 x 128 where `square`. */
static __global__ void quantize_kernel(const uint16_t *x, uint64_t rows, uint64_t k, int square,
                                       uint8_t *q, float *scales, uint64_t pitch)
{
    const uint64_t across = (k + MK_SCALE_BLOCK - 1) / MK_SCALE_BLOCK,
                   blocks = (rows + MK_SCALE_BLOCK - 1) / MK_SCALE_BLOCK * across;
    const uint32_t lane = threadIdx.x % 16;
    for (uint64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const uint64_t row0 = block / across * MK_SCALE_BLOCK + threadIdx.x / 16,
                       column = block % across * MK_SCALE_BLOCK + lane * 8;
        uint4 raw[QUANTIZE_TURNS];
        float amax[QUANTIZE_TURNS], whole = 0;
        for (int turn = 0; turn < QUANTIZE_TURNS; turn++) {
            const uint64_t row = row0 + turn * QUANTIZE_ROWS;
            raw[turn] = row < rows && column < k ? *(const uint4 *)(x + row * k + column)
                                                 : make_uint4(0, 0, 0, 0);
            float most = quantize_largest(raw[turn]);
            for (int to = 8; to; to /= 2)
                most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, to));
            amax[turn] = most;
            whole = fmaxf(whole, most);
        }
        if (square) {
            whole = fmaxf(whole, __shfl_xor_sync(0xffffffff, whole, 16));
            if (threadIdx.x % 32 == 0)
                quantize_amax[threadIdx.x / 32] = whole;
            __syncthreads();
            for (int warp = 0; warp < THREADS / 32; warp++)
                whole = fmaxf(whole, quantize_amax[warp]);
            __syncthreads(); /* the next block's lie there */
        }
        for (int turn = 0; turn < QUANTIZE_TURNS; turn++) {
            const uint64_t row = row0 + turn * QUANTIZE_ROWS;
            const float most = square ? whole : amax[turn];
            const int zeros = most < 0x1p-110f;
            const float up = zeros ? 0 : MK_E4M3_LARGEST / most;
            if (row >= rows)
                break;
            if (q && column < k) {
                const uint16_t *from = (const uint16_t *)&raw[turn];
                uint2 codes;
                uint8_t *to = (uint8_t *)&codes;
                for (int i = 0; i < 8; i++) {
                    float v = mk_bf16_to_float(from[i]);
                    to[i] = fabsf(v) < INFINITY ? mk_e4m3_from_float(v * up) : 0x7f;
                }
                *(uint2 *)(q + row * k + column) = codes;
            }
            const float scale = zeros ? 1 : most / MK_E4M3_LARGEST;
            if (scales && lane == 0 && !square)
                scales[block % across * pitch + row] = scale;
            else if (scales && threadIdx.x == 0 && turn == 0)
                scales[block / across * pitch + block % across] = scale;
        }
    }
}

int gpu_quantize(const uint16_t *x, uint64_t rows, uint64_t k, int square, uint8_t *q,
                 float *scales, uint64_t pitch, cudaStream_t stream)
{
    uint64_t blocks =
        (rows + MK_SCALE_BLOCK - 1) / MK_SCALE_BLOCK * ((k + MK_SCALE_BLOCK - 1) / MK_SCALE_BLOCK);
    return tensors_launch(quantize_kernel, blocks * THREADS, stream, x, rows, k, square, q, scales,
                          pitch);
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

static __global__ void compare_kernel(const uint16_t *c, const float *reference, uint64_t count,
                                      float absolute, struct gpu_difference *out)
{
    double difference2 = 0, reference2 = 0;
    unsigned long long wrong = 0;
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * THREADS) {
        float r = reference[i], d = mk_bf16_to_float(c[i]) - r;
        difference2 += (double)d * d;
        reference2 += (double)r * r;
        wrong += !(fabsf(d) <= fabsf(r) * (1.0f / 256) + absolute);
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

int gpu_compare(const uint16_t *c, const float *reference, uint64_t count, float absolute,
                struct gpu_difference *out, cudaStream_t stream)
{
    struct gpu_difference *device = NULL;
    if (cudaMalloc(&device, sizeof *device) != cudaSuccess)
        return -EIO;
    cudaMemsetAsync(device, 0, sizeof *device, stream);
    int err = tensors_launch(compare_kernel, count, stream, c, reference, count, absolute, device);
    if (cudaMemcpyAsync(out, device, sizeof *out, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess)
        err = -EIO;
    cudaFree(device);
    return err;
}
