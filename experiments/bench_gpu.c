/* One rank of `mkernel bench OP --exec cuda`. Everything that is compared is measured in turns within the same seconds,
 * from operands that rotate through more memory than L2 holds, timed by pairs of events around each launch. */
#include "experiments/bench_gpu.h"
#include "experiments/baselines/baselines.h"
#include "experiments/commands.h"
#include "experiments/gpu_tensors.h"
#include "experiments/inputs.h"
#include "core/comm.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SETS_MOST = 12,
    TURNS = 4,
    SKIPPED = 2 /* launches of a turn that are not counted: the ranks find each other */
};

#define COLD_BYTES ((uint64_t)200 << 20) /* of operands in rotation: more than three times an H200's L2 */

struct bench {
    const struct run_job *job;
    struct mk_comm *comm;
    struct baseline_cublas *cublas;
    struct baseline_nccl *nccl;
    cudaStream_t stream;
    cudaEvent_t *events;
    uint32_t launches; /* of a turn */
    uint64_t link_offset; /* heap: BENCH_LINK_BYTES to copy from, behind them as many to copy to */
    char *error;
    size_t error_size;
};

/* One shape while it is measured. */
struct shape {
    uint64_t m, n, k, rows; /* rows: of a shard */
    uint64_t a_rows, c_rows; /* of this rank's A and C */
    uint32_t sets;
    struct mk_plan *plan, *move;
    uint16_t *a[SETS_MOST], *b[SETS_MOST], *c[SETS_MOST];
    uint16_t *whole;                /* ag_gemm: the gathered A; else what cuBLAS makes for NCCL to add */
    uint16_t *other_a, *other_b;    /* another rank's, for the reference of a sum */
    float *reference;
    cudaGraphExec_t graphs[SETS_MOST];
};

static int say(struct bench *b, int result, const char *what)
{
    const char *said = cudaGetErrorString(cudaGetLastError());
    snprintf(b->error, b->error_size, "rank %u: %s%s%s", b->job->identity.rank, what,
             result == -EIO ? ": " : "", result == -EIO ? said : "");
    return result;
}

static int device_alloc(struct bench *b, void *out, uint64_t bytes)
{
    return cudaMalloc(out, bytes) == cudaSuccess ? 0 : say(b, -ENOMEM, "no GPU memory for the operands");
}

static int gathers(const struct bench *b)
{
    return b->job->problem.op == MK_OP_AG_GEMM;
}

/* ag_gemm's A is one matrix of all ranks; else each has its own, as each has a B. */
static uint64_t key_a(const struct bench *b, uint32_t rank, uint64_t launch)
{
    return inputs_key(b->job->options.seed, gathers(b) ? 0 : MK_MAX_RANKS + 1 + rank, launch);
}

static uint64_t key_b(const struct bench *b, uint32_t rank, uint64_t launch)
{
    return inputs_key(b->job->options.seed, 1 + rank, launch);
}

static int make_operands(struct bench *b, struct shape *s)
{
    uint64_t a_count = s->a_rows * s->k, b_count = s->k * s->n, c_count = s->c_rows * s->n;
    uint32_t me = b->job->identity.rank;
    uint64_t bytes = 2 * (a_count + b_count);
    s->sets = (uint32_t)mk_ceil_div(COLD_BYTES, bytes);
    s->sets = s->sets < 2 ? 2 : s->sets > SETS_MOST ? SETS_MOST : s->sets;
    int result = device_alloc(b, &s->whole, s->m * (gathers(b) ? s->k : s->n) * 2);
    if (!result && !gathers(b))
        result = device_alloc(b, &s->other_a, s->c_rows * s->k * 2);
    if (!result && !gathers(b))
        result = device_alloc(b, &s->other_b, b_count * 2);
    if (!result)
        result = device_alloc(b, &s->reference, c_count * sizeof *s->reference);
    for (uint32_t i = 0; i < s->sets && !result; i++) {
        result = device_alloc(b, &s->a[i], a_count * 2);
        if (!result)
            result = device_alloc(b, &s->b[i], b_count * 2);
        if (!result)
            result = device_alloc(b, &s->c[i], c_count * 2);
        if (!result && (gpu_fill(s->a[i], key_a(b, me, i), gathers(b) ? me * a_count : 0, a_count, b->stream) ||
                        gpu_fill(s->b[i], key_b(b, me, i), 0, b_count, b->stream)))
            result = say(b, -EIO, "the operands cannot be filled");
    }
    return result;
}

