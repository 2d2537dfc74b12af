#include "experiments/run.h"
#include "experiments/gpu.h"
#include "experiments/nearest.h"
#include "experiments/options.h"
#include "experiments/output_file.h"
#include "backends/nic.h"
#include "backends/verbs/verbs_options.h"
#ifdef MK_HAVE_EFA
#include "backends/efa/efa_options.h"
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GEMMS (1u << MK_OP_AG_GEMM | 1u << MK_OP_GEMM_AR | 1u << MK_OP_GEMM_RS)
#define AG_GEMM (1u << MK_OP_AG_GEMM)
#define ATTENTION (1u << MK_OP_RING_ATTENTION)
#define MOE (1u << MK_OP_MOE_DISPATCH_GEMM | 1u << MK_OP_MOE_FFN)
#define DEFAULT_BURST 4
#define BURST_BYTES ((uint64_t)256 << 20) /* of operands; the default burst stays below */

static const char *const execs[] = {"host", "cuda"};
static const char *const fabrics[] = {"verbs", "efa"};
static const char *const layouts[] = {"kn", "nk"};
static const char *const routings[] = {"even", "one", "few", "none"}; /* enum run_routing */
static const char *const peers[] = {"blas", "torch"};

/* Sets up a table whose defaults depend on nothing: what is 0 here is chosen in run_job_prepare. */
struct parsed {
    struct run_options o;
    int exec, fabric, layout, vs;
};

