/* The operands of launches. Of a GEMM tensor 0 is every rank's A one after the other, tensor 1 + r is rank
 * r's B; of attention tensors 0, 1 and 2 are every rank's Q, K and V. */
#include "experiments/run.h"
#include "experiments/inputs.h"

#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SOME_ELEMENTS (1u << 24) /* at a time: a fraction of a second; a multiple of 4, which inputs are made by */

#ifdef MK_HAVE_CUDA
#include <cuda_runtime_api.h>
static void *device_alloc(uint64_t bytes)
{
    void *p = NULL;
    return cudaMalloc(&p, bytes) == cudaSuccess ? p : NULL;
}
static void device_free(void *p)
{
    cudaFree(p);
}
static int device_copy(void *to, const void *from, uint64_t bytes)
{
    return cudaMemcpy(to, from, bytes, cudaMemcpyDefault) == cudaSuccess ? 0 : -EIO;
}
#else
/* Never reached: a build without CUDA refuses --exec cuda. */
static void *device_alloc(uint64_t bytes)
{
    return NULL;
}
static void device_free(void *p)
{
}
static int device_copy(void *to, const void *from, uint64_t bytes)
{
    return -ENODEV;
}
#endif

static void *host_alloc(uint64_t bytes)
{
    bytes = mk_round_up(bytes, 4096);
    return bytes ? aligned_alloc(4096, bytes) : NULL;
}

uint32_t run_data_extents(const struct mk_problem *q, uint64_t bytes[RUN_ARGUMENTS])
{
    const struct mk_attention *a = &q->attention;
    uint64_t world = mk_world(&q->topo), rows = a->batch * (a->sequence / world);
    memset(bytes, 0, RUN_ARGUMENTS * sizeof *bytes);
    if (q->op == MK_OP_RING_ATTENTION) {
        bytes[0] = bytes[3] = rows * a->heads * a->head_dim * 2;
        bytes[1] = bytes[2] = rows * a->kv_heads * a->head_dim * 2;
        bytes[4] = rows * a->heads * sizeof(float);
        return 1u << 3 | 1u << 4;
    }
    if (q->op == MK_OP_MOE_DISPATCH_GEMM) {
        const struct mk_moe *e = &q->moe;
        bytes[0] = e->tokens * e->hidden * 2;
        bytes[1] = e->experts / world * e->hidden * e->inner * 2;
        bytes[2] = e->tokens * e->k * sizeof(uint32_t);
        bytes[3] = q->m * e->inner * 2; /* as many rows as there can be */
        bytes[4] = e->experts / world * 2 * sizeof(uint32_t);
        return 1u << 3 | 1u << 4;
    }
    if (q->op == MK_OP_MOE_FFN) {
        const struct mk_moe *e = &q->moe;
        bytes[0] = bytes[5] = e->tokens * e->hidden * 2;
        bytes[4] = e->experts / world * e->inner * e->hidden * 2;
        bytes[1] = 2 * bytes[4];
        bytes[2] = bytes[3] = e->tokens * e->k * 4;
        return 1u << 5;
    }
    bytes[0] = (q->op == MK_OP_AG_GEMM ? q->m / world : q->m) * q->k * 2;
    bytes[1] = q->k * q->n * 2;
    bytes[2] = (q->op == MK_OP_GEMM_RS ? q->m / world : q->m) * q->n * 2;
    return 1u << 2;
}

void *run_data_at(const struct run_data *d, uint64_t slot, uint32_t argument)
{
    return d->memory[slot * RUN_ARGUMENTS + argument];
}

int run_data_open(struct run_data *d, const struct run_job *job)
{
    const struct mk_problem *q = &job->problem;
    memset(d, 0, sizeof *d);
    d->job = job;
    d->cuda = q->exec == MK_EXEC_CUDA;
    d->outputs = run_data_extents(&job->plan.problem, d->bytes);
    d->memory = calloc(job->burst * RUN_ARGUMENTS, sizeof *d->memory);
    if (!d->memory)
        return -ENOMEM;
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++) {
        if (!d->bytes[i])
            continue;
        for (uint64_t slot = 0; slot < job->burst; slot++) {
            void *p = d->cuda ? device_alloc(d->bytes[i]) : host_alloc(d->bytes[i]);
            if (!p)
                return -ENOMEM;
            d->memory[slot * RUN_ARGUMENTS + i] = p;
        }
        d->host[i] = d->cuda ? host_alloc(d->bytes[i]) : NULL;
        if (d->cuda && !d->host[i])
            return -ENOMEM;
    }
    return 0;
}

