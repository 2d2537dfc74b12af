#include "core/plan/attention_tiles.h"
#include "kernels/hopper/attention.cuh"
#include "kernels/hopper/tensormap.h"
#include "tests/engines/attention_call.cuh"

struct attention_call_source : attention_call_tiles<struct attention_keys, CUtensorMap> {
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

template <class shape>
static int attention_launch(const struct attention_call *c, uint32_t sms, cudaStream_t stream)
{
    struct attention_operands op;
    CUtensorMap k, v;
    int err = attention_describe<shape>(c, &op, &k, &v);
    if (err)
        return err;
    struct attention_call_source source = {};
    err = attention_call_make(c, shape::tile_rows, &source);
    if (err)
        return err;
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
    int err = attention_call_check(c, 256, &sms);
    if (err)
        return err;
#define ATTENTION_TRY(d, n, g, st, own)                                                            \
    if (c->dim <= d)                                                                               \
        return attention_launch<attention_shape<d, n, g, st, own>>(c, sms, stream);
    MK_ATTENTION_TILES(ATTENTION_TRY)
#undef ATTENTION_TRY
    return -EINVAL;
}