/* A table reads by rows. */
/* clang-format off */
#define AT(field) .offset = offsetof(struct parsed, field)
#define COMMON_SPECS                                                                                                 \
    {"shape", OPTION_NUMBERS, AT(o.shape), "M,N,K",                                                                  \
     "elements. ag_gemm: A [M,K] is sharded by rows, each rank's B is [K,N]; gemm_rs, gemm_ar: each rank's A is "    \
     "[M,K] and B [K,N]. Default: what suits the executor",                                                          \
     1, UINT32_MAX, 3, .contexts = GEMMS},                                                                           \
    {"attention", OPTION_NUMBERS, AT(o.attention), "B,S,H,G,D",                                                      \
     "the global problem: batch, sequence, heads, heads of K and V, their dimension (64 or 128). Default: what "     \
     "suits the executor",                                                                                           \
     1, UINT32_MAX, 5, .contexts = ATTENTION},                                                                       \
    {"causal", OPTION_FLAG, AT(o.causal), NULL, "no row sees a later one", .contexts = ATTENTION},                   \
    {"moe", OPTION_NUMBERS, AT(o.moe), "T,H,I,E,K",                                                                  \
     "tokens of a rank, elements of a token, I of an expert (moe_ffn: columns of its gate), experts of all ranks, "   \
     "experts of a token. "                                                                                          \
     "Default: what suits the executor",                                                                             \
     1, UINT32_MAX, 5, .contexts = MOE},                                                                             \
    {"routing", OPTION_WORD, AT(o.routing), "even|one|few|none",                                                     \
     "tokens go to all experts alike, all to one, to every other one, or the last rank has none. Default even",      \
     .words = routings, .word_count = 4, .contexts = MOE},                                                           \
    {"nodes", OPTION_NUMBERS, AT(o.nodes), "N", "nodes; on one host they are emulated. Default 1", 1, MK_MAX_RANKS}, \
    {"gpus", OPTION_NUMBERS, AT(o.gpus), "G", "ranks per node. Default: every Hopper GPU here, or 2 on the host",    \
     1, MK_MAX_LOCAL},                                                                                               \
    {"exec", OPTION_WORD, AT(exec), "host|cuda", "what runs the CTAs. Default: cuda where a Hopper GPU is found",    \
     .words = execs, .word_count = 2},                                                                               \
    {"fabric", OPTION_WORD, AT(fabric), "verbs|efa", "between nodes: RC, or EFA's SRD (host). Default verbs",       \
     .words = fabrics, .word_count = 2},                                                                             \
    {"nic", OPTION_TEXT, AT(o.nic), "soft|NAME,...",                                                                 \
     "NICs that may be used: ranks take the nearest of them. Default: all real devices that are up, else soft (no "  \
     "RDMA hardware needed)", .max = 255},                                                                           \
    {"rails", OPTION_NUMBERS, AT(o.rails), "N",                                                                      \
     "NICs of each rank, over which its chunks are spread. Default: as many as each GPU has for itself", 1,          \
     NIC_RAILS_MAX},                                                                                                 \
    {"verbs", OPTION_TEXT, AT(o.verbs), "KEY=VALUE,...",                                                             \
     "of the verbs fabric: timeout, retry, gid_index, mtu, qps, ... Default: MK_VERBS (docs/NETWORK.md)", .max = 255}, \
    {"roles", OPTION_ROLES, AT(o.roles), "compute=..,...",                                                           \
     "CTAs of each role: compute, intra_comm, inter_send, inter_reduce"},                                            \
    {"tile", OPTION_NUMBERS, AT(o.tile), "M,N", "rows and columns of a tile", 8, 65536, 2, .contexts = GEMMS | ATTENTION | MOE},       \
    {"chunk-rows", OPTION_NUMBERS, AT(o.chunk_rows), "ROWS", "rows of a chunk, a multiple of the tile's", 8,         \
     1 << 24, .contexts = GEMMS | ATTENTION | MOE},                                                                                    \
    {"slices", OPTION_NUMBERS, AT(o.slices), "N", "runs of columns of a chunk that arrive one after the other (ag_gemm, one node)", 1, 16,    \
     .contexts = AG_GEMM},                                                                                           \
    {"pieces", OPTION_NUMBERS, AT(o.pieces), "N", "parts of a chunk or slice that different CTAs push over NVLink", 1, 64,    \
     .contexts = GEMMS},                                                                                             \
    {"pace", OPTION_NUMBERS, AT(o.pace), "NS", "time that a warp beside the engine takes to push 512 bytes at least; 1: none (cuda)", 1, 100000, \
     .contexts = GEMMS},                                                                                             \
    {"width", OPTION_NUMBERS, AT(o.width), "N", "peers of its node that a rank pushes to at once (ag_gemm)", 1, MK_MAX_LOCAL,    \
     .contexts = AG_GEMM},                                                                                             \
    {"b-layout", OPTION_WORD, AT(layout), "kn|nk", "B is [K,N], or [N,K] as PyTorch keeps a weight. Default kn",     \
     .words = layouts, .word_count = 2, .contexts = GEMMS | MOE},                                                          \
    {"iters", OPTION_NUMBERS, AT(o.iters), "N", "launches, each with new inputs. Default 10 (run), 50 (bench)", 1,   \
     1000000},                                                                                                       \
    {"burst", OPTION_NUMBERS, AT(o.burst), "N",                                                                      \
     "launches back to back before a wait; each has operands of its own. Default 4 (run), 1 (bench)", 1, 4096},      \
    {"warmup", OPTION_NUMBERS, AT(o.warmup), "N", "launches before those that are timed. Default 1 (run), 5 "        \
     "(bench)", 0, 1000000},                                                                                         \
    {"seed", OPTION_NUMBERS, AT(o.seed), "S", "of the random inputs. Default 1", 0, UINT64_MAX},                     \
    {"deterministic", OPTION_FLAG, AT(o.deterministic), NULL, "the same bits on every run"},                         \
    {"timeout", OPTION_SECONDS, AT(o.timeout_ns), "SECONDS", "bound of every wait. Default 10", 10000000,            \
     3600000000000ull},                                                                                              \
    {"json", OPTION_TEXT, AT(o.json), "FILE", "write the result as JSON", .max = 4095}

