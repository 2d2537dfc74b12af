/* One rank of `mkernel bench OP --exec cuda`. Everything that is compared is measured in turns
 * within the same seconds (gpu_shape.h). */
#include "experiments/bench/bench_gpu.h"
#include "experiments/bench/bench_gpu_row.h"
#include "experiments/common/commands.h"
#include "experiments/job/op.h"
#include "core/comm/comm.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is launched in a turn. */
struct subject {
    struct bench *bench;
    struct gpu_shape *shape;
    struct gpu_graphs graphs; /* the operator's */
    struct mk_plan *move;
    enum bench_gpu_what what;
    uint32_t burst;      /* launches that one time is of */
    cudaGraphExec_t all; /* they, where they are more than one; NULL: not captured */
};

/* cuBLAS's product of a set into `c`, of ag_gemm on what has been gathered. */
static int bench_gpu_multiply(struct gpu_bench *b, struct gpu_shape *s, uint32_t set, void *c)
{
    int gathers = gpu_gathers(b);
    const struct baseline_fp8 p = {.a = gathers ? s->whole : s->a[set],
                                   .b = s->b[set],
                                   .a_scales = gathers ? s->whole_scales : s->a_scales[set],
                                   .b_scales = s->b_scales[set],
                                   .c = c,
                                   .m = (int64_t)s->m,
                                   .n = (int64_t)s->n,
                                   .k = (int64_t)s->k};
    if (b->job->problem.fp8)
        return baseline_cublaslt_gemm(b->cublaslt, &p, b->stream);
    return baseline_cublas_gemm(b->cublas, plan_element(&b->job->problem),
                                gpu_gathers(b) ? s->whole : s->a[set], s->b[set], c, (int64_t)s->m,
                                (int64_t)s->n, (int64_t)s->k, b->job->problem.b_transposed, 0, 0,
                                b->stream);
}

/* A, and of FP8 its scales, which are then laid as the product takes them. */
static int bench_gpu_gather(struct bench *b, struct gpu_shape *s, uint32_t set)
{
    struct gpu_bench *g = &b->gpu;
    const struct mk_problem *q = &g->job->problem;
    int result = baseline_nccl_allgather(b->nccl, s->a[set], s->whole,
                                         s->rows * s->k * op_factor_bytes(q), g->stream);
    if (!result && q->fp8)
        result = baseline_nccl_allgather(b->nccl, s->a_scales[set], s->gathered_scales,
                                         gpu_scales_a(s->rows, s->k) * 4, g->stream);
    return !result && q->fp8 ? gpu_join_scales(g, s) : result;
}

static int bench_gpu_collect(struct bench *b, struct gpu_shape *s, uint32_t set)
{
    const struct gpu_bench *g = &b->gpu;
    const uint32_t element = plan_element(&g->job->problem);
    switch (run_op_of(g->job->problem.op)->collective) {
    case RUN_ALL_GATHER:
        return bench_gpu_gather(b, s, set);
    case RUN_REDUCE_SCATTER:
        return baseline_nccl_reducescatter(b->nccl, element, s->whole, s->c[set], s->rows * s->n,
                                           g->stream);
    case RUN_ALL_REDUCE:
        return baseline_nccl_allreduce(b->nccl, element, s->whole, s->c[set], s->m * s->n,
                                       g->stream);
    default: /* run_is_compared lets none come here */
        return -ENOTSUP;
    }
}

int bench_gpu_copy_to_next(struct bench *b)
{
    const struct mk_comm *comm = b->gpu.comm;
    const struct mk_heap *heap = &comm->heap;
    uint32_t next = (mk_local_of(&comm->topo, comm->topo.rank) + 1) % comm->topo.gpus;
    return cudaMemcpyAsync((char *)heap->peers[next] + b->link_offset + BENCH_LINK_BYTES,
                           (char *)heap->base + b->link_offset, BENCH_LINK_BYTES,
                           cudaMemcpyDeviceToDevice, b->gpu.stream) == cudaSuccess
               ? 0
               : -EIO;
}

