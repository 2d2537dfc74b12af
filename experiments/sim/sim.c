/* `mkernel sim`: an op's schedule on a machine that is not there. By itself it says how long that
 * takes (sim_predict.c); --explore draws random orders of every step until one of them breaks the
 * schedule, and prints the command that replays it. */
#include "experiments/common/commands.h"
#include "experiments/common/launched.h"
#include "experiments/common/memory_need.h"
#include "experiments/common/output_file.h"
#include "experiments/common/problem.h"
#include "experiments/common/pulse.h"
#include "experiments/sim/sim_predict.h"
#include "experiments/sim/validate.h"
#include "sim/cluster.h"
#include "sim/world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Headings of the help. */
#define EXPLORING "exploring"
#define PROBLEM PROBLEM_GROUP
#define MACHINE "the cluster"
#define PLAN "the plan"
#define RESULTS "results"

#define FAILURES_SHOWN 10
#define MOST_RANKS                                                                                 \
    256 /* their heaps and coroutines lie in one process: this many take 1 to 2 GB and seconds an  \
           order */

static const char *const orders[] = {"rc", "srd"};
static const char *const executors[] = {"host", "emulated"};
/* enum sim_fault_kind */
static const char *const faults[] = {"none", "drop", "mute", "fail_put", "slow"};

struct arguments {
    int explore, vary, random, order, fault, exec;
    struct problem_options ask;
    uint64_t nodes, gpus, launches, seed, runs;
    uint64_t fault_rank, fault_number, ring, in_flight, depth, delay_ns, timeout_ns;
    const char *cluster, *trace, *json;
    int quiet, dry_run;
};

#define AT(field) .offset = offsetof(struct arguments, field)

static const struct option_spec specs[] = {
    {"cluster", OPTION_TEXT, AT(cluster), "FILE",
     "rates of the machine, such as 'network = 50 GB/s' (docs/GUIDE.md). Default: H200s, a 400 "
     "Gb/s NIC each",
     .max = 4095, .group = MACHINE},
    {"nodes", OPTION_NUMBERS, AT(nodes), "N", "nodes. Default 2", 1, MK_MAX_RANKS,
     .group = MACHINE},
    {"gpus", OPTION_NUMBERS, AT(gpus), "G", "ranks per node. Default 2", 1, MK_MAX_LOCAL,
     .group = MACHINE},
    {"launches", OPTION_NUMBERS, AT(launches), "N", "back to back, each with new inputs. Default 4",
     1, 1000000, .group = PROBLEM},
    {"seed", OPTION_NUMBERS, AT(seed), "S", "the first seed. Default 1", 0, UINT64_MAX / 2,
     .group = PROBLEM},
    {"explore", OPTION_FLAG, AT(explore), NULL,
     "draw random orders of every step, check each result", .group = EXPLORING},
    {"runs", OPTION_NUMBERS, AT(runs), "N", "seeds to try, one order each. Default 100", 1,
     1000000000, .group = EXPLORING},
    {"vary", OPTION_FLAG, AT(vary), NULL,
     "let the seed also choose tiles, chunks, pieces, roles, where A lies, ring, fabric and delays",
     .group = EXPLORING},
    {"random", OPTION_FLAG, AT(random), NULL,
     "let the seed choose everything: cluster, shape, plan, network, order, and now and then a "
     "fault, which "
     "must then be "
     "told as it is",
     .group = EXPLORING},
    {"exec", OPTION_WORD, AT(exec), "host|emulated",
     "host: CTAs are coroutines; emulated: each rank has an emulated GPU of a few SMs, which runs "
     "the operator's "
     "own kernel, and memory is watched (docs/EMULATION.md). Default host",
     .words = executors, .word_count = 2, .group = EXPLORING},
    {"order", OPTION_WORD, AT(order), "rc|srd", "in which order a fabric delivers. Default rc",
     .words = orders, .word_count = 2, .group = EXPLORING},
    {"fault", OPTION_WORD, AT(fault), "drop|mute|fail_put|slow",
     "drop: the rank stops at step NUMBER; mute: its communication CTAs never run; fail_put: its "
     "put NUMBER "
     "fails; slow: "
     "puts from and to it take up to NUMBER ns longer",
     .words = faults, .word_count = 5, .group = EXPLORING},
    {"fault-rank", OPTION_NUMBERS, AT(fault_rank), "RANK", "the rank of the fault. Default 0", 0,
     MK_MAX_RANKS - 1, .group = EXPLORING},
    {"fault-number", OPTION_NUMBERS, AT(fault_number), "NUMBER",
     "of the fault: a step, a put, or ns. Default 1", 0, UINT64_MAX / 2, .group = EXPLORING},
    {"ring", OPTION_NUMBERS, AT(ring), "COMMANDS",
     "capacity of a command ring, a power of two. Default 1024; with --explore 64", 1, 1 << 20,
     .group = MACHINE},
    {"in-flight", OPTION_NUMBERS, AT(in_flight), "PUTS", "of one proxy at once. Default 256", 1,
     1 << 20, .group = MACHINE},
    {"depth", OPTION_NUMBERS, AT(depth), "PUTS",
     "that a fabric takes before it says no. Default 256; with --explore 16", 1, 1 << 20,
     .group = MACHINE},
    {"delay", OPTION_SECONDS, AT(delay_ns), "SECONDS",
     "every delivery takes up to this much longer", 0, 1000000000, .group = EXPLORING},
    {"timeout", OPTION_SECONDS, AT(timeout_ns), "SECONDS",
     "bound of every wait, in virtual time. Default 10", 1000000, 3600000000000ull,
     .group = MACHINE},
    {"dry-run", OPTION_FLAG, AT(dry_run), NULL, "check everything, start nothing",
     .group = PROBLEM},
    {"trace", OPTION_TEXT, AT(trace), "FILE",
     "record what every CTA did into a SQLite file, as `mkernel run` does", .max = 4095,
     .group = RESULTS},
    {"json", OPTION_TEXT, AT(json), "FILE", "write the result as JSON", .max = 4095,
     .group = RESULTS},
    {"quiet", OPTION_FLAG, AT(quiet), NULL,
     "no table. Default: on standard output; on standard error where the result goes to standard "
     "output",
     .group = RESULTS},
};

