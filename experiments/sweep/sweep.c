/* `mkernel sweep`: many points measured into one file of results. */
#include "experiments/sweep/sweep.h"
#include "core/base/clock.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/hosts.h"
#include "experiments/common/options.h"
#include "experiments/results/results.h"
#include "experiments/results/results_file.h"
#include "experiments/results/results_merge.h"
#include "experiments/common/ending.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct arguments {
    const char *vary, *out, *expect, *budget, *hosts;
    uint64_t repeats, seed, limit_ns, jobs;
    int list, retry, mix, quiet, force, spread;
    struct sweep_spread share; /* where --spread was given */
};

static const char *const spreads[] = {"array", "srun"};

#define PATIENCE_NS 60000000000ull /* with tasks that merge at the same time */

#define AT(field) .offset = offsetof(struct arguments, field)
#define POINTS "the points"
#define JOBS "the jobs"
#define RESULTS "results"

static const struct option_spec specs[] = {
    {"vary", OPTION_TEXT, AT(vary), "NAME=V:V;NAME=V",
     "what is varied: options of `mkernel bench` (or `sim`, with exec=sim) and their values, with "
     ": between values and ; between names; 1..8 is 1:2:...:8, 1..8..2 every second of them, "
     "1..8*2 is 1:2:4:8; op and exec are names, too, and env.NAME is a variable of the "
     "environment. Takes the place of what FILE says of the same name",
     .max = 4095, .group = POINTS},
    {"list", OPTION_FLAG, AT(list), NULL, "print the commands of all points and end"},
    {"repeats", OPTION_NUMBERS, AT(repeats), "N", "jobs of each point. Default: FILE's, else 3", 1,
     1000, .group = JOBS},
    {"seed", OPTION_NUMBERS, AT(seed), "S",
     "of the order of the points; repeat R of a point has inputs of seed S + R. Default: FILE's, "
     "else 1",
     0, UINT64_MAX / 2},
    {"budget", OPTION_TEXT, AT(budget), "MINUTES",
     "begin no job after so many minutes. Default: FILE's, else no bound", .max = 31},
    {"limit", OPTION_SECONDS, AT(limit_ns), "SECONDS",
     "a job that takes longer is ended, and is one that failed. Default: FILE's, else 600", 1000000,
     86400000000000ull},
    {"jobs", OPTION_NUMBERS, AT(jobs), "N",
     "jobs at once. Default: as many as cores where all points are exec=sim or emulated, else 1, "
     "as measured jobs disturb each other, or under a launcher",
     1, SWEEP_JOBS},
    {"force", OPTION_FLAG, AT(force), NULL, "--jobs of measured points, too"},
    {"retry", OPTION_FLAG, AT(retry), NULL, "jobs that failed are done again"},
    {"hosts", OPTION_TEXT, AT(hosts), "FILE",
     "start the ranks by ssh: a line a host, `node1 slots=8`; the first has the results. Default: "
     "ranks on this host, or as a launcher says",
     .max = 4000},
    {"spread", OPTION_WORD, AT(spread), "array|srun",
     "measure a share of the points: this task's of `sbatch --array=0-7`, or of `srun -n 8` "
     "(whose tasks are the ranks of each point without it). Each task has a part of its own, "
     "OUT.part.NAME, and merges it into OUT at its end; parts of tasks that died are merged by "
     "the next sweep with --spread, or by `mkernel results OUT merge`",
     .words = spreads, .word_count = 2},
    {"out", OPTION_TEXT, AT(out), "FILE",
     "the results (SQLite); jobs that are in it are not done again. Default: FILE's name, with .db "
     "for its ending, in this folder",
     .max = 4000, .group = RESULTS},
    {"mix", OPTION_FLAG, AT(mix), NULL,
     "add to results of another machine or another build of mkernel"},
    {"expect", OPTION_TEXT, AT(expect), "FILE",
     "then compare with other results: exit status 1 where a point got slower than its interval "
     "allows",
     .max = 4000},
    {"quiet", OPTION_FLAG, AT(quiet), NULL, "no line for each job, and no table"},
};

