/* What `mkernel run OP`, `bench OP` and `tune OP` take, and what it says. */
#include "experiments/job/op.h"
#include "backends/nic.h"

#include <errno.h>
#include <string.h>

/* Headings of the help. */
#define PROBLEM PROBLEM_GROUP
#define MACHINE "ranks and network"
#define PLAN "the plan (what is not given it chooses; run and bench print it)"
#define SEARCH "the search"
#define LAUNCHES "launches"
#define RESULTS "results"

static const char *const execs[] = {"host", "cuda"};
static const char *const fabrics[] = {"verbs", "efa"};
const char *const run_routings[] = {"even", "one", "few", "none"};
static const char *const peers[] = {"blas", "torch"};

/* Sets up a table whose defaults depend on nothing: what is 0 here is chosen in run_job_prepare. */
struct parsed {
    struct run_options o;
    int exec, fabric, vs;
};

/* A table reads by rows. */
/* clang-format off */
#define AT(field) .offset = offsetof(struct parsed, field)
/* What all three take beside the problem and the plan (problem.h); how it is launched. */
#define JOB_SPECS                                                                                                    \
    {"nodes", OPTION_NUMBERS, AT(o.nodes), "N", "nodes; on one host they are emulated. Default 1", 1, MK_MAX_RANKS, .group = MACHINE}, \
    {"gpus", OPTION_NUMBERS, AT(o.gpus), "G", "ranks per node. Default: every Hopper GPU here, or 2 on the host",    \
     1, MK_MAX_LOCAL, .group = MACHINE},                                                                                               \
    {"exec", OPTION_WORD, AT(exec), "host|cuda", "what runs the CTAs. Default: cuda where a Hopper GPU is found and the op has a kernel",    \
     .words = execs, .word_count = 2, .group = MACHINE},                                                                               \
    {"fabric", OPTION_WORD, AT(fabric), "verbs|efa", "between nodes: RC, or EFA's SRD. Default verbs",               \
     .words = fabrics, .word_count = 2, .group = MACHINE},                                                                             \
    {"nic", OPTION_TEXT, AT(o.nic), "soft|NAME,...",                                                                 \
     "NICs that may be used: ranks take the nearest of them. Default: all real devices that are up, else soft (no "  \
     "RDMA hardware needed)", .max = 255, .group = MACHINE},                                                                           \
    {"rails", OPTION_NUMBERS, AT(o.rails), "N",                                                                      \
     "NICs of each rank, over which its chunks are spread. Default: as many as each GPU has for itself", 1,          \
     NIC_RAILS_MAX, .group = MACHINE},                                                                                                 \
    {"verbs", OPTION_TEXT, AT(o.verbs), "KEY=VALUE,...",                                                             \
     "of the verbs fabric: timeout, retry, gid_index, mtu, qps, ... Default: MK_VERBS (docs/NETWORK.md)", .max = 255, .group = MACHINE}, \
    {"tuning", OPTION_TEXT, AT(o.tuning), "FILE|none",                                                               \
     "the file of tuned plans, which the plan takes its defaults from where none of its options is given; none: its " \
     "formula alone. Default: MKERNEL_TUNING, else ~/.config/mkernel/tuning", .max = 511, .group = PLAN},                           \
    {"iters", OPTION_NUMBERS, AT(o.iters), "N", "launches, each with new inputs. Default 10 (run), 50 (bench), 20 of each plan (tune)", 1, \
     1000000, .group = LAUNCHES},                                                                                                       \
    {"seed", OPTION_NUMBERS, AT(o.seed), "S", "of the random inputs. Default 1", 0, UINT64_MAX, .group = PROBLEM},                     \
    {"timeout", OPTION_SECONDS, AT(o.timeout_ns), "SECONDS", "bound of every wait. Default 10", 10000000,            \
     3600000000000ull, .group = MACHINE}
