#include "experiments/sim/sim_timed.h"
#include "experiments/common/commands.h"
#include "experiments/common/json_write.h"
#include "experiments/common/output_file.h"
#include "experiments/common/problem.h"
#include "experiments/common/result_file.h"
#include "experiments/sim/sim_output.h"

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
    char shape[PROBLEM_TEXT];
    struct sim_output output;
};

static int sim_timed_store(void *context, struct mk_comm *const *comms, uint32_t count)
{
    struct sim_timed_run *run = context;
    sim_output_store(&run->output, comms, count);
    return 0;
}

static void sim_timed_print_plan(FILE *out, const struct mk_plan *plan)
{
    const struct mk_tuning *t = &plan->problem.tuning;
    const uint32_t *ctas = t->split.ctas;
    fprintf(out, "plan      %s: roles compute=%u,intra_comm=%u,inter_send=%u,inter_reduce=%u; ",
            plan->problem.exec == MK_EXEC_CUDA ? "cuda" : "host", ctas[MK_COMPUTE],
            ctas[MK_INTRA_COMM], ctas[MK_INTER_SEND], ctas[MK_INTER_REDUCE]);
    if (t->tile_m)
        fprintf(out, "tiles %u x %u; ", t->tile_m, t->tile_n);
    fprintf(out, "chunks of %u rows, %u piece%s", t->chunk_rows, t->pieces,
            t->pieces == 1 ? "" : "s");
    if (t->slices > 1)
        fprintf(out, ", %u slices", t->slices);
    if (t->pace > 1)
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
    return plan_role_name((enum mk_role)i);
}

static struct sim_figures sim_timed_figures(const struct sim_timed_run *run)
{
    return (struct sim_figures){.launch = (double)run->result.ns / run->asked->launches,
                                .products = timed_products(&run->asked->of->machine, &run->plan),
                                .ideal = timed_ideal(&run->asked->of->machine, &run->plan),
                                .nvlink = run->result.nvlink_bytes,
                                .network = run->result.network_bytes};
}

static void sim_timed_print(FILE *out, const struct sim_timed_run *run)
{
    const struct sim_timed *s = run->asked;
    const struct mk_machine *m = &s->of->machine;
    const struct mk_topo *topo = &run->plan.problem.topo;
    const struct timed_result *r = &run->result;
    double launch = (double)r->ns / s->launches, flop;
    uint64_t nvlink, network;
    sim_case_work(s->of, &run->plan, &flop, &nvlink, &network);
    fprintf(out, "op        %s  %s\n", plan_op_name(run->plan.problem.op), run->shape);
    fprintf(out,
            "cluster   %u node%s of %u, simulated: %s; %.0f TFLOP/s, NVLink %.0f GB/s, network "
            "%.0f GB/s a rank\n",
            topo->nodes, topo->nodes > 1 ? "s" : "", topo->gpus, m->name, timed_peak(m) / 1e3,
            m->nvlink_in, m->nic_rate);
    sim_timed_print_plan(out, &run->plan);
    sim_output_time(out, "time", launch);
    fprintf(out, " a launch, mean of %u back to back", s->launches);
    if (flop > 0)
        fprintf(out, "; %.0f TFLOP/s a rank", flop / launch / 1e3);
    if (r->slower > 1.001)
        fprintf(out, "; clock lowered to %.3f", 1 / r->slower);
    fprintf(out, "\n");
    fprintf(out, "chain     ");
    sim_timed_print_chain(out, r->parts, TIMED_PARTS, sim_timed_part);
    fprintf(out, "; by role ");
    sim_timed_print_chain(out, r->roles, MK_ROLES, sim_timed_role);
    fprintf(out, "; ends on rank %u\n", r->last_rank);
    const struct sim_figures f = sim_timed_figures(run);
    sim_output_tell_figures(out, &run->output, &run->plan, &f);
}

static void sim_timed_print_speed(FILE *out, const struct timed_result *r)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    fprintf(
        out,
        "speed     %.2f million events in %.2f s of one core (%.2f s): %.2f million/s; %ld MB\n",
        (double)r->events / 1e6, r->cpu_seconds, r->seconds,
        (double)r->events / 1e6 / (r->cpu_seconds > 0 ? r->cpu_seconds : 1e-9), u.ru_maxrss / 1024);
}

