#include <cuda_runtime.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "core/plan/attention_shards.h"
#include "core/base/bf16.h"
#include "experiments/job/gpu_tensors.h"
#include "experiments/ops/check_attention_gpu.h"
#include "kernels/engine/ptx.cuh"

enum { THREADS = 256, CHUNK = 2048, MOST_DIM = 128 };

/* c's tensors in GPU memory. */
struct tensors {
    const uint16_t *q, *o, *k, *v;
    const float *lse;
    uint64_t batch, all, local, heads, kv_heads, dim;
    uint32_t world, rank;
    struct mk_attention problem;
};

/* What a block shares. */
struct row_memory {
    float part[THREADS], q[MOST_DIM], scores[CHUNK], sums[THREADS], tops[THREADS];
};
PTX_SHARED(struct row_memory, row_shared, 1);

/* The same for all threads. */
static __device__ float reduce(float x, bool maximum)
{
    struct row_memory *memory = row_shared;
    float *part = memory->part;
    __syncthreads();
    part[threadIdx.x] = x;
    for (int n = THREADS / 2; n; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n) {
            float other = part[threadIdx.x + n];
            part[threadIdx.x] =
                maximum ? fmaxf(part[threadIdx.x], other) : part[threadIdx.x] + other;
        }
    }
    __syncthreads();
    return part[0];
}

/* Row of a head number start + block * stride, in the last block the last. Keys in chunks, whose
 * scores lie in shared memory; sums are made for the largest score so far. */
static __global__ void check_row(const struct tensors t, uint64_t start, uint64_t stride,
                                 struct check_result *results)
{
    struct row_memory *memory = row_shared;
    float *q = memory->q, *scores = memory->scores, *sums = memory->sums, *tops = memory->tops;
    uint64_t rows = t.batch * t.local * t.heads;
    uint64_t number = blockIdx.x + 1 == gridDim.x ? rows - 1 : start + blockIdx.x * stride;
    uint64_t head = number % t.heads, row = number / t.heads % t.local,
             batch = number / t.heads / t.local;
    uint64_t seen = t.problem.causal ? mk_attention_place(&t.problem, t.world, t.rank, row) + 1
                                     : t.all,
             pitch = t.kv_heads * t.dim;
    const uint64_t at = batch * t.all * pitch + head / (t.heads / t.kv_heads) * t.dim;
    uint32_t column = threadIdx.x % t.dim, lane = threadIdx.x / t.dim, lanes = THREADS / t.dim;
    float most = -INFINITY, weights = 0, sum = 0, size = 0; /* size: of what is added */
    if (threadIdx.x < t.dim)
        q[threadIdx.x] = mk_bf16_to_float(t.q[number * t.dim + threadIdx.x]) / sqrtf((float)t.dim);
    __syncthreads();
    for (uint64_t first = 0; first < seen; first += CHUNK) {
        uint32_t count = seen - first < CHUNK ? (uint32_t)(seen - first) : CHUNK;
        float mine = -INFINITY, total = 0;
        for (uint32_t j = threadIdx.x; j < count; j += THREADS) {
            const uint16_t *k = t.k + at + (first + j) * pitch;
            float score = 0;
            for (uint32_t d = 0; d < t.dim; d++)
                score += q[d] * mk_bf16_to_float(k[d]);
            scores[j] = score;
            mine = fmaxf(mine, score);
        }
        float now = fmaxf(most, reduce(mine, true)), old = expf(most - now);
        for (uint32_t j = threadIdx.x; j < count; j += THREADS) {
            scores[j] = expf(scores[j] - now);
            total += scores[j];
        }
        weights = weights * old + reduce(total, false);
        sum *= old;
        size *= old;
        for (uint32_t j = lane; j < count; j += lanes) {
            float v = mk_bf16_to_float(t.v[at + (first + j) * pitch + column]);
            sum += scores[j] * v;
            size += scores[j] * fabsf(v);
        }
        most = now;
        __syncthreads();
    }
    sums[threadIdx.x] = sum;
    tops[threadIdx.x] = size;
    __syncthreads();
    float share = 0, value = 0, reference = 0;
    if (threadIdx.x < t.dim) {
        size = 0;
        for (uint32_t i = 0; i < lanes; i++) {
            reference += sums[i * t.dim + column];
            size += tops[i * t.dim + column];
        }
        reference /= weights;
        size /= weights;
        value = mk_bf16_to_float(t.o[number * t.dim + column]);
        share =
            value == reference ? 0 : fabsf(value - reference) / ((fabsf(reference) + size) / 256);
    }
    __syncthreads();
    tops[threadIdx.x] = share;
    scores[threadIdx.x] = reference;
    scores[THREADS + threadIdx.x] = value;
    __syncthreads();
    if (threadIdx.x)
        return;
    struct check_result r = {};
    r.frobenius = CHECK_FAST;
    for (uint32_t i = 0; i < t.dim; i++)
        check_add(&r, batch * t.local + row, head * t.dim + i, scores[THREADS + i], scores[i],
                  tops[i]);
    const float lse = most + logf(weights), said = t.lse[(batch * t.heads + head) * t.local + row];
    r.wrong += !(fabsf(said - lse) <= 1e-5f * fmaxf(1, fabsf(lse)));
    results[blockIdx.x] = r;
}

