/* mk_quantize on a GPU (core/mkernel.h has the rule). A thread takes runs of 16 elements: 16-byte
 * loads, and one 16-byte store of codes. It keeps what it has loaded in registers until the amax of
 * its block is known, so that x is read once.
 *
 *   1 x 128, 128 x 128   a thread block takes 32 rows x 128, or 4 times that; 8 lanes a row
 *   a row                a warp, or a thread block where the row is longer than 2048; 4 runs of a
 *                        thread stay in registers, what lies behind them is read again
 *   the tensor           the first step's atomics leave amax where the scale will lie, the second
 *                        quantises by it, and the last puts the scale there */
#include <cuda_runtime.h>
#include <errno.h>

#include "core/base/bf16.h"
#include "kernels/engine/quantize.cuh"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    RUN = MK_QUANTIZE_DEPTH,
    LANES = MK_SCALE_BLOCK / RUN, /* of a row of a block */
    ROWS = THREADS / LANES,
    KEPT = 4, /* runs of a thread: in 128 x 128, and of a row */
    BLOCKS = 1 << 20,
};

PTX_SHARED(float, quantize_amax, WARPS);

/* 16 elements as they lie in memory. */
template <class number> struct quantize_run {
    enum { LOADS = sizeof(number) };
    uint4 raw[LOADS];
};

template <class number>
static __device__ __forceinline__ quantize_run<number> quantize_load(const number *x, bool there)
{
    quantize_run<number> run;
    for (int i = 0; i < run.LOADS; i++)
        run.raw[i] = there ? ((const uint4 *)x)[i] : make_uint4(0, 0, 0, 0);
    return run;
}

static __device__ __forceinline__ float quantize_word(const uint4 &v, int i)
{
    return __uint_as_float(i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w);
}

static __device__ __forceinline__ float quantize_at(const quantize_run<float> &run, int i)
{
    return quantize_word(run.raw[i / 4], i % 4);
}

static __device__ __forceinline__ float quantize_at(const quantize_run<uint16_t> &run, int i)
{
    const uint32_t pair = __float_as_uint(quantize_word(run.raw[i / 8], i % 8 / 2));
    return __uint_as_float(i % 2 ? pair & 0xffff0000 : pair << 16);
}

/* The largest finite |x| of a run. */
template <class number>
static __device__ __forceinline__ float quantize_largest(const quantize_run<number> &run)
{
    float amax = 0;
#pragma unroll
    for (int i = 0; i < RUN; i++)
        amax = quantize_larger(amax, quantize_at(run, i));
    return amax;
}

/* Of the thread block, to all threads; all call. */
static __device__ __forceinline__ float quantize_largest_of_block(float amax)
{
    amax = quantize_largest_of(amax, 32);
    if (threadIdx.x % 32 == 0)
        quantize_amax[threadIdx.x / 32] = amax;
    __syncthreads();
    for (int warp = 0; warp < WARPS; warp++)
        amax = fmaxf(amax, quantize_amax[warp]);
    __syncthreads(); /* the next block's lie there */
    return amax;
}

/* One 16-byte store. */
template <class number>
static __device__ __forceinline__ void quantize_store(const quantize_run<number> &run, float amax,
                                                      uint8_t *q)
{
    const float up = quantize_up(amax);
    uint32_t codes[4];
#pragma unroll
    for (int word = 0; word < 4; word++) {
        uint32_t pair[2];
#pragma unroll
        for (int half = 0; half < 2; half++)
            pair[half] = quantize_pair(quantize_at(run, word * 4 + half * 2),
                                       quantize_at(run, word * 4 + half * 2 + 1), up);
        codes[word] = pair[1] << 16 | pair[0];
    }
    *(uint4 *)q = make_uint4(codes[0], codes[1], codes[2], codes[3]);
}

