#include "experiments/sim/sim_predict.h"
#include "experiments/common/commands.h"
#include "experiments/common/json_write.h"
#include "experiments/common/output_file.h"
#include "experiments/common/problem.h"
#include "experiments/common/result_file.h"
#include "experiments/common/memory_need.h"
#include "experiments/sim/sim_output.h"
#include "sim/cluster.h"
#include "sim/exact_moe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TRACE_EVENTS                                                                               \
    (1u << 17) /* records of a track: 2 MB, which are touched as they are written */

static int sim_predict_store(void *context, struct mk_comm *const *comms, uint32_t count,
                             const struct sim_world_result *result)
{
    sim_output_store(context, comms, count);
    return 0;
}

/* Mean of the ranks, in each launch. */
static double sim_predict_mean_bytes(const struct sim_link *links, uint32_t ranks,
                                     uint32_t launches)
{
    double sum = 0;
    for (uint32_t i = 0; i < ranks; i++)
        sum += (double)links[i].bytes_in;
    return sum / ranks / launches;
}

static struct sim_figures sim_predict_figures(const struct sim_world_config *c,
                                              const struct mk_plan *plan,
                                              const struct sim_machine *m,
                                              const struct sim_world_result *r)
{
    uint32_t ranks = mk_world(&m->topo);
    double flop;
    uint64_t nvlink, network;
    plan_work(plan, &flop, &nvlink, &network);
    return (struct sim_figures){.products = flop / m->cluster.flop,
                                .launch = (double)r->ns / c->launches,
                                .ideal = sim_cluster_ideal(&m->cluster, plan),
                                .nvlink = sim_predict_mean_bytes(m->links, ranks, c->launches),
                                .network = sim_predict_mean_bytes(m->nics, ranks, c->launches)};
}

static void sim_predict_print_table(FILE *out, const struct sim_world_config *c,
                                    const struct mk_plan *plan, const struct sim_machine *m,
                                    const struct sim_world_result *r, const struct sim_output *o)
{
    const struct sim_cluster *k = &m->cluster;
    const struct mk_tuning *t = &plan->problem.tuning;
    const uint32_t *ctas = t->split.ctas;
    const struct sim_figures f = sim_predict_figures(c, plan, m, r);
    fprintf(out, "op        %s  %s\n", plan_op_name(plan->problem.op), o->shape);
    fprintf(out,
            "cluster   %u node%s of %u, simulated: %.0f TFLOP/s, NVLink %.0f GB/s and %.1f us, "
            "network %.0f "
            "GB/s and %.1f us\n",
            m->topo.nodes, m->topo.nodes > 1 ? "s" : "", m->topo.gpus, k->flop / 1e3, k->nvlink,
            (double)k->nvlink_latency / 1e3, k->network, (double)k->network_latency / 1e3);
    fprintf(out, "plan      roles compute=%u,intra_comm=%u,inter_send=%u,inter_reduce=%u; ",
            ctas[MK_COMPUTE], ctas[MK_INTRA_COMM], ctas[MK_INTER_SEND], ctas[MK_INTER_REDUCE]);
    if (t->tile_m)
        fprintf(out, "tiles %u x %u; ", t->tile_m, t->tile_n);
    fprintf(out, "chunks of %u rows\n", t->chunk_rows);
    sim_output_time(out, "time", f.launch);
    fprintf(out, " a launch, mean of %u back to back\n", c->launches);
    sim_output_tell_figures(out, o, plan, &f);
}

/* 0 or -errno. */
static int sim_predict_write_json(const char *path, const struct sim_world_config *c,
                                  const struct mk_plan *plan, const struct sim_machine *m,
                                  const struct sim_world_result *r)
{
    const struct sim_cluster *k = &m->cluster;
    const struct sim_figures figures = sim_predict_figures(c, plan, m, r);
    double flop;
    uint64_t nvlink, network;
    struct result_file file;
    int rc = result_open(&file);
    FILE *f = file.out;
    if (rc)
        return rc;
    plan_work(plan, &flop, &nvlink, &network);
    fprintf(f, "{\n");
    json_text(f, "mkernel", MK_VERSION);
    json_text(f, "command", "sim");
    json_problem(f, &plan->problem);
    fprintf(f,
            "  \"cluster\": {\"flop_per_s\": %.9g, \"memory_bytes_per_s\": %.9g, "
            "\"nvlink_bytes_per_s\": %.9g, \"nvlink_latency_ns\": %llu, "
            "\"network_bytes_per_s\": %.9g, \"network_latency_ns\": %llu, \"proxy_ns\": %llu},\n",
            k->flop * 1e9, k->memory * 1e9, k->nvlink * 1e9, (unsigned long long)k->nvlink_latency,
            k->network * 1e9, (unsigned long long)k->network_latency, (unsigned long long)k->proxy);
    fprintf(f, "  \"seed\": %llu,\n  \"launches\": %u,\n  \"flop\": %.0f,\n",
            (unsigned long long)(c->seed & ~EXACT_MOE_EVENLY), c->launches, flop);
    sim_output_json_bytes(f, &figures);
    sim_output_json_times(f, &figures);
    return result_close(&file, path);
}

int sim_predict(struct sim_world_config *config, const struct mk_machine *asked, const char *trace,
                const char *json, int quiet, const char *command, char *error, size_t size)
{
    struct sim_cluster cluster;
    struct sim_machine machine;
    struct sim_world_result result;
    struct mk_plan plan = {0};
    char shape[PROBLEM_TEXT];
    int64_t seed = (int64_t)config->seed;
    sim_cluster_of(&cluster, asked);
    if (plan_build(&plan, &config->problem, 0, 0, error, size) ||
        memory_check(&plan, mk_world(&config->problem.topo), 1, error, size) ||
        memory_check_ctas(&plan, mk_world(&config->problem.topo), error, size))
        return STATUS_USAGE;
    struct sim_output output = {.trace = trace,
                                .json = json,
                                .command = command,
                                .shape = problem_text(&plan.problem, shape),
                                .device = "simulated",
                                .seed = seed,
                                .flop = cluster.flop,
                                .nvlink = cluster.nvlink,
                                .network = cluster.network,
                                .launches = config->launches,
                                .ranks = mk_world(&config->problem.topo),
                                .verdict = ", all right"};
    if (sim_machine_open(&machine, &cluster, &config->problem.topo)) {
        snprintf(error, size, "no memory for a cluster of %u ranks",
                 mk_world(&config->problem.topo));
        return STATUS_FAILED;
    }
    config->costs = &machine.costs;
    /* what a MoE's shape says; other operators do not look at it */
    config->seed |= EXACT_MOE_EVENLY;
    config->context = &output;
    config->trace_events = trace ? TRACE_EVENTS : 0;
    config->finished = trace ? sim_predict_store : NULL;
    error[0] = '\0';
    sim_output_begins(&output, &plan, &machine.flop);
    int rc = sim_world_run(config, &result);
    sim_output_over();
    if (!rc) {
        FILE *out = output_table(quiet, json, NULL);
        if (out)
            sim_predict_print_table(out, config, &plan, &machine, &result, &output);
        if (out)
            sim_output_tell_trace(out, &output);
        int written = json ? sim_predict_write_json(json, config, &plan, &machine, &result) : 0;
        if (sim_output_end(&output, written, error, size))
            rc = -EIO;
    } else if (!*error) {
        snprintf(error, size, "%s", *result.sentence ? result.sentence : strerror(-rc));
    }
    sim_machine_close(&machine);
    return !rc ? STATUS_DONE : rc == -EBADMSG ? STATUS_WRONG : STATUS_FAILED;
}
