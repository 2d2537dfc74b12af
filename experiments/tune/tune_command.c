/* `mkernel tune OP`: its options, and what it refuses before the ranks start. */
#include "experiments/common/commands.h"
#include "core/base/sentence.h"
#include "experiments/common/output_file.h"
#include "experiments/job/run_options.h"
#include "experiments/tune/tune.h"

#include <errno.h>
#include <string.h>

#define SEARCH "the search"

/* A table reads by rows. */
#define AT(field) .offset = offsetof(struct run_options, field)
static const struct option_spec specs[] = {
    {"shapes", OPTION_TEXT, AT(shapes), "M,N,K:M,N,K",
     "tunes several shapes (a MoE's: T,H,I,E,K:...) in one job, one after the other", .max = 1023,
     .group = PROBLEM},
    {"space", OPTION_TEXT, AT(space), "NAME=V:V;NAME=V",
     "options of the plan to try, and their values: "
     "'tile=256,128:128,128;pace=none:300;roles=compute=132,intra_comm=1w'. A name alone tries "
     "values that suit the operator. Names: the options of the plan that `mkernel run OP --help` "
     "has. Default: all",
     .max = 1023, .group = SEARCH},
    {"rounds", OPTION_NUMBERS, AT(rounds), "N",
     "how often the best plan so far is changed in one option. Default 3", 1, 100},
    {"verify", OPTION_FLAG, AT(verify), NULL,
     "keeps nothing; only says whether the default plan is within 1.05 of the best found, and ends "
     "with exit status 1 if it is not"},
    {"csv", OPTION_TEXT, AT(csv), "FILE", "writes all measured plans as CSV", .max = 4095,
     .group = RESULTS},
};

static const struct option_table table = {
    "tune OP [OPTIONS]",
    "Finds the fastest plan of a shape on this machine and keeps it where the plan takes its "
    "defaults from: `mkernel run` and\n"
    "`bench` then take it. All plans are measured in turns within the same seconds, as `bench` "
    "measures, and checked: what\n"
    "computes wrong results is never taken. From the formula's plan on, each round tries every "
    "change of one option of the\n"
    "best so far; the best of all are measured once more against the default.",
    specs, sizeof specs / sizeof *specs,
    "  mkernel tune gemm_rs --exec cuda --gpus 8 --shapes 8192,8192,1024:16384,16384,2048\n"
    "  mkernel tune ag_gemm --shape 8192,1024,8192 --space 'tile;pace=150:200:250' --tuning "
    "my.plans\n"
    "  mkernel tune gemm_ar --shape 8192,8192,1024 --verify\n"
    "  mkernel tune gemm_ar --exec sim --cluster 4x8 --tuning sim.plans (no GPU: "
    "`mkernel tune OP --exec sim --help`)\n"};

/* A space, and a file to keep plans in. */
static int tune_refuse(const struct run_job *job, char *error, size_t size)
{
    const struct run_options *o = &job->options;
    struct tune_space space;
    int result = tune_space_parse(&space, o->op, o->space, error, size);
    if (!result && o->space && o->exec == MK_EXEC_HOST &&
        space.options[plan_field_knob(plan_field_named("pace_ns"))].tried)
        result = mk_fail(-EINVAL, error, size,
                         "--space: pace is for --exec cuda, and this is --exec host");
    if (result || o->verify || job->identity.rank)
        return result;
    if (!*job->tuning_path)
        return mk_fail(
            -EINVAL, error, size,
            "there is no file to keep plans in: name one with --tuning, or --verify keeps nothing");
    tuning_make_folders(job->tuning_path);
    return output_check("the file of tuned plans", job->tuning_path, OUTPUT_REPLACED, error, size);
}

static int tune_is_simulated(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--exec=sim") ||
            (!strcmp(argv[i], "--exec") && i + 1 < argc && !strcmp(argv[i + 1], "sim")))
            return 1;
    return 0;
}

int command_tune(int argc, char **argv)
{
    if (tune_is_simulated(argc, argv))
        return tune_sim(argc, argv, specs, sizeof specs / sizeof *specs);
    static const struct run_subcommand tune = {.mode = RUN_TUNE,
                                               .name = "tune",
                                               .table = &table,
                                               .iters = 20,
                                               .check = 1,
                                               .refuse = tune_refuse,
                                               .rank = tune_rank};
    return run_start(argc, argv, &tune);
}
