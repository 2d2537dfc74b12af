/* cuDNN's attention beside `mkernel bench ring_attention`: a PyTorch on each rank's GPU, which
 * takes turns with the operator. All calls are collective, and all ranks have it or none. */
#include "experiments/bench/bench_gpu_row.h"
#include "core/comm/comm.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void bench_cudnn_start(struct bench *b)
{
    char why[300];
    int gpu = 0;
    if (cudaGetDevice(&gpu) != cudaSuccess ||
        baseline_cudnn_open(&b->cudnn, gpu, why, sizeof why)) {
        baseline_cudnn_close(b->cudnn);
        b->cudnn = NULL;
    }
}

/* Where one rank lacks it no rank keeps it, and the first that does says why. */
static int bench_cudnn_agree(struct bench *b, int missing, const char *why)
{
    const struct run_identity *me = &b->gpu.job->identity;
    MK_FREED int *all = calloc(me->world, sizeof *all);
    int result =
        all ? bootstrap_allgather(b->gpu.comm->bootstrap, &missing, all, sizeof missing) : -ENOMEM;
    uint32_t first = 0;
    while (!result && first < me->world && !all[first])
        first++;
    if (!result && first == me->world)
        return 0;
    if (!result && first == me->rank)
        fprintf(stderr,
                "mkernel bench: cuDNN's attention does not run on rank %u (%s); its column, and "
                "what is measured against it, stay empty\n",
                first, why);
    baseline_cudnn_close(b->cudnn);
    b->cudnn = NULL;
    return result ? gpu_say(&b->gpu, result, "the ranks lost each other") : 0;
}

int bench_cudnn_meet(struct bench *b)
{
    char why[300] = "python3 or torch_attention.py is not there";
    int missing = !b->cudnn || baseline_cudnn_version(b->cudnn, why, sizeof why);
    return bench_cudnn_agree(b, missing, why);
}

int bench_cudnn_turn(struct bench *b, const struct mk_problem *q, float *times, uint32_t *count)
{
    const struct mk_attention *a = &q->attention;
    uint32_t world = b->gpu.job->identity.world, launches = b->gpu.launches;
    uint64_t rows = a->sequence / world,
             square = (uint64_t)round((double)a->sequence / sqrt(world) / 128) * 128;
    struct baseline_attention shape = {.batch = a->batch,
                                       .heads = a->heads,
                                       .kv_heads = a->kv_heads,
                                       .queries = a->causal ? square : rows,
                                       .keys = a->causal ? square : a->sequence,
                                       .dim = a->head_dim,
                                       .causal = a->causal};
    MK_FREED float *ms = calloc(launches, sizeof *ms);
    char why[300] = "no memory";
    int result = bootstrap_barrier(b->gpu.comm->bootstrap);
    if (!result)
        result = bench_cudnn_agree(
            b, !ms || baseline_cudnn_attention(b->cudnn, &shape, launches, ms, why, sizeof why),
            why);
    if (!b->cudnn)
        *count = 0;
    else
        for (uint32_t i = GPU_SKIPPED; i < launches; i++)
            times[(*count)++] = ms[i];
    return result;
}
