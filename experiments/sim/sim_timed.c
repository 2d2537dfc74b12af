#include "experiments/sim/sim_timed.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/commands.h"
#include "experiments/common/json_write.h"
#include "experiments/common/output_file.h"
#include "experiments/common/problem.h"
#include "experiments/common/pulse.h"
#include "experiments/common/result_file.h"
#include "tracer/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define TRACE_EVENTS (1u << 16) /* records of a track: 1 MB, touched as they are written */

/* A run, and what came of it. */
struct sim_timed_run {
    const struct sim_timed *asked;
    struct mk_plan plan;
    struct timed_result result;
    char shape[OP_PROBLEM_TEXT];
    /* ns of a launch, of one that loses nothing, and of its products alone */
    double launch, ideal, products;
    char lost[400]; /* why there is no trace; empty: there is */
};

/* Where the trace cannot be stored it is lost: what was computed stands, so that is told in the
 * end. */
static int sim_timed_store(void *context, struct mk_comm *const *comms, uint32_t count)
{
    struct sim_timed_run *run = context;
    const struct mk_machine *m = &run->asked->of->machine;
    int64_t seed = (int64_t)run->asked->seed;
    pulse_counts(NULL, 0);
    pulse_says("stores the trace");
    const struct trace_run about = {.source = "simulated",
                                    .executor = "sim",
                                    .command = run->asked->command,
                                    .shape = run->shape,
                                    .version = MK_VERSION,
                                    .device = m->name,
                                    .fabric = "model",
                                    .seed = &seed,
                                    .peak_flops = timed_peak(m) * 1e9,
                                    .memory_bytes_per_s = m->hbm_rate * 1e9,
                                    .cache_bytes = m->l2,
                                    .nvlink_bytes_per_s = m->nvlink_in * 1e9,
                                    .network_bytes_per_s = m->nic_rate * 1e9};
    int rc =
        trace_collect_local(comms, count, &about, run->asked->trace, run->lost, sizeof run->lost);
    if (rc && !*run->lost)
        snprintf(run->lost, sizeof run->lost, "%s", strerror(-rc));
    return 0;
}

static void sim_timed_print_plan(FILE *out, const struct mk_plan *plan,
                                 const struct mk_problem *asked)
{
    const struct mk_tuning *t = &plan->problem.tuning;
    char roles[TUNING_ROLES_TEXT] = "", slices[PROBLEM_SLICES_TEXT];
    fprintf(out, "plan      %s: roles %s; ", plan->problem.exec == MK_EXEC_CUDA ? "cuda" : "host",
            tuning_say_roles(&t->split, roles, sizeof roles));
    if (t->tile_m)
        fprintf(out, "tiles %u x %u%s; ", t->tile_m, t->tile_n,
                plan_parts_of_k(t) > 1 ? " of two CTAs with half of K each" : "");
    fprintf(out, "chunks of %u rows, %s%u piece%s", t->chunk_rows,
            problem_slices(t, &asked->tuning, slices), t->pieces, t->pieces == 1 ? "" : "s");
    if (t->pace != MK_PACE_NONE)
        fprintf(out, "; pace %u ns", t->pace);
    fprintf(out, "\n");
    if (*plan->tuned)
        fprintf(out, "tuned     %s; --tuning none takes the formula's plan\n", plan->tuned);
}

/* The parts or roles of the longest chain, the largest first. */
static void sim_timed_print_chain(FILE *out, const double *ns, int count,
                                  const char *(*name)(int i))
{
    double all = 0;
    for (int i = 0; i < count; i++)
        all += ns[i];
    for (int shown = 0, last = -1; shown < count; shown++) {
        int next = -1;
        for (int i = 0; i < count; i++)
            if ((last < 0 || ns[i] < ns[last] || (ns[i] <= ns[last] && i > last)) &&
                (next < 0 || ns[i] > ns[next]))
                next = i;
        if (next < 0 || ns[next] < 0.005 * all)
            break;
        fprintf(out, "%s%s %.0f %%", shown ? ", " : "", name(next), 100 * ns[next] / all);
        last = next;
    }
}

static const char *sim_timed_part(int i)
{
    return timed_part_names[i];
}

static const char *sim_timed_role(int i)
{
    return plan_role_name(i);
}

/* "time      12.345 us", in ms from a millisecond on. */
static void sim_timed_print_time(FILE *out, const char *name, double ns)
{
    fprintf(out, "%-9s %.3f %s", name, ns < 1e6 ? ns / 1e3 : ns / 1e6, ns < 1e6 ? "us" : "ms");
}