static const struct option_spec run_specs[] = {
    COMMON_SPECS,
    {"check", OPTION_FLAG, AT(o.check), NULL, "check every launch against OpenBLAS; a wrong result is exit status 1"},
    {"trace", OPTION_TEXT, AT(o.trace), "FILE", "record tiles, waits and messages into a SQLite file", .max = 4095},
    {"live", OPTION_FLAG, AT(o.live), NULL,
     "watch it while it runs: what every CTA does, who waits for whom (also, from elsewhere: `mkernel tui --attach`)"},
};

static const struct option_spec bench_specs[] = {
    COMMON_SPECS,
    {"vs", OPTION_WORD, AT(vs), "blas|torch",
     "blas (host): also time the same product by OpenBLAS alone; torch (cuda): also PyTorch's fused operator, where python3 "
     "has it. cuBLAS and NCCL are always beside a cuda bench",
     .words = peers, .word_count = 2, .contexts = GEMMS},
    {"traced", OPTION_FLAG, AT(o.traced), NULL, "with tracing on, to see what it costs; nothing is stored (cuda)"},
    {"shapes", OPTION_TEXT, AT(o.shapes), "M,N,K:M,N,K", "several shapes, one after the other in one job (cuda)",
     .max = 1023, .contexts = GEMMS},
    {"csv", OPTION_TEXT, AT(o.csv), "FILE", "write the row as CSV", .max = 4095},
};

/* clang-format on */

static const struct option_table run_table = {
    "run OP [OPTIONS]",
    "Runs an op on all ranks of a job. Without a launcher it starts the ranks itself, on this host; under "
    "torchrun, srun "
    "or\nmpirun this process is one of them. OP: ag_gemm gemm_ar gemm_rs moe_dispatch_gemm moe_ffn "
    "ring_attention",
    run_specs, sizeof run_specs / sizeof *run_specs,
    "  mkernel run ag_gemm --nodes 2 --gpus 2 --check\n"
    "  mkernel run ag_gemm --shape 390,200,328 --nodes 3 --gpus 2 --iters 50 --check\n"
    "  mkernel run ring_attention --nodes 2 --gpus 2 --causal --check\n"
    "  mkernel run moe_dispatch_gemm --nodes 2 --gpus 2 --routing few --check\n"
    "  mkernel run moe_ffn --nodes 2 --gpus 2 --deterministic --check\n"
    "  mkernel run gemm_rs --nodes 2 --gpus 2 --deterministic --check\n"
    "  mkernel run gemm_ar --nodes 2 --gpus 2 --exec host --fabric efa --rails 2 --check\n"
    "  mkernel run ag_gemm --gpus 4 --roles compute=3,intra_comm=2 --trace run.db\n"
    "  torchrun --nproc-per-node 8 --no-python mkernel run ag_gemm --exec cuda\n"};

static const struct option_table bench_table = {
    "bench OP [OPTIONS]   (or: bench fabric|ring|trace [OPTIONS])",
    "Times an op: a barrier before every launch, new inputs each time, every result checked, median of each "
    "rank, then the\n"
    "slowest rank. A wrong result prints no speed. OP as for `mkernel run`.",
    bench_specs, sizeof bench_specs / sizeof *bench_specs,
    "  mkernel bench ag_gemm --exec host --nodes 2 --gpus 2 --vs blas\n"
    "  mkernel bench ag_gemm --exec cuda --shape 8192,1024,8192 --csv bench.csv\n"
    "  mkernel bench fabric --help\n"};

