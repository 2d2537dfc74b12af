/* The operands of launches, as operators say them (experiments/job/op.h). */
#include "experiments/job/op.h"
#include "core/base/clock.h"
#include "core/base/e4m3.h"
#include "core/base/scoped.h"
#include "experiments/common/inputs.h"

#include <cblas.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Made or checked at a time, in a fraction of a second; a multiple of 4, as inputs_group needs. */
#define SOME_ELEMENTS (1u << 24)

#ifdef MK_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "experiments/job/gpu_tensors.h"
static void *run_data_device_alloc(uint64_t bytes)
{
    void *p = NULL;
    return cudaMalloc(&p, bytes) == cudaSuccess ? p : NULL;
}
static void run_data_device_free(void *p)
{
    cudaFree(p);
}
static int run_data_device_copy(void *to, const void *from, uint64_t bytes)
{
    return cudaMemcpy(to, from, bytes, cudaMemcpyDefault) == cudaSuccess ? 0 : -EIO;
}
/* The same numbers as the host makes: an expert layer's 1.4 GB take it seconds. `first`, `count`:
 * multiples of 4. */
static int run_data_device_fill(uint32_t element, uint16_t *to, uint64_t key, uint64_t first,
                                uint64_t count)
{
    int result = gpu_fill_half(element, to, key, first, count, 0);
    return result || cudaStreamSynchronize(0) == cudaSuccess ? result : -EIO;
}
static int run_data_device_poison(uint16_t *to, uint64_t count)
{
    int result = gpu_poison(to, count, 0);
    return result || cudaStreamSynchronize(0) == cudaSuccess ? result : -EIO;
}
#else
/* Never reached: a build without CUDA refuses --exec cuda. */
static void *run_data_device_alloc(uint64_t bytes)
{
    return NULL;
}
static void run_data_device_free(void *p)
{
}
static int run_data_device_copy(void *to, const void *from, uint64_t bytes)
{
    return -ENODEV;
}
static int run_data_device_fill(uint32_t element, uint16_t *to, uint64_t key, uint64_t first,
                                uint64_t count)
{
    return -ENODEV;
}
static int run_data_device_poison(uint16_t *to, uint64_t count)
{
    return -ENODEV;
}
#endif

static void *run_data_host_alloc(uint64_t bytes)
{
    bytes = mk_round_up(bytes, 4096);
    return bytes ? aligned_alloc(4096, bytes) : NULL;
}

/* Fewer are made by the host, faster than they are copied. */
enum { GPU_ELEMENTS = 1 << 16 };

void *run_data_at(const struct run_data *d, uint64_t slot, uint32_t argument)
{
    return d->memory[slot * RUN_ARGUMENTS + argument];
}

int run_data_open(struct run_data *d, const struct run_job *job)
{
    const struct mk_problem *q = &job->problem;
    memset(d, 0, sizeof *d);
    d->job = job;
    d->cuda = job->options.exec == MK_EXEC_CUDA;
    d->arguments = op_arguments(q);
    d->outputs = op_extents(&job->plan.problem, d->bytes);
    d->memory = calloc(job->burst * RUN_ARGUMENTS, sizeof *d->memory);
    if (!d->memory)
        return -ENOMEM;
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++) {
        if (!d->bytes[i])
            continue;
        for (uint64_t slot = 0; slot < job->burst; slot++) {
            void *p =
                d->cuda ? run_data_device_alloc(d->bytes[i]) : run_data_host_alloc(d->bytes[i]);
            if (!p)
                return -ENOMEM;
            d->memory[slot * RUN_ARGUMENTS + i] = p;
        }
        d->host[i] = d->cuda ? run_data_host_alloc(d->bytes[i]) : NULL;
        if (d->cuda && !d->host[i])
            return -ENOMEM;
    }
    return 0;
}

uint64_t run_data_key(const struct run_data *d, uint64_t tensor, uint64_t launch)
{
    return mk_key(d->job->options.seed, tensor, launch);
}

