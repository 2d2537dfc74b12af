/* The options of `mkernel sim`, and which go together. */
#include "experiments/sim/sim.h"
#include "core/base/sentence.h"
#include "experiments/common/commands.h"
#include "experiments/common/launched.h"
#include "experiments/common/memory_need.h"
#include "experiments/common/output_file.h"
#include "sim/op.h"

#include <errno.h>
#include <stdio.h>

/* Headings of the help. */
#define EXPLORING "with data, and exploring"
#define PROBLEM PROBLEM_GROUP
#define MACHINE "the cluster"
#define WHAT_IF "what if"
#define PLAN "the plan"
#define RESULTS "results"

/* Their heaps and coroutines lie in one process: this many take 1 to 2 GB and seconds an order. */
#define MOST_RANKS 256

static const char *const orders[] = {"rc", "srd"};
static const char *const plans[] = {"cuda", "host"};
static const char *const executors[] = {"host", "emulated"};
/* enum sim_fault_kind */
static const char *const faults[] = {"none", "drop", "mute", "fail_put", "slow"};

#define AT(field) .offset = offsetof(struct sim_arguments, field)

static const struct option_spec specs[] = {
    {"machine", OPTION_TEXT, AT(of.machine), "NAME|FILE",
     "what GPUs, links and NICs are like: a file of experiments/machines by its name, or another "
     "(docs/SIMULATION.md). Default 8xH200-cx7",
     .max = 4095, .group = MACHINE},
    {"cluster", OPTION_TEXT, AT(cluster), "NxG", "N nodes of G ranks, as --nodes N --gpus G",
     .max = 15},
    {"nodes", OPTION_NUMBERS, AT(nodes), "N", "nodes. Default 2", 1, MK_MAX_RANKS},
    {"gpus", OPTION_NUMBERS, AT(gpus), "G", "ranks per node. Default 2", 1, MK_MAX_LOCAL},
    {"ring", OPTION_NUMBERS, AT(ring), "COMMANDS",
     "capacity of a command ring, a power of two. Default 1024; with --explore 64", 1, 1 << 20},
    {"in-flight", OPTION_NUMBERS, AT(in_flight), "PUTS", "of one proxy at once. Default 256", 1,
     1 << 20},
    {"depth", OPTION_NUMBERS, AT(depth), "PUTS",
     "that a fabric takes before it says no. Default 256; with --explore 16", 1, 1 << 20},
    {"timeout", OPTION_SECONDS, AT(timeout_ns), "SECONDS",
     "bound of every wait, in virtual time. Default 10", 1000000, 3600000000000ull},
    {"launches", OPTION_NUMBERS, AT(launches), "N",
     "back to back. Default 1; with --explore 4, each with new inputs", 1, 1000000,
     .group = PROBLEM},
    {"seed", OPTION_NUMBERS, AT(seed), "S", "the first seed. Default 1", 0, UINT64_MAX / 2},
    {"dry-run", OPTION_FLAG, AT(dry_run), NULL, "check everything, start nothing"},
    {"explore", OPTION_FLAG, AT(explore), NULL,
     "draw random orders of every step, check each result", .group = EXPLORING},
    {"runs", OPTION_NUMBERS, AT(runs), "N", "seeds to try, one order each. Default 100", 1,
     1000000000},
    {"vary", OPTION_FLAG, AT(vary), NULL,
     "let the seed also choose tiles, chunks, pieces, roles, where A lies, ring, fabric and "
     "delays"},
    {"random", OPTION_FLAG, AT(random), NULL,
     "let the seed choose everything: cluster, shape, plan, network, order, and now and then a "
     "fault, which must then be told as it is"},
    {"exec", OPTION_WORD, AT(exec), "host|emulated",
     "host: CTAs are coroutines; emulated: each rank has an emulated GPU of a few SMs, which runs "
     "the operator's own kernel, and memory is watched (docs/EMULATION.md). Default host",
     .words = executors, .word_count = 2},
    {"order", OPTION_WORD, AT(order), "rc|srd", "in which order a fabric delivers. Default rc",
     .words = orders, .word_count = 2},
    {"fault", OPTION_WORD, AT(fault), "drop|mute|fail_put|slow",
     "drop: the rank stops at step NUMBER; mute: its communication CTAs never run; fail_put: its "
     "put NUMBER fails; slow: puts from and to it take up to NUMBER ns longer",
     .words = faults, .word_count = 5},
    {"fault-rank", OPTION_NUMBERS, AT(fault_rank), "RANK", "the rank of the fault. Default 0", 0,
     MK_MAX_RANKS - 1},
    {"fault-number", OPTION_NUMBERS, AT(fault_number), "NUMBER",
     "of the fault: a step, a put, or ns. Default 1", 0, UINT64_MAX / 2},
    {"delay", OPTION_SECONDS, AT(delay_ns), "SECONDS",
     "every delivery takes up to this much longer", 0, 1000000000},
    {"network", OPTION_TEXT, AT(of.network), "RATE",
     "of each rank in place of the machine's: 100GB/s", .max = 31, .group = WHAT_IF},
    {"staged", OPTION_FLAG, AT(of.staged), NULL,
     "puts go by way of host memory, as where NICs cannot reach a GPU's"},
    {"rested", OPTION_FLAG, AT(of.rested), NULL,
     "GPUs rest between turns, as in `mkernel bench`, so that clocks stay up longer. Default: as "
     "in `mkernel tune`"},
    {"graph", OPTION_FLAG, AT(of.graph), NULL,
     "launches are those of one CUDA graph: each begins before the one before has left, as in "
     "`mkernel bench --burst`. Default: those of a stream"},
    {"c-in-heap", OPTION_FLAG, AT(of.c_in_heap), NULL,
     "of gemm_ar: C lies in the symmetric heap, at one offset on all ranks, as in `mkernel bench`, "
     "so "
     "that owners store in peers' C"},
    {"slow", OPTION_TEXT, AT(of.slow), "PART=FACTOR@RANK,...",
     "rates of a rank times FACTOR: rank=0.7@3 (its tiles, copies and sums), link=0.5@3 (its "
     "NVLink), nic=0.5@3",
     .max = 4095},
    {"jitter", OPTION_TEXT, AT(of.jitter), "SHARE",
     "by which tiles, launches and the network scatter, by --seed: 0.05. Default 0", .max = 31},
    {"skew", OPTION_TEXT, AT(of.skew), "[zipf:]S|one",
     "tokens choose expert e in proportion to 1/(e+1)^S; one: all the first, and no other. "
     "Default: all alike",
     .max = 31},
    {"ids", OPTION_TEXT, AT(of.ids), "FILE",
     "the experts of all tokens, rank by rank: numbers with blanks or commas between them",
     .max = 4095},
    {"plan", OPTION_WORD, AT(plan), "cuda|host",
     "whose plan: what --exec cuda would choose on this machine, tuned plans included, or the host "
     "executor's. Default cuda",
     .words = plans, .word_count = 2, .group = PLAN},
    {"tuning", OPTION_TEXT, AT(of.tuning), "FILE|none",
     "where tuned plans are; none: the formula alone. Default: as `mkernel run`", .max = 511},
    {"trace", OPTION_TEXT, AT(trace), "FILE",
     "record what every CTA did into a SQLite file, as `mkernel run` does", .max = 4095,
     .group = RESULTS},
    {"json", OPTION_TEXT, AT(json), "FILE", "write the result as JSON", .max = 4095},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, OPTION_QUIET},
};

