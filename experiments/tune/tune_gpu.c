/* Many plans of a shape on this rank's GPU, in turns. A GEMM's operands stay from communicator to
 * communicator. */
#include "experiments/tune/tune.h"
#include "experiments/job/gpu_operands.h"
#include "experiments/job/op.h"
#include "core/comm/comm.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct tune_gpu {
    struct gpu_bench bench;
    struct gpu_shape shape;       /* of a GEMM operator */
    struct gpu_operands operands; /* of another */
};

struct subject {
    struct tune_gpu *gpu;
    const struct gpu_graphs *graphs;
};

static int tune_gpu_is_gemm(const struct tune_gpu *g)
{
    return run_op_of(g->bench.job->problem.op)->product == RUN_GEMM;
}

static int tune_gpu_launch(void *context, uint32_t number)
{
    const struct subject *s = context;
    return tune_gpu_is_gemm(s->gpu)
               ? gpu_launch_graph(&s->gpu->bench, &s->gpu->shape, s->graphs, number)
               : gpu_operands_launch(&s->gpu->operands, s->graphs, number);
}

/* What is needed once a job, and once a shape. */
static int tune_gpu_prepare(struct tune *t, struct mk_comm *comm)
{
    const struct mk_problem *q = &t->shape.problem;
    int result = 0;
    if (!t->gpu) {
        t->gpu = calloc(1, sizeof *t->gpu);
        if (!t->gpu)
            return -ENOMEM;
        t->gpu->bench =
            (struct gpu_bench){.job = t->job, .comm = comm, .error = t->error, .size = t->size};
        t->gpu->bench.launches_most =
            (uint32_t)mk_ceil_div(2 * t->job->options.iters, GPU_TURNS) + GPU_SKIPPED;
        result = gpu_bench_open(&t->gpu->bench);
    }
    t->gpu->bench.comm = comm;
    const struct gpu_shape *s = &t->gpu->shape;
    if (result || !tune_gpu_is_gemm(t->gpu) || (s->m == q->m && s->n == q->n && s->k == q->k))
        return result;
    gpu_shape_close(&t->gpu->shape);
    return gpu_shape_open(&t->gpu->bench, &t->gpu->shape, q->m, q->n, q->k);
}

/* Of an operator that is no GEMM: operands that are large enough for all plans. */
static int tune_gpu_open_operands(struct tune *t, const struct gpu_graphs *graphs, uint32_t count)
{
    struct mk_plan *plans[TUNE_PLANS];
    struct gpu_operands *o = &t->gpu->operands;
    for (uint32_t i = 0; i < count; i++)
        plans[i] = graphs[i].plan;
    int result = gpu_operands_open(o, &t->gpu->bench, tune_largest(plans, count));
    for (uint32_t set = 0; set < o->job.burst && !result; set++)
        result = gpu_operands_fill(o, set, 1 + set);
    return result;
}

/* A launch of each plan, the sets in turn. */
static int tune_gpu_check_operands(struct tune *t, const struct gpu_graphs *graphs,
                                   const uint32_t *which, uint32_t count, struct gpu_check *checks)
{
    struct gpu_operands *o = &t->gpu->operands;
    int result = 0;
    for (uint32_t i = 0; i < count && !result; i++) {
        uint32_t set = i % (uint32_t)o->job.burst;
        t->running = &t->plans[which[i]];
        result = gpu_operands_check(o, &graphs[i], set, 1 + set, &checks[i]);
    }
    return result;
}

static int tune_gpu_check(struct tune *t, const struct gpu_graphs *graphs, const uint32_t *which,
                          uint32_t count, struct gpu_check *checks)
{
    struct gpu_bench *b = &t->gpu->bench;
    if (!tune_gpu_is_gemm(t->gpu))
        return tune_gpu_check_operands(t, graphs, which, count, checks);
    int result = gpu_check(b, &t->gpu->shape, graphs, count, checks);
    if (result && b->checking < count)
        t->running = &t->plans[which[b->checking]];
    return result;
}

