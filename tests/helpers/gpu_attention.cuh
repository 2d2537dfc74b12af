/* What the programs that run an attention engine on a GPU share: tensors, an fp32 reference and the
 * comparison with it, the shapes that are checked, times beside PyTorch's. */
#pragma once

#include "tests/engines/attention.h"
#include "tests/helpers/gpu_inputs.cuh"
#include "tests/helpers/gpu_torch.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct shape {
    int64_t batch, heads, kv_heads, queries, keys, dim;
};

/* ---- Reference, comparison
 * ------------------------------------------------------------------------------ */

static __device__ float block_reduce(float x, bool maximum)
{
    __shared__ float part[256];
    __syncthreads();
    part[threadIdx.x] = x;
    for (int n = 128; n; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n)
            part[threadIdx.x] = maximum ? fmaxf(part[threadIdx.x], part[threadIdx.x + n])
                                        : part[threadIdx.x] + part[threadIdx.x + n];
    }
    __syncthreads();
    return part[0];
}

struct difference {
    double error, norm;       /* sums of squares over O */
    float lse;                /* worst, relative to what is larger: it or 1 */
    unsigned long long wrong; /* rows far from the reference, or not numbers */
};

/*
 * A row of O by 256 threads, the textbook way: all scores in memory, maximum, weights, sums, in
 * fp32; and how far the engine's row is from it. Block i takes row (i * stride) of all
 * [batch][queries][heads].
 */
static __global__ void compare(struct shape s, int causal, float scale, const bf16 *q,
                               const bf16 *k, const bf16 *v, const bf16 *o, const float *lse,
                               uint64_t stride, struct difference *out)
{
    extern __shared__ float scores[];
    uint64_t row = blockIdx.x * stride;
    int64_t head = row % s.heads, query = row / s.heads % s.queries,
            batch = row / s.heads / s.queries;
    int64_t kv_head = head / (s.heads / s.kv_heads),
            seen = causal ? query + 1 + s.keys - s.queries : s.keys;
    if (seen < 0)
        seen = 0;
    float most = -INFINITY, sum = 0;
    for (int64_t j = threadIdx.x; j < seen; j += blockDim.x) {
        float x = 0;
        for (int64_t d = 0; d < s.dim; d++)
            x += __bfloat162float(q[row * s.dim + d]) *
                 __bfloat162float(k[((batch * s.keys + j) * s.kv_heads + kv_head) * s.dim + d]);
        scores[j] = x * scale;
        most = fmaxf(most, scores[j]);
    }
    most = block_reduce(most, true);
    for (int64_t j = threadIdx.x; j < seen; j += blockDim.x) {
        scores[j] = expf(scores[j] - most);
        sum += scores[j];
    }
    sum = block_reduce(sum, false);
    float error = 0, norm = 0;
    if (threadIdx.x < s.dim) {
        float x = 0, y;
        for (int64_t j = 0; j < seen; j++)
            x += scores[j] *
                 __bfloat162float(
                     v[((batch * s.keys + j) * s.kv_heads + kv_head) * s.dim + threadIdx.x]);
        x = seen ? x / sum : 0;
        y = __bfloat162float(o[row * s.dim + threadIdx.x]);
        error = (x - y) * (x - y);
        norm = x * x;
    }
    error = block_reduce(error, false);
    norm = block_reduce(norm, false);
    if (threadIdx.x)
        return;
    float want = seen ? most + logf(sum) : -INFINITY,
          got = lse[(batch * s.heads + head) * s.queries + query];
    float far = want == got ? 0 : fabsf(want - got) / fmaxf(1, fabsf(want));
    atomicAdd(&out->error, (double)error);
    atomicAdd(&out->norm, (double)norm);
    if (!(error <= 4e-4f * norm) || !(far <= 1e-5f))
        atomicAdd(&out->wrong, 1ull);
    atomicMax((int *)&out->lse,
              __float_as_int(far)); /* not negative: their order is that of integers */
}

static __global__ void count_changed(const uint16_t *p, uint64_t count, unsigned long long *changed)
{
    for (uint64_t i = threadIdx.x; i < count; i += blockDim.x)
        if (p[i] != 0xffff)
            atomicAdd(changed, 1ull);
}

static uint64_t fresh_seed(void)
{
    static uint64_t n;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec + n++;
}

static bf16 *device_random(uint64_t count)
{
    bf16 *p;
    CUDA(cudaMalloc(&p, count * 2));
    fill<<<1024, 256>>>(p, count, fresh_seed());
    CUDA(cudaGetLastError());
    return p;
}

