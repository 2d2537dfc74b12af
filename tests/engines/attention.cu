#include "tests/engines/attention.h"

#include <cuda_runtime.h>
#include <errno.h>

#include "core/attention_tiles.h"
#include "kernels/hopper/attention.cuh"
#include "kernels/hopper/tensormap.h"

/*
 * The order of tiles. Heads are taken in sections whose K and V fit in L2. In a section the heads'
 * tiles come one head after the other, or where causal those with most keys of all its heads first,
 * so that short ones fill the end.
 */
struct attention_order {
    uint32_t tiles, row_tiles, heads, section;
};

struct attention_call_source : attention_source {
    const CUtensorMap *k, *v;
    float *lse_base;
    uint32_t *counter;
    struct attention_order order;
    int32_t queries, all_keys, heads, group; /* group: heads that share K and V */
    int32_t tile_rows, causal, number;

    ATTENTION_MEMBER int32_t take()
    {
        uint32_t id;
        if (number++ == 0)
            id = blockIdx.x;
        else if (!counter)
            id = blockIdx.x + (number - 1) * gridDim.x;
        else {
            /* Every CTA takes until there is none, so the last number of a launch is known. */
            uint32_t taken = atomicAdd(counter, 1);
            if (taken == order.tiles - 1)
                *counter = 0;
            id = taken + gridDim.x;
        }
        return id < order.tiles ? (int32_t)id : (int32_t)ATTENTION_NONE;
    }
    ATTENTION_MEMBER void tile(int32_t id, struct attention_tile *tile) const
    {
        uint32_t section_tiles = order.section * order.row_tiles, section = id / section_tiles;
        uint32_t heads_here = min(order.section, order.heads - section * order.section),
                 at = id % section_tiles;
        uint32_t head, row;
        if (causal) {
            head = at % heads_here;
            row = order.row_tiles - 1 - at / heads_here;
        } else {
            head = at / order.row_tiles;
            row = at % order.row_tiles;
        }
        head += section * order.section;
        tile->slab = head / heads;
        tile->head = head % heads;
        tile->row = row * tile_rows;
        tile->rows = min(tile_rows, queries - tile->row);
    }
    ATTENTION_MEMBER bool keys(const struct attention_tile &tile, uint32_t run,
                               struct attention_keys *keys) const
    {
        keys->k = k;
        keys->v = v;
        keys->head = tile.head / group;
        keys->row = 0;
        keys->slab = tile.slab;
        keys->keys = all_keys;
        keys->diagonal = causal ? tile.row + all_keys - queries : (int32_t)ATTENTION_FULL;
        return run == 0;
    }
    ATTENTION_MEMBER float *lse(const struct attention_tile &tile) const
    {
        return lse_base + ((int64_t)tile.slab * heads + tile.head) * queries + tile.row;
    }
};

template <class shape>
__global__ void __launch_bounds__(shape::threads, 1)
    attention_kernel(const __grid_constant__ struct attention_operands op,
                     const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
                     struct attention_call_source source)
{
    PTX_SHARED_DYNAMIC(memory);
    source.k = &k;
    source.v = &v;
    attention_compute<shape>(&op, &source, memory);
}

template <class shape>
static int attention_describe(const struct attention_call *c, struct attention_operands *op,
                              CUtensorMap *k, CUtensorMap *v)
{
    const uint64_t dim = c->dim, heads = c->heads, kv_heads = c->kv_heads;
    const uint64_t q_extent[4] = {dim, heads, (uint64_t)c->queries, (uint64_t)c->batch};
    const uint64_t k_extent[4] = {dim, kv_heads, (uint64_t)c->keys, (uint64_t)c->batch};
    const uint64_t q_stride[3] = {dim, heads * dim, c->queries * heads * dim};
    const uint64_t k_stride[3] = {dim, kv_heads * dim, c->keys * kv_heads * dim};
    int err = tensormap_heads(&op->q, c->q, q_extent, q_stride, 64);
    if (!err)
        err = tensormap_heads(&op->o, c->o, q_extent, q_stride, 64);
    if (!err)
        err = tensormap_heads(k, c->k, k_extent, k_stride, shape::keys);
    if (!err)
        err = tensormap_heads(v, c->v, k_extent, k_stride, shape::keys);
    op->scale = c->scale;
    op->watch = {NULL, 2000000000}; /* nothing here waits for another GPU */
    op->limit_ns = 3000000000;
    return err;
}

/* How many heads' K and V stay in L2 (50 MB, and Q and O pass through it too); whole groups that
 * share them. */
static uint32_t attention_section(const struct attention_call *c)
{
    uint64_t pair = 4ull * c->keys * c->dim, group = c->heads / c->kv_heads,
             fit = (32u << 20) / (pair ? pair : 1), n = 1;
    while (2 * n <= fit)
        n *= 2;
    n *= group;
    uint64_t heads = c->batch * c->heads;
    return n < heads ? n : heads;
}

template <class shape>
static int attention_launch(const struct attention_call *c, uint32_t sms, cudaStream_t stream)
{
    struct attention_operands op;
    CUtensorMap k, v;
    int err = attention_describe<shape>(c, &op, &k, &v);
    if (err)
        return err;
    uint64_t row_tiles = mk_ceil_div(c->queries, shape::tile_rows), heads = c->batch * c->heads;
    if (row_tiles * heads > INT32_MAX / 2)
        return -EINVAL;
    struct attention_call_source source = {};
    source.lse_base = c->lse;
    source.counter = c->counter;
    source.order = {(uint32_t)(row_tiles * heads), (uint32_t)row_tiles, (uint32_t)heads,
                    attention_section(c)};
    source.queries = c->queries;
    source.all_keys = c->keys;
    source.heads = c->heads;
    source.group = c->heads / c->kv_heads;
    source.tile_rows = shape::tile_rows;
    source.causal = c->causal != 0;
    uint32_t grid = source.order.tiles < sms ? source.order.tiles : sms;
    if (cudaFuncSetAttribute(attention_kernel<shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shape::shared_bytes) != cudaSuccess)
        return -EIO;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid);
    config.blockDim = dim3(shape::threads);
    config.dynamicSmemBytes = shape::shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, attention_kernel<shape>, op, k, v, source) == cudaSuccess
               ? 0
               : -EIO;
}

int attention_run(const struct attention_call *c, uint32_t sms, cudaStream_t stream)
{
    const int64_t limit = INT32_MAX / 4;
    if (c->batch < 1 || c->queries < 1 || c->keys < 1 || c->heads < 1 || c->kv_heads < 1 ||
        c->heads % c->kv_heads || c->batch > limit || c->queries > limit || c->keys > limit ||
        c->heads > limit || c->dim < 8 || c->dim % 8 || c->dim > 256 || c->batch * c->heads > limit)
        return -EINVAL;
    if (((uintptr_t)c->q | (uintptr_t)c->k | (uintptr_t)c->v | (uintptr_t)c->o) % 16 ||
        ((uintptr_t)c->lse | (uintptr_t)c->counter) % 4 || !c->lse)
        return -EINVAL;
    int device, all;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return -EIO;
    if (sms == 0 || sms > (uint32_t)all)
        sms = all;
#define ATTENTION_TRY(d, n, g, st, own)                                                            \
    if (c->dim <= d)                                                                               \
        return attention_launch<attention_shape<d, n, g, st, own>>(c, sms, stream);
    MK_ATTENTION_TILES(ATTENTION_TRY)
#undef ATTENTION_TRY
    return -EINVAL;
}