static int find_op(const struct options_found *found, enum mk_op *op, char *error, size_t size)
{
    const char *names[MK_OPS];
    for (int i = 0; i < MK_OPS; i++)
        names[i] = plan_op_name(i);
    if (!found->word_count) {
        snprintf(error, size, "which op is missing (ag_gemm, for one)");
        return -EINVAL;
    }
    if (found->word_count > 1) {
        snprintf(error, size, "%s is one argument too many", found->words[1]);
        return -EINVAL;
    }
    int found_op = plan_op_by_name(found->words[0]);
    if (found_op < 0) {
        const char *near = nearest_word(found->words[0], names, MK_OPS);
        snprintf(error, size, "there is no op %s (%s%s%s", found->words[0],
                 near ? "did you mean " : "ops are ",
                 near ? near : "ag_gemm, gemm_ar, gemm_rs, moe_dispatch_gemm, moe_ffn, ring_attention",
                 near ? "?)" : ")");
        return -EINVAL;
    }
    *op = (enum mk_op)found_op;
    return 0;
}

int run_options_parse(int argc, char **argv, int bench, struct run_options *o, char *error, size_t error_size)
{
    const struct option_table *table = bench ? &bench_table : &run_table;
    struct parsed p = {.o = {.bench = bench,
                             .iters = bench ? 50 : 10,
                             .warmup = bench ? 5 : 1,
                             .seed = 1,
                             .timeout_ns = MK_TIMEOUT_NS,
                             .check = bench},
                       .exec = -1,
                       .vs = -1};
    struct options_found found;
    int result = options_parse(table, argc, argv, &p, &found, error, error_size);
    if (result)
        return result;
    if (found.help) {
        options_help(table, stdout);
        return 1;
    }
    result = find_op(&found, &p.o.op, error, error_size);
    if (!result)
        result = options_check(table, &found, 1u << p.o.op, plan_op_name(p.o.op), error, error_size);
    *o = p.o;
    o->exec = p.exec;
    o->fabric = p.fabric;
    o->b_transposed = p.layout;
    o->vs = p.vs < 0 ? NULL : peers[p.vs];
    return result;
}

/* Result files that could not be written are told before anything starts. */
static int check_files(const struct run_options *o, char *error, size_t size)
{
    if (output_same(o->trace, o->json) || output_same(o->csv, o->json)) {
        snprintf(error, size, "%s and --json name the same file %s", output_same(o->trace, o->json) ? "--trace" : "--csv", o->json);
        return -EINVAL;
    }
    int result = output_check("--trace", o->trace, OUTPUT_REPLACED, error, size);
    result = result ? result : output_check("--json", o->json, OUTPUT_WRITTEN, error, size);
    return result ? result : output_check("--csv", o->csv, OUTPUT_WRITTEN, error, size);
}

/* What would be ignored is refused. */
static int check_exec_options(const struct run_options *o, char *error, size_t size)
{
    const char *only = NULL;
    int torch = o->vs && !strcmp(o->vs, "torch"), cuda = o->exec == MK_EXEC_CUDA;
    if (!cuda)
        only = o->shapes ? "--shapes" : o->traced ? "--traced" : o->pace ? "--pace" : torch ? "--vs torch" : NULL;
    else if (o->vs && !torch)
        only = "--vs blas";
    if (only)
        snprintf(error, size, "%s is for --exec %s, and this is --exec %s", only, cuda ? "host" : "cuda", cuda ? "cuda" : "host");
    else if (o->shapes && o->shape[0])
        snprintf(error, size, "--shape is one shape, --shapes several: give one or the other");
    return only || (o->shapes && o->shape[0]) ? -EINVAL : 0;
}

static int choose_exec(struct run_job *job, const struct gpu_list *gpus, char *error, size_t size)
{
    uint32_t hoppers = gpu_hoppers(gpus);
    int *exec = &job->options.exec, built = 0;
#ifdef MK_HAVE_CUDA
    extern const struct mk_exec_ops exec_cuda __attribute__((weak));
    built = &exec_cuda != NULL;
#endif
    if (*exec < 0)
        *exec = built && hoppers ? MK_EXEC_CUDA : MK_EXEC_HOST;
    if (*exec == MK_EXEC_HOST)
        return 0;
    if (!built)
        snprintf(error, size, "--exec cuda is not in this build; --exec host is");
    else if (!hoppers)
        snprintf(error, size, "--exec cuda: no Hopper GPU here (%s); --exec host runs anywhere",
                 gpus->count ? "another kind is" : gpus->missing);
    return built && hoppers ? 0 : -EINVAL;
}