/* 0 or -errno. */
static int sim_timed_write_json(const struct sim_timed_run *run)
{
    const struct sim_timed *s = run->asked;
    const struct mk_machine *m = &s->of->machine;
    const struct timed_result *r = &run->result;
    const struct sim_figures figures = sim_timed_figures(run);
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
            "  \"cluster\": {\"flop_per_s\": %.9g, \"nvlink_bytes_per_s\": %.9g, "
            "\"network_bytes_per_s\": %.9g},\n",
            timed_peak(m) * 1e9, m->nvlink_in * 1e9, m->nic_rate * 1e9);
    fprintf(f, "  \"seed\": %llu,\n  \"launches\": %u,\n  \"flop\": %.0f,\n",
            (unsigned long long)s->seed, s->launches, flop);
    sim_output_json_bytes(f, &figures);
    fprintf(f, "  \"chain_ms\": {");
    for (int i = 0; i < TIMED_PARTS; i++)
        fprintf(f, "%s\"%s\": %.6g", i ? ", " : "", timed_part_names[i], r->parts[i] / 1e6);
    fprintf(f, "},\n  \"chain_roles_ms\": {");
    for (int i = 0; i < MK_ROLES; i++)
        fprintf(f, "%s\"%s\": %.6g", i ? ", " : "", plan_role_name((enum mk_role)i),
                r->roles[i] / 1e6);
    fprintf(f, "},\n");
    json_number(f, "events", (double)r->events);
    json_number(f, "seconds", r->seconds);
    sim_output_json_times(f, &figures);
    return result_close(&file, s->json);
}

/* Table, JSON and what was lost. */
static int sim_timed_tell(const struct sim_timed_run *run, char *error, size_t size)
{
    const struct sim_timed *s = run->asked;
    FILE *out = output_table(s->quiet, s->json, NULL);
    if (out) {
        sim_timed_print(out, run);
        sim_output_tell_trace(out, &run->output);
        sim_timed_print_speed(out, &run->result);
    }
    return sim_output_end(&run->output, s->json ? sim_timed_write_json(run) : 0, error, size);
}

int sim_timed(const struct sim_timed *s, char *error, size_t size)
{
    struct sim_timed_run *run = calloc(1, sizeof *run);
    struct mk_problem problem = s->problem;
    struct timed_config config = {.launches = s->launches,
                                  .seed = s->seed,
                                  .ring = s->ring,
                                  .in_flight = s->in_flight,
                                  .context = run};
    uint64_t done = 0;
    if (!run) {
        snprintf(error, size, "out of memory");
        return STATUS_FAILED;
    }
    run->asked = s;
    int rc = sim_case_plan(s->of, &run->plan, &problem, error, size);
    if (!rc)
        rc = sim_case_config(s->of, &run->plan, &config, error, size);
    if (rc || s->dry_run) {
        free((void *)(uintptr_t)config.slow);
        free(run);
        return !rc ? STATUS_DONE : rc == -ENOMEM ? STATUS_FAILED : STATUS_USAGE;
    }
    const struct mk_machine *m = &s->of->machine;
    run->output = (struct sim_output){.trace = s->trace,
                                      .json = s->json,
                                      .command = s->command,
                                      .shape = problem_text(&run->plan.problem, run->shape),
                                      .device = m->name,
                                      .seed = (int64_t)s->seed,
                                      .flop = timed_peak(m),
                                      .nvlink = m->nvlink_in,
                                      .network = m->nic_rate,
                                      .launches = s->launches,
                                      .ranks = mk_world(&problem.topo)};
    if (s->trace) {
        config.trace_events = TRACE_EVENTS;
        config.finished = sim_timed_store;
    }
    config.beat = &done;
    sim_output_begins(&run->output, &run->plan, &done);
    rc = timed_run(&config, &run->result);
    sim_output_over();
    int status = rc ? STATUS_FAILED : sim_timed_tell(run, error, size);
    if (rc)
        snprintf(error, size, "%s", *run->result.sentence ? run->result.sentence : strerror(-rc));
    free((void *)(uintptr_t)config.slow);
    free(run);
    return status;
}