/* K or V of all ranks, made as each makes its own: rows of the sequence where they belong. */
static int make(uint16_t *to, const struct check_attention *c, uint64_t key)
{
    const struct mk_attention *t = &c->problem;
    const uint64_t row = t->kv_heads * t->head_dim;
    int err = 0;
    for (uint32_t rank = 0; rank < c->world; rank++) {
        uint64_t from = rank * mk_attention_most_rows(t, c->world) * t->batch * row;
        for (uint64_t batch = 0; batch < t->batch; batch++)
            for (uint32_t half = 0; half < mk_attention_halves(t) && !err; half++) {
                struct mk_attention_half h = mk_attention_half_of(t, c->world, rank, half);
                if (h.rows)
                    err = gpu_fill(to + (batch * t->sequence + h.begin) * row, key, from,
                                   h.rows * row, 0);
                from += h.rows * row;
            }
    }
    return err;
}

int check_attention_gpu(const struct check_attention *c, const uint64_t keys[2], uint64_t rows,
                        uint64_t start, struct check_result *result)
{
    const struct mk_attention *p = &c->problem;
    uint64_t local = mk_attention_rows(p, c->world, c->rank), all = p->batch * local * p->heads;
    uint64_t count = all < rows ? all : rows, stride = all / count;
    uint64_t kv_bytes = p->batch * p->sequence * p->kv_heads * p->head_dim * 2;
    struct gpu_memory memory = {};
    const uint16_t *q = (const uint16_t *)gpu_take(&memory, c->q, all * p->head_dim * 2);
    const uint16_t *o = (const uint16_t *)gpu_take(&memory, c->o, all * p->head_dim * 2);
    const float *lse = (const float *)gpu_take(&memory, c->lse, all * sizeof *lse);
    uint16_t *kv[2] = {(uint16_t *)gpu_take(&memory, NULL, kv_bytes),
                       (uint16_t *)gpu_take(&memory, NULL, kv_bytes)};
    struct check_result *found =
        (struct check_result *)gpu_take(&memory, NULL, count * sizeof *found);
    struct check_result *host = (struct check_result *)malloc(count * sizeof *host);
    int err = host ? memory.err : -ENOMEM;
    const struct tensors t = {q,           o,           kv[0],   kv[1],    lse,
                              p->batch,    p->sequence, local,   p->heads, p->kv_heads,
                              p->head_dim, c->world,    c->rank, *p};
    for (int part = 0; part < 2 && !err; part++)
        err = make(kv[part], c, keys[part]);
    if (!err) {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3((uint32_t)count);
        config.blockDim = dim3(THREADS);
        err = cudaLaunchKernelEx(&config, check_row, t, start % stride, stride, found) ==
                          cudaSuccess &&
                      cudaMemcpy(host, found, count * sizeof *host, cudaMemcpyDeviceToHost) ==
                          cudaSuccess
                  ? 0
                  : -EIO;
    }
    for (uint64_t i = 0; i < count && !err; i++)
        check_join(result, &host[i]);
    gpu_give_back(&memory);
    free(host);
    return err;
}
