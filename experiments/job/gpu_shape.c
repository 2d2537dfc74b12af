#include "experiments/job/gpu_shape.h"
#include "experiments/job/gpu_tensors.h"
#include "experiments/common/inputs.h"
#include "experiments/job/op.h"
#include "core/comm/comm.h"
#include "core/base/quantize.h"
#include "core/base/sentence.h"
#include "core/base/sorted.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of operands in rotation: more than three times an H200's L2. */
#define COLD_BYTES ((uint64_t)200 << 20)

int gpu_say(struct gpu_bench *b, int result, const char *what)
{
    const char *said = cudaGetErrorString(cudaGetLastError());
    return mk_fail(result, b->error, b->size, "rank %u: %s%s%s", b->job->identity.rank, what,
                   result == -EIO ? ": " : "", result == -EIO ? said : "");
}

int gpu_bench_open(struct gpu_bench *b)
{
    char why[256];
    b->events = calloc(b->launches_most + 1, sizeof *b->events);
    if (!b->events)
        return gpu_say(b, -ENOMEM, "no memory for events");
    if (cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking) != cudaSuccess)
        return gpu_say(b, -EIO, "no stream");
    for (uint32_t i = 0; i <= b->launches_most; i++)
        if (cudaEventCreate(&b->events[i]) != cudaSuccess)
            return gpu_say(b, -EIO, "no events");
    if (baseline_cublas_open(&b->cublas, why, sizeof why)) /* without it nothing can be checked */
        return gpu_say(b, -ENOENT, why);
    if (b->job->problem.fp8 && baseline_cublaslt_open(&b->cublaslt, why, sizeof why))
        return gpu_say(b, -ENOENT, why);
    return 0;
}

void gpu_bench_close(struct gpu_bench *b)
{
    baseline_cublaslt_close(b->cublaslt);
    baseline_cublas_close(b->cublas);
    for (uint32_t i = 0; b->events && i <= b->launches_most; i++)
        if (b->events[i])
            cudaEventDestroy(b->events[i]);
    free(b->events);
    if (b->stream)
        cudaStreamDestroy(b->stream);
}

static int gpu_shape_device_alloc(struct gpu_bench *b, void *out, uint64_t bytes)
{
    return cudaMalloc(out, bytes) == cudaSuccess
               ? 0
               : gpu_say(b, -ENOMEM, "no GPU memory for the operands");
}

int gpu_gathers(const struct gpu_bench *b)
{
    return run_op_of(b->job->problem.op)->collective == RUN_ALL_GATHER;
}

static int gpu_shape_scatters(const struct gpu_bench *b)
{
    return run_op_of(b->job->problem.op)->collective == RUN_REDUCE_SCATTER;
}

/* An A that is gathered is one matrix of all ranks; else each has its own, as each has a B. */
static uint64_t gpu_shape_key_a(const struct gpu_bench *b, uint32_t rank, uint64_t launch)
{
    return mk_key(b->job->options.seed, gpu_gathers(b) ? 0 : MK_MAX_RANKS + 1 + rank, launch);
}

static uint64_t gpu_shape_key_b(const struct gpu_bench *b, uint32_t rank, uint64_t launch)
{
    return mk_key(b->job->options.seed, 1 + rank, launch);
}

uint64_t gpu_scales_a(uint64_t rows, uint64_t k)
{
    return mk_ceil_div(k, MK_SCALE_BLOCK) * mk_round_up(rows, 4);
}

/* Of a row of B's. */
static uint64_t gpu_shape_pitch_b(uint64_t k)
{
    return mk_round_up(mk_ceil_div(k, MK_SCALE_BLOCK), 4);
}

uint64_t gpu_scales_b(uint64_t n, uint64_t k)
{
    return mk_ceil_div(n, MK_SCALE_BLOCK) * gpu_shape_pitch_b(k);
}