#define ROUTING_SPEC                                                                                                 \
    {"routing", OPTION_WORD, AT(o.routing), "even|one|few|none",                                                     \
     "tokens go to all experts alike, all to one, to every other one, or the last rank has none. Default even",      \
     .words = run_routings, .word_count = 4, .group = PROBLEM}
#define QUIET_SPEC                                                                                                   \
    {"quiet", OPTION_FLAG, AT(o.quiet), NULL,                                                                        \
     "no table. Default: on standard output; on standard error where a result goes to standard output", .group = RESULTS}
#define LAUNCH_SPECS                                                                                                 \
    {"burst", OPTION_NUMBERS, AT(o.burst), "N",                                                                      \
     "launches back to back before a wait; each has operands of its own. Default 4 (run), 1 (bench)", 1, 4096, .group = LAUNCHES},      \
    {"warmup", OPTION_NUMBERS, AT(o.warmup), "N", "launches before those that are timed. Default 1 (run), 5 "        \
     "(bench)", 0, 1000000, .group = LAUNCHES},                                                                                         \
    {"json", OPTION_TEXT, AT(o.json), "FILE", "write the result as JSON", .max = 4095, .group = RESULTS},                              \
    QUIET_SPEC

static const struct option_spec run_specs[] = {
    JOB_SPECS,
    ROUTING_SPEC,
    LAUNCH_SPECS,
    {"check", OPTION_FLAG, AT(o.check), NULL, "check every launch against OpenBLAS; a wrong result is exit status 1", .group = LAUNCHES},
    {"trace", OPTION_TEXT, AT(o.trace), "FILE", "record tiles, waits and messages into a SQLite file", .max = 4095, .group = RESULTS},
    {"live", OPTION_FLAG, AT(o.live), NULL,
     "watch it while it runs: what every CTA does, who waits for whom (also, from elsewhere: `mkernel tui --attach`)", .group = RESULTS},
};

static const struct option_spec bench_specs[] = {
    JOB_SPECS,
    ROUTING_SPEC,
    LAUNCH_SPECS,
    {"vs", OPTION_WORD, AT(vs), "blas|torch",
     "blas (host): also time the same product by OpenBLAS alone; torch (cuda): also PyTorch's fused operator, where python3 "
     "has it. cuBLAS and NCCL are always beside a cuda bench",
     .words = peers, .word_count = 2, .group = LAUNCHES},
    {"traced", OPTION_FLAG, AT(o.traced), NULL, "with tracing on, to see what it costs; nothing is stored (cuda)", .group = LAUNCHES},
    {"shapes", OPTION_TEXT, AT(o.shapes), "M,N,K:M,N,K", "several shapes, one after the other in one job (cuda)",
     .max = 1023, .group = PROBLEM},
    {"csv", OPTION_TEXT, AT(o.csv), "FILE", "write a row a shape as CSV: times, plan, network, seed, date, versions", .max = 4095, .group = RESULTS},
    {"append", OPTION_FLAG, AT(o.append), NULL, "add the rows to the CSV that is there, whose columns must be the same", .group = RESULTS},
};

static const struct option_spec tune_specs[] = {
    JOB_SPECS,
    {"shapes", OPTION_TEXT, AT(o.shapes), "M,N,K:M,N,K", "several shapes, one after the other in one job", .max = 1023, .group = PROBLEM},
    {"space", OPTION_TEXT, AT(o.space), "NAME=V,V:NAME=V,V",
     "the options of the plan that are tried, and values: tile=256x128,128x128:pace=1,300:roles=132+132+0+0; a name alone takes "
     "values that suit the operator. Names: tile, roles, chunk_rows, slices, pieces, pace, fanout. Default: all of them",
     .max = 1023, .group = SEARCH},
    {"rounds", OPTION_NUMBERS, AT(o.rounds), "N", "rounds of changing the best plan in one option. Default 3", 1, 100, .group = SEARCH},
    {"verify", OPTION_FLAG, AT(o.verify), NULL,
     "keep nothing: only say whether the plan's default is within 1.05 of the best found; exit status 1 if it is not", .group = SEARCH},
    {"csv", OPTION_TEXT, AT(o.csv), "FILE", "write all plans that were measured as CSV", .max = 4095, .group = RESULTS},
    QUIET_SPEC,
};

