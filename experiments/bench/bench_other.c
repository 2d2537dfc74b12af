/* What `mkernel bench --exec cuda` measures on a rank for an operator that is no GEMM: the operator
 * as CUDA graphs on operands that rotate through more than L2 holds, beside the link and, of
 * ring_attention, the gather of K and V, NCCL's and its own, and cuDNN's attention (bench_cudnn.c).
 * What else computes alone, and behind a collective, PyTorch has measured (bench_torch.c): the
 * grouped products of a MoE, NCCL's all-to-all, attention behind NCCL's gather. */
#include "experiments/bench/bench_gpu_row.h"
#include "experiments/job/gpu_operands.h"
#include "experiments/job/op.h"
#include "core/comm/comm.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { REST_US = 20000 };

/* The arguments of an attention's launch. */
enum { ARGUMENT_K = 1, ARGUMENT_V = 2 };

struct other_bench {
    struct bench *bench;
    struct gpu_operands operands;
    struct gpu_graphs graphs; /* of the operator */
    struct mk_plan *move;     /* of ring_attention, the same that only gathers */
    void *gathered[2];        /* K and V of all ranks, NCCL's */
    enum bench_gpu_what what;
};

static int bench_other_gathers(const struct other_bench *a)
{
    return a->bench->nccl && run_op_of(a->operands.job.problem.op)->collective == RUN_ALL_GATHER;
}

static int bench_other_open(struct other_bench *a, const struct mk_problem *asked)
{
    struct gpu_bench *g = &a->bench->gpu;
    struct mk_problem move = *asked;
    int result = run_make_plan(&a->graphs.plan, g->comm, g->job, asked);
    move.attention.gather_only = 1;
    if (!result && g->job->identity.world > 1 && run_op_of(asked->op)->product == RUN_ATTENTION)
        result = comm_make_plan(&a->move, g->comm, &move);
    if (result)
        return mk_fail(result, g->error, g->size, "%s", mk_error(g->comm));
    result = gpu_operands_open(&a->operands, g, a->graphs.plan);
    for (int i = 0; i < 2 && !result && bench_other_gathers(a); i++)
        if (cudaMalloc(&a->gathered[i],
                       g->job->identity.world * a->operands.data.bytes[ARGUMENT_K]) != cudaSuccess)
            return gpu_say(g, -ENOMEM, "no GPU memory for what NCCL gathers");
    return result ? result : gpu_operands_capture(&a->operands, &a->graphs);
}

static void bench_other_close(struct other_bench *a)
{
    cudaStreamSynchronize(a->bench->gpu.stream);
    gpu_graphs_close(&a->graphs);
    cudaFree(a->gathered[0]);
    cudaFree(a->gathered[1]);
    gpu_operands_close(&a->operands);
}

/* A launch on sets begin .. end - 1, from new inputs. */
static int bench_other_check(struct other_bench *a, uint32_t begin, uint32_t end, uint64_t first,
                             struct gpu_check *sum)
{
    int result = 0;
    for (uint32_t i = begin; i < end && !result; i++) {
        result = gpu_operands_fill(&a->operands, i, first + i);
        result = result ? result : gpu_operands_check(&a->operands, &a->graphs, i, first + i, sum);
    }
    return result;
}

static int bench_other_gather(struct other_bench *a, uint32_t set)
{
    int result = 0;
    for (uint32_t i = 0; i < 2 && !result; i++)
        result = baseline_nccl_allgather(
            a->bench->nccl, run_data_at(&a->operands.data, set, i ? ARGUMENT_V : ARGUMENT_K),
            a->gathered[i], a->operands.data.bytes[ARGUMENT_K], a->bench->gpu.stream);
    return result;
}

static int bench_other_launch(void *context, uint32_t number)
{
    struct other_bench *a = context;
    uint32_t set = number % (uint32_t)a->operands.job.burst;
    if (a->what == BENCH_MOVE)
        return mk_launch(a->move, a->operands.data.memory + set * RUN_ARGUMENTS,
                         a->operands.data.arguments, a->bench->gpu.stream);
    if (a->what == BENCH_COMM)
        return bench_other_gather(a, set);
    if (a->what == BENCH_LINK)
        return bench_gpu_copy_to_next(a->bench);
    return gpu_operands_launch(&a->operands, &a->graphs, number);
}

static int bench_other_turn(struct other_bench *a, float *times, uint32_t *count)
{
    struct bench *b = a->bench;
    if ((a->what == BENCH_COMM && !bench_other_gathers(a)) || (a->what == BENCH_MOVE && !a->move) ||
        (a->what == BENCH_LINK && b->gpu.comm->topo.gpus == 1) ||
        (a->what == BENCH_PRODUCT && !b->cudnn))
        return 0;
    if (a->what == BENCH_PRODUCT || a->what == BENCH_FUSED)
        usleep(REST_US);
    return a->what == BENCH_PRODUCT ? bench_cudnn_turn(b, &a->operands.job.problem, times, count)
                                    : gpu_turn(&b->gpu, bench_other_launch, a, times, count);
}