static const struct option_table table = {
    "sweep [FILE] [OPTIONS]",
    "Measures every combination of operators, shapes, plans, clusters and executors that FILE (or "
    "--vary) names, several times each\nand in an order that spreads what drifts, into one file of "
    "results, which `mkernel results` shows, compares and plots.\nInterrupted, it goes on where it "
    "was. docs/EXPERIMENTS.md explains the file.",
    specs, sizeof specs / sizeof *specs,
    "  mkernel sweep docs/experiments/role-split.yaml\n"
    "  mkernel sweep --vary 'op=ag_gemm:gemm_rs;shape=256,128,256:512,256,512;exec=host' --out "
    "first.db\n"
    "  mkernel sweep --vary 'op=gemm_rs;exec=sim;nodes=1..8*2;gpus=8;pieces=1:2:4' --repeats 1\n"
    "  sbatch --array=0-7 --exclusive --wrap 'mkernel sweep role-split.yaml --spread array'\n"
    "  mkernel sweep one-host.yaml --expect yesterday.db      (exit status 1: something got "
    "slower)\n"};

#define sweep_usage(...) command_refuse("sweep", __VA_ARGS__)
#define sweep_fail(...) command_say("sweep", STATUS_FAILED, __VA_ARGS__)

/* How many jobs at once: those that nobody measures disturb nobody. */
static int sweep_choose_jobs(struct sweep *s, const struct arguments *a, char *error, size_t size)
{
    uint32_t measured = 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (uint32_t i = 0; i < s->point_count; i++)
        measured += (uint32_t)sweep_is_measured(&s->points[i]);
    if (measured && a->jobs > 1 && !a->force)
        return mk_fail(
            -EINVAL, error, size,
            "--jobs %lu: jobs that are measured disturb each other, and %u of %u points are "
            "(neither exec=sim nor emulated); --force does it all the same",
            a->jobs, measured, s->point_count);
    if (measured && a->share.crowded && !a->force)
        return mk_fail(
            -EINVAL, error, size,
            "--spread srun: tasks on one node measure at the same time and disturb each "
            "other, and %u of %u points are measured (neither exec=sim nor emulated): srun "
            "--ntasks-per-node=1; --force does it all the same",
            measured, s->point_count);
    s->jobs = a->jobs                 ? a->jobs
              : measured || cores < 1 ? 1
              : cores > SWEEP_JOBS    ? SWEEP_JOBS
                                      : (uint64_t)cores;
    return 0;
}

/* What the command line says goes before what the file says. */
static int sweep_gather(struct sweep *s, struct arguments *a, const char *file, char *error,
                        size_t size)
{
    if (a->spread >= 0 && (a->hosts || a->expect))
        return mk_fail(-EINVAL, error, size,
                       a->hosts ? "--spread and --hosts both say who measures: give one"
                                : "--expect looks at all points, and with --spread a task "
                                  "has a share: `mkernel results OUT table --expect FILE`");
    if (a->spread >= 0 && sweep_spread_read(&a->share, (enum sweep_over)a->spread, error, size))
        return -EINVAL;
    int rc = file ? sweep_read(s, file, error, size) : 0;
    if (!rc && !file && !a->vary)
        return mk_fail(-EINVAL, error, size, "what to measure is missing: a FILE or --vary");
    if (!rc && a->vary) {
        rc = sweep_vary(s, a->vary, error, size);
        if (!file)
            s->text = sweep_keep(s, a->vary, strlen(a->vary));
    }
    if (!rc && a->budget) {
        char *end;
        double minutes = strtod(a->budget, &end);
        if (end == a->budget || *end || !(minutes > 0 && minutes < 1e6))
            return mk_fail(-EINVAL, error, size, "--budget %s is no number of minutes", a->budget);
        s->budget_ns = (uint64_t)(minutes * 60e9);
    }
    s->repeats = a->repeats ? a->repeats : s->repeats;
    s->seed = a->seed != UINT64_MAX ? a->seed : s->seed;
    s->limit_ns = a->limit_ns ? a->limit_ns : s->limit_ns;
    rc = rc ? rc : sweep_make_points(s, error, size);
    if (!rc && a->share.count && (rc = sweep_spread_take(s, &a->share)))
        snprintf(error, size, "no memory for the points");
    return rc ? rc : sweep_choose_jobs(s, a, error, size);
}

