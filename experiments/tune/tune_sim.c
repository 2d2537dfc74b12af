/* `mkernel tune OP --exec sim`: the search of tune.c over simulated times, for clusters that are
 * not there. */
#include "experiments/tune/tune.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/output_file.h"
#include "experiments/common/pulse.h"
#include "experiments/sim/sim_case.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_JOBS 256

struct tune_sim_options {
    struct run_options run; /* first: the offsets of tune's own options are in it */
    struct sim_case_options of;
    const char *cluster;
    uint64_t jobs;
    int exec;
};

static const char *const execs[] = {"sim"};

/* A table reads by rows. */
#define AT(field) .offset = offsetof(struct tune_sim_options, field)
static const struct option_spec own[] = {
    {"exec", OPTION_WORD, AT(exec), "sim",
     "plans are simulated (docs/SIMULATION.md): no GPU is needed", .words = execs, .word_count = 1,
     .group = "the cluster"},
    {"cluster", OPTION_TEXT, AT(cluster), "NxG", "N nodes of G GPUs. Default 1x8", .max = 15,
     .group = "the cluster"},
    {"machine", OPTION_TEXT, AT(of.machine), "NAME|FILE",
     "what GPUs, links and NICs are like, as `mkernel sim`. Default 8xH200-cx7", .max = 4095,
     .group = "the cluster"},
    {"network", OPTION_TEXT, AT(of.network), "RATE",
     "of each rank in place of the machine's: 100GB/s", .max = 31, .group = "the cluster"},
    {"slow", OPTION_TEXT, AT(of.slow), "PART=RANK:FACTOR,...",
     "rates of a rank times FACTOR, as `mkernel sim`", .max = 4095, .group = "the cluster"},
    {"skew", OPTION_TEXT, AT(of.skew), "[zipf:]S|one",
     "of a MoE: tokens choose expert e in proportion to 1/(e+1)^S; one: all the first, and no "
     "other. With --verify, since a plan is kept for any tokens",
     .max = 31, .group = "the cluster"},
    {"tuning", OPTION_TEXT, AT(run.tuning), "FILE",
     "where plans are kept, marked by=simulation, and where defaults come from", .max = 511,
     .group = "the search"},
    {"jobs", OPTION_NUMBERS, AT(jobs), "N", "simulations at once. Default: this machine's cores", 1,
     MOST_JOBS, .group = "the search"},
    {"quiet", OPTION_FLAG, AT(run.quiet), NULL, "no table", .group = "results"},
};

/* ---- simulating ---- */

struct tune_sim_work {
    struct tune *tune;
    const struct sim_case *of;
    const uint32_t *which; /* NULL: plan 0 */
    uint32_t count, next;  /* next: atomic */
    int failed;            /* atomic: the first error */
};

static int tune_sim_one(struct tune_sim_work *w, struct tune_plan *p, char *error, size_t size)
{
    struct mk_problem q = w->tune->shape.problem;
    struct timed_config config = {.launches = 1, .seed = w->tune->job->options.seed};
    MK_FREED struct mk_plan *plan = calloc(1, sizeof *plan);
    MK_FREED struct timed_result *r = calloc(1, sizeof *r);
    int result = plan && r ? 0 : -ENOMEM;
    q.tuning = p->asked;
    if (result)
        snprintf(error, size, "out of memory");
    result = result ? result : plan_build(plan, &q, 0, 0, error, size);
    result = result ? result : sim_case_config(w->of, plan, &config, error, size);
    if (!result) {
        result = timed_run(&config, r);
        if (result)
            snprintf(error, size, "%s", *r->sentence ? r->sentence : strerror(-result));
        free((void *)(uintptr_t)config.slow);
    }
    if (!result) {
        p->ms = p->min = p->max = p->low = p->high = (double)r->ns / 1e6;
        p->launches = 1;
    }
    return result;
}

