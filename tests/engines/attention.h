/* Attention on one GPU: the engine of kernels/hopper/attention.cuh alone, over the heads of one set
 * of tensors. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All dense: q, o [batch][queries][heads][dim], k, v [batch][keys][kv_heads][dim] of bf16, lse
 * [batch][heads][queries] of fp32: the natural logarithm of the sum of exp(scale q k). */
struct attention_call {
    const void *q, *k, *v;
    void *o;
    float *lse;
    int64_t batch, queries, keys, heads, kv_heads, dim;
    int causal; /* the last query sees all keys, each before it one less */
    float scale;
    uint32_t *counter; /* 4 bytes of device memory, 0 before the first launch; each launch leaves it
                          0. Not shared by launches that may run at once. NULL: tiles are dealt out
                          in turn */
};

/*
 * O and lse on the current device, with fp32 statistics and sums. Pointers: device memory of the
 * caller, 16-byte aligned (lse, counter: 4). dim: a multiple of 8, at most 256. heads: a multiple
 * of kv_heads. A query that sees no key gets zeros and -infinity. sms: SMs to use at most; 0 means
 * all. Any thread; does not block, allocates nothing, can be captured in a graph. Returns 0,
 * -EINVAL (pointers or shape), -ENOSYS (no driver with tensor maps), -EIO (the launch failed; ask
 * cudaGetLastError).
 */
int attention_run(const struct attention_call *call, uint32_t sms, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