/* "docs/experiments/role-split.yaml" becomes "role-split.db". */
static void sweep_name_results(const char *file, char *out, size_t size)
{
    const char *slash = file ? strrchr(file, '/') : NULL, *name = slash ? slash + 1 : file;
    const char *dot = name ? strrchr(name, '.') : NULL;
    if (!name)
        snprintf(out, size, "sweep.db");
    else
        snprintf(out, size, "%.*s.db",
                 (int)(dot && dot != name ? (size_t)(dot - name) : strlen(name)), name);
}

static int sweep_list(const struct sweep *s)
{
    static struct sweep_command c;
    static char text[20000];
    for (uint32_t i = 0; i < s->point_count; i++) {
        if (sweep_make_command(&c, &s->points[i], SWEEP_MEASURE, s->seed, "/dev/null"))
            return sweep_usage("a command is too long");
        sweep_say_command(&c, text, sizeof text);
        printf("%s\n", text);
    }
    return command_say("sweep", STATUS_DONE, "%u points, %lu jobs", s->point_count,
                       s->point_count * s->repeats);
}

static int sweep_measure_held(struct sweep *s, const struct arguments *a, const char *out,
                              const char *whole, const char *command, int *stopped)
{
    char error[2400];
    const struct sweep_how how = {.out = out,
                                  .whole = whole,
                                  .command = command,
                                  .retry = a->retry,
                                  .mix = a->mix,
                                  .quiet = a->quiet,
                                  .stopped = stopped};
    if (ending_watch())
        return sweep_fail("no descriptor for signals: %s", strerror(errno));
    int rc = sweep_ask(s, error, sizeof error);
    if (rc)
        return command_say("sweep", rc == -EINVAL ? STATUS_USAGE : STATUS_FAILED, "%s", error);
    int status = sweep_run(s, &how);
    if (*stopped || status == STATUS_USAGE || whole)
        return status;
    if (!a->quiet) {
        int shown = results_show(out, NULL);
        status = status ? status : shown;
    }
    int slower = a->expect ? results_expect(out, a->expect) : STATUS_DONE;
    return status ? status : slower;
}

/* All parts of `out` that nobody writes, into it; what cannot be is said. */
static int sweep_merge(const char *out, const struct arguments *a)
{
    char error[4400];
    struct results_merged merged;
    int rc = results_merge_parts(out, a->mix, &merged, error, sizeof error);
    if (rc && rc != -EBUSY)
        command_say("sweep", rc, "%s; `mkernel results %s merge` tries again", error, out);
    return rc == -EBUSY ? 0 : rc;
}

/* A task's share, into a part of `out` and then into `out`: what other tasks left, too, so that a
 * task that dies loses nothing. */
static int sweep_measure_share(struct sweep *s, const struct arguments *a, const char *out,
                               const char *command, int *stopped)
{
    char error[4400], part[4200];
    struct results_hold hold;
    if (!s->point_count)
        return command_say("sweep", STATUS_DONE,
                           "task %u of %u has nothing to do: there are fewer points",
                           a->share.index + 1, a->share.count);
    snprintf(part, sizeof part, "%s" RESULTS_PART "%s", out, a->share.part);
    sweep_merge(out, a);
    /* another task that merges may hold it as soon as it is there */
    if (results_hold_soon(&hold, part, error, sizeof error))
        return command_say("sweep", STATUS_USAGE, "%s", error);
    int status = sweep_measure_held(s, a, part, out, command, stopped);
    results_release(&hold);
    int rc = sweep_merge(out, a);
    for (uint64_t until = mk_now_ns() + PATIENCE_NS; !rc && !access(part, F_OK);) {
        if (mk_now_ns() > until)
            break;
        usleep(100000); /* another task has it in hand, or `out` */
        rc = sweep_merge(out, a);
    }
    if (!access(part, F_OK)) {
        if (!rc)
            sweep_fail("%s is not merged yet; `mkernel results %s merge` does it", part, out);
        return STATUS_FAILED;
    }
    if (*stopped || status == STATUS_USAGE || a->quiet || access(out, F_OK))
        return status;
    int shown = results_show(out, NULL);
    return status ? status : shown;
}