static int choose_topology(struct run_job *job, const struct run_identity *launched, uint32_t hoppers,
                           char *error, size_t size)
{
    struct run_options *o = &job->options;
    if (launched) {
        uint64_t world = launched->world;
        if (!o->gpus)
            o->gpus = o->nodes ? world / o->nodes : launched->local_world ? launched->local_world : world;
        if (!o->nodes)
            o->nodes = o->gpus ? world / o->gpus : 0;
        if (o->nodes * o->gpus != world || o->gpus > MK_MAX_LOCAL) {
            snprintf(error, size, "%llu nodes of %llu ranks are not the %llu ranks that %s started",
                     (unsigned long long)o->nodes, (unsigned long long)o->gpus, (unsigned long long)world,
                     launched->launcher);
            return -EINVAL;
        }
        return 0;
    }
    if (!o->nodes)
        o->nodes = 1;
    if (!o->gpus)
        o->gpus = o->exec == MK_EXEC_CUDA && hoppers >= o->nodes ? hoppers / o->nodes : 2;
    if (o->nodes * o->gpus >
        SPAWN_MAX_RANKS) { /* more ranks than GPUs take turns on them: slow, but it runs */
        snprintf(error, size, "%llu nodes of %llu ranks: this host runs at most %d",
                 (unsigned long long)o->nodes, (unsigned long long)o->gpus, SPAWN_MAX_RANKS);
        return -EINVAL;
    }
    return 0;
}

/* A fabric or NIC that is not there is told before anything starts. */
static int choose_nic(struct run_job *job, const struct gpu_list *gpus, char *error, size_t size)
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
    if (o->nodes == 1)
        return 0;
#ifndef MK_HAVE_EFA
    if (o->fabric) {
        snprintf(error, size, "--fabric efa is not in this build (it takes <infiniband/efadv.h>); --fabric verbs is");
        return -EINVAL;
    }
#endif
    if (o->fabric && o->exec == MK_EXEC_CUDA) {
        snprintf(error, size, "--fabric efa does not reach GPU memory yet: --exec host, or --fabric verbs");
        return -EINVAL;
    }
    if (o->verbs && o->fabric) {
        snprintf(error, size, "--verbs is of --fabric verbs");
        return -EINVAL;
    }
    if (o->verbs && setenv("MK_VERBS", o->verbs, 1)) {
        snprintf(error, size, "--verbs: %s", strerror(errno));
        return -errno;
    }
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
        nic_own_place(&places[i], o->exec == MK_EXEC_CUDA && gpus->count ? gpus->devices[i % gpus->count].bus : "");
    int result = nic_choose(&choice, &request, error, size);
    for (uint32_t i = 0, used = 0; !result && i < choice.count && used < sizeof job->nic; i++)
        used += (uint32_t)snprintf(job->nic + used, sizeof job->nic - used, "%s%s", i ? "+" : "", choice.devices[i]);
    return result;
}

