/* What a run does in detail, from what was asked for and what this machine has. */
#include "experiments/job/op.h"
#include "experiments/job/run.h"
#include "experiments/common/gpu.h"
#include "experiments/common/memory_need.h"
#include "experiments/common/output_file.h"
#include "core/comm/comm.h"
#include "core/comm/gpus.h"
#include "core/ops/op.h"
#include "core/base/scoped.h"
#include "core/plan/tuning.h"
#include "core/base/sentence.h"
#include "sim/emulated.h"
#include "backends/nic.h"
#include "backends/verbs/verbs_options.h"
#ifdef MK_HAVE_EFA
#include "backends/efa/efa_options.h"
#include "core/plan/plan_fields.h"
#endif

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef MK_HAVE_CUDA
#pragma weak exec_cuda /* a test of these files alone links, too */
#endif

#define DEFAULT_BURST 4
#define BURST_BYTES ((uint64_t)256 << 20) /* of operands; the default burst stays below */

/* Result files that could not be written are told before anything starts. */
static int run_job_check_files(const struct run_options *o, char *error, size_t size)
{
    if (output_same(o->trace, o->json) || output_same(o->csv, o->json))
        return mk_fail(-EINVAL, error, size, "%s and --json name the same file %s",
                       output_same(o->trace, o->json) ? "--trace" : "--csv", o->json);
    int result = output_check("--trace", o->trace, OUTPUT_REPLACED, error, size);
    result = result ? result : output_check("--json", o->json, OUTPUT_WRITTEN, error, size);
    return result ? result : output_check("--csv", o->csv, OUTPUT_WRITTEN, error, size);
}

/* --skew, as a number, and what it says of --routing. */
static int run_job_read_skew(struct run_job *job, char *error, size_t size)
{
    struct run_options *o = &job->options;
    char *end;
    if (!o->skew)
        return 0;
    if (o->routing != RUN_ROUTING_EVEN)
        return mk_fail(-EINVAL, error, size,
                       "--routing %s says whom tokens choose, and so does --skew",
                       run_routings[o->routing]);
    if (!strcmp(o->skew, "one")) {
        o->routing = RUN_ROUTING_ONE;
        o->skew = NULL;
        return 0;
    }
    o->skew += strncmp(o->skew, "zipf:", 5) ? 0 : 5;
    job->skew = strtod(o->skew, &end);
    if (end == o->skew || *end || !(job->skew >= 0.01 && job->skew <= 10))
        return mk_fail(-EINVAL, error, size, "--skew %s: it is a number from 0.01 to 10, or one",
                       o->skew);
    return 0;
}

/* --tokens-now: numbers up to T, or "random". */
static int run_job_read_tokens(struct run_job *job, char *error, size_t size)
{
    const char *text = job->options.tokens_now, *p = text;
    const uint64_t most = job->problem.moe.tokens;
    if (!text)
        return 0;
    plan_field_set(plan_field_named("tokens"), &job->problem, 1);
    if (!strcmp(text, "random"))
        return 0;
    while (*p >= '0' && *p <= '9' && job->tokens_now_count < RUN_TOKENS) {
        char *end;
        unsigned long long n = strtoull(p, &end, 10);
        if (n > most || (*end && *end != ','))
            break;
        job->tokens_now[job->tokens_now_count++] = (uint32_t)n;
        if (!*end)
            return 0;
        p = end + 1;
    }
    return mk_fail(-EINVAL, error, size,
                   "--tokens-now %s: at most %u numbers from 0 to %lu, or random", text, RUN_TOKENS,
                   most);
}

/* --replicas: of the experts that most tokens choose. */
static int run_job_place_copies(struct run_job *job, char *error, size_t size)
{
    const uint32_t logical = (uint32_t)op_logical(&job->problem);
    int result = problem_check_replicas(&job->options.ask, &job->problem, error, size);
    if (result || !logical)
        return result;
    int32_t *slots; /* the job's until the command ends */
    MK_FREED double *loads = malloc(logical * sizeof *loads);
    if (loads)
        moe_map_skew(job->options.routing == RUN_ROUTING_ONE ? INFINITY : job->skew, logical,
                     loads);
    if (!loads || moe_map_place(&job->map, &slots, &job->problem, loads))
        result = mk_fail(-ENOMEM, error, size, "no memory for copies of experts");
    return result;
}

