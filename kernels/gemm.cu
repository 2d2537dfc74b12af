#include "kernels/gemm.h"

#include <errno.h>

#include "core/cta.h"
#include "kernels/ptx.cuh"
#include "kernels/tensormap.h"

/* The tiles of one matrix, dealt out to the clusters in turn. */
struct gemm_source {
    const CUtensorMap *a;
    struct gemm_order order;
    uint32_t first, step, tile_m, tile_n; /* tile_m: the rows of a cluster */
};

PTX_FN bool gemm_source_next(const struct gemm_source *s, uint32_t i, struct mk_tile *tile)
{
    uint32_t index = s->first + i * s->step, row, column;
    if (index >= s->order.rows * s->order.columns)
        return false;
    gemm_order_at(&s->order, index, &row, &column);
    tile->a_slab = tile->slab = 0;
    tile->row = row * s->tile_m;
    tile->col = column * s->tile_n;
    return true;
}

PTX_FN const CUtensorMap *gemm_source_a(const struct gemm_source *s, const struct mk_tile *)
{
    return s->a;
}

PTX_FN void gemm_source_open(struct gemm_source *)
{
}

PTX_FN void gemm_source_beside(struct gemm_source *, uint32_t)
{
}

PTX_FN void gemm_source_close(struct gemm_source *)
{
}

PTX_FN void gemm_source_begin(struct gemm_source *, uint32_t, const struct mk_tile *)
{
}

PTX_FN void gemm_source_before(struct gemm_source *, uint32_t, const struct mk_tile *, uint32_t)
{
}

PTX_FN struct gemm_place gemm_source_place(const struct gemm_source *, uint32_t, const struct mk_tile *tile,
                                           uint32_t row)
{
    return {(int32_t)tile->col, (int32_t)(tile->row + row), (int32_t)tile->slab};
}

PTX_FN void gemm_source_room(const struct gemm_source *, uint32_t, uint32_t)
{
}

PTX_FN void gemm_source_stored(const struct gemm_source *, uint32_t, uint32_t)
{
}

PTX_FN void gemm_source_after(struct gemm_source *, uint32_t, const struct mk_tile *, uint32_t)
{
}

#include "kernels/gemm.cuh"

template <class shape>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
    gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ struct gemm_operands op,
                const struct gemm_order order)
{
    extern __shared__ uint8_t memory[];
    struct gemm_source source = {&a,
                                 order,
                                 blockIdx.x / shape::cluster,
                                 gridDim.x / shape::cluster,
                                 shape::cluster * shape::tile_m,
                                 shape::tile_n};
    gemm_compute<shape>(&op, &source, memory);
}

template <class shape>
static int gemm_launch(const CUtensorMap *a, const struct gemm_operands *op, const struct gemm_order *order,
                       uint32_t sms, cudaStream_t stream)
{
    if (cudaFuncSetAttribute(gemm_kernel<shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shape::shared_bytes) != cudaSuccess)
        return -EIO;
    uint32_t clusters = order->rows * order->columns;
    if (clusters > sms / shape::cluster)
        clusters = sms / shape::cluster;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape::cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(clusters * shape::cluster);
    config.blockDim = dim3(GEMM_THREADS);
    config.dynamicSmemBytes = shape::shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, gemm_kernel<shape>, *a, *op, *order) == cudaSuccess ? 0 : -EIO;
}

template <class shape>
static int gemm_describe(CUtensorMap *map_a, struct gemm_operands *op, const void *a, const void *b,
                         const void *c, uint64_t m, uint64_t n, uint64_t k)
{
    const uint64_t a_extent[3] = {k, m, 1}, c_extent[3] = {n, m, 1};
    const uint64_t nk_extent[3] = {k, n, 1}, kn_extent[3] = {n, k, 1};
    const uint32_t a_box[2] = {GEMM_TILE_K, shape::tile_m}, c_box[2] = {64, 64};
    const uint32_t nk_box[2] = {GEMM_TILE_K, shape::tile_n / shape::cluster}, kn_box[2] = {64, GEMM_TILE_K};
    int err = tensormap_bf16(map_a, a, a_extent, k, m * k, a_box);
    if (!err && shape::b_kn)
        err = tensormap_bf16(&op->b, b, kn_extent, n, n * k, kn_box);
    if (!err && !shape::b_kn)
        err = tensormap_bf16(&op->b, b, nk_extent, k, n * k, nk_box);
    if (!err)
        err = tensormap_bf16(&op->c, c, c_extent, n, m * n, c_box);
    op->stages_of_k = op->stages_of_slice = (uint32_t)mk_ceil_div(k, GEMM_TILE_K);
    op->limit_ns = 2000000000; /* nothing here waits for another GPU */
    return err;
}

template <class shape>
static int gemm_run_shape(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                          uint32_t sms, cudaStream_t stream)
{
    CUtensorMap map_a;
    struct gemm_operands op;
    uint32_t tile_rows = shape::tile_m * shape::cluster;
    uint64_t rows = mk_ceil_div(m, tile_rows), columns = mk_ceil_div(n, shape::tile_n);
    if (rows * columns > INT32_MAX)
        return -EINVAL;
    struct gemm_order order = gemm_order_make(rows, columns, tile_rows, shape::tile_n, sms / shape::cluster);
    int err = gemm_describe<shape>(&map_a, &op, a, b, c, m, n, k);
    return err ? err : gemm_launch<shape>(&map_a, &op, &order, sms, stream);
}

/* tile_m, tile_n, cluster; then the stages and boxes of C that fill an SM's 227 KB. */
#define GEMM_BUILT(X)                                                                                        \
    X(128, 256, 2, 4, 2) X(256, 128, 2, 4, 2) X(128, 128, 2, 6, 2) X(128, 128, 1, 6, 2) X(128, 64, 1, 8, 2)

int gemm_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k, enum gemm_b b_rows,
             struct gemm_tiling tiling, uint32_t sms, cudaStream_t stream)
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
#define GEMM_TRY(tm, tn, cl, st, boxes)                                                                      \
    if (tiling.tile_m == tm && tiling.tile_n == tn && tiling.cluster == cl)                                  \
        return b_rows == GEMM_B_KN                                                                           \
                   ? gemm_run_shape<gemm_shape<tm, tn, cl, 1, st, boxes>>(a, b, c, m, n, k, sms, stream)     \
                   : gemm_run_shape<gemm_shape<tm, tn, cl, 0, st, boxes>>(a, b, c, m, n, k, sms, stream);
    GEMM_BUILT(GEMM_TRY)
#undef GEMM_TRY
    return -EINVAL;
}
