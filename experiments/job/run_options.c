/* The options that `mkernel run OP`, `bench OP` and `tune OP` all take, and what they make of argv.
 */
#include "experiments/job/run_options.h"
#include "core/base/sentence.h"
#include "experiments/job/op.h"
#include "backends/nic.h"

#include <errno.h>
#include <string.h>

const char *const run_routings[] = {"even", "one", "few", "none"};
static const char *const fabrics[] = {"verbs", "efa"};

/* A table reads by rows. */
#define AT(field) .offset = offsetof(struct run_options, field)

/* What all three take beside the problem and the plan (problem.h). What is 0 is chosen in
 * run_job_prepare. */
static const struct option_spec job_specs[] = {
    {"nodes", OPTION_NUMBERS, AT(nodes), "N",
     "number of nodes; one host emulates several. Default 1", 1, MK_MAX_RANKS, .group = MACHINE},
    {"gpus", OPTION_NUMBERS, AT(gpus), "G",
     "ranks per node. Default: one per GPU here that runs it; on the host 2", 1, MK_MAX_LOCAL},
    {"exec", OPTION_WORD, AT(exec), "host|cuda|emulated",
     "host: coroutines; cuda: kernels on GPUs; emulated (run only): the kernels on small emulated "
     "GPUs, slowly. Default: cuda if a GPU is found that has a kernel of the op, else host",
     .words = plan_execs, .word_count = MK_EXECS},
    {"fabric", OPTION_WORD, AT(fabric), "verbs|efa",
     "transport between nodes: verbs RC, or EFA's SRD. Default verbs", .words = fabrics,
     .word_count = 2},
    {"nic", OPTION_TEXT, AT(nic), "soft|NAME,...",
     "NICs to choose from; each rank takes the nearest. Default: all real devices that are up, "
     "else soft, which needs no RDMA hardware",
     .max = 255},
    {"rails", OPTION_NUMBERS, AT(rails), "N",
     "NICs per rank; a rank's chunks are spread over them. Default: the NICs that each GPU has for "
     "itself",
     1, NIC_RAILS_MAX},
    {"verbs", OPTION_TEXT, AT(verbs), "KEY=VALUE,...",
     "options of the verbs fabric: timeout, retry, gid_index, mtu, qps, ... (docs/NETWORK.md). "
     "Default: MK_VERBS",
     .max = 255},
    {"timeout", OPTION_SECONDS, AT(timeout_ns), "SECONDS", "limit of every wait. Default 10",
     10000000, 3600000000000ull},
    {"tuning", OPTION_TEXT, AT(tuning), "FILE|none",
     "a file of tuned plans, from which a plan takes its defaults if no option of the plan is "
     "given; none: the formula chooses. Default: MKERNEL_TUNING, else ~/.config/mkernel/tuning",
     .max = 511, .group = PLAN},
    {"iters", OPTION_NUMBERS, AT(iters), "N",
     "number of launches; each has new inputs. Default 10 (run), 50 (bench), 20 per plan (tune)", 1,
     1000000, .group = LAUNCHES},
    {"seed", OPTION_NUMBERS, AT(seed), "S", "seed of the random inputs. Default 1", 0, UINT64_MAX,
     .group = PROBLEM},
};