static const struct option_table own = {
    "sim OP [OPTIONS]",
    "Runs all ranks of an op, their proxies and a model of the network in one thread, and checks "
    "every result. By itself: on a\n"
    "virtual clock, where tiles, copies and puts take what a cluster's rates say, so it tells how "
    "long launches would take.\n"
    "With --explore: in orders drawn from a seed; a failing order is printed with the command that "
    "replays it.\n",
    specs, sizeof specs / sizeof *specs,
    "  mkernel sim ag_gemm --nodes 2 --gpus 4 --shape 4096,1024,2048 --trace sim.db\n"
    "  mkernel sim ag_gemm --explore --nodes 3 --gpus 2 --runs 1000 --vary\n"
    "  mkernel sim ring_attention --explore --random --runs 1000 --seed 77\n"
    "  mkernel sim gemm_rs --explore --exec emulated --random --runs 20\n"
    "  mkernel sim ag_gemm --explore --fault mute --fault-rank 3 --runs 1\n"};

static struct problem_table table;

static int sim_usage(const char *sentence)
{
    fprintf(stderr, "mkernel sim: %s; `mkernel sim --help` tells more\n", sentence);
    return STATUS_USAGE;
}

static struct sim_world_config sim_configure(const struct arguments *a, enum mk_op op,
                                             uint64_t seed)
{
    struct problem_options ask = a->ask;
    enum op_size size = a->explore ? OP_SIZE_EXPLORE : OP_SIZE_HOST;
    struct sim_world_config c;
    memset(&c, 0, sizeof c);
    c.problem.op = op;
    c.problem.exec = MK_EXEC_HOST;
    c.problem.topo = (struct mk_topo){.nodes = (uint32_t)a->nodes, .gpus = (uint32_t)a->gpus};
    problem_fill(&ask, size, &c.problem);
    c.problem.timeout_ns = a->timeout_ns;
    c.launches = (uint32_t)a->launches;
    c.seed = seed;
    c.order = a->order ? SIM_ORDER_SRD : SIM_ORDER_RC;
    c.ring_capacity = (uint32_t)a->ring;
    c.in_flight = (uint32_t)a->in_flight;
    c.fabric_depth = (uint32_t)a->depth;
    c.delay_ns = a->delay_ns;
    c.fault =
        (struct sim_fault){(enum sim_fault_kind)a->fault, (uint32_t)a->fault_rank, a->fault_number};
    if (a->vary)
        sim_world_vary(&c);
    if (a->random)
        sim_world_draw(&c);
    if (a->exec)
        sim_world_emulate(&c, a->vary || a->random);
    return c;
}

/* The command line that was given, with one seed. */
static void sim_print_replay(int argc, char **argv, uint64_t seed)
{
    printf("  mkernel");
    for (int i = 0; i < argc; i++) {
        const char *const names[] = {"--seed", "--runs"};
        int skip = 0;
        for (size_t j = 0; j < 2; j++) {
            size_t length = strlen(names[j]);
            if (!strncmp(argv[i], names[j], length) &&
                (argv[i][length] == '=' || !argv[i][length])) {
                skip = 1;
                i += !argv[i][length]; /* its value is the next word */
                break;
            }
        }
        if (!skip)
            printf(" %s", argv[i]);
    }
    printf(" --seed %llu --runs 1\n", (unsigned long long)seed);
}