/* What would be ignored is refused. */
static int run_job_check_exec_options(const struct run_options *o, char *error, size_t size)
{
    const char *only = NULL;
    const uint64_t dtype = problem_asked(&o->ask, "dtype");
    int torch = o->vs == RUN_VS_TORCH, cuda = o->exec != MK_EXEC_HOST;
    if (!cuda) /* the emulated GPU takes what the GPU takes */
        only = o->traced                           ? "--traced"
               : problem_asked(&o->ask, "pace_ns") ? "--pace"
               : problem_asked(&o->ask, "sms")     ? "--sms"
               : problem_asked(&o->ask, "engine")  ? "--engine"
               : torch                             ? "--vs torch"
                                                   : NULL;
    else if (o->vs == RUN_VS_BLAS)
        only = "--vs blas";
    if (cuda && dtype && torch &&
        (strcmp(plan_dtypes[dtype], "fp8") || run_op_of(o->op)->product != RUN_GEMM))
        return mk_fail(
            -EINVAL, error, size,
            "--vs torch: PyTorch's fused operators are timed in bf16, and those of GEMMs in "
            "fp8; --dtype %s is set beside cuBLAS and NCCL without being asked",
            plan_dtypes[dtype]);
    if (problem_asked(&o->ask, "epilogue") && o->mode != RUN_RUN)
        return mk_fail(
            -EINVAL, error, size,
            "--epilogue is for run: bench and tune set products alone beside those of others");
    if (problem_asked(&o->ask, "b_scales") && o->mode != RUN_RUN)
        return mk_fail(
            -EINVAL, error, size,
            "--b-scales columns is for run: bench and tune multiply by scales of blocks, "
            "as cuBLAS does beside them");
    if (o->ask.replicas && (torch || o->shapes))
        return mk_fail(-EINVAL, error, size, "--replicas is of one shape, and not for --vs torch");
    if (o->tokens_now && o->mode != RUN_RUN)
        return mk_fail(-EINVAL, error, size,
                       "--tokens-now is for run: bench sets whole batches beside others'");
    const char *compared = o->traced ? "--traced" : o->vs >= 0 ? "--vs" : NULL;
    if (cuda && o->mode == RUN_BENCH && compared && !run_op_is_compared(o->op))
        return mk_fail(-EINVAL, error, size,
                       "%s is for operators that bench compares on GPUs, and %s is timed alone",
                       compared, plan_op_name(o->op));
    if (o->vs == RUN_VS_BLAS && run_op_of(o->op)->product != RUN_GEMM)
        return mk_fail(-EINVAL, error, size, "--vs blas is for GEMM operators, and %s is none",
                       plan_op_name(o->op));
    if (only)
        snprintf(error, size, "%s is for --exec %s, and this is --exec %s", only,
                 cuda ? "host" : "cuda", cuda ? "cuda" : "host");
    else if (o->shapes && o->ask.numbers[0])
        snprintf(error, size, "--%s is one shape, --shapes several: give one or the other",
                 op_of(o->op)->shape->option);
    return only || (o->shapes && o->ask.numbers[0]) ? -EINVAL : 0;
}

/* Emulated GPUs have no speed: nothing is timed on them. */
static int run_job_check_emulated(const struct run_options *o, char *error, size_t size)
{
    if (o->mode != RUN_RUN)
        snprintf(error, size,
                 "--exec emulated is for `mkernel run`: an emulated GPU has no speed to measure");
    else if (!op_on_gpu(o->op))
        snprintf(error, size, "--exec emulated: %s has no GPU kernel yet; --exec host runs it",
                 plan_op_name(o->op));
    else if (!emulated_built)
        snprintf(error, size,
                 "--exec emulated is not in this build, for which no C++ compiler was found; "
                 "--exec host is");
    else
        return 0;
    return -EINVAL;
}

/* How many GPUs run the operator, on any engine that it has. */
static uint32_t run_job_gpus(const struct run_job *job, const struct gpu_list *gpus)
{
    return op_on_mma(job->options.op) ? gpu_with_mma(gpus) : gpu_hoppers(gpus);
}