static void sim_timed_print(FILE *out, const struct sim_timed_run *run)
{
    const struct sim_timed *s = run->asked;
    const struct mk_machine *m = &s->of->machine;
    const struct mk_topo *topo = &run->plan.problem.topo;
    const struct timed_result *r = &run->result;
    double flop;
    uint64_t nvlink, network;
    sim_case_work(s->of, &run->plan, &flop, &nvlink, &network);
    fprintf(out, "op        %s  %s\n", plan_op_name(run->plan.problem.op), run->shape);
    fprintf(out,
            "cluster   %u node%s of %u, simulated: %s; %.0f TFLOP/s, NVLink %.0f GB/s, network "
            "%.0f GB/s a rank\n",
            topo->nodes, topo->nodes > 1 ? "s" : "", topo->gpus, m->name, timed_peak(m) / 1e3,
            m->nvlink_in, m->nic_rate);
    sim_timed_print_plan(out, &run->plan, &s->problem);
    sim_timed_print_time(out, "time", run->launch);
    fprintf(out, " a launch, mean of %u back to back", s->launches);
    if (flop > 0)
        fprintf(out, "; %.0f TFLOP/s a rank", flop / run->launch / 1e3);
    if (r->slower > 1.001)
        fprintf(out, "; clock lowered to %.3f", 1 / r->slower);
    fprintf(out, "\n");
    fprintf(out, "chain     ");
    sim_timed_print_chain(out, r->parts, TIMED_PARTS, sim_timed_part);
    fprintf(out, "; by role ");
    sim_timed_print_chain(out, r->roles, MK_ROLES, sim_timed_role);
    fprintf(out, "; ends on rank %u\n", r->last_rank);
    plan_work(&run->plan, &flop, &nvlink, &network);
    sim_timed_print_time(out, "ideal", run->ideal);
    fprintf(out,
            ": the longest of products %.3f, memory %.3f, NVLink %.3f and network %.3f us; "
            "efficiency %.2f\n",
            run->products / 1e3, timed_memory(m, &run->plan) / 1e3,
            (double)nvlink / m->nvlink_in / 1e3,
            m->nic_rate > 0 ? (double)network / m->nic_rate / 1e3 : 0, run->ideal / run->launch);
    fprintf(out,
            "moved     %.0f bytes over NVLink and %.0f over the network, into each rank in each "
            "launch%s\n",
            r->nvlink_bytes, r->network_bytes, mk_world(topo) > 1 ? " (mean)" : "");
    if (s->trace && *run->lost)
        fprintf(out, "trace     LOST: %s\n", run->lost);
    else if (s->trace)
        fprintf(out, "trace     %s; `mkernel trace summary %s` shows the overlap\n", s->trace,
                s->trace);
}

static void sim_timed_print_speed(FILE *out, const struct timed_result *r)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    fprintf(
        out,
        "speed     %.2f million events in %.2f s of one core (%.2f s): %.2f million/s; %ld MiB\n",
        (double)r->events / 1e6, r->cpu_seconds, r->seconds,
        (double)r->events / 1e6 / (r->cpu_seconds > 0 ? r->cpu_seconds : 1e-9), u.ru_maxrss / 1024);
}

/* 0 or -errno. */
static int sim_timed_write_json(const struct sim_timed_run *run)
{
    const struct sim_timed *s = run->asked;
    const struct mk_machine *m = &s->of->machine;
    const struct timed_result *r = &run->result;
    double flop;
    uint64_t nvlink, network;
    struct result_file file;
    int rc = result_open(&file);
    FILE *f = file.out;
    if (rc)
        return rc;
    sim_case_work(s->of, &run->plan, &flop, &nvlink, &network);
    fprintf(f, "{\n");
    json_text(f, "mkernel", MK_VERSION);
    json_text(f, "command", "sim");
    json_problem(f, &run->plan.problem);
    json_text(f, "tuned", run->plan.tuned);
    json_text(f, "machine", m->name);
    fprintf(f,
            "  \"cluster\": {\"flop_per_s\": %.9g, \"memory_bytes_per_s\": %.9g, "
            "\"nvlink_bytes_per_s\": %.9g, \"network_bytes_per_s\": %.9g},\n",
            timed_peak(m) * 1e9, m->hbm_rate * 1e9, m->nvlink_in * 1e9, m->nic_rate * 1e9);
    fprintf(f, "  \"seed\": %lu,\n  \"launches\": %u,\n  \"flop\": %.0f,\n", s->seed, s->launches,
            flop);
    json_number(f, "memory_bytes", plan_memory_bytes(&run->plan));
    json_number(f, "nvlink_bytes", r->nvlink_bytes);
    json_number(f, "network_bytes", r->network_bytes);
    fprintf(f, "  \"chain_ms\": {");
    for (int i = 0; i < TIMED_PARTS; i++)
        fprintf(f, "%s\"%s\": %.6g", i ? ", " : "", timed_part_names[i], r->parts[i] / 1e6);
    fprintf(f, "},\n  \"chain_roles_ms\": {");
    for (int i = 0; i < MK_ROLES; i++)
        fprintf(f, "%s\"%s\": %.6g", i ? ", " : "", plan_role_name(i), r->roles[i] / 1e6);
    fprintf(f, "},\n");
    json_number(f, "events", (double)r->events);
    json_number(f, "seconds", r->seconds);
    json_number(f, "ms", run->launch / 1e6);
    json_number(f, "ideal_ms", run->ideal / 1e6);
    fprintf(f, "  \"efficiency\": %.6g\n}\n", run->ideal / run->launch);
    return result_close(&file, s->json);
}