/* Blocks of 1 x 128, or of 128 x 128; or of 1 x 128 to records. */
enum quantize_form { FORM_ROWS, FORM_SQUARE, FORM_RECORDS };
template <class number, int form>
static __global__ void quantize_blocks_kernel(const number *x, uint64_t rows, uint64_t k,
                                              uint8_t *q, float *scales, uint64_t pitch)
{
    constexpr bool square = form == FORM_SQUARE;
    constexpr int turns = square ? KEPT : 1;
    const uint64_t q_row = form == FORM_RECORDS ? quantize_record(k) : k;
    const uint64_t across = (k + MK_SCALE_BLOCK - 1) / MK_SCALE_BLOCK,
                   down = (rows + ROWS * turns - 1) / (ROWS * turns);
    const uint32_t lane = threadIdx.x % LANES;
    for (uint64_t block = blockIdx.x; block < down * across; block += gridDim.x) {
        const uint64_t row0 = block / across * (ROWS * turns) + threadIdx.x / LANES,
                       column = block % across * MK_SCALE_BLOCK + lane * RUN;
        quantize_run<number> run[turns];
        float amax[turns], whole = 0;
#pragma unroll
        for (int turn = 0; turn < turns; turn++) {
            const uint64_t row = row0 + turn * ROWS;
            run[turn] = quantize_load(x + row * k + column, row < rows && column < k);
        }
#pragma unroll
        for (int turn = 0; turn < turns; turn++) {
            amax[turn] = quantize_largest(run[turn]);
            if (!square)
                amax[turn] = quantize_largest_of(amax[turn], LANES);
            whole = fmaxf(whole, amax[turn]);
        }
        if (square)
            whole = quantize_largest_of_block(whole);
#pragma unroll
        for (int turn = 0; turn < turns; turn++) {
            const uint64_t row = row0 + turn * ROWS;
            if (row < rows && column < k)
                quantize_store(run[turn], square ? whole : amax[turn], q + row * q_row + column);
            if (form == FORM_RECORDS && lane == 0 && row < rows)
                ((float *)(q + row * q_row + k))[block % across] = quantize_scale(amax[turn]);
            if (form == FORM_ROWS && lane == 0 && row < rows)
                scales[block % across * pitch + row] = quantize_scale(amax[turn]);
        }
        if (square && threadIdx.x == 0)
            scales[block / across * pitch + block % across] = quantize_scale(whole);
    }
}

/* A row a group of `width` threads: a warp or the thread block. */
template <class number, int width>
static __global__ void quantize_row_kernel(const number *x, uint64_t rows, uint64_t k, uint8_t *q,
                                           float *scales)
{
    constexpr int groups = THREADS / width;
    const uint64_t at = threadIdx.x % width * RUN, step = width * RUN;
    /* A warp of the last thread block may have no row; all lanes of a warp have the same. */
    for (uint64_t row = (uint64_t)blockIdx.x * groups + threadIdx.x / width; row < rows;
         row += (uint64_t)gridDim.x * groups) {
        const number *from = x + row * k;
        quantize_run<number> run[KEPT];
        float amax = 0;
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            run[i] = quantize_load(from + at + i * step, at + i * step < k);
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            amax = fmaxf(amax, quantize_largest(run[i]));
        for (uint64_t c = at + KEPT * step; c < k; c += step)
            amax = fmaxf(amax, quantize_largest(quantize_load(from + c, true)));
        amax = width == 32 ? quantize_largest_of(amax, 32) : quantize_largest_of_block(amax);
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            if (at + i * step < k)
                quantize_store(run[i], amax, q + row * k + at + i * step);
        for (uint64_t c = at + KEPT * step; c < k; c += step)
            quantize_store(quantize_load(from + c, true), amax, q + row * k + c);
        if (threadIdx.x % width == 0)
            scales[row] = quantize_scale(amax);
    }
}

/* ---- one scale for all ---- */

/* The bits of floats from 0 on are in the order of the floats. */
template <class number>
static __global__ void quantize_amax_kernel(const number *x, uint64_t count, uint32_t *largest)
{
    float amax = 0;
    for (uint64_t i = (blockIdx.x * (uint64_t)THREADS + threadIdx.x) * RUN; i < count;
         i += (uint64_t)gridDim.x * THREADS * RUN)
        amax = fmaxf(amax, quantize_largest(quantize_load(x + i, true)));
    amax = quantize_largest_of_block(amax);
    if (threadIdx.x == 0)
        atomicMax(largest, __float_as_uint(amax));
}