static int run_job_choose_exec(struct run_job *job, const struct gpu_list *gpus, char *error,
                               size_t size)
{
    uint32_t able = run_job_gpus(job, gpus);
    int *exec = &job->options.exec, built = 0, kernel = op_on_gpu(job->options.op);
#ifdef MK_HAVE_CUDA
    built = &exec_cuda != NULL;
#endif
    if (*exec < 0)
        *exec = built && kernel && able ? MK_EXEC_CUDA : MK_EXEC_HOST;
    if (*exec == MK_EXEC_HOST)
        return 0;
    if (*exec == MK_EXEC_EMULATED)
        return run_job_check_emulated(&job->options, error, size);
    if (!built)
        snprintf(error, size, "--exec cuda is not in this build; --exec host is");
    else if (!kernel)
        snprintf(error, size, "--exec cuda: %s has no GPU kernel yet; --exec host runs it",
                 plan_op_name(job->options.op));
    else if (!able)
        snprintf(error, size, "--exec cuda: no %s here (%s); --exec host runs anywhere",
                 op_on_mma(job->options.op) ? "GPU of compute capability 8.0 or up" : "Hopper GPU",
                 gpus->count ? "another kind is" : gpus->missing);
    return built && kernel && able ? 0 : -EINVAL;
}

/* Whether the GPUs here are nodes of their own: they do not reach each other's memory, or are not
 * to (MKERNEL_P2P). 1, 0, or -EINVAL with a sentence. */
static int run_job_gpus_apart(const struct run_job *job, const struct gpu_list *gpus, char *error,
                              size_t size)
{
    if (job->options.exec == MK_EXEC_HOST)
        return 0;
    int wanted = gpus_peers_wanted(error, size), heap = gpus_heap_wanted(error, size);
    if (heap < 0)
        return heap;
    if (wanted < 0 || job->options.exec == MK_EXEC_EMULATED) /* a GPU for each rank */
        return wanted < 0 ? wanted : !wanted;
    return gpus->count > 1 && !(wanted && gpus->peers);
}

static int run_job_refuse_apart(const struct run_options *o, const struct gpu_list *gpus,
                                char *error, size_t size)
{
    return mk_fail(
        -EINVAL, error, size,
        "--gpus %lu: the GPUs of this host %s, so each is a node of its own: --nodes %lu "
        "--gpus 1",
        o->gpus,
        gpus->peers || o->exec == MK_EXEC_EMULATED
            ? "are not to reach each other's memory (MKERNEL_P2P=off)"
            : "do not reach each other's memory with atomics, as over NVLink",
        o->nodes * o->gpus);
}

static int run_job_choose_topology(struct run_job *job, const struct run_identity *launched,
                                   const struct gpu_list *gpus, char *error, size_t size)
{
    struct run_options *o = &job->options;
    uint32_t able = run_job_gpus(job, gpus);
    int apart = run_job_gpus_apart(job, gpus, error, size);
    if (apart < 0)
        return apart;
    if (launched) {
        uint64_t world = launched->world;
        if (!o->gpus)
            o->gpus = o->nodes                ? world / o->nodes
                      : apart                 ? 1
                      : launched->local_world ? launched->local_world
                                              : world;
        if (!o->nodes)
            o->nodes = o->gpus ? world / o->gpus : 0;
        if (o->nodes * o->gpus != world || o->gpus > MK_MAX_LOCAL)
            return mk_fail(-EINVAL, error, size, "%lu x %lu ranks are not the %lu that %s started",
                           o->nodes, o->gpus, world, launched->launcher);
        return apart && o->gpus > 1 ? run_job_refuse_apart(o, gpus, error, size) : 0;
    }
    if (!o->nodes)
        o->nodes = !apart || o->gpus ? 1 : o->exec == MK_EXEC_CUDA ? able : 2;
    if (apart && !o->gpus)
        o->gpus = 1;
    if (!o->gpus)
        o->gpus = o->exec == MK_EXEC_CUDA && able >= o->nodes ? able / o->nodes : 2;
    if (o->nodes * o->gpus > SPAWN_MAX_RANKS) { /* more ranks than GPUs share them */
        return mk_fail(-EINVAL, error, size, "%lu x %lu ranks: this host runs at most %d", o->nodes,
                       o->gpus, SPAWN_MAX_RANKS);
    }
    return apart && o->gpus > 1 ? run_job_refuse_apart(o, gpus, error, size) : 0;
}

/* Ranks that share a GPU have a part of its SMs each, or take turns: core/comm/gpus.h. */
static void run_job_share_gpus(struct run_job *job, const struct gpu_list *gpus)
{
    const struct gpu_device *g = &gpus->devices[0];
    uint64_t here = job->identity.local_world ? job->identity.local_world
                                              : job->options.nodes * job->options.gpus;
    if (job->options.exec != MK_EXEC_CUDA)
        return;
    job->sharing = (uint32_t)mk_ceil_div(here, gpus->count);
    job->share = gpus_share(g->sms, gpus_whole(g->sms), job->sharing, g->mps);
    uint64_t *sms = &problem_field(&job->options.ask, "sms")->number;
    if (job->share && (!*sms || job->share < *sms))
        *sms = job->share;
}