struct run_source run_data_plain(const struct run_data *d, uint32_t argument, uint32_t rank,
                                 uint64_t launch)
{
    return (struct run_source){
        .key = run_data_key(d, argument ? 1 + rank : 0, launch),
        .before = argument ? 0 : rank * (d->bytes[0] / op_factor_bytes(&d->job->problem))};
}

static struct run_source run_data_source(const struct run_data *d, uint32_t argument, uint32_t rank,
                                         uint64_t launch)
{
    const struct run_op *op = run_op_of(d->job->problem.op);
    return (op->source ? op->source : run_data_plain)(d, argument, rank, launch);
}

/* Whether a GPU makes these elements. */
static int run_data_on_gpu(const struct run_data *d, const struct run_source *s, uint64_t first,
                           uint64_t count)
{
    return d->cuda && !s->raised && (s->before + first) % 4 == 0 && count % 4 == 0;
}

static void run_data_fill_some(uint32_t element, const struct run_source *s, uint64_t first,
                               uint64_t count, uint16_t *out)
{
    inputs_fill_half(element, out, s->key, s->before + first, count);
    for (uint64_t i = 0; s->raised && i < count; i++)
        if (out[i] & 0x7f80)
            out[i] = (uint16_t)(out[i] + (s->raised << 7));
}

void run_data_input(const struct run_data *d, uint32_t argument, uint32_t rank, uint64_t launch,
                    uint64_t first, uint64_t count, uint16_t *out)
{
    const struct run_source s = run_data_source(d, argument, rank, launch);
    const uint32_t element = plan_element(&d->job->problem);
    uint64_t most = count < SOME_ELEMENTS ? count : SOME_ELEMENTS;
    uint16_t *device = NULL;
    if (count >= GPU_ELEMENTS && run_data_on_gpu(d, &s, first, count))
        device = run_data_device_alloc(most * sizeof *device);
    for (uint64_t done = 0, some; done < count; done += some) {
        some = count - done < most ? count - done : most;
        if (!device ||
            run_data_device_fill(element, device, s.key, s.before + first + done, some) ||
            run_data_device_copy(out + done, device, some * sizeof *out))
            run_data_fill_some(element, &s, first + done, some, out + done);
        spawn_beat();
    }
    if (device)
        run_data_device_free(device);
}

static void run_data_poison(uint16_t *out, uint64_t count)
{
    for (uint64_t done = 0, some; done < count; done += some) {
        some = count - done < SOME_ELEMENTS ? count - done : SOME_ELEMENTS;
        inputs_poison(out + done, some);
        spawn_beat();
    }
}

/* Whether an argument is made of 16 random bits each: bf16, fp16, and whatever is only moved. */
static int run_data_is_plain(const struct mk_problem *q, uint32_t argument)
{
    const enum op_type type = op_argument_type(q, argument);
    return type == OP_BF16 || type == OP_FP16 || op_has_bytes(q->op);
}

/* Makes this rank's input `argument` of a launch. */
static void run_data_make_input(const struct run_data *d, uint32_t argument, uint64_t launch,
                                void *to)
{
    const struct mk_problem *q = &d->job->problem;
    if (op_argument(q, argument)->type == OP_COUNT)
        run_make_count(d, launch, to);
    else if (run_data_is_plain(q, argument))
        run_data_input(d, argument, d->job->identity.rank, launch, 0, d->bytes[argument] / 2, to);
    else
        run_op_of(q->op)->make(d, argument, launch, to);
}

int run_data_poison_outputs(struct run_data *d, uint64_t slot)
{
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++) {
        uint16_t *to = run_data_at(d, slot, i);
        if (!(d->outputs >> i & 1))
            continue;
        if (!d->cuda)
            run_data_poison(to, d->bytes[i] / 2);
        else if (run_data_device_poison(to, d->bytes[i] / 2))
            return -EIO;
    }
    return 0;
}