/* Tensors of a shape. O and lse have guards on both sides, and like them are poisoned. */
enum { GUARD = 65536 };
struct tensors {
    bf16 *q, *k, *v, *o;
    float *lse;
    uint32_t *counter;
    uint64_t o_count, lse_count;
};

static void poison(const struct tensors *t)
{
    CUDA(cudaMemset(t->o - GUARD, 0xff, (t->o_count + 2 * GUARD) * 2));
    CUDA(cudaMemset(t->lse - GUARD, 0xff, (t->lse_count + 2 * GUARD) * 4));
}

static struct tensors make_tensors(const struct shape *s)
{
    struct tensors t;
    t.lse_count = s->batch * s->heads * s->queries;
    t.o_count = t.lse_count * s->dim;
    t.q = device_random(t.o_count);
    t.k = device_random(s->batch * s->kv_heads * s->keys * s->dim);
    t.v = device_random(s->batch * s->kv_heads * s->keys * s->dim);
    CUDA(cudaMalloc(&t.o, (t.o_count + 2 * GUARD) * 2));
    CUDA(cudaMalloc(&t.lse, (t.lse_count + 2 * GUARD) * 4));
    CUDA(cudaMalloc(&t.counter, 4));
    CUDA(cudaMemset(t.counter, 0, 4));
    t.o += GUARD;
    t.lse += GUARD;
    return t;
}

static void free_tensors(struct tensors *t)
{
    CUDA(cudaFree(t->q));
    CUDA(cudaFree(t->k));
    CUDA(cudaFree(t->v));
    CUDA(cudaFree(t->o - GUARD));
    CUDA(cudaFree(t->lse - GUARD));
    CUDA(cudaFree(t->counter));
}

static struct attention_call make_call(const struct shape *s, const struct tensors *t, int causal,
                                       float scale, int counted)
{
    return {t->q,    t->k,     t->v,        t->o,   t->lse, s->batch, s->queries,
            s->keys, s->heads, s->kv_heads, s->dim, causal, scale,    counted ? t->counter : NULL};
}

/* Of at most `rows` rows. */
static struct difference check_rows(const struct shape *s, const struct tensors *t, int causal,
                                    float scale, uint64_t rows)
{
    struct difference *out, host;
    uint64_t stride = t->lse_count > rows ? (t->lse_count / rows) | 1 : 1;
    CUDA(cudaMalloc(&out, sizeof *out));
    CUDA(cudaMemset(out, 0, sizeof *out));
    CUDA(cudaFuncSetAttribute(compare, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000));
    compare<<<(t->lse_count + stride - 1) / stride, 256, s->keys * 4>>>(
        *s, causal, scale, t->q, t->k, t->v, t->o, t->lse, stride, out);
    CUDA(cudaGetLastError());
    CUDA(cudaMemcpy(&host, out, sizeof host, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(out));
    return host;
}

static unsigned long long count_stray(const struct tensors *t)
{
    unsigned long long *changed, stray;
    CUDA(cudaMalloc(&changed, 8));
    CUDA(cudaMemset(changed, 0, 8));
    count_changed<<<1, 1024>>>((uint16_t *)(t->o - GUARD), GUARD, changed);
    count_changed<<<1, 1024>>>((uint16_t *)(t->o + t->o_count), GUARD, changed);
    count_changed<<<1, 1024>>>((uint16_t *)(t->lse - GUARD), 2 * GUARD, changed);
    count_changed<<<1, 1024>>>((uint16_t *)(t->lse + t->lse_count), 2 * GUARD, changed);
    CUDA(cudaMemcpy(&stray, changed, 8, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(changed));
    return stray;
}

/* ---- check
 * ------------------------------------------------------------------------------------------------------
 */

/* attention_run, or what computes the same. */
typedef int attention_runner(const struct attention_call *call, uint32_t sms, cudaStream_t stream);

static int check_one(const struct shape *s, int causal, float scale, attention_runner *run,
                     const char *name)
{
    struct tensors t = make_tensors(s);
    int failed = 0;
    for (int counted = 0; counted < 2; counted++) {
        struct attention_call call = make_call(s, &t, causal, scale, counted);
        poison(&t);
        /* Twice: what the first launch leaves behind must do. */
        int err = run(&call, 0, 0);
        if (!err)
            err = run(&call, counted ? 7 : 0, 0);
        CUDA(cudaDeviceSynchronize());
        struct difference d = check_rows(s, &t, causal, scale, 20000);
        unsigned long long stray = count_stray(&t);
        double relative = d.norm > 0 ? sqrt(d.error / d.norm) : sqrt(d.error);
        if (err || d.wrong || stray || !(relative <= 5e-3)) {
            printf("WRONG %s %lld,%lld:%lld,%lld,%lld,%lld%s%s: returned %d, relative error %.2e, "
                   "lse %.1e, %llu rows wrong, %llu stray\n",
                   name, (long long)s->batch, (long long)s->heads, (long long)s->kv_heads,
                   (long long)s->queries, (long long)s->keys, (long long)s->dim,
                   causal ? " causal" : "", counted ? " counted" : "", err, relative, d.lse,
                   d.wrong, stray);
            failed = 1;
        }
    }
    free_tensors(&t);
    return failed;
}

/* Heads of at most `dim` elements. */
static int check_shapes(int64_t dim, attention_runner *run, const char *name)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 64},         {1, 1, 1, 1, 1, 128},        {1, 2, 2, 128, 128, 128},
        {2, 3, 1, 65, 129, 64},      {1, 4, 2, 130, 200, 128},    {3, 6, 3, 777, 777, 64},
        {2, 8, 2, 1000, 1000, 128},  {1, 5, 5, 3000, 513, 128},   {1, 2, 1, 300, 2100, 64},
        {1, 3, 3, 511, 511, 72},     {2, 2, 2, 190, 383, 40},     {1, 4, 1, 640, 640, 96},
        {1, 2, 2, 333, 700, 192},    {2, 4, 2, 400, 260, 256},    {1, 3, 1, 129, 1025, 200},
        {1, 32, 4, 2048, 2048, 128}, {1, 16, 16, 4097, 4097, 64},
    };
    int failed = 0, cases = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int causal = 0; causal < 2 && shapes[i].dim <= dim; causal++) {
            cases += !causal;
            failed |= check_one(&shapes[i], causal, 1 / sqrtf((float)shapes[i].dim), run, name);
            /* one weight of a row is nearly all */
            failed |= check_one(&shapes[i], causal, 1.0f, run, name);
        }
    const struct shape small = {1, 2, 1, 64, 64, 64}; /* what it must refuse */
    struct tensors t = make_tensors(&small);
    struct attention_call good = make_call(&small, &t, 0, 1, 0), bad;
    failed |= run(&good, 0, 0) != 0;
