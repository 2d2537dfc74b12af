/* The operands of launches: tensor 0 is every rank's A one after the other, tensor 1 + r is rank r's B. */
#include "experiments/run.h"
#include "experiments/inputs.h"

#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

static uint16_t *host_alloc(uint64_t count)
{
    uint64_t bytes = mk_round_up(count * 2, 4096);
    return bytes ? aligned_alloc(4096, bytes) : NULL;
}

static uint16_t *operand_alloc(const struct run_data *d, uint64_t count)
{
    return d->cuda ? device_alloc(count * 2) : host_alloc(count);
}

void run_data_counts(const struct mk_problem *q, uint64_t *a, uint64_t *b, uint64_t *c)
{
    uint64_t world = mk_world(&q->topo);
    *a = (q->op == MK_OP_AG_GEMM ? q->m / world : q->m) * q->k;
    *b = q->k * q->n;
    *c = (q->op == MK_OP_GEMM_RS ? q->m / world : q->m) * q->n;
}

/* What a result is checked against is one product, rows x N x depth: where ranks are summed over, their Ks
 * stand side by side. */
static void reference_extents(const struct mk_problem *q, uint64_t *rows, uint64_t *depth)
{
    uint64_t world = mk_world(&q->topo);
    *rows = q->op == MK_OP_GEMM_RS ? q->m / world : q->m;
    *depth = q->op == MK_OP_AG_GEMM ? q->k : world * q->k;
}

int run_data_open(struct run_data *d, const struct run_job *job)
{
    const struct mk_problem *q = &job->problem;
    uint64_t burst = job->burst;
    memset(d, 0, sizeof *d);
    d->job = job;
    d->cuda = q->exec == MK_EXEC_CUDA;
    run_data_counts(q, &d->a_count, &d->b_count, &d->c_count);
    d->a = calloc(burst, sizeof *d->a);
    d->b = calloc(burst, sizeof *d->b);
    d->c = calloc(burst, sizeof *d->c);
    if (!d->a || !d->b || !d->c)
        return -ENOMEM;
    for (uint64_t i = 0; i < burst; i++) {
        d->a[i] = operand_alloc(d, d->a_count);
        d->b[i] = operand_alloc(d, d->b_count);
        d->c[i] = operand_alloc(d, d->c_count);
        if (!d->a[i] || !d->b[i] || !d->c[i])
            return -ENOMEM;
    }
    if (d->cuda) {
        d->host_a = host_alloc(d->a_count);
        d->host_b = host_alloc(d->b_count);
        d->host_c = host_alloc(d->c_count);
        if (!d->host_a || !d->host_b || !d->host_c)
            return -ENOMEM;
    }
    if (job->options.check) {
        uint64_t rows, depth;
        reference_extents(q, &rows, &depth);
        d->all_a = host_alloc(rows * depth);
        d->all_b = q->op == MK_OP_AG_GEMM ? NULL : host_alloc(depth * q->n);
        if (!d->all_a || (q->op != MK_OP_AG_GEMM && !d->all_b))
            return -ENOMEM;
    }
    return 0;
}

static uint64_t key_a(const struct run_data *d, uint64_t launch)
{
    return inputs_key(d->job->options.seed, 0, launch);
}

static uint64_t key_b(const struct run_data *d, uint32_t rank, uint64_t launch)
{
    return inputs_key(d->job->options.seed, 1 + rank, launch);
}

int run_data_fill(struct run_data *d, uint64_t slot, uint64_t launch)
{
    uint16_t *a = d->cuda ? d->host_a : d->a[slot], *b = d->cuda ? d->host_b : d->b[slot];
    uint16_t *c = d->cuda ? d->host_c : d->c[slot];
    inputs_fill(a, key_a(d, launch), d->job->identity.rank * d->a_count, d->a_count);
    inputs_fill(b, key_b(d, d->job->identity.rank, launch), 0, d->b_count);
    inputs_poison(c, d->c_count);
    if (!d->cuda)
        return 0;
    if (device_copy(d->a[slot], a, d->a_count * 2) || device_copy(d->b[slot], b, d->b_count * 2))
        return -EIO;
    return device_copy(d->c[slot], c, d->c_count * 2);
}

/* A sum over ranks: every rank's A side by side, every rank's B below one another. */
static int check_sum(struct run_data *d, uint64_t launch, const uint16_t *c, const struct check_pace *pace,
                     struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    uint32_t world = mk_world(&q->topo);
    uint64_t rows, depth, first = q->op == MK_OP_GEMM_RS ? d->job->identity.rank * (q->m / world) : 0;
    reference_extents(q, &rows, &depth);
    for (uint32_t rank = 0; rank < world; rank++) {
        for (uint64_t row = 0; row < rows; row++)
            inputs_fill(d->all_a + row * depth + rank * q->k, key_a(d, launch),
                        rank * d->a_count + (first + row) * q->k, q->k);
        if (!q->b_transposed)
            inputs_fill(d->all_b + rank * d->b_count, key_b(d, rank, launch), 0, d->b_count);
        for (uint64_t col = 0; q->b_transposed && col < q->n; col++)
            inputs_fill(d->all_b + col * depth + rank * q->k, key_b(d, rank, launch), col * q->k, q->k);
    }
    struct check_gemm g = {rows,
                           q->n,
                           depth,
                           d->all_a,
                           d->all_b,
                           c,
                           q->b_transposed,
                           q->deterministic ? 0 : 2 * world + q->topo.nodes,
                           q->deterministic ? 0 : CHECK_FAST};
    return check_gemm(&g, pace, result);
}

int run_data_check(struct run_data *d, uint64_t slot, uint64_t launch, const struct check_pace *pace,
                   struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    const uint16_t *b = d->b[slot], *c = d->c[slot];
    if (d->cuda) {
        inputs_fill(d->host_b, key_b(d, d->job->identity.rank, launch), 0, d->b_count);
        if (device_copy(d->host_c, c, d->c_count * 2))
            return -EIO;
        b = d->host_b;
        c = d->host_c;
    }
    if (q->op != MK_OP_AG_GEMM)
        return check_sum(d, launch, c, pace, result);
    inputs_fill(d->all_a, key_a(d, launch), 0, q->m * q->k);
    struct check_gemm g = {q->m, q->n, q->k, d->all_a, b, c, q->b_transposed, 0, 0};
    return check_gemm(&g, pace, result);
}

double run_data_blas(struct run_data *d, uint64_t slot)
{
    const struct mk_problem *q = &d->job->problem;
    int m = (int)q->m, n = (int)q->n, k = (int)q->k;
    struct timespec start, end;
    double ms = 0;
    float *a = malloc(q->m * q->k * sizeof *a), *b = malloc(d->b_count * sizeof *b),
          *c = malloc(d->c_count * sizeof *c);
    if (a && b && c) {
        for (uint64_t i = 0; i < q->m * q->k; i++) /* a shard is repeated: any A will do */
            a[i] = mk_bf16_to_float(d->a[slot][i % d->a_count]);
        for (uint64_t i = 0; i < d->b_count; i++)
            b[i] = mk_bf16_to_float(d->b[slot][i]);
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
    for (uint64_t i = 0; d->a && d->b && d->c && i < d->job->burst; i++) {
        if (d->cuda) {
            device_free(d->a[i]);
            device_free(d->b[i]);
            device_free(d->c[i]);
        } else {
            free(d->a[i]);
            free(d->b[i]);
            free(d->c[i]);
        }
    }
    free(d->a);
    free(d->b);
    free(d->c);
    free(d->host_a);
    free(d->host_b);
    free(d->host_c);
    free(d->all_a);
    free(d->all_b);
}