template <class number>
static __global__ void quantize_tensor_kernel(const number *x, uint64_t count, uint8_t *q,
                                              const float *largest)
{
    const float amax = *largest;
    for (uint64_t i = (blockIdx.x * (uint64_t)THREADS + threadIdx.x) * RUN; i < count;
         i += (uint64_t)gridDim.x * THREADS * RUN)
        quantize_store(quantize_load(x + i, true), amax, q + i);
}

static __global__ void quantize_tensor_scale_kernel(float *scale)
{
    *scale = quantize_scale(*scale);
}

/* ---- launches ---- */

template <class... parameters, class... arguments>
static int quantize_launch(void (*kernel)(parameters...), uint64_t blocks, uint32_t threads,
                           void *stream, arguments... of)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks < BLOCKS ? (unsigned)blocks : BLOCKS);
    config.blockDim = dim3(threads);
    config.stream = (cudaStream_t)stream;
    return cudaLaunchKernelEx(&config, kernel, (parameters)of...) == cudaSuccess ? 0 : -EIO;
}

template <class number>
static int quantize_tensor(const struct mk_quantize *of, const number *x, void *stream)
{
    enum { MOST = 4096 }; /* thread blocks, whose atomics meet at one address */
    const uint64_t count = of->rows * of->k, all = (count / RUN + THREADS - 1) / THREADS;
    if (cudaMemsetAsync(of->scales, 0, sizeof *of->scales, (cudaStream_t)stream) != cudaSuccess)
        return -EIO;
    int err = quantize_launch(quantize_amax_kernel<number>, all < MOST ? all : MOST, THREADS,
                              stream, x, count, (uint32_t *)of->scales);
    if (!err)
        err = quantize_launch(quantize_tensor_kernel<number>, all, THREADS, stream, x, count, of->q,
                              of->scales);
    return err ? err : quantize_launch(quantize_tensor_scale_kernel, 1, 1, stream, of->scales);
}

template <class number> static int quantize_of(const struct mk_quantize *of, void *stream)
{
    const number *x = (const number *)of->x;
    const uint64_t across = mk_ceil_div(of->k, MK_SCALE_BLOCK);
    if (of->scaling == MK_SCALE_1X128)
        return quantize_launch(quantize_blocks_kernel<number, FORM_ROWS>,
                               mk_ceil_div(of->rows, ROWS) * across, THREADS, stream, x, of->rows,
                               of->k, of->q, of->scales, of->pitch);
    if (of->scaling == MK_SCALE_128X128)
        return quantize_launch(quantize_blocks_kernel<number, FORM_SQUARE>,
                               mk_ceil_div(of->rows, MK_SCALE_BLOCK) * across, THREADS, stream, x,
                               of->rows, of->k, of->q, of->scales, of->pitch);
    if (of->scaling == MK_SCALE_RECORDS)
        return quantize_launch(quantize_blocks_kernel<number, FORM_RECORDS>,
                               mk_ceil_div(of->rows, ROWS) * across, THREADS, stream, x, of->rows,
                               of->k, of->q, (float *)nullptr, (uint64_t)0);
    if (of->scaling == MK_SCALE_TENSOR)
        return quantize_tensor(of, x, stream);
    return of->k <= 32 * RUN * KEPT
               ? quantize_launch(quantize_row_kernel<number, 32>, mk_ceil_div(of->rows, WARPS),
                                 THREADS, stream, x, of->rows, of->k, of->q, of->scales)
               : quantize_launch(quantize_row_kernel<number, THREADS>, of->rows, THREADS, stream, x,
                                 of->rows, of->k, of->q, of->scales);
}

int gpu_quantize(const struct mk_quantize *of, void *stream)
{
    return of->type == MK_INPUT_FP32 ? quantize_of<float>(of, stream)
                                     : quantize_of<uint16_t>(of, stream);
}