static void choose_shape(struct run_job *job)
{
    uint64_t *shape = job->options.shape, world = job->options.nodes * job->options.gpus;
    uint64_t *attention = job->options.attention;
    int cuda = job->options.exec == MK_EXEC_CUDA;
    if (job->options.op == MK_OP_RING_ATTENTION && !attention[0]) {
        attention[0] = 1;
        attention[1] = (cuda ? 4096 : 128) * world;
        attention[2] = cuda ? 16 : 4;
        attention[3] = cuda ? 16 : 2;
        attention[4] = cuda ? 128 : 64;
    }
    uint64_t *moe = job->options.moe;
    if (MOE >> job->options.op & 1 && !moe[0]) {
        moe[0] = cuda ? 4096 : 128;
        moe[1] = cuda ? 7168 : 256;
        moe[2] = cuda ? 2048 : 128;
        moe[3] = cuda ? mk_round_up(256, world) : 4 * world;
        moe[4] = cuda ? 8 : 2;
    }
    if (shape[0] || !(GEMMS >> job->options.op & 1))
        return;
    if (job->options.exec == MK_EXEC_CUDA) {
        shape[0] = mk_round_up(8192, world);
        shape[1] = mk_round_up(8192 / world ? 8192 / world : 8, 8);
        shape[2] = 8192;
        if (job->options.op != MK_OP_AG_GEMM) { /* K is what the ranks share */
            shape[2] = shape[1];
            shape[1] = 8192;
        }
    } else {
        shape[0] = 256 * world;
        shape[1] = shape[2] = 512;
    }
}

/* Bytes of the operands of one launch on one rank. */
static uint64_t operand_bytes(const struct mk_problem *q)
{
    uint64_t bytes[RUN_ARGUMENTS], sum = 0;
    run_data_extents(q, bytes);
    for (uint32_t i = 0; i < RUN_ARGUMENTS; i++)
        sum += bytes[i];
    return sum;
}

int run_job_prepare(struct run_job *job, const struct run_options *o, const struct run_identity *launched,
                    char *error, size_t error_size)
{
    static struct gpu_list gpus;
    memset(job, 0, sizeof *job);
    job->options = *o;
    if (launched)
        job->identity = *launched;
    if (o->exec != MK_EXEC_HOST)
        gpu_probe(&gpus);
    int result = choose_exec(job, &gpus, error, error_size);
    if (!result)
        result = choose_topology(job, launched, gpu_hoppers(&gpus), error, error_size);
    if (!result)
        result = choose_nic(job, &gpus, error, error_size);
    if (!result)
        result = check_exec_options(&job->options, error, error_size);
    if (!result && job->identity.rank == 0)
        result = check_files(o, error, error_size);
    if (result)
        return result;
    choose_shape(job);

    o = &job->options;
    job->problem = (struct mk_problem){
        .op = o->op,
        .exec = (enum mk_exec)o->exec,
        .sms = o->exec == MK_EXEC_CUDA ? gpus.devices[0].sms : 0,
        .topo = {(uint32_t)o->nodes, (uint32_t)o->gpus, job->identity.rank},
        .m = o->shape[0],
        .n = o->shape[1],
        .k = o->shape[2],
        .attention = {.batch = o->attention[0],
                      .sequence = o->attention[1],
                      .heads = o->attention[2],
                      .kv_heads = o->attention[3],
                      .head_dim = o->attention[4],
                      .causal = o->causal},
        .moe = {.tokens = o->moe[0],
                .hidden = o->moe[1],
                .inner = o->moe[2],
                .experts = o->moe[3],
                .k = o->moe[4]},
        .b_transposed = o->b_transposed,
        .deterministic = o->deterministic,
        .timeout_ns = o->timeout_ns,
        .tuning = {.split = o->roles,
                   .tile_m = (uint32_t)o->tile[0],
                   .tile_n = (uint32_t)o->tile[1],
                   .chunk_rows = (uint32_t)o->chunk_rows,
                   .slices = (uint32_t)o->slices,
                   .pieces = (uint32_t)o->pieces,
                   .pace = (uint32_t)o->pace,
                   .width = (uint32_t)o->width},
    };
    result = plan_build(&job->plan, &job->problem, 0, 0, error, error_size);
    if (result)
        return result;
    job->identity.world = mk_world(&job->problem.topo);
    job->burst = o->burst ? o->burst : o->bench ? 1 : DEFAULT_BURST;
    while (!o->burst && job->burst > 1 && job->burst * operand_bytes(&job->plan.problem) > BURST_BYTES)
        job->burst--;
    if (job->burst > o->iters)
        job->burst = o->iters;
    return 0;
}
