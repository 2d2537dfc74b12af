/* A tile source: the tiles of one matrix, dealt out to the clusters in turn. */
#pragma once

#include "kernels/hopper/gemm_launch.cuh"

struct matrix_source : gemm_source {
    const struct gemm_a *map_a;
    struct gemm_order order;
    uint32_t first, step, tile_m, tile_n; /* tile_m: the rows of a cluster */

    template <class shape>
    ENGINE_MEMBER void begin_at(const struct gemm_a *a, const struct gemm_order *o)
    {
        map_a = a;
        order = *o;
        first = blockIdx.x / shape::cluster;
        step = gridDim.x / shape::cluster;
        tile_m = shape::cluster * shape::tile_m;
        tile_n = shape::tile_n;
    }

    ENGINE_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
    {
        uint32_t index = first + i * step, row, column;
        if (index >= order.rows * order.columns)
            return false;
        gemm_order_at(&order, index, &row, &column);
        tile->a_slab = tile->slab = 0;
        tile->row = row * tile_m;
        tile->col = column * tile_n;
        return true;
    }

    ENGINE_MEMBER const struct gemm_a *a(const struct mk_tile *) const
    {
        return map_a;
    }

    ENGINE_MEMBER struct engine_place place(uint32_t, const struct mk_tile *tile,
                                            uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
    }
};

/* The maps of A, B and C, dense and row-major, and the operands. 0, or what tensormap.h says. */
template <class shape>
static int matrix_describe(struct gemm_a *map_a, struct gemm_operands *op, const void *a,
                           const void *b, const void *c, uint64_t m, uint64_t n, uint64_t k)
{
    const uint64_t row_bytes = k * (shape::half ? 2 : 1);
    int err = gemm_engine::describe_a<shape>(map_a, op, a, row_bytes, m);
    if (!err)
        err = gemm_engine::describe_b<shape>(&op->b, op, b, n, row_bytes);
    if (!err)
        err = gemm_engine::describe_c<shape>(&op->c, op, c, n * 2, n, m);
    gemm_engine::describe_k<shape>(op, row_bytes, row_bytes);
    op->watch = {NULL, 2000000000}; /* nothing here waits for another GPU */
    op->limit_ns = 3000000000;
    return err;
}

/* The order of an m x n matrix's tiles on `sms` SMs. 0 or -EINVAL: too many. */
template <class shape>
static int matrix_order(struct gemm_order *order, int64_t m, int64_t n, uint32_t sms)
{
    uint32_t tile_rows = shape::tile_m * shape::cluster;
    uint64_t rows = mk_ceil_div(m, tile_rows), columns = mk_ceil_div(n, shape::tile_n);
    if (rows * columns > INT32_MAX)
        return -EINVAL;
    *order = gemm_order_make(rows, columns, tile_rows, shape::tile_n, sms / shape::cluster);
    return 0;
}

/* Blocks of the grid: no more than there are tiles. */
template <class shape> static uint32_t matrix_blocks(const struct gemm_order *order, uint32_t sms)
{
    uint32_t tiles = order->rows * order->columns, clusters = sms / shape::cluster;
    return (tiles < clusters ? tiles : clusters) * shape::cluster;
}

/* SMs of the current device to use, of which `wanted` says how many (0: all). 0 or -EIO. */
static inline int matrix_sms(uint32_t wanted, uint32_t *sms)
{
    int device, all;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return -EIO;
    *sms = wanted == 0 || wanted > (uint32_t)all ? (uint32_t)all : wanted;
    return 0;
}