static int explore(const struct arguments *a, enum mk_op op, int argc, char **argv)
{
    struct coroutine_pool *pool = NULL;
    struct sim_world_result result;
    uint64_t done = 0, steps = 0, hash = 0, failures = 0;
    int status = STATUS_DONE;
    coroutine_pool_create(&pool, 0); /* without one each run makes its own */
    for (; done < a->runs && failures < FAILURES_SHOWN; done++) {
        struct sim_world_config c = sim_configure(a, op, a->seed + done);
        c.pool = pool;
        pulse_says("order %llu of %llu", (unsigned long long)done + 1, (unsigned long long)a->runs);
        int rc = sim_world_run(&c, &result);
        if (a->random)
            rc = sim_world_promised(&c, rc, &result);
        if (rc == -EINVAL || rc == -ENOMEM) {
            pulse_hide();
            coroutine_pool_destroy(pool);
            if (rc == -EINVAL)
                return sim_usage(result.sentence);
            fprintf(stderr, "mkernel sim: %s\n", result.sentence);
            return STATUS_FAILED;
        }
        steps += result.steps;
        hash = hash * 31 + result.hash;
        if (rc) {
            failures++;
            status = rc == -EBADMSG && status != STATUS_FAILED ? STATUS_WRONG : STATUS_FAILED;
            pulse_hide();
            printf("seed %llu: %s\n", (unsigned long long)c.seed, result.sentence);
            sim_print_replay(argc, argv, c.seed);
            fflush(stdout);
        }
    }
    pulse_hide();
    coroutine_pool_destroy(pool);
    char what[96] = "random cases";
    if (!a->random)
        snprintf(what, sizeof what, "order%s of %llu launch%s on %llu x %llu ranks",
                 done > 1 ? "s" : "", (unsigned long long)a->launches, a->launches > 1 ? "es" : "",
                 (unsigned long long)a->nodes, (unsigned long long)a->gpus);
    printf("%s: %llu %s, %llu failed; %llu steps each; events %016llx\n", plan_op_name(op),
           (unsigned long long)done, what, (unsigned long long)failures,
           (unsigned long long)(steps / done), (unsigned long long)hash);
    if (status)
        fprintf(stderr, "mkernel sim: %llu of %llu order%s failed%s\n",
                (unsigned long long)failures, (unsigned long long)done, done > 1 ? "s" : "",
                failures == FAILURES_SHOWN && done < a->runs ? ", and there it stopped" : "");
    return status;
}

static int predict(struct arguments *a, enum mk_op op, int argc, char **argv)
{
    char error[512] = "", command[512] = "mkernel";
    if (!a->ring)
        a->ring = 1024; /* as the host executor */
    if (!a->depth)
        a->depth = 256; /* as deep as the verbs fabric's queues */
    struct sim_world_config c = sim_configure(a, op, a->seed);
    for (int i = 0; i < argc; i++) {
        size_t used = strlen(command);
        snprintf(command + used, sizeof command - used, " %s", argv[i]);
    }
    int status =
        sim_predict(&c, a->cluster, a->trace, a->json, a->quiet, command, error, sizeof error);
    if (status == STATUS_USAGE)
        return sim_usage(error);
    if (status)
        fprintf(stderr, "mkernel sim: %s\n", error);
    return status;
}

/* What the plan says of a shape that was given; with --random shapes are small. */
static int sim_check_memory(const struct arguments *a, enum mk_op op, char *error, size_t size)
{
    struct sim_world_config c = sim_configure(a, op, a->seed);
    struct mk_plan plan = {0};
    int rc = a->random ? 0 : plan_build(&plan, &c.problem, 0, 0, error, size);
    if (rc || a->random)
        return rc;
    rc = memory_check(&plan, a->nodes * a->gpus, 1, error, size);
    return rc ? rc : memory_check_ctas(&plan, a->nodes * a->gpus, error, size);
}