static uint64_t key(const struct run_data *d, uint64_t tensor, uint64_t launch)
{
    return inputs_key(d->job->options.seed, tensor, launch);
}

void run_data_ids(const struct run_data *d, uint32_t rank, uint64_t launch, uint32_t *ids)
{
    const struct mk_moe *m = &d->job->problem.moe;
    uint32_t k = (uint32_t)m->k, experts = (uint32_t)m->experts, world = mk_world(&d->job->problem.topo);
    int routing = d->job->options.routing, few = routing == RUN_ROUTING_FEW && experts / 2 >= k;
    uint64_t tokens = routing == RUN_ROUTING_NONE ? (rank == world - 1 ? 0 : m->tokens - m->tokens / 8) : m->tokens;
    for (uint64_t token = 0; token < m->tokens; token++) {
        uint64_t bits = inputs_mix(key(d, 1000 + rank, launch) ^ token), step = 1 + (bits >> 32) % 7;
        uint32_t used = few ? experts / 2 : experts;
        if (used % step == 0 || k * step > used) /* a token names an expert once */
            step = 1;
        for (uint32_t place = 0; place < k; place++) {
            uint32_t expert = (uint32_t)((bits % used + place * step) % used) * (few ? 2 : 1);
            ids[token * k + place] = token >= tokens              ? UINT32_MAX
                                     : routing == RUN_ROUTING_ONE ? (place ? UINT32_MAX : 0)
                                                                  : expert;
        }
    }
}

static void fill_some(const struct run_data *d, uint32_t argument, uint32_t rank, uint64_t launch, uint64_t first, uint64_t count,
                      uint16_t *out)
{
    uint64_t all = d->bytes[argument] / 2;
    if (d->job->problem.op == MK_OP_RING_ATTENTION) {
        inputs_fill(out, key(d, argument, launch), rank * all + first, count);
        for (uint64_t i = 0; i < count && argument == 0; i++) /* scores that differ: Q is 8 times as large */
            if (out[i] & 0x7f80)
                out[i] = (uint16_t)(out[i] + (3 << 7));
    } else if (argument == 0) {
        inputs_fill(out, key(d, 0, launch), rank * all + first, count);
    } else if (argument == 4) { /* the second B of an expert */
        inputs_fill(out, key(d, 3000 + rank, launch), first, count);
    } else {
        inputs_fill(out, key(d, 1 + rank, launch), first, count);
    }
}

void run_data_input(const struct run_data *d, uint32_t argument, uint32_t rank, uint64_t launch,
                    uint64_t first, uint64_t count, uint16_t *out)
{
    for (uint64_t done = 0, some; done < count; done += some) {
        some = count - done < SOME_ELEMENTS ? count - done : SOME_ELEMENTS;
        fill_some(d, argument, rank, launch, first + done, some, out + done);
        spawn_beat();
    }
}

static void poison(uint16_t *out, uint64_t count)
{
    for (uint64_t done = 0, some; done < count; done += some) {
        some = count - done < SOME_ELEMENTS ? count - done : SOME_ELEMENTS;
        inputs_poison(out + done, some);
        spawn_beat();
    }
}

static void make_weights(const struct run_data *d, uint32_t rank, uint64_t launch, float *weights)
{
    const struct mk_moe *m = &d->job->problem.moe;
    for (uint64_t token = 0; token < m->tokens; token++) {
        float sum = 0;
        for (uint64_t i = token * m->k; i < (token + 1) * m->k; i++)
            sum += weights[i] = 1 + (float)(inputs_mix(key(d, 2000 + rank, launch) ^ i) >> 40) * 0x1p-24f;
        for (uint64_t i = token * m->k; i < (token + 1) * m->k; i++)
            weights[i] /= sum; /* as a router's: they add up to 1 */
    }
}

