#include "experiments/job/gpu_operands.h"
#include "experiments/job/op.h"
#include "core/comm/comm.h"

#include <errno.h>
#include <math.h>

#define COLD_BYTES ((uint64_t)200 << 20) /* as GEMM operators' (gpu_shape.c) */

int gpu_operands_open(struct gpu_operands *o, struct gpu_bench *b, const struct mk_plan *plan)
{
    uint64_t bytes[RUN_ARGUMENTS], launch_bytes = 0;
    o->bench = b;
    o->job = *b->job;
    o->job.plan = *plan;
    o->job.problem = plan->problem;
    op_extents(&plan->problem, bytes);
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++)
        launch_bytes += bytes[i];
    o->job.burst = mk_ceil_div(COLD_BYTES, launch_bytes);
    o->job.burst = o->job.burst < 2 ? 2 : o->job.burst > GPU_SETS ? GPU_SETS : o->job.burst;
    return run_data_open(&o->data, &o->job) ? gpu_say(b, -ENOMEM, "no GPU memory for the operands")
                                            : 0;
}

void gpu_operands_close(struct gpu_operands *o)
{
    if (o->data.job)
        run_data_close(&o->data);
    o->data.job = NULL;
}

int gpu_operands_fill(struct gpu_operands *o, uint32_t set, uint64_t launch)
{
    return run_data_fill(&o->data, set, launch)
               ? gpu_say(o->bench, -EIO, "the operands cannot be filled")
               : 0;
}

int gpu_operands_capture(struct gpu_operands *o, struct gpu_graphs *g)
{
    int result = 0;
    for (uint32_t i = 0; i < o->job.burst && !result; i++)
        result = gpu_capture_launch(o->bench, g->plan, o->data.memory + i * RUN_ARGUMENTS,
                                    o->data.arguments, &g->sets[i]);
    return result;
}

int gpu_operands_launch(const struct gpu_operands *o, const struct gpu_graphs *g, uint32_t number)
{
    cudaGraphExec_t graph = g->sets[number % (uint32_t)o->job.burst];
    return cudaGraphLaunch(graph, o->bench->stream) == cudaSuccess ? 0 : -EIO;
}

int gpu_operands_check(struct gpu_operands *o, const struct gpu_graphs *g, uint32_t set,
                       uint64_t launch, struct gpu_check *sum)
{
    struct gpu_bench *b = o->bench;
    struct check_result found = {0};
    if (run_data_poison_outputs(&o->data, set))
        return gpu_say(b, -EIO, "the results cannot be poisoned");
    int result = bootstrap_barrier(b->comm->bootstrap);
    result = result ? result : gpu_operands_launch(o, g, set);
    if (mk_wait(b->comm))
        return gpu_say(b, -ECONNABORTED, mk_error(b->comm));
    if (!result && cudaStreamSynchronize(b->stream) != cudaSuccess)
        result = -EIO;
    o->job.plan = *g->plan; /* the check asks for its tiles */
    result = result ? result : run_data_check(&o->data, set, launch, NULL, &found);
    if (result)
        return gpu_say(b, result, "a result cannot be checked");
    sum->difference2 += isnan(found.difference2) ? INFINITY : found.difference2;
    sum->reference2 += found.reference2;
    sum->wrong += found.wrong;
    sum->launches++;
    o->bound = found.frobenius > 0 ? found.frobenius : CHECK_FROBENIUS;
    return 0;
}