/* This rank's A and B of a set. */
static int gpu_shape_fill(struct gpu_bench *b, struct gpu_shape *s, uint32_t set)
{
    const uint32_t me = b->job->identity.rank, element = plan_element(&b->job->problem);
    uint64_t a_count = s->a_rows * s->k, b_count = s->k * s->n, key_a = gpu_shape_key_a(b, me, set),
             key_b = gpu_shape_key_b(b, me, set), first = gpu_gathers(b) ? me * a_count : 0;
    if (!b->job->problem.fp8)
        return gpu_fill_half(element, s->a[set], key_a, first, a_count, b->stream) ||
                       gpu_fill_half(element, s->b[set], key_b, 0, b_count, b->stream)
                   ? -EIO
                   : 0;
    return gpu_fill(s->plain, key_a, first, a_count, b->stream) ||
                   mk_quantize(MK_EXEC_CUDA, MK_SCALE_1X128, MK_INPUT_BF16, s->plain, s->a_rows,
                               s->k, s->a[set], s->a_scales[set], mk_round_up(s->a_rows, 4),
                               b->stream) ||
                   gpu_fill(s->plain, key_b, 0, b_count, b->stream) ||
                   mk_quantize(MK_EXEC_CUDA, MK_SCALE_128X128, MK_INPUT_BF16, s->plain, s->n, s->k,
                               s->b[set], s->b_scales[set], 0, b->stream)
               ? -EIO
               : 0;
}

static int gpu_shape_set_open(struct gpu_bench *b, struct gpu_shape *s, uint32_t i)
{
    const struct mk_problem *q = &b->job->problem;
    int result = gpu_shape_device_alloc(b, &s->a[i], s->a_rows * s->k * op_factor_bytes(q));
    if (!result)
        result = gpu_shape_device_alloc(b, &s->b[i], s->k * s->n * op_factor_bytes(q));
    if (!result && q->fp8)
        result = gpu_shape_device_alloc(b, &s->a_scales[i], gpu_scales_a(s->a_rows, s->k) * 4);
    if (!result && q->fp8)
        result = gpu_shape_device_alloc(b, &s->b_scales[i], gpu_scales_b(s->n, s->k) * 4);
    if (!result && q->fp8) /* of blocks that there are not: any number would do */
        cudaMemsetAsync(s->b_scales[i], 0, gpu_scales_b(s->n, s->k) * 4, b->stream);
    if (!result && b->c)
        s->c[i] = b->c;
    else if (!result)
        result = gpu_shape_device_alloc(b, &s->c[i], s->c_rows * s->n * 2);
    return !result && gpu_shape_fill(b, s, i) ? gpu_say(b, -EIO, "the operands cannot be filled")
                                              : result;
}

/* What FP8 takes beside: the gathered scales, and what the reference is made of. */
static int gpu_shape_open_fp8(struct gpu_bench *b, struct gpu_shape *s)
{
    uint64_t most = s->m > s->n ? s->m : s->n, scales = gpu_scales_a(s->m, s->k) * 4,
             b_scales = gpu_scales_b(s->n, s->k) * 4;
    const struct {
        void *out;
        uint64_t bytes;
    } parts[] = {{&s->gathered_scales, b->job->identity.world * gpu_scales_a(s->rows, s->k) * 4},
                 {&s->whole_scales, scales},
                 {&s->plain, most * s->k * 2},
                 {&s->codes, most * s->k},
                 {&s->scales, scales > b_scales ? scales : b_scales},
                 {&s->wide_a, s->m * s->k * 4},
                 {&s->wide_b, s->n * s->k * 4}};
    int result = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !result; i++)
        result = gpu_shape_device_alloc(b, parts[i].out, parts[i].bytes);
    return result;
}

/* bf16 or fp16 operands of the reference. */
static int gpu_shape_open_others(struct gpu_bench *b, struct gpu_shape *s)
{
    int result = gpu_shape_device_alloc(b, &s->other_a, s->c_rows * s->k * 2);
    return result ? result : gpu_shape_device_alloc(b, &s->other_b, s->k * s->n * 2);
}

int gpu_shape_open(struct gpu_bench *b, struct gpu_shape *s, uint64_t m, uint64_t n, uint64_t k)
{
    int gathers = gpu_gathers(b);
    uint64_t each = op_factor_bytes(&b->job->problem);
    *s = (struct gpu_shape){.m = m, .n = n, .k = k, .rows = m / b->job->identity.world};
    s->c_in_heap = b->c != NULL;
    s->a_rows = gathers ? s->rows : m;
    s->c_rows = gpu_shape_scatters(b) ? s->rows : m;
    s->sets = (uint32_t)mk_ceil_div(COLD_BYTES, each * (s->a_rows * k + k * n));
    s->sets = s->sets < 2 ? 2 : s->sets > GPU_SETS ? GPU_SETS : s->sets;
    int result = gpu_shape_device_alloc(b, &s->whole, gathers ? m * k * each : m * n * 2);
    if (!result)
        result = (b->job->problem.fp8 ? gpu_shape_open_fp8 : gpu_shape_open_others)(b, s);
    if (!result)
        result = gpu_shape_device_alloc(b, &s->reference, s->c_rows * n * sizeof *s->reference);
    for (uint32_t i = 0; i < s->sets && !result; i++)
        result = gpu_shape_set_open(b, s, i);
    return result;
}