/* What `run` and `bench` take: how it is launched, and where the result goes. */
static const struct option_spec launch_specs[] = {
    {"routing", OPTION_WORD, AT(routing), "even|one|few|none",
     "even: experts get about the same number of tokens; one: expert 0 gets all; few: every other "
     "expert gets none; none: the last rank has no tokens. Default even",
     .words = run_routings, .word_count = 4, .group = PROBLEM},
    {"skew", OPTION_TEXT, AT(skew), "[zipf:]S|one",
     "tokens choose expert e in proportion to 1/(e+1)^S, 0.01 to 10; one: all the first, as "
     "--routing one. Default: as --routing says",
     .max = 31},
    {"tokens-now", OPTION_TEXT, AT(tokens_now), "N[,N...]|random",
     "launches read from memory how many tokens a rank has, T at most: rank R has the (R + L)-th "
     "of "
     "the numbers in launch L, counted from 0 and in turn; random: any, often none. Default: T",
     .max = 511},
    {"burst", OPTION_NUMBERS, AT(burst), "N",
     "launches that follow each other without a wait; each has its own operands; in a bench of a "
     "GEMM operator on GPUs they are one CUDA graph, and a time is a launch's share. Default 4 "
     "(run), 1 (bench)",
     1, 4096, .group = LAUNCHES},
    {"warmup", OPTION_NUMBERS, AT(warmup), "N",
     "launches before the timed ones. Default 1 (run), 5 (bench)", 0, 1000000},
    {"dry-run", OPTION_FLAG, AT(dry_run), NULL,
     "checks all options, prints the plan, and starts nothing"},
    {"json", OPTION_TEXT, AT(json), "FILE", "writes the result as JSON", .max = 4095,
     .group = RESULTS},
    {"samples", OPTION_FLAG, AT(samples), NULL,
     "with --json: also writes the time of every launch (or burst) of every rank, in the order of "
     "launches"},
};

/* Last among the results. */
static const struct option_spec quiet_specs[] = {
    {"quiet", OPTION_FLAG, AT(quiet), NULL, OPTION_QUIET, .group = RESULTS},
};

static void run_options_add(struct option_table *to, struct option_spec *room,
                            const struct option_spec *specs, size_t count)
{
    options_fit(to->count + count);
    memcpy(room + to->count, specs, count * sizeof *specs);
    to->count += count;
}

int run_options_parse(int argc, char **argv, const struct run_subcommand *sub,
                      struct run_options *o, char *error, size_t size)
{
    static struct option_spec specs[OPTIONS_MOST];
    static struct problem_table all;
    const struct option_table *table = &all.table;
    struct option_table own = *sub->table;
    own.specs = specs;
    own.count = 0;
    run_options_add(&own, specs, job_specs, sizeof job_specs / sizeof *job_specs);
    if (sub->takes_launches)
        run_options_add(&own, specs, launch_specs, sizeof launch_specs / sizeof *launch_specs);
    run_options_add(&own, specs, sub->table->specs, sub->table->count);
    run_options_add(&own, specs, quiet_specs, 1);
    *o = (struct run_options){.subcommand = sub,
                              .mode = sub->mode,
                              .iters = sub->iters,
                              .warmup = sub->warmup,
                              .rounds = 3,
                              .seed = 1,
                              .timeout_ns = MK_TIMEOUT_NS,
                              .check = sub->check,
                              .exec = -1,
                              .vs = RUN_VS_NOTHING};
    struct options_found found;
    problem_table(&all, &own, sub->mode == RUN_TUNE ? PROBLEM_TUNE : PROBLEM_RUN,
                  offsetof(struct run_options, ask), PLAN);
    problem_restrict(&all, "tuning", op_is_tuned);
    problem_restrict(&all, "vs", run_op_is_compared);
    if (sub->mode == RUN_TUNE)
        problem_restrict(&all, "shapes", op_is_tuned);
    problem_restrict(&all, "routing", run_op_is_routed);
    problem_restrict(&all, "skew", run_op_is_routed);
    problem_restrict(&all, "tokens-now", op_has_limit);
    int result = options_parse(table, argc, argv, o, &found, error, size);
    if (result)
        return result;
    if (found.help) {
        problem_help(&all, &found, stdout);
        return 1;
    }
    result = problem_check(&all, &found, &o->ask, &o->op, error, size);
    if (!result && o->samples && !o->json)
        result = mk_fail(-EINVAL, error, size,
                         "--samples go into the file of --json, which is not given");
    if (!result && sub->mode == RUN_TUNE && !op_is_tuned(o->op)) {
        char list[OP_LIST_TEXT];
        snprintf(error, size, "%s has no plans to choose from; %s do", plan_op_name(o->op),
                 op_list(list, sizeof list, op_is_tuned, ", ", " and "));
        result = -EINVAL;
    }
    return result;
}