static const struct option_table own = {
    "sim OP [OPTIONS]",
    "How long launches take on a cluster that is described, not there: all ranks run their "
    "schedule without data, and tiles,\n"
    "copies, flags and puts take what a machine file says (docs/SIMULATION.md). --explore draws "
    "orders of every step from a seed and checks each result; a failing order is printed with the "
    "command\n"
    "that replays it.\n",
    specs, sizeof specs / sizeof *specs,
    "  mkernel sim ag_gemm --cluster 2x8 --shape 32768,2048,32768 --trace sim.db\n"
    "  mkernel sim gemm_ar --cluster 16x8 --shape 32768,8192,256 --network 100GB/s --slow "
    "rank=0.7@3\n"
    "  mkernel sweep --vary 'op=gemm_rs;exec=sim;nodes=1..8*2;gpus=8;pieces=1:2:4'\n"
    "  mkernel sim ag_gemm --explore --nodes 3 --gpus 2 --runs 1000 --vary\n"
    "  mkernel sim ring_attention --explore --random --runs 1000 --seed 77\n"
    "  mkernel sim gemm_rs --explore --exec emulated --random --runs 20\n"
    "  mkernel sim ag_gemm --explore --fault mute --fault-rank 3 --runs 1\n"};

static struct problem_table table;