/* A fabric or NIC that is not there is told before anything starts: on one node, too, which uses
 * none, where one was asked for. */
static int run_job_choose_nic(struct run_job *job, const struct gpu_list *gpus, char *error,
                              size_t size)
{
    const struct run_options *o = &job->options;
    struct nic_choice choice;
    struct nic_place places[MK_MAX_LOCAL] = {{.numa = -1}};
    struct nic_request request = {.names = o->nic ? o->nic : "",
                                  .efa = o->fabric,
                                  .rails = (uint32_t)o->rails,
                                  .local_ranks = (uint32_t)o->gpus,
                                  .places = places};
#ifdef MK_HAVE_VERBS
    struct verbs_options verbs;
    verbs_options_default(&verbs);
    if (o->verbs && verbs_options_parse(&verbs, o->verbs, error, size))
        return -EINVAL;
#endif
    if (o->nodes == 1 && !o->nic && !o->rails && !o->fabric)
        return 0;
#ifndef MK_HAVE_EFA
    if (o->fabric)
        return mk_fail(
            -EINVAL, error, size,
            "--fabric efa is not in this build (it takes <infiniband/efadv.h>); --fabric verbs is");
#endif
    if (o->verbs && o->fabric)
        return mk_fail(-EINVAL, error, size, "--verbs is of --fabric verbs");
    if (o->verbs && setenv("MK_VERBS", o->verbs, 1))
        return mk_fail(-errno, error, size, "--verbs: %s", strerror(errno));
#ifdef MK_HAVE_VERBS
    if (!o->fabric && verbs_options_parse(&verbs, getenv("MK_VERBS"), error, size))
        return -EINVAL;
#endif
#ifdef MK_HAVE_EFA
    struct efa_options efa;
    efa_options_default(&efa);
    if (o->fabric && efa_options_parse(&efa, getenv("MK_EFA"), error, size))
        return -EINVAL;
#endif
    for (uint32_t i = 0; i < o->gpus; i++)
        nic_own_place(&places[i], o->exec == MK_EXEC_CUDA && gpus->count
                                      ? gpus->devices[i % gpus->count].bus
                                      : "");
    int result = nic_choose(&choice, &request, error, size);
    if (result || o->nodes == 1)
        return result;
    job->nic_gbit = choice.gbit;
    nic_choice_words(&choice, job->nic, sizeof job->nic);
    return 0;
}

/* `count` numbers with commas between them at *p, which goes behind them. 0 where they are not
 * there. */
static int run_job_read_numbers(const char **p, uint32_t count, uint64_t *numbers)
{
    for (uint32_t i = 0; i < count; i++) {
        char *end;
        if (**p < '0' || **p > '9' || (numbers[i] = strtoull(*p, &end, 10)) > UINT32_MAX)
            return 0;
        *p = end;
        if (i + 1 < count && *(*p)++ != ',')
            return 0;
    }
    return **p == ':' || !**p;
}

/* --shapes, else the one of --shape, --attention, ... */
int run_job_list_shapes(struct run_job *job, char *error, size_t size)
{
    struct run_options *o = &job->options;
    uint64_t numbers[OP_DIMENSIONS] = {0}; /* ranks compare all of them */
    uint32_t count = op_numbers(&job->problem, numbers);
    const char *p = o->shapes, *letters = op_of(o->op)->shape->letters;
    if (!p) {
        memcpy(job->shapes[job->shape_count++], numbers, sizeof numbers);
        return 0;
    }
    do {
        if (job->shape_count == RUN_SHAPES || !run_job_read_numbers(&p, count, numbers))
            return mk_fail(-EINVAL, error, size, "--shapes %s: not %s:%s with at most %u shapes",
                           o->shapes, letters, letters, RUN_SHAPES);
        memcpy(job->shapes[job->shape_count++], numbers, sizeof numbers);
    } while (*p++);
    memcpy(o->ask.numbers, job->shapes[0], sizeof job->shapes[0]);
    op_set_numbers(&job->problem, o->ask.numbers);
    return 0;
}