/* The operator and cuDNN take turns in being the first of the two, and rest before, so that either
 * runs as hot as the other: at 700 W a GPU's clock falls within milliseconds. So does a MoE, which
 * is set beside products that PyTorch has timed in bursts as long, on a rested GPU. */
static int bench_other_measure(struct other_bench *a, struct bench_gpu_row *row)
{
    enum { WHATS = 5 };
    static const enum bench_gpu_what whats[2][WHATS] = {
        {BENCH_COMM, BENCH_MOVE, BENCH_LINK, BENCH_FUSED, BENCH_PRODUCT},
        {BENCH_COMM, BENCH_MOVE, BENCH_LINK, BENCH_PRODUCT, BENCH_FUSED}};
    struct gpu_bench *g = &a->bench->gpu;
    uint32_t room = GPU_TURNS * g->launches, *counts = row->counts;
    MK_FREED float *times = calloc((size_t)BENCH_WHATS * room, sizeof *times);
    int result = times ? 0 : gpu_say(g, -ENOMEM, "no memory for times");
    for (uint32_t t = 0; t < GPU_TURNS && !result; t++)
        for (int i = 0; i < WHATS && !result; i++) {
            a->what = whats[t % 2][i];
            result = bench_other_turn(a, times + (size_t)a->what * room, &counts[a->what]);
        }
    for (int what = 0; what < BENCH_WHATS && !result; what++)
        row->times[what] = gpu_time_of(times + (size_t)what * room, counts[what]);
    return result;
}

static int bench_other_turn_of_why(void *context, float *times, uint32_t *count)
{
    struct other_bench *a = context;
    const struct gpu_graphs timed = a->graphs;
    a->graphs = (struct gpu_graphs){.plan = timed.plan};
    a->what = BENCH_FUSED;
    int result = gpu_operands_capture(&a->operands, &a->graphs);
    result = result ? result : gpu_turn(&a->bench->gpu, bench_other_launch, a, times, count);
    cudaStreamSynchronize(a->bench->gpu.stream);
    gpu_graphs_close(&a->graphs);
    a->graphs = timed;
    return result;
}

/* How many rows the ranks have of the first launch's tokens, and the products of these. */
static int bench_other_count_rows(const struct other_bench *a, struct bench_gpu_row *row)
{
    const struct mk_moe *m = &a->operands.job.problem.moe;
    uint32_t world = a->operands.job.identity.world;
    MK_FREED uint32_t *ids = malloc(m->tokens * m->k * sizeof *ids);
    MK_FREED uint64_t *rows = calloc(world, sizeof *rows);
    uint64_t all = 0;
    if (!ids || !rows)
        return gpu_say(&a->bench->gpu, -ENOMEM, "no memory for the experts of tokens");
    for (uint32_t rank = 0; rank < world; rank++) {
        run_data_kept_ids(&a->operands.data, rank, 1, ids);
        for (uint64_t i = 0; i < m->tokens * m->k; i++)
            if (ids[i] < m->experts)
                rows[ids[i] / (m->experts / world)]++;
    }
    for (uint32_t rank = 0; rank < world; rank++) {
        all += rows[rank];
        row->most_rows = rows[rank] > row->most_rows ? rows[rank] : row->most_rows;
    }
    row->flop *= (double)all / (double)(world * m->tokens * m->k);
    row->rows = (double)all / world;
    return 0;
}

int bench_other(struct bench *b, const struct mk_problem *asked, struct bench_gpu_row *row)
{
    struct other_bench a = {.bench = b};
    *row = (struct bench_gpu_row){.problem = *asked};
    int result = bench_other_open(&a, asked);
    if (!result)
        bench_gpu_describe(row, b, a.graphs.plan);
    uint32_t sets = (uint32_t)a.operands.job.burst;
    if (!result && run_op_of(asked->op)->routed)
        result = bench_other_count_rows(&a, row);
    result = result ? result : bench_other_check(&a, 0, sets, 1, &row->check);
    result = result ? result : bench_other_measure(&a, row);
    if (!result) /* the launches before are those that it waits for: of one set tells as much */
        result = bench_other_check(&a, sets - 1, sets, 1 + sets, &row->check);
    if (!result && b->gpu.job->options.why)
        result = bench_gpu_why(b, a.graphs.plan, bench_other_turn_of_why, &a, &row->why);
    row->bound = a.operands.bound;
    bench_other_close(&a);
    return result;
}
