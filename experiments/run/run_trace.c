/* --trace: what a run tells the tracer about itself, before and after its launches. */
#include "experiments/run/run_rank.h"
#include "experiments/common/gpu.h"
#include "core/comm/comm.h"
#include "core/base/scoped.h"
#include "backends/nic.h"
#include "tracer/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_SAMPLES 64

struct run_trace {
    struct trace_samples before;
};

/* Bytes per second of devices, "+" between their names; 0: softnic, or not known. */
static double run_trace_nic_rate(const char *names)
{
    MK_FREED struct nic_survey *s = malloc(sizeof *s);
    double rate = 0;
    if (!s)
        return 0;
    nic_survey(s);
    for (uint32_t i = 0; i < s->count; i++)
        for (const char *at = names; at && !s->nics[i].soft; at = strchr(at, '+')) {
            size_t length = strlen(s->nics[i].name);
            at += *at == '+';
            if (!strncmp(at, s->nics[i].name, length) && (!at[length] || at[length] == '+'))
                rate += s->nics[i].gbit * 1e9 / 8;
        }
    return rate;
}

int run_trace_begin(struct run_trace **out, struct mk_comm *comm)
{
    *out = calloc(1, sizeof **out);
    return *out ? trace_sample_clock(comm, &(*out)->before, CLOCK_SAMPLES) : 0;
}

void run_trace_end(struct run_trace *t, const struct run_job *job, struct mk_comm *comm,
                   const struct run_result *result, char *lost, size_t lost_size)
{
    const struct run_options *o = &job->options;
    struct gpu_list gpus = {.count = 0};
    /* a rank's GPU is the one of its local rank; all of a host are alike */
    const struct gpu_device *gpu = NULL;
    if (o->exec == MK_EXEC_CUDA)
        gpu_probe(&gpus);
    if (comm->topo.rank == 0) /* whose rates are stored for all */
        gpu_probe_links(&gpus);
    if (gpus.count)
        gpu = &gpus.devices[comm->topo.rank % gpus.count];
    int64_t seed = (int64_t)o->seed;
    const struct trace_metric metrics[] = {
        {"launch_median", "ms", result->ms},
        {"launch_min", "ms", result->ms_min},
        {"launch_max", "ms", result->ms_max},
        {"relative_error", "", o->check ? check_error(&result->check) : 0},
    };
    char shape[OP_PROBLEM_TEXT];
    struct trace_run run = {
        .shape = op_problem_text(&job->problem, shape),
        .device = gpu ? gpu->name : NULL,
        .peak_flops = gpu ? gpu_peak_flops(gpu) : 0,
        .memory_bytes_per_s = gpu ? gpu->memory_rate : 0,
        .cache_bytes = gpu ? (double)gpu->cache : 0,
        .nvlink_bytes_per_s = gpu ? gpu_peak_nvlink(gpu) : 0,
        .network_bytes_per_s =
            gpu && comm->topo.rank == 0 && o->nodes > 1 ? run_trace_nic_rate(job->nic) : 0,
        .executor = plan_execs[o->exec],
        .fabric = o->nodes > 1 ? (o->fabric ? "efa" : "verbs") : NULL,
        .nic = o->nodes > 1 ? job->nic : NULL,
        .command = job->command,
        .version = MK_VERSION,
        .seed = &seed,
        .host_clock = t ? &t->before : NULL,
        .metrics = metrics,
        .metric_count = o->check ? 4 : 3,
    };
    char error[256] = "";
    lost[0] = 0;
    int failed = trace_collect(comm, &run, o->trace, error, sizeof error);
    if (failed)
        snprintf(lost, lost_size, "%s", *error ? error : strerror(-failed));
}