/* Table, JSON and what was lost. */
static int sim_timed_tell(const struct sim_timed_run *run, char *error, size_t size)
{
    const struct sim_timed *s = run->asked;
    FILE *out = output_table(s->quiet, s->json, NULL);
    if (out) {
        sim_timed_print(out, run);
        sim_timed_print_speed(out, &run->result);
    }
    int written = s->json ? sim_timed_write_json(run) : 0;
    if (!written && !*run->lost)
        return STATUS_DONE;
    uint32_t ranks = mk_world(&run->plan.problem.topo);
    snprintf(error, size, "%u launch%s on %u ranks done", s->launches, s->launches > 1 ? "es" : "",
             ranks);
    if (*run->lost)
        mk_append(error, size, "; but the trace is lost: %s", run->lost);
    if (written)
        mk_append(error, size, "; but %s could not be written: %s", s->json, strerror(-written));
    return STATUS_FAILED;
}

int sim_timed(const struct sim_timed *s, char *error, size_t size)
{
    MK_FREED struct sim_timed_run *run = calloc(1, sizeof *run);
    struct mk_problem problem = s->problem;
    struct timed_config config = {.launches = s->launches,
                                  .seed = s->seed,
                                  .ring = s->ring,
                                  .in_flight = s->in_flight,
                                  .context = run};
    uint64_t done = 0;
    if (!run)
        return mk_fail(STATUS_FAILED, error, size, "out of memory");
    run->asked = s;
    int rc = sim_case_plan(s->of, &run->plan, &problem, error, size);
    rc = rc ? rc : sim_case_config(s->of, &run->plan, &config, error, size);
    if (!rc && s->dry_run) {
        char heap[PROBLEM_HEAP_TEXT];
        fprintf(stderr, "mkernel sim: %u x %u ranks would run, with %s; nothing was started\n",
                problem.topo.nodes, problem.topo.gpus, problem_heap_text(&run->plan, heap));
    }
    if (rc || s->dry_run) {
        free((void *)(uintptr_t)config.slow);
        return !rc ? STATUS_DONE : rc == -ENOMEM ? STATUS_FAILED : STATUS_USAGE;
    }
    op_problem_text(&run->plan.problem, run->shape);
    if (s->trace) {
        config.trace_events = TRACE_EVENTS;
        config.finished = sim_timed_store;
    }
    config.beat = &done;
    double flop;
    uint64_t nvlink, network;
    uint32_t ranks = mk_world(&problem.topo);
    plan_work(&run->plan, &flop, &nvlink, &network);
    pulse_says("%u launch%s on %u ranks", s->launches, s->launches > 1 ? "es" : "", ranks);
    pulse_counts(&done, (uint64_t)(flop * s->launches * ranks));
    rc = timed_run(&config, &run->result);
    pulse_counts(NULL, 0);
    pulse_hide();
    run->launch = (double)run->result.ns / s->launches;
    run->ideal = timed_ideal(&s->of->machine, &run->plan);
    run->products = timed_products(&s->of->machine, &run->plan);
    int status = rc ? STATUS_FAILED : sim_timed_tell(run, error, size);
    if (rc)
        snprintf(error, size, "%s", *run->result.sentence ? run->result.sentence : strerror(-rc));
    free((void *)(uintptr_t)config.slow);
    return status;
}
