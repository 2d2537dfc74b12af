/* Attention on the second engine, from the host: its kernels and the launch. As mma_gemm.cuh a
 * header. */
#pragma once

#include <cuda_runtime.h>

#include "kernels/mma/attention.cuh"
#include "tests/engines/attention_call.cuh"

struct mma_call_source : attention_call_tiles<struct mma_attention_keys, struct mma_heads> {
};

/* A kernel parameter. */
struct mma_call_heads {
    struct mma_heads kv[2];
};

template <class shape>
__global__ void __launch_bounds__(shape::threads, shape::ctas)
    mma_attention_kernel(const __grid_constant__ struct mma_attention_operands op,
                         const __grid_constant__ struct mma_call_heads heads,
                         struct mma_call_source source)
{
    PTX_SHARED_DYNAMIC(memory);
    if (shape::ctas > mma_attention_most_ctas)
        return ptx_fail();
    source.k = &heads.kv[0];
    source.v = &heads.kv[1];
    mma_attention<shape>(&op, &source, memory);
}

static inline struct mma_heads mma_heads_of(const void *p, int64_t rows, int64_t heads, int64_t dim)
{
    const uint64_t head = (uint64_t)dim * 2, row = heads * head;
    return {(char *)p, row, head, rows * row};
}

/* As attention_run (tests/engines/attention.h), with tiles of `shape` and heads of at most its
 * elements. */
template <class shape>
static int mma_attention_run(const struct attention_call *c, uint32_t sms, cudaStream_t stream)
{
    struct mma_call_source source = {};
    int err = attention_call_check(c, shape::dim, &sms);
    if (!err)
        err = attention_call_make(c, shape::tile_rows, &source);
    if (err)
        return err;
    struct mma_attention_operands op;
    op.q = mma_heads_of(c->q, c->queries, c->heads, c->dim);
    op.o = mma_heads_of(c->o, c->queries, c->heads, c->dim);
    op.columns = c->dim;
    op.scale = c->scale;
    if (cudaFuncSetAttribute(mma_attention_kernel<shape>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             shape::shared_bytes) != cudaSuccess)
        return -EIO;
    const uint32_t blocks = sms * shape::ctas;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(source.order.tiles < blocks ? source.order.tiles : blocks);
    config.blockDim = dim3(shape::threads);
    config.dynamicSmemBytes = shape::shared_bytes;
    config.stream = stream;
    const struct mma_call_heads heads = {{mma_heads_of(c->k, c->keys, c->kv_heads, c->dim),
                                          mma_heads_of(c->v, c->keys, c->kv_heads, c->dim)}};
    return cudaLaunchKernelEx(&config, mma_attention_kernel<shape>, op, heads, source) ==
                   cudaSuccess
               ? 0
               : -EIO;
}
