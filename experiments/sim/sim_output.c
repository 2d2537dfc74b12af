#include "experiments/sim/sim_output.h"
#include "core/plan.h"
#include "experiments/common/commands.h"
#include "experiments/common/json_write.h"
#include "experiments/common/pulse.h"
#include "tracer/trace.h"

#include <string.h>

void sim_output_store(struct sim_output *o, struct mk_comm *const *comms, uint32_t count)
{
    pulse_counts(NULL, 0);
    pulse_says("stores the trace");
    const struct trace_run about = {.source = "simulated",
                                    .executor = "sim",
                                    .command = o->command,
                                    .shape = o->shape,
                                    .version = MK_VERSION,
                                    .device = o->device,
                                    .fabric = "model",
                                    .seed = &o->seed,
                                    .peak_flops = o->flop * 1e9,
                                    .nvlink_bytes_per_s = o->nvlink * 1e9,
                                    .network_bytes_per_s = o->network * 1e9};
    int rc = trace_collect_local(comms, count, &about, o->trace, o->lost, sizeof o->lost);
    if (rc && !*o->lost)
        snprintf(o->lost, sizeof o->lost, "%s", strerror(-rc));
}

void sim_output_time(FILE *out, const char *name, double ns)
{
    fprintf(out, "%-9s %.3f %s", name, ns < 1e6 ? ns / 1e3 : ns / 1e6, ns < 1e6 ? "us" : "ms");
}

void sim_output_tell_figures(FILE *out, const struct sim_output *o, const struct mk_plan *plan,
                             const struct sim_figures *f)
{
    double flop;
    uint64_t nvlink, network;
    plan_work(plan, &flop, &nvlink, &network);
    sim_output_time(out, "ideal", f->ideal);
    fprintf(out,
            ": the longest of products %.3f, NVLink %.3f and network %.3f us; efficiency %.2f\n",
            f->products / 1e3, (double)nvlink / o->nvlink / 1e3,
            o->network > 0 ? (double)network / o->network / 1e3 : 0, f->ideal / f->launch);
    fprintf(out,
            "moved     %.0f bytes over NVLink and %.0f over the network, into each rank in each "
            "launch%s\n",
            f->nvlink, f->network, o->ranks > 1 ? " (mean)" : "");
}

void sim_output_json_bytes(FILE *out, const struct sim_figures *f)
{
    json_number(out, "nvlink_bytes", f->nvlink);
    json_number(out, "network_bytes", f->network);
}

void sim_output_json_times(FILE *out, const struct sim_figures *f)
{
    json_number(out, "ms_mean", f->launch / 1e6);
    json_number(out, "ms_ideal", f->ideal / 1e6);
    fprintf(out, "  \"efficiency\": %.6g\n}\n", f->ideal / f->launch);
}

void sim_output_begins(const struct sim_output *o, const struct mk_plan *plan, uint64_t *done)
{
    double flop;
    uint64_t nvlink, network;
    plan_work(plan, &flop, &nvlink, &network);
    pulse_says("%u launch%s on %u ranks", o->launches, o->launches > 1 ? "es" : "", o->ranks);
    pulse_counts(done, (uint64_t)(flop * o->launches * o->ranks));
}

void sim_output_over(void)
{
    pulse_counts(NULL, 0);
    pulse_hide();
}

void sim_output_tell_trace(FILE *out, const struct sim_output *o)
{
    if (o->trace && *o->lost)
        fprintf(out, "trace     LOST: %s\n", o->lost);
    else if (o->trace)
        fprintf(out, "trace     %s; `mkernel trace summary %s` shows the overlap\n", o->trace,
                o->trace);
}

int sim_output_end(const struct sim_output *o, int written, char *error, size_t size)
{
    if (!written && !*o->lost)
        return STATUS_DONE;
    size_t used =
        (size_t)snprintf(error, size, "%u launch%s on %u ranks done%s", o->launches,
                         o->launches > 1 ? "es" : "", o->ranks, o->verdict ? o->verdict : "");
    if (*o->lost && used < size)
        used += (size_t)snprintf(error + used, size - used, "; but the trace is lost: %s", o->lost);
    if (written && used < size)
        snprintf(error + used, size - used, "; but %s could not be written: %s", o->json,
                 strerror(-written));
    return STATUS_FAILED;
}