static void free_operands(struct shape *s)
{
    for (uint32_t i = 0; i < SETS_MOST; i++) {
        cudaFree(s->a[i]);
        cudaFree(s->b[i]);
        cudaFree(s->c[i]);
        if (s->graphs[i])
            cudaGraphExecDestroy(s->graphs[i]);
    }
    cudaFree(s->whole);
    cudaFree(s->other_a);
    cudaFree(s->other_b);
    cudaFree(s->reference);
}

static int launch_plan(struct bench *b, struct shape *s, struct mk_plan *plan, uint32_t set)
{
    switch (b->job->problem.op) {
    case MK_OP_GEMM_RS:
        return mk_gemm_rs(plan, s->a[set], s->b[set], s->c[set], b->stream);
    case MK_OP_GEMM_AR:
        return mk_gemm_ar(plan, s->a[set], s->b[set], s->c[set], b->stream);
    default:
        return mk_ag_gemm(plan, s->a[set], s->b[set], s->c[set], b->stream);
    }
}

/* A launch on set i becomes a graph of its own. */
static int capture(struct bench *b, struct shape *s)
{
    for (uint32_t i = 0; i < s->sets; i++) {
        cudaGraph_t graph = NULL;
        if (cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
            return say(b, -EIO, "a launch cannot be captured");
        int result = launch_plan(b, s, s->plan, i);
        if (cudaStreamEndCapture(b->stream, &graph) != cudaSuccess || result)
            return say(b, result ? result : -EIO, result ? mk_error(b->comm) : "a launch cannot be captured");
        cudaError_t error = cudaGraphInstantiate(&s->graphs[i], graph, 0);
        cudaGraphDestroy(graph);
        if (error != cudaSuccess)
            return say(b, -EIO, "a captured launch cannot be made executable");
    }
    return 0;
}

/* cuBLAS's product of a set into `c`, of ag_gemm on what has been gathered. */
static int multiply(struct bench *b, struct shape *s, uint32_t set, void *c)
{
    return baseline_cublas_gemm(b->cublas, gathers(b) ? s->whole : s->a[set], s->b[set], c, (int64_t)s->m, (int64_t)s->n,
                                (int64_t)s->k, b->job->options.b_transposed, 0, 0, b->stream);
}

static int collect(struct bench *b, struct shape *s, uint32_t set)
{
    if (b->job->problem.op == MK_OP_GEMM_RS)
        return baseline_nccl_reducescatter(b->nccl, s->whole, s->c[set], s->rows * s->n, b->stream);
    if (b->job->problem.op == MK_OP_GEMM_AR)
        return baseline_nccl_allreduce(b->nccl, s->whole, s->c[set], s->m * s->n, b->stream);
    return baseline_nccl_allgather(b->nccl, s->a[set], s->whole, s->rows * s->k * 2, b->stream);
}

static int copy_to_next(struct bench *b)
{
    const struct mk_heap *heap = &b->comm->heap;
    uint32_t next = (mk_local_of(&b->comm->topo, b->comm->topo.rank) + 1) % b->comm->topo.gpus;
    return cudaMemcpyAsync((char *)heap->peers[next] + b->link_offset + BENCH_LINK_BYTES,
                           (char *)heap->base + b->link_offset, BENCH_LINK_BYTES, cudaMemcpyDeviceToDevice,
                           b->stream) == cudaSuccess
               ? 0
               : -EIO;
}

static int launch(struct bench *b, struct shape *s, enum bench_gpu_what what, uint32_t i)
{
    uint32_t set = i % s->sets;
    int result;
    switch (what) {
    case BENCH_FUSED:
        return cudaGraphLaunch(s->graphs[set], b->stream) == cudaSuccess ? 0 : -EIO;
    case BENCH_MOVE:
        return launch_plan(b, s, s->move, set);
    case BENCH_LINK:
        return copy_to_next(b);
    case BENCH_COMM:
        return collect(b, s, set);
    case BENCH_TURNS:
        result = gathers(b) ? collect(b, s, set) : multiply(b, s, set, s->whole);
        if (result)
            return result;
        return gathers(b) ? multiply(b, s, set, s->c[set]) : collect(b, s, set);
    case BENCH_GEMM:
        return multiply(b, s, set, gathers(b) ? s->c[set] : s->whole);
    default:
        return -EINVAL;
    }
}

static int by_size(const void *x, const void *y)
{
    float a = *(const float *)x, b = *(const float *)y;
    return (a > b) - (a < b);
}

/* One turn: all ranks start together, launches follow each other without a pause. Appends to times. */
static int turn(struct bench *b, struct shape *s, enum bench_gpu_what what, float *times, uint32_t *count)
{
    int result = bootstrap_barrier(b->comm->bootstrap);
    for (uint32_t i = 0; i < b->launches && !result; i++) {
        cudaEventRecord(b->events[i], b->stream);
        result = launch(b, s, what, i);
    }
    if (result)
        return say(b, result, "a launch was refused");
    cudaEventRecord(b->events[b->launches], b->stream);
    if (mk_wait(b->comm))
        return say(b, -ECONNABORTED, mk_error(b->comm));
    if (cudaStreamSynchronize(b->stream) != cudaSuccess)
        return say(b, -EIO, "the GPU failed");
    for (uint32_t i = SKIPPED; i < b->launches; i++)
        if (cudaEventElapsedTime(&times[(*count)++], b->events[i], b->events[i + 1]) != cudaSuccess)
            return say(b, -EIO, "the GPU's events give no time");
    return 0;
}

static int measure(struct bench *b, struct shape *s, struct bench_gpu_row *row)
{
    uint32_t room = TURNS * b->launches, counts[BENCH_WHATS] = {0};
    float *times = calloc((size_t)BENCH_WHATS * room, sizeof *times);
    int result = times ? 0 : -ENOMEM;
    for (int t = 0; t < TURNS && !result; t++)
        for (int what = 0; what < BENCH_TORCH && !result; what++) {
            int needs_nccl = what == BENCH_COMM || what == BENCH_TURNS,
                needs_cublas = what == BENCH_GEMM || what == BENCH_TURNS;
            if ((needs_nccl && !b->nccl) || (needs_cublas && !b->cublas) || (what == BENCH_MOVE && !s->move) ||
                (what == BENCH_LINK && b->comm->topo.gpus == 1))
                continue;
            result = turn(b, s, what, times + (size_t)what * room, &counts[what]);
        }
    for (int what = 0; what < BENCH_WHATS && !result; what++) {
        float *mine = times + (size_t)what * room;
        uint32_t count = counts[what];
        if (!count)
            continue;
        qsort(mine, count, sizeof *mine, by_size);
        row->times[what] = (struct bench_gpu_time){(mine[(count - 1) / 2] + mine[count / 2]) / 2.0, mine[0],
                                                   mine[count - 1]};
    }
    free(times);
    return result;
}

/* cuBLAS in fp32, on operands that were made again: this rank's rows of the sum of all ranks' products. */
static int make_reference(struct bench *b, struct shape *s, uint32_t set)
{
    uint32_t world = b->job->identity.world, me = b->job->identity.rank;
    int64_t rows = (int64_t)s->c_rows, n = (int64_t)s->n, k = (int64_t)s->k;
    int transposed = b->job->options.b_transposed, result = 0;
    if (gathers(b)) {
        result = gpu_fill(s->whole, key_a(b, me, set), 0, s->m * s->k, b->stream);
        return result ? result
                      : baseline_cublas_gemm(b->cublas, s->whole, s->b[set], s->reference, rows, n, k, transposed, 1,
                                             0, b->stream);
    }
    uint64_t first = b->job->problem.op == MK_OP_GEMM_RS ? me * s->rows * s->k : 0;
    for (uint32_t rank = 0; rank < world && !result; rank++) {
        result = gpu_fill(s->other_a, key_a(b, rank, set), first, s->c_rows * s->k, b->stream);
        if (!result)
            result = gpu_fill(s->other_b, key_b(b, rank, set), 0, s->k * s->n, b->stream);
        if (!result)
            result = baseline_cublas_gemm(b->cublas, s->other_a, s->other_b, s->reference, rows, n, k, transposed, 1,
                                          rank > 0, b->stream);
    }
    return result;
}

/* Every set: a fresh launch into poison. */
static int check(struct bench *b, struct shape *s, struct bench_gpu_row *row)
{
    double world = b->job->identity.world, depth = (double)s->k * (gathers(b) ? 1 : world);
    /* Sums of K products of values uniform in (-1, 1) wander by less than 8 sqrt(K) roundings (Higham and Mary 2019). Of
     * partial sums in bf16 each is rounded, and a node's sum once more: 2^-8 of what no product of a launch exceeds, seven
     * standard deviations sqrt(K / 9). */
    float absolute = (float)(8 * sqrt(depth) * 0x1p-23 * depth / 4);
    if (!gathers(b) && !b->job->problem.deterministic)
        absolute += (float)((world + 1) * 0x1p-8 * 7 * sqrt((double)s->k / 9));
    for (uint32_t i = 0; i < s->sets; i++) {
        struct gpu_difference d;
        int result = gpu_poison(s->c[i], s->c_rows * s->n, b->stream);
        if (!result)
            result = bootstrap_barrier(b->comm->bootstrap);
        if (!result)
            result = launch(b, s, BENCH_FUSED, i);
        if (mk_wait(b->comm))
            return say(b, -ECONNABORTED, mk_error(b->comm));
        if (!result)
            result = make_reference(b, s, i);
        if (!result)
            result = gpu_compare(s->c[i], s->reference, s->c_rows * s->n, absolute, &d, b->stream);
        if (result)
            return say(b, result, "a result cannot be checked");
        row->difference2 += isnan(d.difference2) ? INFINITY : d.difference2;
        row->reference2 += d.reference2;
        row->wrong += d.wrong;
        row->checked++;
    }
    return 0;
}

static int make_plan(struct bench *b, const struct shape *s, uint64_t n, uint64_t k, struct mk_plan **out)
{
    struct mk_problem q = b->job->problem;
    q.m = s->m;
    q.n = n;
    q.k = k;
    int result = mk_plan_create(out, b->comm, &q);
    if (result)
        snprintf(b->error, b->error_size, "%s", mk_error(b->comm));
    return result;
}

static int bench_shape(struct bench *b, const uint64_t shape[3], struct bench_gpu_row *row)
{
    struct shape s = {.m = shape[0], .n = shape[1], .k = shape[2], .rows = shape[0] / b->job->identity.world};
    const struct mk_problem *q = &b->job->problem;
    s.a_rows = gathers(b) ? s.rows : s.m;
    s.c_rows = q->op == MK_OP_GEMM_RS ? s.rows : s.m;
    *row = (struct bench_gpu_row){.m = s.m,
                                  .n = s.n,
                                  .k = s.k,
                                  .op = q->op,
                                  .world = b->job->identity.world,
                                  .flop = 2.0 * s.m * s.n * s.k,
                                  .bound = gathers(b) || q->deterministic ? CHECK_FROBENIUS : CHECK_FAST};
    int result = make_plan(b, &s, s.n, s.k, &s.plan);
    if (!result && b->job->identity.world > 1)
        result = make_plan(b, &s, gathers(b) ? 8 : s.n, gathers(b) ? s.k : 8, &s.move);
    if (!result) {
        const struct mk_tuning *t = &s.plan->problem.tuning;
        row->split = t->split;
        row->tile_m = t->tile_m;
        row->tile_n = t->tile_n;
        row->chunk_rows = t->chunk_rows;
        result = make_operands(b, &s);
    }
    if (!result)
        result = capture(b, &s);
    if (!result)
        result = check(b, &s, row);
    if (!result)
        result = measure(b, &s, row);
    if (!result)
        result = check(b, &s, row);
    cudaStreamSynchronize(b->stream);
    free_operands(&s);
    return result;
}

/* Times of the slowest rank, checks of all. */
static int join(struct bench *b, struct bench_gpu_row *row)
{
    uint32_t world = b->job->identity.world;
    struct bench_gpu_row *all = calloc(world, sizeof *all);
    int result = all ? bootstrap_allgather(b->comm->bootstrap, row, all, sizeof *row) : -ENOMEM;
    row->difference2 = row->reference2 = 0;
    row->wrong = row->checked = 0;
    for (uint32_t i = 0; i < world && !result; i++) {
        for (int what = 0; what < BENCH_WHATS; what++)
            if (all[i].times[what].ms > row->times[what].ms)
                row->times[what] = all[i].times[what];
        row->difference2 += all[i].difference2;
        row->reference2 += all[i].reference2;
        row->wrong += all[i].wrong;
        row->checked += all[i].checked;
    }
    free(all);
    return result;
}

static int open_baselines(struct bench *b)
{
    char why[256];
    struct baseline_nccl_id mine = {{0}}, *all;
    uint32_t world = b->job->identity.world;
    int result = baseline_cublas_open(&b->cublas, why, sizeof why);
    if (result) /* without it nothing can be checked */
        return say(b, -ENOENT, why);
    if (baseline_nccl_open(&b->nccl, why, sizeof why)) {
        baseline_nccl_close(b->nccl);
        b->nccl = NULL;
    }
    if (b->nccl && b->job->identity.rank == 0)
        result = baseline_nccl_make_id(b->nccl, &mine);
    all = calloc(world, sizeof *all);
    if (!result)
        result = all ? bootstrap_allgather(b->comm->bootstrap, &mine, all, sizeof mine) : -ENOMEM;
    if (!result && b->nccl)
        result = baseline_nccl_join(b->nccl, &all[0], (int)b->job->identity.rank, (int)world);
    free(all);
    return result ? say(b, result, "the baselines cannot start") : 0;
}

/* Shapes asked for: --shapes, else --shape. */
static uint32_t list_shapes(const struct run_job *job, uint64_t shapes[BENCH_GPU_SHAPES][3])
{
    uint32_t count = 0;
    const char *p = job->options.shapes;
    if (!p) {
        memcpy(shapes[0], job->options.shape, sizeof shapes[0]);
        return 1;
    }
    while (count < BENCH_GPU_SHAPES) {
        unsigned long long m, n, k;
        int used = 0;
        if (sscanf(p, "%llu,%llu,%llu%n", &m, &n, &k, &used) != 3)
            return 0;
        shapes[count][0] = m;
        shapes[count][1] = n;
        shapes[count++][2] = k;
        p += used;
        if (!*p)
            return count;
        if (*p++ != ':')
            return 0;
    }
    return 0;
}

/* Adds PyTorch's times, which the parent measured before the ranks began (bench_torch.c). */
static void read_torch(struct bench_gpu_row *rows, uint32_t count)
{
    const char *path = getenv("MKERNEL_BENCH_TORCH");
    FILE *f = path ? fopen(path, "re") : NULL;
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        unsigned long long m, n, k;
        struct bench_gpu_time t;
        if (sscanf(line, "%llu,%llu,%llu,%lf,%lf,%lf", &m, &n, &k, &t.ms, &t.min, &t.max) != 6)
            continue;
        for (uint32_t i = 0; i < count; i++)
            if (rows[i].m == m && rows[i].n == n && rows[i].k == k)
                rows[i].times[BENCH_TORCH] = t;
    }
    if (f)
        fclose(f);
}