static int sweep_measure(struct sweep *s, const struct arguments *a, const char *out,
                         const char *command, int *stopped)
{
    char error[4400];
    struct results_hold hold;
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of write */
    if (a->share.count)
        return sweep_measure_share(s, a, out, command, stopped);
    if (results_hold(&hold, out, error, sizeof error)) /* before hours of jobs, not after */
        return command_say("sweep", STATUS_USAGE, "%s", error);
    int status = sweep_measure_held(s, a, out, NULL, command, stopped);
    results_release(&hold);
    return status;
}

/* Under a launcher this is one rank of all: rank 0 measures, the others do their part. */
static int sweep_join(struct sweep *s, const struct arguments *a, const char *out,
                      const char *command, int *stopped)
{
    char error[512];
    int rank, rc = sweep_crew_join(s, &rank, error, sizeof error);
    int status = !rc             ? STATUS_DONE
                 : rc == -EINVAL ? sweep_usage("%s", error)
                                 : sweep_fail("%s", error);
    if (rc == -EADDRINUSE && !rank)
        status = HOSTS_PORT_TAKEN;
    if (sweep_crew_size())
        s->jobs = 1;
    if (!rc && !rank) {
        status = sweep_measure(s, a, out, command, stopped);
    } else if (!rc) {
        rc = ending_watch() ? -errno : sweep_crew_work(s, error, sizeof error);
        *stopped = rc > 0 ? rc : 0;
        status = rc ? STATUS_FAILED : STATUS_DONE;
        if (rc < 0)
            sweep_fail("%s", error);
    }
    sweep_crew_leave();
    return status;
}

/* The same command on all hosts, without --hosts. */
static int sweep_over_hosts(const char *file, int argc, char **argv, int *stopped)
{
    static struct host_list hosts;
    char error[512];
    MK_FREED char **words = calloc((size_t)argc + 2, sizeof *words);
    int count = 0;
    if (!words)
        return STATUS_FAILED;
    words[count++] = argv[0];
    words[count++] = argv[0]; /* main's argv has the program before it */
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--hosts"))
            i++;
        else if (strncmp(argv[i], "--hosts=", 8))
            words[count++] = argv[i];
    }
    int status = STATUS_USAGE;
    if (hosts_read(&hosts, file, error, sizeof error)) {
        sweep_usage("%s", error);
    } else {
        status = hosts_run(&hosts, words, stopped, error, sizeof error);
        if (*stopped)
            sweep_fail("interrupted by signal %d; the ranks of all %u hosts have been told",
                       *stopped, hosts.count);
        else if (*error)
            sweep_fail("%s", error);
    }
    return status;
}

int command_sweep(int argc, char **argv)
{
    struct arguments a = {.seed = UINT64_MAX, .spread = -1};
    struct options_found found;
    char error[2400] = "no memory", out[4096], command[4096] = "mkernel";
    int ends = command_options("sweep", &table, 1, argc, argv, &a, &found);
    if (ends >= 0)
        return ends;
    const char *file = found.word_count ? found.words[0] : NULL;
    static struct sweep s;
    sweep_begin(&s);
    int stopped = 0, status;
    if (sweep_gather(&s, &a, file, error, sizeof error)) {
        status = sweep_usage("%s", error);
    } else if (a.hosts) {
        status = sweep_over_hosts(a.hosts, argc, argv, &stopped);
    } else if (a.list) {
        status = sweep_list(&s);
    } else if (a.expect && results_check(a.expect, error, sizeof error)) {
        status = sweep_usage("%s", error);
    } else {
        sweep_name_results(file, out, sizeof out);
        for (int i = 0; i < argc; i++) {
            mk_append(command, sizeof command, " %s", argv[i]);
        }
        status = sweep_join(&s, &a, a.out ? a.out : out, command, &stopped);
    }
    sweep_end(&s);
    ending_die(stopped);
    return status;
}
