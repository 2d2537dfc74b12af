/* `mkernel`: finds the subcommand and hands over. */
#include "core/ops/op.h"
#include "experiments/common/commands.h"
#include "experiments/common/nearest.h"
#include "experiments/common/plain_output.h"
#include "experiments/common/ending.h"
#include "experiments/info/version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

/* A table built at run time, because a weak function's address is known only then. */
static size_t main_commands(struct command *out)
{
    const struct command all[] = {
        {"run", command_run, "run an op on all ranks and check it"},
        {"bench", command_bench, "measure an op, the fabric, the command ring or the trace"},
        {"sim", command_sim, "replay an op's schedule on a virtual cluster"},
        {"calibrate", command_calibrate, "fit a machine file to measured plans"},
        {"tune", command_tune, "find the fastest plan of a shape, and keep it as the default"},
        {"sweep", command_sweep, "measure many points into one file of results"},
        {"results", command_results, "show, compare, plot or export a file of results"},
        {"trace", command_trace, "summarise, compare, query or export a trace file"},
        {"tui", command_tui, "look at a trace file: timelines of CTA roles"},
        {"info", command_info, "what this machine has, and what is missing"},
    };
    memcpy(out, all, sizeof all);
    return sizeof all / sizeof *all;
}

static void main_print_help(void)
{
    struct command all[16];
    size_t count = main_commands(all);
    printf(
        "mkernel: fused multi-GPU, multi-node operators\n\nusage: mkernel COMMAND [ARGUMENTS]\n\n");
    for (size_t i = 0; i < count; i++)
        printf("  %-9s %s%s\n", all[i].name, all[i].summary,
               all[i].run ? "" : " (not in this build)");
    printf("\nOP:\n");
    for (int op = 0; op < MK_OPS; op++)
        printf("  %-18s %s\n", plan_op_name(op), op_of(op)->help);
    printf(
        "\nexamples:\n"
        "  mkernel run ag_gemm --nodes 2 --gpus 2 --check     2 nodes of 2 ranks, here, checked\n"
        "  mkernel run ag_gemm --nodes 2 --gpus 2 --trace t.db && mkernel trace summary t.db\n"
        "  mkernel info\n"
        "\nexit status: 0 done (and right, with --check), 1 wrong results, 2 unusable arguments,\n"
        "3 something failed at run time\n"
        "`mkernel COMMAND --help` tells more.\n");
}

/* A closed standard descriptor would be handed to the next socket or file, and sentences would go
 * there. Opened the wrong way round it stays what it was: nothing can be read from or written to
 * it. */
static void main_keep_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
            return;
}

/* Before main begins OpenBLAS has a thread for each core, each of which asks for 128 MB of address
 * space until it gets them: where less is allowed (ulimit -d, -v), no process of it would end. The
 * command begins anew with one thread, which tells what it lacks. */
static void main_bound_openblas(char **argv)
{
    const char *name = "OPENBLAS_NUM_THREADS", *set = getenv(name);
    long threads = set ? atol(set) : sysconf(_SC_NPROCESSORS_ONLN);
    struct rlimit data, space;
    if (threads < 2 || getrlimit(RLIMIT_DATA, &data) || getrlimit(RLIMIT_AS, &space))
        return;
    rlim_t least = data.rlim_cur < space.rlim_cur ? data.rlim_cur : space.rlim_cur;
    if (least / (rlim_t)threads < (rlim_t)256 << 20 && !setenv(name, "1", 1))
        execv("/proc/self/exe", argv);
}

/* What any command printed must have arrived. */
static int main_close_output(const char *name, int status)
{
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || status != STATUS_DONE)
        return status;
    fprintf(stderr, "mkernel%s%s: the output could not be written: %s\n", *name ? " " : "", name,
            strerror(errno ? errno : EIO));
    return STATUS_FAILED;
}

static int main_dispatch(int argc, char **argv)
{
    struct command all[16];
    size_t count = main_commands(all);
    const char *names[16];
    if (argc < 2) {
        fprintf(stderr, "mkernel: a command is missing; `mkernel --help` lists them\n");
        return STATUS_USAGE;
    }
    int help = !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help");
    if (help && argc == 3 && argv[2][0] != '-') /* `mkernel help run` */
        return main_dispatch(3, (char *[]){argv[0], argv[2], "--help", NULL});
    if (help || !strcmp(argv[1], "--version")) {
        if (argc > 2) {
            fprintf(stderr,
                    "mkernel: %s is one argument too many; `mkernel --help` lists the commands\n",
                    argv[2]);
            return STATUS_USAGE;
        }
        if (help)
            main_print_help();
        else
            version_print(stdout);
        return STATUS_DONE;
    }
    for (size_t i = 0; i < count; i++) {
        names[i] = all[i].name;
        if (strcmp(argv[1], all[i].name))
            continue;
        if (!all[i].run) {
            fprintf(stderr, "mkernel: %s is not in this build; `mkernel --help` lists what is\n",
                    all[i].name);
            return STATUS_USAGE;
        }
        return all[i].run(argc - 1, argv + 1);
    }
    char near[NEAREST_TEXT];
    fprintf(stderr, "mkernel: there is no command %s%s; `mkernel --help` lists them\n", argv[1],
            nearest_hint(near, argv[1], "", names, count));
    return STATUS_USAGE;
}

int main(int argc, char **argv)
{
    main_keep_standard_descriptors();
    main_bound_openblas(argv);
    plain_output_begin();
    ending_remove_unfinished();
    return main_close_output(argc > 1 && argv[1][0] != '-' ? argv[1] : "",
                             main_dispatch(argc, argv));
}
