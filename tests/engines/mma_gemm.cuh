/* A product of one matrix on the second engine, from the host: the kernel of a tile shape and its
 * launch. A header: who wants the kernels includes it, in one place. */
#pragma once

#include <cuda_runtime.h>
#include <errno.h>

#include "core/cta/gemm_order.h"
#include "core/plan/plan.h"
#include "kernels/mma/engine.cuh"

/* The tiles of one matrix, dealt out to the CTAs in turn. */
struct mma_matrix_source : mma_source {
    const struct mma_matrix *matrix_a;
    struct gemm_order order;
    uint32_t tile_m, tile_n;

    ENGINE_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        uint32_t index = blockIdx.x + i * gridDim.x, row, column;
        if (index >= order.rows * order.columns)
            return false;
        gemm_order_at(&order, index, &row, &column);
        tile->a_slab = tile->slab = 0;
        tile->row = row * tile_m;
        tile->col = column * tile_n;
        return true;
    }

    ENGINE_MEMBER const struct mma_matrix *a(const struct mk_tile *) const
    {
        return matrix_a;
    }

    ENGINE_MEMBER struct engine_place place(uint32_t, const struct mk_tile *tile,
                                            uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
    }
};

template <class shape>
__global__ void __launch_bounds__(mma_threads<shape, mma_matrix_source>, shape::ctas)
    mma_matrix_kernel(const __grid_constant__ struct mma_matrix a,
                      const __grid_constant__ struct mma_operands op, const struct gemm_order order)
{
    PTX_SHARED_DYNAMIC(memory);
    struct mma_matrix_source source;
    source.matrix_a = &a;
    source.order = order;
    source.tile_m = shape::tile_m;
    source.tile_n = shape::tile_n;
    mma_compute<shape>(&op, &source, memory);
}

static bool mma_gemm_bulk; /* the emulated GPU loads by TMA */

/*
 * C (m x n) = A (m x k) B on the current device, tiles of `shape`; B is k x n or n x k as the shape
 * has it. All bf16, rows follow each other, 16-byte aligned. n, k: multiples of 8. sms: to use; 0:
 * all. Does not wait. 0; -EINVAL: such a product there is not; -EIO: the GPU refuses the launch.
 */
template <class shape>
static int mma_gemm_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                        uint32_t sms, cudaStream_t stream)
{
    const int64_t most = INT32_MAX - 512;
    if (m < 1 || n < 8 || k < 8 || n % 8 || k % 8 || m > most || n > most || k > most ||
        ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16)
        return -EINVAL;
    const uint64_t rows = mk_ceil_div(m, shape::tile_m), columns = mk_ceil_div(n, shape::tile_n);
    int device, all;
    if (rows * columns > INT32_MAX)
        return -EINVAL;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return -EIO;
    if (sms == 0 || sms > (uint32_t)all)
        sms = all;
    const uint32_t blocks = sms * shape::ctas;
    const struct gemm_order order =
        gemm_order_make(rows, columns, shape::tile_m, shape::tile_n, blocks);
    struct mma_operands op = {};
    struct mma_matrix of_a;
    op.bulk = mma_device_bulk(mma_gemm_bulk);
    mma_engine::describe_k<shape>(&op, k * 2, k * 2);
    op.watch = {NULL, 2000000000}; /* nothing here waits for another GPU */
    op.limit_ns = 3000000000;
    if (mma_engine::describe_a<shape>(&of_a, &op, a, k * 2, m) ||
        mma_engine::describe_b<shape>(&op.b, &op, b, n, k * 2) ||
        mma_engine::describe_c<shape>(&op.c, &op, c, n * 2, n, m))
        return -EIO;
    if (cudaFuncSetAttribute(mma_matrix_kernel<shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shape::shared_bytes) != cudaSuccess)
        return -EIO;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(rows * columns < blocks ? (uint32_t)(rows * columns) : blocks);
    config.blockDim = dim3(mma_threads<shape, mma_matrix_source>);
    config.dynamicSmemBytes = shape::shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, mma_matrix_kernel<shape>, of_a, op, order) == cudaSuccess
               ? 0
               : -EIO;
}