/* The plan of each shape; in the end job->plan is that of the first. */
static int run_job_build_plans(struct run_job *job, char *error, size_t size)
{
    struct tuning_table tuned;
    struct mk_problem q = job->problem;
    const char *file = job->options.tuning ? job->options.tuning : "";
    int result = tuning_open(&tuned, file, job->options.mode == RUN_TUNE, error, size);
    for (uint32_t i = job->shape_count; i-- && !result;) {
        op_set_numbers(&q, job->shapes[i]);
        result = tuning_build(&job->plan, &tuned, &q, job->device, 0, 0, error, size);
        uint64_t records = result ? 0 : run_comm_records(&job->plan);
        job->records = records > job->records ? records : job->records;
        if (!result && job->plan.heap_bytes > job->heap_bytes)
            job->heap_bytes = job->plan.heap_bytes;
        if (!result && job->plan.flags > job->flags)
            job->flags = job->plan.flags;
    }
    snprintf(job->tuning_path, sizeof job->tuning_path, "%s", tuned.path);
    tuning_close(&tuned);
    return result;
}

/* Bytes of the operands of one launch on one rank. */
static uint64_t run_job_operand_bytes(const struct mk_problem *q)
{
    uint64_t bytes[RUN_ARGUMENTS], sum = 0;
    op_extents(q, bytes);
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++)
        sum += bytes[i];
    return sum;
}

int run_job_prepare(struct run_job *job, const struct run_options *o,
                    const struct run_identity *launched, char *error, size_t size)
{
    static struct gpu_list gpus;
    memset(job, 0, sizeof *job);
    job->options = *o;
    if (launched)
        job->identity = *launched;
    if (o->exec < 0 || o->exec == MK_EXEC_CUDA)
        gpu_probe(&gpus);
    int result = run_job_choose_exec(job, &gpus, error, size);
    result = result ? result : run_job_choose_topology(job, launched, &gpus, error, size);
    result = result ? result : run_job_choose_nic(job, &gpus, error, size);
    result = result ? result : run_job_check_exec_options(&job->options, error, size);
    if (!result)
        run_job_share_gpus(job, &gpus);
    result = result ? result : run_job_read_skew(job, error, size);
    if (!result && job->identity.rank == 0)
        result = run_job_check_files(o, error, size);
    if (result)
        return result;
    o = &job->options;
    snprintf(job->device, sizeof job->device, "%s",
             o->exec == MK_EXEC_CUDA ? gpus.devices[0].name : plan_execs[o->exec]);
    job->cuda_driver = o->exec == MK_EXEC_CUDA ? gpus.driver : 0;
    job->problem = (struct mk_problem){
        .op = o->op,
        .exec = plan_exec(o->exec),
        .sms = o->exec == MK_EXEC_CUDA       ? gpus.devices[0].sms
               : o->exec == MK_EXEC_EMULATED ? EMULATED_SMS
                                             : 0,
        .block_shared = o->exec == MK_EXEC_CUDA       ? gpus.devices[0].shared
                        : o->exec == MK_EXEC_EMULATED ? EMULATED_BLOCK_SHARED
                                                      : 0,
        .topo = {(uint32_t)o->nodes, (uint32_t)o->gpus, job->identity.rank},
        .timeout_ns = o->timeout_ns,
    };
    problem_fill(&job->options.ask, o->exec == MK_EXEC_CUDA ? OP_SIZE_GPU : OP_SIZE_HOST,
                 &job->problem);
    result = run_job_list_shapes(job, error, size);
    result = result ? result : run_job_read_tokens(job, error, size);
    result = result ? result : run_job_build_plans(job, error, size);
    result = result ? result : run_job_place_copies(job, error, size);
    if (result)
        return result;
    job->identity.world = mk_world(&job->problem.topo);
    job->burst = o->burst ? o->burst : o->mode != RUN_RUN ? 1 : DEFAULT_BURST;
    while (!o->burst && job->burst > 1 &&
           job->burst * run_job_operand_bytes(&job->plan.problem) > BURST_BYTES)
        job->burst--;
    if (job->burst > o->iters)
        job->burst = o->iters;
    const struct run_subcommand *sub = o->subcommand;
    result = sub && sub->refuse ? sub->refuse(job, error, size) : 0;
    if (result)
        return result;
    uint64_t here = launched && launched->local_world ? launched->local_world : job->identity.world;
    if (o->exec == MK_EXEC_CUDA)
        return 0;
    result = memory_check(&job->plan, here, job->burst, error, size);
    /* an emulated GPU has as many threads in every plan */
    return result || o->exec == MK_EXEC_EMULATED ? result
                                                 : memory_check_ctas(&job->plan, 1, error, size);
}