void gpu_shape_close(struct gpu_shape *s)
{
    for (uint32_t i = 0; i < GPU_SETS; i++) {
        cudaFree(s->a[i]);
        cudaFree(s->b[i]);
        cudaFree(s->a_scales[i]);
        cudaFree(s->b_scales[i]);
        if (!s->c_in_heap)
            cudaFree(s->c[i]);
    }
    void *const others[] = {s->whole,   s->gathered_scales, s->whole_scales, s->other_a,
                            s->other_b, s->plain,           s->codes,        s->scales,
                            s->wide_a,  s->wide_b,          s->reference};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        cudaFree(others[i]);
    memset(s, 0, sizeof *s);
}

uint32_t gpu_arguments(const struct gpu_bench *b, const struct gpu_shape *s, uint32_t set,
                       void *arguments[GPU_ARGUMENTS])
{
    arguments[0] = s->a[set];
    arguments[1] = s->b[set];
    arguments[2] = s->c[set];
    arguments[3] = s->a_scales[set];
    arguments[4] = s->b_scales[set];
    return b->job->problem.fp8 ? 5 : 3;
}

int gpu_join_scales(struct gpu_bench *b, struct gpu_shape *s)
{
    const uint64_t each = gpu_scales_a(s->rows, s->k);
    for (uint32_t rank = 0; rank < b->job->identity.world; rank++)
        if (cudaMemcpy2DAsync(s->whole_scales + rank * s->rows, mk_round_up(s->m, 4) * 4,
                              s->gathered_scales + rank * each, mk_round_up(s->rows, 4) * 4,
                              s->rows * 4, mk_ceil_div(s->k, MK_SCALE_BLOCK),
                              cudaMemcpyDeviceToDevice, b->stream) != cudaSuccess)
            return -EIO;
    return 0;
}

int gpu_place_c(struct gpu_bench *b, uint64_t m, uint64_t n)
{
    if (!op_of(b->job->problem.op)->c_in_heap || b->comm->topo.nodes > 1 ||
        b->job->options.c_elsewhere)
        return 0;
    b->c = mk_heap_alloc(b->comm, m * n * 2, &b->c_offset);
    return b->c ? 0 : gpu_say(b, -ENOSPC, mk_error(b->comm));
}

int gpu_plan(struct gpu_bench *b, uint64_t m, uint64_t n, uint64_t k,
             const struct mk_tuning *tuning, struct mk_plan **out)
{
    struct mk_problem q = b->job->problem;
    q.m = m;
    q.n = n;
    q.k = k;
    q.tuning = *tuning;
    q.c_in_heap = b->c != NULL;
    q.c_offset = b->c_offset;
    int result = comm_make_plan(out, b->comm, &q);
    if (result)
        snprintf(b->error, b->size, "%s", mk_error(b->comm));
    return result;
}

int gpu_launch_plan(struct gpu_bench *b, struct gpu_shape *s, struct mk_plan *plan, uint32_t set)
{
    void *arguments[GPU_ARGUMENTS];
    uint32_t count = gpu_arguments(b, s, set, arguments);
    return mk_launch(plan, arguments, count, b->stream);
}

