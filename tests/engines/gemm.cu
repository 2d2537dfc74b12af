#include "tests/engines/gemm.h"

#include "kernels/gemm_launch.cuh"

/* The tiles of one matrix, dealt out to the clusters in turn. */
struct matrix_source : gemm_source {
    const CUtensorMap *map_a;
    struct gemm_order order;
    uint32_t first, step, tile_m, tile_n; /* tile_m: the rows of a cluster */

    GEMM_MEMBER bool next(uint32_t i, struct mk_tile *tile) const
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

    GEMM_MEMBER const CUtensorMap *a(const struct mk_tile *) const
    {
        return map_a;
    }

    GEMM_MEMBER struct gemm_place place(uint32_t, const struct mk_tile *tile, uint32_t row) const
    {
        return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
    }
};

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    matrix_kernel(const __grid_constant__ CUtensorMap a,
                  const __grid_constant__ struct gemm_operands op, const struct gemm_order order)
{
    PTX_SHARED_DYNAMIC(memory);
    struct matrix_source source;
    source.map_a = &a;
    source.order = order;
    source.first = blockIdx.x / shape::cluster;
    source.step = gridDim.x / shape::cluster;
    source.tile_m = shape::cluster * shape::tile_m;
    source.tile_n = shape::tile_n;
    gemm_compute<shape>(&op, &source, memory);
}

template <class shape>
static int matrix_describe(CUtensorMap *map_a, struct gemm_operands *op, const void *a,
                           const void *b, const void *c, uint64_t m, uint64_t n, uint64_t k)
{
    const uint64_t a_extent[3] = {k, m, 1}, c_extent[3] = {n, m, 1};
    const uint32_t a_box[2] = {GEMM_TILE_K, gemm_a_rows<shape>(m)}, c_box[2] = {64, 64};
    int err = tensormap_bf16(map_a, a, a_extent, k, m * k, a_box);
    if (!err)
        err = gemm_describe_b<shape>(&op->b, b, n, k);
    if (!err)
        err = tensormap_bf16(&op->c, c, c_extent, n, m * n, c_box);
    op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(k, shape::stage_k);
    op->a_rows = a_box[1];
    op->watch = {NULL, 2000000000}; /* nothing here waits for another GPU */
    op->limit_ns = 3000000000;
    return err;
}

template <class shape>
static int matrix_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                      uint32_t sms, cudaStream_t stream)
{
    CUtensorMap map_a;
    struct gemm_operands op;
    uint32_t tile_rows = shape::tile_m * shape::cluster;
    uint64_t rows = mk_ceil_div(m, tile_rows), columns = mk_ceil_div(n, shape::tile_n);
    if (rows * columns > INT32_MAX)
        return -EINVAL;
    struct gemm_order order =
        gemm_order_make(rows, columns, tile_rows, shape::tile_n, sms / shape::cluster);
    int err = matrix_describe<shape>(&map_a, &op, a, b, c, m, n, k);
    if (!err)
        err = gpu_allow_shared(matrix_kernel<shape>, shape::shared_bytes);
    uint32_t clusters =
        rows * columns < sms / shape::cluster ? (uint32_t)(rows * columns) : sms / shape::cluster;
    return err ? err
               : gemm_launch_kernel(matrix_kernel<shape>, clusters * shape::cluster, shape::cluster,
                                    shape::shared_bytes, stream, map_a, op, order);
}

/* Those of the operators, and one that only this has. */
#define MATRIX_TILES(X) MK_GEMM_TILES(X) MK_FEW_ROWS_TILES(X) X(256, 128, 2, 4, 2)

int gemm_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
             enum gemm_b b_rows, struct gemm_tiling tiling, uint32_t sms, cudaStream_t stream)
{
    if (m < 1 || n < 8 || k < 8 || n % 8 || k % 8 || m > INT32_MAX - 512 || n > INT32_MAX - 512 ||
        k > INT32_MAX - 512)
        return -EINVAL;
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16)
        return -EINVAL;
    int device, all;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return -EIO;
    if (sms == 0 || sms > (uint32_t)all)
        sms = all;
    if (sms < tiling.cluster)
        return -EINVAL;
#define MATRIX_TRY(tm, tn, cl, st, boxes)                                                          \
    if (tiling.tile_m == tm && tiling.tile_n == tn && tiling.cluster == cl)                        \
        return b_rows == GEMM_B_KN                                                                 \
                   ? matrix_run<gemm_shape<tm, tn, cl, 1, st, boxes>>(a, b, c, m, n, k, sms,       \
                                                                      stream)                      \
                   : matrix_run<gemm_shape<tm, tn, cl, 0, st, boxes>>(a, b, c, m, n, k, sms,       \
                                                                      stream);
    MATRIX_TILES(MATRIX_TRY)
#undef MATRIX_TRY
    return -EINVAL;
}