/* Makes this rank's input `argument` of a launch. */
static void make_input(const struct run_data *d, uint32_t argument, uint64_t launch, void *to)
{
    enum mk_op op = d->job->problem.op;
    uint32_t rank = d->job->identity.rank;
    if (argument == 2 && (op == MK_OP_MOE_DISPATCH_GEMM || op == MK_OP_MOE_FFN))
        run_data_ids(d, rank, launch, to);
    else if (argument == 3 && op == MK_OP_MOE_FFN)
        make_weights(d, rank, launch, to);
    else
        run_data_input(d, argument, rank, launch, 0, d->bytes[argument] / 2, to);
}

int run_data_fill(struct run_data *d, uint64_t slot, uint64_t launch)
{
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++) {
        uint16_t *to = d->cuda ? d->host[i] : run_data_at(d, slot, i);
        if (!d->bytes[i])
            continue;
        if (d->outputs >> i & 1)
            poison(to, d->bytes[i] / 2);
        else
            make_input(d, i, launch, to);
        if (d->cuda && device_copy(run_data_at(d, slot, i), to, d->bytes[i]))
            return -EIO;
    }
    return 0;
}

int run_data_check(struct run_data *d, uint64_t slot, uint64_t launch, const struct check_pace *pace,
                   struct check_result *result)
{
    const void *arguments[RUN_ARGUMENTS];
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++) {
        arguments[i] = d->cuda ? d->host[i] : run_data_at(d, slot, i);
        if (d->cuda && d->outputs >> i & 1 && device_copy(d->host[i], run_data_at(d, slot, i), d->bytes[i]))
            return -EIO;
        if (d->cuda && d->bytes[i] && !(d->outputs >> i & 1))
            make_input(d, i, launch, d->host[i]);
    }
    return run_check(d, arguments, launch, pace, result);
}

uint64_t run_data_bits(const struct run_data *d, uint64_t slot)
{
    uint64_t bits = 0;
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++) {
        const uint16_t *from = d->cuda ? d->host[i] : run_data_at(d, slot, i);
        spawn_beat();
        for (uint64_t j = 0; d->outputs >> i & 1 && j < d->bytes[i] / 2; j++)
            bits = (bits ^ from[j]) * 0x100000001b3ull; /* FNV-1a, two bytes at a time */
    }
    return inputs_mix(bits);
}

double run_data_blas(struct run_data *d, uint64_t slot)
{
    const struct mk_problem *q = &d->job->problem;
    const uint16_t *from_a = run_data_at(d, slot, 0), *from_b = run_data_at(d, slot, 1);
    uint64_t a_count = d->bytes[0] / 2, b_count = d->bytes[1] / 2;
    int m = (int)q->m, n = (int)q->n, k = (int)q->k;
    struct timespec start, end;
    double ms = 0;
    float *a = malloc(q->m * q->k * sizeof *a), *b = malloc(b_count * sizeof *b),
          *c = malloc(q->m * q->n * sizeof *c);
    if (a && b && c) {
        for (uint64_t i = 0; i < q->m * q->k; i++) /* a shard is repeated: any A will do */
            a[i] = mk_bf16_to_float(from_a[i % a_count]);
        for (uint64_t i = 0; i < b_count; i++)
            b[i] = mk_bf16_to_float(from_b[i]);
        clock_gettime(CLOCK_MONOTONIC, &start);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, q->b_transposed ? CblasTrans : CblasNoTrans, m, n, k, 1.0f,
                    a, k, b, q->b_transposed ? k : n, 0.0f, c, n);
        clock_gettime(CLOCK_MONOTONIC, &end);
        ms = (double)(end.tv_sec - start.tv_sec) * 1e3 + (double)(end.tv_nsec - start.tv_nsec) / 1e6;
    }
    free(a);
    free(b);
    free(c);
    return ms;
}

void run_data_close(struct run_data *d)
{
    for (uint64_t i = 0; d->memory && i < d->job->burst * RUN_ARGUMENTS; i++) {
        if (d->cuda)
            device_free(d->memory[i]);
        else
            free(d->memory[i]);
    }
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++)
        free(d->host[i]);
    free(d->memory);
}