static int bench_gpu_launch(void *context, uint32_t number)
{
    struct subject *u = context;
    struct gpu_bench *g = &u->bench->gpu;
    struct gpu_shape *s = u->shape;
    uint32_t set = number % s->sets;
    int result;
    switch (u->what) {
    case BENCH_FUSED:
        return u->burst > 1 ? gpu_launch_plan(g, s, u->graphs.plan, set)
                            : gpu_launch_graph(g, s, &u->graphs, number);
    case BENCH_MOVE:
        return gpu_launch_plan(g, s, u->move, set);
    case BENCH_LINK:
        return bench_gpu_copy_to_next(u->bench);
    case BENCH_COMM:
        return bench_gpu_collect(u->bench, s, set);
    case BENCH_TURNS:
        result = gpu_gathers(g) ? bench_gpu_collect(u->bench, s, set)
                                : bench_gpu_multiply(g, s, set, s->whole);
        if (result)
            return result;
        return gpu_gathers(g) ? bench_gpu_multiply(g, s, set, s->c[set])
                              : bench_gpu_collect(u->bench, s, set);
    case BENCH_PRODUCT:
        return bench_gpu_multiply(g, s, set, gpu_gathers(g) ? s->c[set] : s->whole);
    default:
        return -EINVAL;
    }
}

static int bench_gpu_launch_all(void *context, uint32_t number)
{
    struct subject *u = context;
    return cudaGraphLaunch(u->all, u->bench->gpu.stream) == cudaSuccess ? 0 : -EIO;
}

/* A turn of what u->what says. Where a burst is asked for, a time is a launch's share of a graph of
 * so many: what lies between graphs, and the events' own time, are then no part of it. Only the
 * copies that tell the link's rate stay alone. */
static int bench_gpu_turn(struct subject *u, float *times, uint32_t *count)
{
    struct gpu_bench *g = &u->bench->gpu;
    uint32_t first = *count;
    if (u->burst == 1 || u->what == BENCH_LINK)
        return gpu_turn(g, bench_gpu_launch, u, times, count);
    int result = bench_gpu_launch(u, 0); /* what allocates at its first call does so now */
    if (!result && cudaStreamSynchronize(g->stream) != cudaSuccess)
        result = gpu_say(g, -EIO, "the GPU failed");
    result = result ? result : gpu_capture_run(g, bench_gpu_launch, u, u->burst, &u->all);
    result = result ? result : gpu_turn(g, bench_gpu_launch_all, u, times, count);
    for (uint32_t i = first; i < *count; i++)
        times[i] /= (float)u->burst;
    if (u->all)
        cudaGraphExecDestroy(u->all);
    u->all = NULL;
    return result;
}

static int bench_gpu_measure(struct subject *u, struct bench_gpu_row *row)
{
    struct bench *b = u->bench;
    uint32_t room = GPU_TURNS * b->gpu.launches, *counts = row->counts;
    MK_FREED float *times = calloc((size_t)BENCH_WHATS * room, sizeof *times);
    int result = times ? 0 : gpu_say(&b->gpu, -ENOMEM, "no memory for times");
    for (uint32_t t = 0; t < GPU_TURNS && !result; t++)
        for (int what = 0; what < BENCH_TORCH && !result; what++) {
            int needs_nccl = what == BENCH_COMM || what == BENCH_TURNS;
            if ((needs_nccl && !b->nccl) || (what == BENCH_MOVE && !u->move) ||
                (what == BENCH_LINK && b->gpu.comm->topo.gpus == 1))
                continue;
            u->what = (enum bench_gpu_what)what;
            result = bench_gpu_turn(u, times + (size_t)what * room, &counts[what]);
        }
    size_t bytes = (size_t)BENCH_WHATS * room * sizeof *times;
    row->room = room;
    if (!result && b->gpu.job->options.samples) { /* in the order of launches */
        row->samples = malloc(bytes);
        if (row->samples)
            memcpy(row->samples, times, bytes);
        else
            result = gpu_say(&b->gpu, -ENOMEM, "no memory for times");
    }
    for (int what = 0; what < BENCH_WHATS && !result; what++)
        row->times[what] = gpu_time_of(times + (size_t)what * room, counts[what]);
    return result;
}

void bench_gpu_describe(struct bench_gpu_row *row, const struct bench *b,
                        const struct mk_plan *plan)
{
    uint64_t nvlink, network;
    plan_work(plan, &row->flop, &nvlink, &network);
    row->nvlink_bytes = (double)nvlink;
    row->network_bytes = (double)network;
    row->network_ms = b->gpu.job->nic_gbit > 0 ? (double)network / b->gpu.job->nic_gbit * 8e-6 : 0;
    row->problem = plan->problem;
    snprintf(row->tuned, sizeof row->tuned, "%s", plan->tuned);
}

int bench_gpu_why(struct bench *b, const struct mk_plan *plan,
                  int (*turn)(void *context, float *times, uint32_t *count), void *context,
                  struct run_why *out)
{
    struct gpu_bench *g = &b->gpu;
    float times[RUN_WHY_LAUNCHES];
    uint32_t count = 0, launches = g->launches;
    int result = run_why_begin(g->comm);
    if (result)
        return gpu_say(g, result, mk_error(g->comm));
    g->launches = launches < RUN_WHY_LAUNCHES ? launches : RUN_WHY_LAUNCHES;
    result = turn(context, times, &count);
    g->launches = launches;
    if (result)
        return result;
    result = run_why_end(g->comm, g->job, plan, out);
    return result ? gpu_say(g, result, mk_error(g->comm)) : 0;
}