static void *tune_sim_work(void *argument)
{
    struct tune_sim_work *w = argument;
    uint32_t i;
    while ((i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->count &&
           !__atomic_load_n(&w->failed, __ATOMIC_RELAXED)) {
        struct tune_plan *p = &w->tune->plans[i ? w->which[i - 1] : 0];
        char why[512];
        int none = 0, result = p->ms > 0 ? 0 : tune_sim_one(w, p, why, sizeof why);
        if (result && __atomic_compare_exchange_n(&w->failed, &none, result, 0, __ATOMIC_RELAXED,
                                                  __ATOMIC_RELAXED))
            snprintf(w->tune->error, w->tune->size, "%s", why);
    }
    return NULL;
}

static uint64_t tune_sim_jobs;

int tune_sim_measure(struct tune *t, const uint32_t *which, uint32_t count)
{
    struct tune_sim_work w = {
        .tune = t, .of = t->job->simulated, .which = which, .count = count + 1};
    pthread_t threads[MOST_JOBS];
    uint64_t started = 0, jobs = tune_sim_jobs < w.count ? tune_sim_jobs : w.count;
    while (started + 1 < jobs && !pthread_create(&threads[started], NULL, tune_sim_work, &w))
        started++;
    tune_sim_work(&w);
    while (started)
        pthread_join(threads[--started], NULL);
    for (uint32_t i = 0; i <= count && !w.failed; i++) {
        struct tune_plan *p = &t->plans[i ? which[i - 1] : 0];
        p->ratio = p->ms / t->plans[0].ms;
    }
    return w.failed;
}

/* ---- the command ---- */

static int tune_sim_refuse(const struct run_job *job, char *error, size_t size)
{
    const struct run_options *o = &job->options;
    const struct sim_case *of = job->simulated;
    struct tune_space space;
    if (tune_space_parse(&space, o->op, o->space, error, size) ||
        output_check("--csv", o->csv, OUTPUT_WRITTEN, error, size))
        return -EINVAL;
    if (o->verify)
        return 0;
    if (of->options.skew)
        return mk_fail(-EINVAL, error, size,
                       "a plan is kept for any tokens, and --skew says which these are: --verify "
                       "keeps nothing");
    if (!o->tuning || !strcmp(o->tuning, "none"))
        return mk_fail(-EINVAL, error, size,
                       "a simulated plan is kept where --tuning says, and nowhere else; "
                       "--verify keeps nothing");
    return output_check("the file of tuned plans", o->tuning, OUTPUT_REPLACED, error, size);
}

/* The job as run_job_prepare would make it of GPUs. */
static int tune_sim_prepare(struct run_job *job, const struct tune_sim_options *o,
                            const struct sim_case *of, char *error, size_t size)
{
    uint64_t nodes = 1, gpus = 8;
    memset(job, 0, sizeof *job);
    job->options = o->run;
    if (o->cluster && sim_case_cluster(o->cluster, &nodes, &gpus, error, size))
        return -EINVAL;
    if (nodes * gpus > MK_MAX_RANKS)
        return mk_fail(-EINVAL, error, size, "--cluster %s: at most %u ranks are simulated",
                       o->cluster, MK_MAX_RANKS);
    job->options.nodes = nodes;
    job->options.gpus = gpus;
    job->options.exec = MK_EXEC_CUDA;
    job->identity.world = 1;
    job->simulated = of;
    snprintf(job->device, sizeof job->device, "%s", of->machine.device);
    snprintf(job->nic, sizeof job->nic, "simulation");
    if (o->run.tuning)
        snprintf(job->tuning_path, sizeof job->tuning_path, "%s", o->run.tuning);
    job->problem = (struct mk_problem){.op = o->run.op,
                                       .exec = MK_EXEC_CUDA,
                                       .sms = (uint32_t)of->machine.sms,
                                       .topo = {(uint32_t)nodes, (uint32_t)gpus, 0},
                                       .timeout_ns = o->run.timeout_ns};
    problem_fill(&job->options.ask, OP_SIZE_GPU, &job->problem);
    int result = run_job_list_shapes(job, error, size);
    for (uint32_t i = 0; i < job->shape_count && !result; i++) {
        struct mk_problem q = job->problem;
        struct timed_config config;
        op_set_numbers(&q, job->shapes[i]);
        result = plan_build(&job->plan, &q, 0, 0, error, size);
        if (!result) {
            result = sim_case_config(of, &job->plan, &config, error, size);
            free(result ? NULL : (void *)(uintptr_t)config.slow);
        }
    }
    return result ? result : tune_sim_refuse(job, error, size);
}

static int tune_sim_run(struct tune_sim_options *o, char *error, size_t size)
{
    struct run_job job;
    struct sim_case of;
    char name[64];
    int result = sim_case_open(&of, &o->of, error, size);
    result = result ? result : tune_sim_prepare(&job, o, &of, error, size);
    if (result) {
        sim_case_close(&of);
        return STATUS_USAGE;
    }
    snprintf(name, sizeof name, "mkernel tune %s", plan_op_name(o->run.op));
    pulse_begin(o->run.quiet ? NULL : name);
    int status = tune_rank(&job, error, size);
    pulse_end();
    sim_case_close(&of);
    return status;
}

int tune_sim(int argc, char **argv, const struct option_spec *specs, size_t count)
{
    static struct option_spec all[OPTIONS_MOST];
    static struct problem_table table;
    struct option_table base = {
        "tune OP --exec sim [OPTIONS]",
        "Finds the plan that is the fastest by simulation, on a cluster that is described. The "
        "search is that of `mkernel tune`;\n"
        "docs/SIMULATION.md says how far its times can be trusted.\n",
        all, 0,
        "  mkernel tune gemm_ar --exec sim --cluster 4x8 --shape 16384,8192,1024 --tuning "
        "sim.plans\n"
        "  mkernel tune ag_gemm --exec sim --cluster 2x8 --network 100GB/s --verify\n"};
    struct tune_sim_options o = {
        .run = {.mode = RUN_TUNE, .rounds = 3, .seed = 1, .iters = 1, .timeout_ns = MK_TIMEOUT_NS}};
    struct options_found found;
    char error[512] = "";
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    base.count = sizeof own / sizeof *own + count;
    options_fit(base.count);
    memcpy(all, own, sizeof own);
    memcpy(all + sizeof own / sizeof *own, specs, count * sizeof *specs);
    problem_table(&table, &base, PROBLEM_TUNE,
                  offsetof(struct tune_sim_options, run) + offsetof(struct run_options, ask),
                  "the plan");
    problem_restrict(&table, "skew", op_has_limit);
    int result = options_parse(&table.table, argc, argv, &o, &found, error, sizeof error);
    if (!result && found.help) {
        problem_help(&table, &found, stdout);
        return STATUS_DONE;
    }
    if (!result)
        result = problem_check(&table, &found, &o.run.ask, &o.run.op, error, sizeof error);
    if (!result && !op_is_tuned(o.run.op)) {
        char list[OP_LIST_TEXT];
        snprintf(error, sizeof error, "%s has no plans to choose from; %s do",
                 plan_op_name(o.run.op), op_list(list, sizeof list, op_is_tuned, ", ", " and "));
        result = -EINVAL;
    }
    if (!result && o.run.shapes && o.run.ask.numbers[0])
        result = mk_fail(-EINVAL, error, sizeof error,
                         "--%s is one shape, --shapes several: give one or the other",
                         op_of(o.run.op)->shape->option);
    tune_sim_jobs = o.jobs              ? o.jobs
                    : cores < 1         ? 1
                    : cores > MOST_JOBS ? MOST_JOBS
                                        : (uint64_t)cores;
    int status = result ? STATUS_USAGE : tune_sim_run(&o, error, sizeof error);
    return command_say("tune", status, "%s%s", error,
                       status == STATUS_USAGE ? "; `mkernel tune OP --exec sim --help` tells more"
                                              : "");
}