/* clang-format on */

static const struct option_table run_table = {
    "run OP [OPTIONS]",
    "Runs an op on all ranks of a job. Without a launcher it starts the ranks itself, on this "
    "host; under "
    "torchrun, srun "
    "or\nmpirun this process is one of them.",
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
    "Times an op: a barrier before every launch, new inputs each time, every result checked, "
    "median of each "
    "rank, then the\n"
    "slowest rank. A wrong result prints no speed.",
    bench_specs, sizeof bench_specs / sizeof *bench_specs,
    "  mkernel bench ag_gemm --exec host --nodes 2 --gpus 2 --vs blas\n"
    "  mkernel bench ag_gemm --exec cuda --shape 8192,1024,8192 --csv bench.csv\n"
    "  mkernel bench fabric --help\n"};

static const struct option_table tune_table = {
    "tune OP [OPTIONS]",
    "Finds the fastest plan of a shape on this machine and keeps it where the plan takes its "
    "defaults from: `mkernel run` and\n"
    "`bench` then take it. All plans are measured in turns within the same seconds, as `bench` "
    "measures, and checked: what\n"
    "computes wrong results is never taken. From the formula's plan on, each round tries every "
    "change of one option of the\n"
    "best so far; the best of all are measured once more against the default.",
    tune_specs, sizeof tune_specs / sizeof *tune_specs,
    "  mkernel tune gemm_rs --exec cuda --gpus 8 --shapes 8192,8192,1024:16384,16384,2048\n"
    "  mkernel tune ag_gemm --shape 8192,1024,8192 --space tile:pace=150,200,250 --tuning "
    "my.plans\n"
    "  mkernel tune gemm_ar --shape 8192,8192,1024 --verify\n"};

int run_options_parse(int argc, char **argv, enum run_mode mode, struct run_options *o, char *error,
                      size_t error_size)
{
    static const struct option_table *const tables[] = {&run_table, &bench_table, &tune_table};
    static const uint64_t iters[] = {10, 50, 20}, warmups[] = {1, 5, 0};
    static struct problem_table all;
    const struct option_table *table = &all.table;
    struct parsed p = {.o = {.mode = mode,
                             .iters = iters[mode],
                             .warmup = warmups[mode],
                             .rounds = 3,
                             .seed = 1,
                             .timeout_ns = MK_TIMEOUT_NS,
                             .check = mode != RUN_RUN},
                       .exec = -1,
                       .vs = -1};
    struct options_found found;
    problem_table(&all, tables[mode], mode == RUN_TUNE ? PROBLEM_TUNE : PROBLEM_RUN,
                  offsetof(struct parsed, o.ask), PLAN);
    static const char *const of_tuned[] = {"tuning", "vs", "shapes"};
    for (size_t i = 0; i < sizeof of_tuned / sizeof *of_tuned; i++)
        problem_restrict(&all, of_tuned[i], op_is_tuned);
    problem_restrict(&all, "routing", run_op_is_routed);
    int result = options_parse(table, argc, argv, &p, &found, error, error_size);
    if (result)
        return result;
    if (found.help) {
        options_help(table, stdout);
        return 1;
    }
    result = problem_check(&all, &found, &p.o.ask, &p.o.op, error, error_size);
    if (!result && mode == RUN_TUNE && !op_is_tuned(p.o.op)) {
        char list[OP_LIST_TEXT];
        snprintf(error, error_size, "%s has no plans to choose from; %s do", plan_op_name(p.o.op),
                 op_list(list, sizeof list, op_is_tuned, ", ", " and "));
        result = -EINVAL;
    }
    *o = p.o;
    o->exec = p.exec;
    o->fabric = p.fabric;
    o->vs = p.vs < 0 ? NULL : peers[p.vs];
    return result;
}