/* In bursts as the timed launches, but short ones. */
static int bench_gpu_turn_of_why(void *context, float *times, uint32_t *count)
{
    struct subject *u = context;
    struct gpu_bench *g = &u->bench->gpu;
    const struct gpu_graphs timed = u->graphs;
    const uint32_t burst = u->burst;
    u->graphs = (struct gpu_graphs){.plan = timed.plan};
    u->what = BENCH_FUSED;
    if (burst > 1) {
        u->burst = burst < 4 ? burst : 4;
        g->launches = GPU_SKIPPED + 1;
    }
    int result = gpu_capture(g, u->shape, &u->graphs);
    result = result ? result : bench_gpu_turn(u, times, count);
    cudaStreamSynchronize(g->stream);
    gpu_graphs_close(&u->graphs);
    u->graphs = timed;
    u->burst = burst;
    return result;
}

static int bench_shape(struct bench *b, const struct mk_problem *q, struct bench_gpu_row *row)
{
    struct gpu_shape s = {0};
    struct subject u = {.bench = b, .shape = &s, .burst = (uint32_t)b->gpu.job->burst};
    struct gpu_bench *g = &b->gpu;
    uint64_t m = q->m, n = q->n, k = q->k;
    *row = (struct bench_gpu_row){.problem = *q, .bound = gpu_check_bound(g)};
    int result = gpu_place_c(g, m, n);
    result = result ? result : gpu_plan(g, m, n, k, &q->tuning, &u.graphs.plan);
    if (!result && g->job->identity.world > 1)
        result = gpu_plan(g, m, gpu_gathers(g) ? 8 : n,
                          gpu_gathers(g) ? k : 16 / op_factor_bytes(q), &q->tuning, &u.move);
    if (!result) {
        bench_gpu_describe(row, b, u.graphs.plan);
        result = gpu_shape_open(g, &s, m, n, k);
    }
    result = result ? result : gpu_capture(g, &s, &u.graphs);
    result = result ? result : gpu_check(g, &s, &u.graphs, 1, &row->check);
    result = result ? result : bench_gpu_measure(&u, row);
    result = result ? result : gpu_check(g, &s, &u.graphs, 1, &row->check);
    if (!result && g->job->options.why)
        result = bench_gpu_why(b, u.graphs.plan, bench_gpu_turn_of_why, &u, &row->why);
    cudaStreamSynchronize(g->stream);
    gpu_graphs_close(&u.graphs);
    gpu_shape_close(&s);
    return result;
}

/* Times of the slowest rank, checks of all. */
static int bench_gpu_join(struct bench *b, struct bench_gpu_row *row)
{
    uint32_t world = b->gpu.job->identity.world;
    MK_FREED struct bench_gpu_row *all = calloc(world, sizeof *all);
    int result = all ? bootstrap_allgather(b->gpu.comm->bootstrap, row, all, sizeof *row) : -ENOMEM;
    row->check = (struct gpu_check){0};
    for (uint32_t i = 0; i < world && !result; i++) {
        for (int what = 0; what < BENCH_WHATS; what++)
            if (all[i].times[what].ms > row->times[what].ms)
                row->times[what] = all[i].times[what];
        row->check.difference2 += all[i].check.difference2;
        row->check.reference2 += all[i].check.reference2;
        row->check.wrong += all[i].check.wrong;
        row->check.launches += all[i].check.launches;
    }
    if (!result && row->samples) { /* all ranks were asked for them */
        size_t bytes = (size_t)BENCH_WHATS * row->room * sizeof *row->samples;
        float *joined = calloc(world, bytes);
        result = joined ? bootstrap_allgather(b->gpu.comm->bootstrap, row->samples, joined, bytes)
                        : -ENOMEM;
        free(row->samples);
        row->samples = joined;
    }
    return result ? gpu_say(&b->gpu, result, "the results could not be joined") : 0;
}