/* What the plan says of a shape that was given; with --random shapes are small. */
int sim_check_memory(const struct sim_arguments *a, enum mk_op op, char *error, size_t size)
{
    struct sim_world_config c = sim_configure(a, op, a->seed);
    struct mk_plan plan = {0};
    int rc = a->random ? 0 : problem_check_replicas(&a->ask, &c.problem, error, size);
    if (!a->random && !rc)
        rc = plan_build(&plan, &c.problem, 0, 0, error, size);
    if (rc || a->random)
        return rc;
    rc = memory_check(&plan, a->nodes * a->gpus, 1, error, size);
    return rc ? rc : memory_check_ctas(&plan, a->nodes * a->gpus, error, size);
}

/* What the seed chooses cannot be given, too. */
static int sim_check_seeded(const struct sim_arguments *a, enum mk_op op,
                            const struct options_found *found, char *error, size_t size)
{
    static const char *const drawn[] = {"causal", "b-layout", "deterministic", "same-bits", "nodes",
                                        "gpus",   "launches", "replicas",      NULL};
    static const char *const varied[] = {"order",  "ring",   "in-flight", "depth",
                                         "delay",  "roles",  "tile",      "chunk-rows",
                                         "slices", "pieces", "fanout",    NULL};
    if (a->random && (a->vary || a->fault))
        return mk_fail(-EINVAL, error, size, "--random chooses what --vary and --fault do");
    if (a->random && a->ask.numbers[0])
        return mk_fail(-EINVAL, error, size, "--random chooses, so --%s cannot be given",
                       op_of(op)->shape->option);
    for (const char *const *name = drawn; a->random && *name; name++)
        if (options_given(&table.table, found, *name))
            return mk_fail(-EINVAL, error, size, "--random chooses, so --%s cannot be given",
                           *name);
    for (const char *const *name = varied; (a->random || a->vary) && *name; name++)
        if (options_given(&table.table, found, *name))
            return mk_fail(-EINVAL, error, size, "%s chooses, so --%s cannot be given",
                           a->random ? "--random" : "--vary", *name);
    if (!a->fault && (options_given(&table.table, found, "fault-rank") ||
                      options_given(&table.table, found, "fault-number")))
        return mk_fail(-EINVAL, error, size, "--fault-rank and --fault-number go with --fault");
    return 0;
}

/* What only one of the forms of the command takes. */
static int sim_check_forms(const struct sim_arguments *a, const struct options_found *found,
                           char *error, size_t size)
{
    static const char *const exploring[] = {"exec",  "vary",         "random", "runs",
                                            "fault", "fault-rank",   "order",  "delay",
                                            "depth", "fault-number", NULL};
    static const char *const timing[] = {
        "machine", "network", "trace",  "json",   "quiet", "pace",      "plan",  "tuning", "slow",
        "jitter",  "skew",    "staged", "rested", "ids",   "c-in-heap", "graph", NULL};
    for (const char *const *name = a->explore ? timing : exploring; *name; name++)
        if (options_given(&table.table, found, *name))
            return mk_fail(-EINVAL, error, size, "--%s is %sfor --explore", *name,
                           a->explore ? "not " : "");
    return 0;
}