int gpu_capture_run(struct gpu_bench *b, int (*launch)(void *context, uint32_t number),
                    void *context, uint32_t count, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    int result = 0;
    if (cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return gpu_say(b, -EIO, "a launch cannot be captured");
    for (uint32_t i = 0; i < count && !result; i++)
        result = launch(context, i);
    if (cudaStreamEndCapture(b->stream, &graph) != cudaSuccess || result)
        return gpu_say(b, result ? result : -EIO,
                       result ? mk_error(b->comm) : "a launch cannot be captured");
    cudaError_t error = cudaGraphInstantiate(out, graph, 0);
    cudaGraphDestroy(graph);
    return error == cudaSuccess ? 0
                                : gpu_say(b, -EIO, "a captured launch cannot be made executable");
}

struct gpu_shape_captured {
    struct mk_plan *plan;
    void *const *arguments;
    uint32_t count;
    cudaStream_t stream;
};

static int gpu_shape_launch_captured(void *context, uint32_t number)
{
    const struct gpu_shape_captured *c = context;
    return mk_launch(c->plan, c->arguments, c->count, c->stream);
}

int gpu_capture_launch(struct gpu_bench *b, struct mk_plan *plan, void *const *arguments,
                       uint32_t count, cudaGraphExec_t *out)
{
    struct gpu_shape_captured c = {plan, arguments, count, b->stream};
    return gpu_capture_run(b, gpu_shape_launch_captured, &c, 1, out);
}

int gpu_capture(struct gpu_bench *b, struct gpu_shape *s, struct gpu_graphs *g)
{
    int result = 0;
    for (uint32_t i = 0; i < s->sets && !result; i++) {
        void *arguments[GPU_ARGUMENTS];
        uint32_t count = gpu_arguments(b, s, i, arguments);
        result = gpu_capture_launch(b, g->plan, arguments, count, &g->sets[i]);
    }
    return result;
}

void gpu_graphs_close(struct gpu_graphs *g)
{
    for (uint32_t i = 0; i < GPU_SETS; i++)
        if (g->sets[i])
            cudaGraphExecDestroy(g->sets[i]);
    memset(g, 0, sizeof *g);
}

int gpu_launch_graph(const struct gpu_bench *b, const struct gpu_shape *s,
                     const struct gpu_graphs *g, uint32_t number)
{
    return cudaGraphLaunch(g->sets[number % s->sets], b->stream) == cudaSuccess ? 0 : -EIO;
}

int gpu_turn(struct gpu_bench *b, int (*launch)(void *context, uint32_t number), void *context,
             float *times, uint32_t *count)
{
    int result = bootstrap_barrier(b->comm->bootstrap);
    for (uint32_t i = 0; i < b->launches && !result; i++) {
        cudaEventRecord(b->events[i], b->stream);
        result = launch(context, i);
    }
    if (result)
        return gpu_say(b, result, "a launch was refused");
    cudaEventRecord(b->events[b->launches], b->stream);
    if (mk_wait(b->comm))
        return gpu_say(b, -ECONNABORTED, mk_error(b->comm));
    if (cudaStreamSynchronize(b->stream) != cudaSuccess)
        return gpu_say(b, -EIO, "the GPU failed");
    for (uint32_t i = GPU_SKIPPED; i < b->launches; i++)
        if (cudaEventElapsedTime(&times[(*count)++], b->events[i], b->events[i + 1]) != cudaSuccess)
            return gpu_say(b, -EIO, "the GPU's events give no time");
    return 0;
}

static int gpu_shape_by_size(const void *x, const void *y)
{
    return MK_ORDER(*(const float *)x, *(const float *)y);
}

struct gpu_time gpu_time_of(float *times, uint32_t count)
{
    if (!count)
        return (struct gpu_time){0, 0, 0};
    qsort(times, count, sizeof *times, gpu_shape_by_size);
    return (struct gpu_time){(times[(count - 1) / 2] + times[count / 2]) / 2.0, times[0],
                             times[count - 1]};
}

/* Rows of k elements as FP8 has them, in fp32: quantised, and back. An A that is gathered is what
 * cuBLAS multiplies alone, too. */
static int gpu_shape_widen(struct gpu_bench *b, struct gpu_shape *s, uint64_t key, uint64_t first,
                           uint64_t rows, int square, float *out)
{
    int whole = gpu_gathers(b) && !square;
    uint8_t *codes = whole ? s->whole : s->codes;
    float *scales = whole ? s->whole_scales : s->scales;
    uint64_t pitch = square ? gpu_shape_pitch_b(s->k) : mk_round_up(rows, 4);
    return gpu_fill(s->plain, key, first, rows * s->k, b->stream) ||
                   mk_quantize(MK_EXEC_CUDA, square ? MK_SCALE_128X128 : MK_SCALE_1X128,
                               MK_INPUT_BF16, s->plain, rows, s->k, codes, scales, pitch,
                               b->stream) ||
                   gpu_dequantize(codes, rows, s->k, square, scales, pitch, out, b->stream)
               ? -EIO
               : 0;
}

/* Adds rank's product to the reference, or begins it: `rows` rows of A from element `first` on. */
static int gpu_shape_add_reference(struct gpu_bench *b, struct gpu_shape *s, uint32_t set,
                                   uint32_t rank, uint64_t first, int add)
{
    uint64_t key_a = gpu_shape_key_a(b, rank, set), key_b = gpu_shape_key_b(b, rank, set);
    int64_t rows = (int64_t)s->c_rows, n = (int64_t)s->n, k = (int64_t)s->k;
    if (b->job->problem.fp8)
        return gpu_shape_widen(b, s, key_a, first, s->c_rows, 0, s->wide_a) ||
                       gpu_shape_widen(b, s, key_b, 0, s->n, 1, s->wide_b) ||
                       baseline_cublas_sgemm(b->cublas, s->wide_a, s->wide_b, s->reference, rows, n,
                                             k, add, b->stream)
                   ? -EIO
                   : 0;
    const uint32_t element = plan_element(&b->job->problem);
    return gpu_fill_half(element, s->other_a, key_a, first, s->c_rows * s->k, b->stream) ||
                   gpu_fill_half(element, s->other_b, key_b, 0, s->k * s->n, b->stream) ||
                   baseline_cublas_gemm(b->cublas, element, s->other_a, s->other_b, s->reference,
                                        rows, n, k, b->job->problem.b_transposed, 1, add, b->stream)
               ? -EIO
               : 0;
}

/* cuBLAS in fp32, on operands that were made again: this rank's rows of the sum of all ranks'
 * products, or its own product of the whole A. */
static int gpu_shape_make_reference(struct gpu_bench *b, struct gpu_shape *s, uint32_t set)
{
    uint32_t world = b->job->identity.world, me = b->job->identity.rank;
    uint64_t first = gpu_shape_scatters(b) ? me * s->rows * s->k : 0;
    if (gpu_gathers(b))
        return gpu_shape_add_reference(b, s, set, me, 0, 0);
    int result = 0;
    for (uint32_t rank = 0; rank < world && !result; rank++)
        result = gpu_shape_add_reference(b, s, set, rank, first, rank > 0);
    return result;
}

/* One fresh launch of a plan against the reference that is there. */
static int gpu_shape_check_one(struct gpu_bench *b, struct gpu_shape *s, const struct gpu_graphs *g,
                               uint32_t set, float absolute, struct gpu_check *sum)
{
    const uint32_t element = plan_element(&b->job->problem);
    struct gpu_difference d;
    int result = gpu_poison(s->c[set], s->c_rows * s->n, b->stream);
    result = result ? result : bootstrap_barrier(b->comm->bootstrap);
    result = result ? result : gpu_launch_graph(b, s, g, set);
    if (mk_wait(b->comm))
        return gpu_say(b, -ECONNABORTED, mk_error(b->comm));
    if (!result)
        result = gpu_compare(element, s->c[set], s->reference, s->c_rows * s->n, absolute, &d,
                             b->stream);
    if (result)
        return gpu_say(b, result, "a result cannot be checked");
    sum->difference2 += isnan(d.difference2) ? INFINITY : d.difference2;
    sum->reference2 += d.reference2;
    sum->wrong += d.wrong;
    sum->launches++;
    return 0;
}

int gpu_check(struct gpu_bench *b, struct gpu_shape *s, const struct gpu_graphs *graphs,
              uint32_t count, struct gpu_check *checks)
{
    double world = b->job->identity.world, depth = (double)s->k * (gpu_gathers(b) ? 1 : world);
    int result = 0;
    /* Sums of K products of values uniform in (-1, 1) wander by less than 8 sqrt(K) roundings
     * (Higham and Mary 2019). Of 16-bit partial sums each is rounded, and a node's sum once more:
     * check_unit of what no product of a launch exceeds, seven standard deviations sqrt(K / 9). */
    float absolute = (float)(8 * sqrt(depth) * 0x1p-23 * depth / 4);
    if (b->job->problem.fp8) /* CHECK_FP8_CUT of sum |a||b|, which comes to a quarter of K */
        absolute += (float)(CHECK_FP8_CUT * depth / 4);
    if (!gpu_gathers(b) && !b->job->problem.deterministic)
        absolute += (float)((world + 1) * check_unit(plan_element(&b->job->problem)) * 7 *
                            sqrt((double)s->k / 9));
    for (uint32_t set = 0; set < s->sets && !result; set++) {
        result = gpu_shape_make_reference(b, s, set);
        if (result)
            return gpu_say(b, result, "there is no reference to check against");
        for (b->checking = 0; b->checking < count && !result; b->checking += !result)
            result = gpu_shape_check_one(b, s, &graphs[b->checking], set, absolute,
                                         &checks[b->checking]);
    }
    return result;
}

double gpu_check_error(const struct gpu_check *c)
{
    return c->launches && c->reference2 > 0 ? sqrt(c->difference2 / c->reference2) : 1e30;
}

double gpu_check_bound(const struct gpu_bench *b)
{
    if (b->job->problem.fp8 && (gpu_gathers(b) || b->job->problem.deterministic))
        return CHECK_FP8;
    return (gpu_gathers(b) || b->job->problem.deterministic ? CHECK_FROBENIUS : CHECK_FAST) *
           check_share(plan_element(&b->job->problem));
}