/* NCCL, where it is there. */
static int bench_gpu_open_nccl(struct bench *b)
{
    char why[256];
    struct baseline_nccl_id mine = {{0}};
    const struct run_identity *me = &b->gpu.job->identity;
    int result = 0;
    if (baseline_nccl_open(&b->nccl, why, sizeof why)) {
        baseline_nccl_close(b->nccl);
        b->nccl = NULL;
    }
    if (b->nccl && me->rank == 0)
        result = baseline_nccl_make_id(b->nccl, &mine);
    MK_FREED struct baseline_nccl_id *all = calloc(me->world, sizeof *all);
    if (!result)
        result =
            all ? bootstrap_allgather(b->gpu.comm->bootstrap, &mine, all, sizeof mine) : -ENOMEM;
    if (!result && b->nccl)
        result = baseline_nccl_join(b->nccl, &all[0], (int)me->rank, (int)me->world);
    return result ? gpu_say(&b->gpu, result, "the baselines cannot start") : 0;
}

static int bench_all(struct bench *b, struct bench_gpu_row *rows, uint32_t *done)
{
    const struct run_job *job = b->gpu.job;
    int attention = run_op_of(job->problem.op)->product == RUN_ATTENTION;
    int result = gpu_bench_open(&b->gpu);
    if (!result && attention)
        bench_cudnn_start(b); /* Python starts while the rest is opened */
    result = result ? result : bench_gpu_open_nccl(b);
    if (!result && !mk_heap_alloc(b->gpu.comm, 2 * BENCH_LINK_BYTES, &b->link_offset))
        result = gpu_say(&b->gpu, -ENOMEM, "no room in the heap for the links' measurement");
    if (!result && attention)
        result = bench_cudnn_meet(b);
    int gemm = run_op_of(job->problem.op)->product == RUN_GEMM;
    for (uint32_t i = 0; i < job->shape_count && !result; i++) {
        struct mk_problem q = job->problem;
        op_set_numbers(&q, job->shapes[i]);
        result = (gemm ? bench_shape : bench_other)(b, &q, &rows[i]);
        result = result ? result : bench_gpu_join(b, &rows[i]);
        if (!result)
            *done = i + 1;
    }
    return result;
}

int bench_gpu_rank(const struct run_job *job, char *sentence, size_t size)
{
    struct bench b = {.gpu = {.job = job, .error = sentence, .size = size}};
    struct bench_gpu_row rows[RUN_SHAPES] = {{.flop = 0}};
    struct mk_config config;
    uint32_t done = 0, wrong = 0;
    char shape[OP_PROBLEM_TEXT];
    const char *path;
    run_configure(job, &config);
    if (job->options.shapes) /* room for the plans of all of them */
        config.heap_bytes = (uint64_t)40 << 30;
    else
        config.heap_bytes *= 2; /* and for the plan that only communicates */
    config.heap_bytes += 2 * BENCH_LINK_BYTES + 4096;
    if (op_of(job->problem.op)->c_in_heap)
        config.heap_bytes += job->problem.m * job->problem.n * 2 + 4096;
    /* as many as there are by default: the plans of a shape may need more than the first shape's */
    config.flag_bytes = 0;
    if (job->options.traced)
        config.trace_events = 1 << 16;
    uint64_t together = run_op_of(job->problem.op)->product == RUN_GEMM ? job->burst : 1;
    b.gpu.launches = b.gpu.launches_most =
        (uint32_t)mk_ceil_div(job->options.iters, GPU_TURNS * together) + GPU_SKIPPED;
    int result = run_open(&b.gpu.comm, &config, job);
    if (result)
        snprintf(sentence, size, "%s", mk_error(b.gpu.comm));
    else {
        run_why_prepare(b.gpu.comm, job);
        result = bench_all(&b, rows, &done);
    }
    bench_torch_read(rows, done);
    for (uint32_t i = 0; i < done; i++)
        wrong += !bench_gpu_right(&rows[i]);
    if (done && job->identity.rank == 0 && bench_gpu_report(job, rows, done, &path) && !result)
        result = mk_fail(-EIO, sentence, size, "%s could not be written", path);
    for (uint32_t i = 0; i < done && job->options.why && !result; i++)
        if (!rows[i].why.there)
            result = mk_fail(-EIO, sentence, size, "where the time of %s goes is not known: %s",
                             op_problem_text(&rows[i].problem, shape), rows[i].why.error);
    for (uint32_t i = 0; i < RUN_SHAPES; i++)
        free(rows[i].samples);
    if (result)
        run_last_word(job, STATUS_FAILED, sentence);
    baseline_nccl_close(b.nccl);
    baseline_cudnn_close(b.cudnn);
    gpu_bench_close(&b.gpu);
    run_close(b.gpu.comm);
    if (result)
        return STATUS_FAILED;
    snprintf(sentence, size, "%u shapes measured, %u wrong", done, wrong);
    return wrong ? STATUS_WRONG : STATUS_DONE;
}