static int tune_gpu_plan(struct tune *t, uint32_t which, struct mk_plan **out)
{
    struct gpu_bench *b = &t->gpu->bench;
    struct mk_problem q = tune_problem(t, which);
    int result = comm_make_plan(out, b->comm, &q);
    if (result)
        snprintf(b->error, b->size, "%s", mk_error(b->comm));
    return result;
}

static int measure(struct tune *t, struct gpu_graphs *graphs, const uint32_t *which, uint32_t count,
                   float *times, uint32_t room, struct gpu_check *checks,
                   struct tune_result *results)
{
    struct gpu_bench *b = &t->gpu->bench;
    struct gpu_shape *s = &t->gpu->shape;
    int gemm = tune_gpu_is_gemm(t->gpu);
    MK_FREED uint32_t *counts = calloc(count, sizeof *counts);
    int result = counts ? 0 : -ENOMEM;
    for (uint32_t i = 0; i < count && !result; i++) {
        t->running = &t->plans[which[i]];
        result = tune_gpu_plan(t, which[i], &graphs[i].plan);
    }
    if (!result && !gemm)
        result = tune_gpu_open_operands(t, graphs, count);
    for (uint32_t i = 0; i < count && !result; i++) {
        t->running = &t->plans[which[i]];
        result = gemm ? gpu_capture(b, s, &graphs[i])
                      : gpu_operands_capture(&t->gpu->operands, &graphs[i]);
    }
    result = result ? result : tune_gpu_check(t, graphs, which, count, checks);
    for (uint32_t turn = 0; turn < GPU_TURNS && !result; turn++)
        for (uint32_t step = 0; step < count && !result; step++) {
            uint32_t i = turn & 1 ? count - 1 - step : step; /* to and fro */
            struct subject subject = {t->gpu, &graphs[i]};
            t->running = &t->plans[which[i]];
            result = gpu_turn(b, tune_gpu_launch, &subject, times + (size_t)i * room, &counts[i]);
        }
    result = result ? result : tune_gpu_check(t, graphs, which, count, checks);
    double bound = gemm ? gpu_check_bound(b) : t->gpu->operands.bound;
    for (uint32_t i = 0; i < count && !result; i++) {
        struct gpu_time time = gpu_time_of(times + (size_t)i * room, counts[i]);
        int wrong = checks[i].wrong || !(gpu_check_error(&checks[i]) <= bound);
        const float *sorted = times + (size_t)i * room;
        uint32_t quarter = counts[i] ? (counts[i] - 1) / 4 : 0;
        results[i] = (struct tune_result){time.ms,
                                          time.min,
                                          time.max,
                                          sorted[quarter],
                                          counts[i] ? sorted[counts[i] - 1 - quarter] : 0,
                                          counts[i],
                                          wrong};
    }
    return result;
}

int tune_gpu_measure(struct tune *t, struct mk_comm *comm, const uint32_t *which, uint32_t count,
                     uint64_t iters, struct tune_result *results)
{
    int result = tune_gpu_prepare(t, comm);
    if (result)
        return result;
    struct gpu_bench *b = &t->gpu->bench;
    b->launches = (uint32_t)mk_ceil_div(iters, GPU_TURNS) + GPU_SKIPPED;
    uint32_t room = GPU_TURNS * b->launches;
    MK_FREED struct gpu_graphs *graphs = calloc(count, sizeof *graphs);
    MK_FREED struct gpu_check *checks = calloc(count, sizeof *checks);
    MK_FREED float *times = calloc((size_t)count * room, sizeof *times);
    result = graphs && checks && times
                 ? measure(t, graphs, which, count, times, room, checks, results)
                 : gpu_say(b, -ENOMEM, "no memory for the plans that are measured");
    cudaStreamSynchronize(b->stream);
    gpu_operands_close(&t->gpu->operands);
    for (uint32_t i = 0; graphs && i < count; i++)
        gpu_graphs_close(&graphs[i]);
    return result;
}

void tune_gpu_close(struct tune *t)
{
    if (!t->gpu)
        return;
    gpu_shape_close(&t->gpu->shape);
    gpu_bench_close(&t->gpu->bench);
    free(t->gpu);
    t->gpu = NULL;
}