/* Straight to where the launch wants it, or over the staging of a launch on a GPU. */
static int run_data_fill_input(struct run_data *d, uint64_t slot, uint32_t argument,
                               uint64_t launch)
{
    void *to = run_data_at(d, slot, argument);
    uint64_t bytes = d->bytes[argument];
    if (d->cuda && run_data_is_plain(&d->job->problem, argument)) {
        const struct run_source s = run_data_source(d, argument, d->job->identity.rank, launch);
        if (run_data_on_gpu(d, &s, 0, bytes / 2))
            return run_data_device_fill(plan_element(&d->job->problem), to, s.key, s.before,
                                        bytes / 2);
    }
    run_data_make_input(d, argument, launch, d->cuda ? d->host[argument] : to);
    return d->cuda ? run_data_device_copy(to, d->host[argument], bytes) : 0;
}

int run_data_fill(struct run_data *d, uint64_t slot, uint64_t launch)
{
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++)
        if (d->bytes[i] && !(d->outputs >> i & 1) && run_data_fill_input(d, slot, i, launch))
            return -EIO;
    return run_data_poison_outputs(d, slot);
}

int run_data_check(struct run_data *d, uint64_t slot, uint64_t launch,
                   const struct check_pace *pace, struct check_result *result)
{
    const void *arguments[RUN_ARGUMENTS];
    uint32_t unread =
        d->cuda && !d->job->problem.fp8 ? run_op_of(d->job->problem.op)->made_on_gpu : 0;
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++) {
        arguments[i] = d->cuda ? d->host[i] : run_data_at(d, slot, i);
        if (d->cuda && d->outputs >> i & 1 &&
            run_data_device_copy(d->host[i], run_data_at(d, slot, i), d->bytes[i]))
            return -EIO;
        if (d->cuda && d->bytes[i] && !((d->outputs | unread) >> i & 1))
            run_data_make_input(d, i, launch, d->host[i]);
    }
    const struct run_checked it = {arguments, launch, pace, result};
    return run_op_of(d->job->problem.op)->check(d, &it);
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
    return mk_hash(bits);
}

/* Of A or B; e4m3 without its scale. */
static float run_data_number(const struct mk_problem *q, const void *from, uint64_t i)
{
    return q->fp8 ? mk_e4m3_to_float(((const uint8_t *)from)[i])
                  : mk_bf16_to_float(((const uint16_t *)from)[i]);
}

double run_data_blas(struct run_data *d, uint64_t slot)
{
    const struct mk_problem *q = &d->job->problem;
    const void *from_a = run_data_at(d, slot, 0), *from_b = run_data_at(d, slot, 1);
    uint64_t a_count = d->bytes[0] / op_factor_bytes(q), b_count = d->bytes[1] / op_factor_bytes(q);
    int m = (int)q->m, n = (int)q->n, k = (int)q->k;
    double ms = 0;
    MK_FREED float *a = malloc(q->m * q->k * sizeof *a), *b = malloc(b_count * sizeof *b),
                   *c = malloc(q->m * q->n * sizeof *c);
    if (a && b && c) {
        for (uint64_t i = 0; i < q->m * q->k; i++) /* a shard is repeated: any A will do */
            a[i] = run_data_number(q, from_a, i % a_count);
        for (uint64_t i = 0; i < b_count; i++)
            b[i] = run_data_number(q, from_b, i);
        uint64_t start = mk_now_ns();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, q->b_transposed ? CblasTrans : CblasNoTrans, m, n,
                    k, 1.0f, a, k, b, q->b_transposed ? k : n, 0.0f, c, n);
        ms = (double)(mk_now_ns() - start) / 1e6;
    }
    return ms;
}

void run_data_close(struct run_data *d)
{
    for (uint64_t i = 0; d->memory && i < d->job->burst * RUN_ARGUMENTS; i++) {
        if (d->cuda)
            run_data_device_free(d->memory[i]);
        else
            free(d->memory[i]);
    }
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++)
        free(d->host[i]);
    free(d->memory);
}