#define REFUSED(change) (bad = good, change, run(&bad, 0, 0) == 0)
    failed |= REFUSED(bad.dim = 60) || REFUSED(bad.dim = dim + 8) || REFUSED(bad.kv_heads = 3) ||
              REFUSED(bad.keys = 0) || REFUSED(bad.queries = 0) || REFUSED(bad.lse = NULL) ||
              REFUSED(bad.q = t.q + 1);
#undef REFUSED
    free_tensors(&t);
    printf("check: %s, %d shapes with heads of at most %lld, full and causal, two scales: %s\n",
           name, cases, (long long)dim, failed ? "WRONG" : "right");
    return failed;
}

/* ---- bench
 * ------------------------------------------------------------------------------------------------------
 */

static double torch_time(const struct shape *s, int causal, int launches)
{
    double sum = 0, ms;
    if (!torch_child.to)
        return NAN;
    fprintf(torch_child.to, "%lld %lld %lld %lld %lld %lld %d %d\n", (long long)s->batch,
            (long long)s->heads, (long long)s->kv_heads, (long long)s->queries, (long long)s->keys,
            (long long)s->dim, causal, launches);
    for (int i = 0; i < launches; i++, sum += ms)
        if (fscanf(torch_child.from, "%lf", &ms) != 1)
            return NAN;
    return sum / launches;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

enum { ROUNDS = 9 };

static double run_time(attention_runner *run, const struct attention_call calls[2], int launches)
{
    static cudaEvent_t start, stop;
    float ms;
    if (!start) {
        CUDA(cudaEventCreate(&start));
        CUDA(cudaEventCreate(&stop));
    }
    run(&calls[0], 0, 0);
    CUDA(cudaEventRecord(start));
    for (int i = 0; i < launches; i++)
        run(&calls[i % 2], 0, 0);
    CUDA(cudaEventRecord(stop));
    CUDA(cudaEventSynchronize(stop));
    CUDA(cudaEventElapsedTime(&ms, start, stop));
    return ms / launches;
}

/* An engine in a bench, and the sum of logarithms and the least of its ratios. */
struct contestant {
    const char *name;
    attention_runner *run;
    int64_t above, dim; /* elements of a head: more than `above`, `dim` at most */
    double product, least;
    int count;
};

/* Times PyTorch, whose kernel is `theirs`, and the engines that take the shape's heads, in turn. 0,
 * or 1: a result was wrong. */
static int bench_shape(const struct shape *s, int causal, double block_ms, double rest_ms,
                       const char *theirs, struct contestant *all, int count)
{
    enum { MOST = 16 };
    struct tensors t[2] = {make_tensors(s), make_tensors(s)};
    const float scale = 1 / sqrtf((float)s->dim);
    struct attention_call calls[2] = {make_call(s, &t[0], causal, scale, 1),
                                      make_call(s, &t[1], causal, scale, 1)};
    struct contestant *in[MOST + 1] = {NULL}; /* 0: PyTorch */
    double ms[MOST + 1][ROUNDS], errors[MOST + 1], lse[MOST + 1];
    const double flop =
        4.0 * s->batch * s->heads * s->queries * (double)s->keys * s->dim * (causal ? 0.5 : 1);
    const int launches = (int)ceil(block_ms / (flop / 600e12 * 1e3)), middle = ROUNDS / 2;
    int contestants = 1, wrong = 0;
    for (int i = 0; i < count && contestants <= MOST; i++) {
        if (s->dim <= all[i].above || s->dim > all[i].dim)
            continue;
        poison(&t[0]);
        int err = all[i].run(&calls[0], 0, 0);
        CUDA(cudaDeviceSynchronize());
        struct difference d = check_rows(s, &t[0], causal, scale, 3000);
        double error = sqrt(d.error / d.norm);
        if (err || d.wrong || !(error <= 5e-3)) {
            printf("WRONG %s: returned %d, relative error %.2e, %llu rows wrong\n", all[i].name,
                   err, error, d.wrong);
            wrong = 1;
        }
        errors[contestants] = error;
        lse[contestants] = d.lse;
        in[contestants++] = &all[i];
    }
    for (int r = -1; r < ROUNDS; r++) /* round -1 warms up */
        for (int j = 0; j < contestants; j++) {
            const int i = (j + r + 1) % contestants;
            usleep((useconds_t)(rest_ms * 1000));
            const double took =
                i ? run_time(in[i]->run, calls, launches) : torch_time(s, causal, launches);
            if (r >= 0)
                ms[i][r] = took;
        }
    for (int i = 0; i < contestants; i++)
        qsort(ms[i], ROUNDS, sizeof ms[i][0], by_value);
    for (int i = 0; i < contestants; i++) {
        printf("%lld,%lld:%lld,%lld,%lld %-6s  %-30s %7.4f ms (%.4f-%.4f) %5.1f TF",
               (long long)s->batch, (long long)s->heads, (long long)s->kv_heads,
               (long long)s->queries, (long long)s->dim, causal ? "causal" : "full",
               i ? in[i]->name : theirs, ms[i][middle], ms[i][0], ms[i][ROUNDS - 1],
               flop * 1e-9 / ms[i][middle]);
        if (i) {
            const double ratio = ms[0][middle] / ms[i][middle];
            in[i]->product += log(ratio);
            in[i]->least = in[i]->count++ ? fmin(in[i]->least, ratio) : ratio;
            printf("  %.3f of %s  error %.1e, lse %.1e", ratio, theirs, errors[i], lse[i]);
        }
        printf("\n");
    }
    fflush(stdout);
    free_tensors(&t[0]);
    free_tensors(&t[1]);
    return wrong;
}

/* All engines at all shapes, full and causal, beside PyTorch's `backend` (torch_attention.py). */
static int bench_engines(const char *self, const char *backend, const char *theirs, double block_ms,
                         double rest_ms, struct contestant *all, int count)
{
    static const struct shape shapes[] = {
        {4, 16, 16, 6144, 6144, 128}, {1, 32, 32, 8192, 8192, 128}, {1, 16, 16, 16384, 16384, 128},
        {1, 64, 8, 8192, 8192, 128},  {1, 32, 32, 8192, 8192, 64},
    };
    int wrong = 0;
    if (torch_open(self, "torch_attention.py", "TORCH_ATTENTION", backend))
        fprintf(stderr, "%s: no PyTorch here: times without %s's beside them\n",
                program_invocation_short_name, theirs);
    else
        printf("PyTorch, cuDNN: %s\n", torch_child.version);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int causal = 0; causal < 2; causal++)
            wrong |= bench_shape(&shapes[i], causal, block_ms, rest_ms, theirs, all, count);
    for (int i = 0; i < count; i++)
        printf("%s, of %s: geometric mean of %d %.3f, least %.3f\n", all[i].name, theirs,
               all[i].count, exp(all[i].product / all[i].count), all[i].least);
    return wrong;
}