/* What goes together where nothing is explored. */
static int sim_check_alone(const struct sim_arguments *a, enum mk_op op, char *error, size_t size)
{
    if ((a->of.skew || a->of.ids) && !sim_op_of(op)->routes)
        return mk_fail(-EINVAL, error, size, "%s has no experts: --%s is for a MoE",
                       plan_op_name(op), a->of.skew ? "skew" : "ids");
    if (a->of.c_in_heap && !op_of(op)->c_in_heap)
        return mk_fail(-EINVAL, error, size, "--c-in-heap: %s does not look whether C lies there",
                       plan_op_name(op));
    if (a->of.skew && a->of.ids)
        return mk_fail(-EINVAL, error, size, "--ids says whom tokens choose, and so does --skew");
    if (output_same(a->trace, a->json))
        return mk_fail(-EINVAL, error, size, "--trace and --json name the same file");
    if (output_check("--trace", a->trace, OUTPUT_REPLACED, error, size) ||
        output_check("--json", a->json, OUTPUT_WRITTEN, error, size))
        return -EINVAL;
    return 0;
}

static int sim_check(struct sim_arguments *a, enum mk_op op, const struct options_found *found,
                     char *error, size_t size)
{
    if (sim_check_forms(a, found, error, size) || sim_check_seeded(a, op, found, error, size))
        return STATUS_USAGE;
    if (a->cluster &&
        (options_given(&table.table, found, "nodes") || options_given(&table.table, found, "gpus")))
        return mk_fail(STATUS_USAGE, error, size, "--cluster says what --nodes and --gpus do");
    if (a->cluster && sim_case_cluster(a->cluster, &a->nodes, &a->gpus, error, size))
        return STATUS_USAGE;
    if (a->ring & (a->ring - 1))
        return mk_fail(STATUS_USAGE, error, size, "--ring is not a power of two");
    if (a->nodes * a->gpus > (a->explore ? MOST_RANKS : MK_MAX_RANKS))
        return mk_fail(STATUS_USAGE, error, size, "%lu x %lu ranks: at most %u are simulated%s",
                       a->nodes, a->gpus, a->explore ? MOST_RANKS : MK_MAX_RANKS,
                       a->explore ? " with data" : "");
    if (a->fault && a->fault_rank >= a->nodes * a->gpus)
        return mk_fail(STATUS_USAGE, error, size, "--fault-rank is no rank of this cluster");
    return 0;
}

int sim_options(int argc, char **argv, struct sim_arguments *a, enum mk_op *op, char *error,
                size_t size)
{
    struct options_found found;
    *a = (struct sim_arguments){.nodes = 2, .gpus = 2, .seed = 1, .runs = 100, .fault_number = 1};
    problem_table(&table, &own, PROBLEM_SIM, offsetof(struct sim_arguments, ask), PLAN);
    if (options_parse(&table.table, argc, argv, a, &found, error, size))
        return STATUS_USAGE;
    if (found.help) {
        problem_help(&table, &found, stdout);
        return -1;
    }
    if (problem_check(&table, &found, &a->ask, op, error, size) ||
        sim_check(a, *op, &found, error, size))
        return STATUS_USAGE;
    if (!a->launches)
        a->launches = a->explore ? 4 : 1;
    a->of.host = a->plan;
    if (launched_leaves("sim"))
        return -1;
    if (!a->explore)
        return sim_check_alone(a, *op, error, size) ? STATUS_USAGE : 0;
    union problem_value *tile = problem_field(&a->ask, "tile_m");
    if (!tile[0].number && !a->exec && op_of(*op)->knobs & OP_TILE)
        tile[0].number = 16, tile[1].number = 64;
    return sim_check_memory(a, *op, error, size) ? STATUS_USAGE : 0;
}