static int bench_all(struct bench *b, struct bench_gpu_row *rows, uint32_t *done)
{
    uint64_t shapes[BENCH_GPU_SHAPES][3];
    uint32_t count = list_shapes(b->job, shapes);
    if (!count) {
        snprintf(b->error, b->error_size, "--shapes %s is not M,N,K:M,N,K with at most %d shapes",
                 b->job->options.shapes, BENCH_GPU_SHAPES);
        return -EINVAL;
    }
    int result = open_baselines(b);
    for (uint32_t i = 0; i < count && !result; i++) {
        result = bench_shape(b, shapes[i], &rows[i]);
        if (!result)
            result = join(b, &rows[i]);
        if (!result)
            *done = i + 1;
    }
    return result;
}

int bench_gpu_rank(const struct run_job *job, char *sentence, size_t size)
{
    struct bench b = {.job = job, .error = sentence, .error_size = size};
    struct bench_gpu_row rows[BENCH_GPU_SHAPES];
    struct mk_config config;
    uint32_t done = 0, wrong = 0;
    const char *path;
    run_configure(job, &config);
    if (job->options.shapes) /* room for the plans of all of them */
        config.heap_bytes = (uint64_t)40 << 30;
    else
        config.heap_bytes *= 2; /* and for the plan that only communicates */
    config.heap_bytes += 2 * BENCH_LINK_BYTES + 4096;
    if (job->options.traced)
        config.trace_events = 1 << 16;
    b.launches = (uint32_t)mk_ceil_div(job->options.iters, TURNS) + SKIPPED;
    b.events = calloc(b.launches + 1, sizeof *b.events);
    int result = b.events ? mk_comm_open(&b.comm, &config) : -ENOMEM;
    if (result)
        snprintf(sentence, size, "%s", b.comm ? mk_error(b.comm) : "no memory");
    else if (cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking) != cudaSuccess)
        result = say(&b, -EIO, "no stream");
    for (uint32_t i = 0; i <= b.launches && !result; i++)
        if (cudaEventCreate(&b.events[i]) != cudaSuccess)
            result = say(&b, -EIO, "no events");
    if (!result && !mk_heap_alloc(b.comm, 2 * BENCH_LINK_BYTES, &b.link_offset))
        result = say(&b, -ENOMEM, "no room in the heap for the links' measurement");
    if (!result)
        result = bench_all(&b, rows, &done);
    read_torch(rows, done);
    for (uint32_t i = 0; i < done; i++)
        wrong += rows[i].wrong || bench_gpu_error(&rows[i]) > rows[i].bound;
    if (done && job->identity.rank == 0 && bench_gpu_report(job, rows, done, &path) && !result) {
        result = -EIO;
        snprintf(sentence, size, "%s could not be written", path);
    }
    baseline_nccl_close(b.nccl);
    baseline_cublas_close(b.cublas);
    for (uint32_t i = 0; b.events && i <= b.launches; i++)
        if (b.events[i])
            cudaEventDestroy(b.events[i]);
    free(b.events);
    if (b.stream)
        cudaStreamDestroy(b.stream);
    mk_comm_close(b.comm);
    if (result)
        return STATUS_FAILED;
    snprintf(sentence, size, "%u shapes measured, %u wrong", done, wrong);
    return wrong ? STATUS_WRONG : STATUS_DONE;
}