/* What the seed chooses cannot be given, too. */
static int sim_check_seeded(const struct arguments *a, enum mk_op op,
                            const struct options_found *found, char *error, size_t size)
{
    static const char *const drawn[] = {"causal",   "b-layout", "deterministic", "nodes", "gpus",
                                        "launches", NULL};
    static const char *const varied[] = {"order",  "ring",   "in-flight", "depth",
                                         "delay",  "roles",  "tile",      "chunk-rows",
                                         "slices", "pieces", "fanout",    NULL};
    static const char *const exploring[] = {"exec",  "vary",       "random",       "runs",
                                            "fault", "fault-rank", "fault-number", NULL};
    static const char *const predicting[] = {"cluster", "trace", "json", "quiet", "pace", NULL};
    for (const char *const *name = a->explore ? predicting : exploring; *name; name++)
        if (options_given(&table.table, found, *name)) {
            snprintf(error, size,
                     a->explore ? "--%s is not for --explore" : "--%s is for --explore", *name);
            return -EINVAL;
        }
    if (a->random && (a->vary || a->fault)) {
        snprintf(error, size, "--random chooses what --vary and --fault do");
        return -EINVAL;
    }
    if (a->random && a->ask.numbers[0]) {
        snprintf(error, size, "--random chooses, so --%s cannot be given",
                 op_of(op)->shape->option);
        return -EINVAL;
    }
    for (const char *const *name = drawn; a->random && *name; name++)
        if (options_given(&table.table, found, *name)) {
            snprintf(error, size, "--random chooses, so --%s cannot be given", *name);
            return -EINVAL;
        }
    for (const char *const *name = varied; (a->random || a->vary) && *name; name++)
        if (options_given(&table.table, found, *name)) {
            snprintf(error, size, "%s chooses, so --%s cannot be given",
                     a->random ? "--random" : "--vary", *name);
            return -EINVAL;
        }
    if (!a->fault && (options_given(&table.table, found, "fault-rank") ||
                      options_given(&table.table, found, "fault-number"))) {
        snprintf(error, size, "--fault-rank and --fault-number go with --fault");
        return -EINVAL;
    }
    return 0;
}

int command_sim(int argc, char **argv)
{
    struct arguments a = {
        .nodes = 2, .gpus = 2, .launches = 4, .seed = 1, .runs = 100, .fault_number = 1};
    struct options_found found;
    char error[512];
    problem_table(&table, &own, PROBLEM_SIM, offsetof(struct arguments, ask), PLAN);
    if (argc > 1 && !strncmp(argv[1], "--validate", 10))
        return sim_validate(argc, argv);
    if (options_parse(&table.table, argc, argv, &a, &found, error, sizeof error))
        return sim_usage(error);
    if (found.help) {
        options_help(&table.table, stdout);
        return STATUS_DONE;
    }
    enum mk_op op;
    if (problem_check(&table, &found, &a.ask, &op, error, sizeof error))
        return sim_usage(error);
    if (sim_check_seeded(&a, op, &found, error, sizeof error))
        return sim_usage(error);
    if (a.ring & (a.ring - 1))
        return sim_usage("--ring is not a power of two");
    if (a.nodes * a.gpus > MOST_RANKS) {
        snprintf(error, sizeof error, "%llu x %llu ranks: at most %d are simulated",
                 (unsigned long long)a.nodes, (unsigned long long)a.gpus, MOST_RANKS);
        return sim_usage(error);
    }
    if (a.fault && a.fault_rank >= a.nodes * a.gpus)
        return sim_usage("--fault-rank is no rank of this cluster");
    if (launched_leaves("sim"))
        return STATUS_DONE;
    if (!a.explore) {
        if (output_same(a.trace, a.json))
            return sim_usage("--trace and --json name the same file");
        if (output_check("--trace", a.trace, OUTPUT_REPLACED, error, sizeof error) ||
            output_check("--json", a.json, OUTPUT_WRITTEN, error, sizeof error))
            return sim_usage(error);
    } else {
        uint64_t *tile = a.ask.knobs[TUNING_TILE];
        if (!tile[0] && !a.exec && op_of(op)->knobs & OP_TILE)
            tile[0] = 16, tile[1] = 64;
        if (sim_check_memory(&a, op, error, sizeof error))
            return sim_usage(error);
    }
    if (a.dry_run) {
        struct sim_cluster cluster;
        if (a.cluster && sim_cluster_read(&cluster, a.cluster, error, sizeof error))
            return sim_usage(error);
        if (sim_check_memory(&a, op, error, sizeof error))
            return sim_usage(error);
        fprintf(stderr, "mkernel sim: %llu x %llu ranks would run; nothing was started\n",
                (unsigned long long)a.nodes, (unsigned long long)a.gpus);
        return STATUS_DONE;
    }
    snprintf(error, sizeof error, "mkernel sim %s", plan_op_name(op));
    pulse_begin(a.quiet ? NULL : error);
    int status = a.explore ? explore(&a, op, argc, argv) : predict(&a, op, argc, argv);
    pulse_end();
    return status;
}
