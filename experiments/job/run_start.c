/* What `run OP`, `bench OP` and `tune OP` do first: start all ranks on this host, or be one rank
 * under a launcher. */
#include "experiments/job/run.h"
#include "experiments/common/command_says.h"
#include "experiments/common/commands.h"
#include "experiments/common/launched.h"
#include "experiments/common/pulse.h"
#include "experiments/common/ending.h"
#include "core/plan/tuning.h"
#include "core/comm/launcher.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* Setting up a GPU, or a graph of long kernels, shows no progress. */
#define GPU_ALLOWANCE_NS 60000000000ull

/* The one sentence on stderr that says how it ended. */
static int run_say(const struct run_options *o, int status, const char *sentence)
{
    const char *op = plan_op_name(o->op); /* a failure's sentence begins with it, too */
    size_t length = strlen(op);
    if (!strncmp(sentence, op, length) && !strncmp(sentence + length, ": ", 2))
        sentence += length + 2;
    fprintf(stderr, "mkernel %s %s: %s\n", o->subcommand->name, op, sentence);
    return status;
}

void openblas_set_num_threads(int threads) __attribute__((weak)); /* not in every cblas */

/* Ranks share the cores: each gets its part for OpenBLAS, unless the user chose. For this process,
 * and for what it starts. */
static void run_share_cores(uint32_t ranks)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    char threads[24];
    if (getenv("OPENBLAS_NUM_THREADS"))
        return;
    snprintf(threads, sizeof threads, "%ld", cores > ranks ? cores / ranks : 1);
    setenv("OPENBLAS_NUM_THREADS", threads, 1);
    if (openblas_set_num_threads)
        openblas_set_num_threads(atoi(threads));
}

static uint32_t run_count_status(const struct spawn_end *ends, uint32_t world, int status)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world; i++)
        count += !ends[i].signal && ends[i].status == status;
    return count;
}

/* Adds the ranks that did not end by themselves: "rank 2 was killed by signal 9 (Killed); the other
 * 3 ended with status 3". */
static void run_add_killed(const struct spawn_end *ends, uint32_t world, char *text, size_t size)
{
    for (uint32_t i = 0; i < world; i++) {
        size_t used = strlen(text);
        const char *between = !used                                           ? ""
                              : used > 5 && !strcmp(text + used - 5, "; but") ? " "
                                                                              : "; ";
        if (!ends[i].signal)
            continue;
        if (ends[i].overdue)
            mk_append(text, size, "%srank %u did not end within %.1f s%s and %s", between, i,
                      (double)ends[i].overdue_ns / 1e9,
                      ends[i].overdue == SPAWN_STOPPED ? " (it was stopped)" : "",
                      ends[i].overdue == SPAWN_UNKILLABLE ? "could not even be killed"
                                                          : "was killed");
        else
            mk_append(text, size, "%srank %u was killed by signal %d (%s)", between, i,
                      ends[i].signal, strsignal(ends[i].signal));
    }
    uint32_t failed = run_count_status(ends, world, STATUS_FAILED);
    if (failed && failed < world)
        mk_append(text, size, "; %u rank%s ended with status 3", failed, failed > 1 ? "s" : "");
}

/* "no rank got anything done for 11.9 s, so all 4 were killed (3 of them were stopped)" */
static void run_say_idle(const struct spawn_end *ends, uint32_t world, uint64_t idle_ns, char *text,
                         size_t size)
{
    uint32_t killed = 0, stopped = 0;
    for (uint32_t i = 0; i < world; i++) {
        killed += ends[i].overdue != SPAWN_IN_TIME;
        stopped += ends[i].overdue == SPAWN_STOPPED;
    }
    snprintf(text, size,
             "no rank got anything done for %.1f s, so %s%u were killed (%u of them stopped); "
             "longer steps need a longer --timeout",
             (double)idle_ns / 1e9, killed == world ? "all " : "", killed, stopped);
}

/* One status and one sentence for all ranks. */
static int run_join_ends(const struct run_job *job, const struct spawn_end *ends,
                         const struct spawn_how *how)
{
    uint32_t world = job->identity.world, worst = UINT32_MAX;
    char text[SPAWN_SENTENCE + 512] = "";
    if (how->interrupted) {
        snprintf(text, sizeof text, "interrupted by signal %d (%s); all %u ranks have ended",
                 how->interrupted, strsignal(how->interrupted), world);
        return run_say(&job->options, STATUS_FAILED, text);
    }
    if (how->idle_ns) {
        run_say_idle(ends, world, how->idle_ns, text, sizeof text);
        return run_say(&job->options, STATUS_FAILED, text);
    }
    /* The sentence of the lowest rank with the highest status; all ranks know the job's failure. */
    int killed = 0, overdue = 0;
    for (uint32_t i = 0; i < world; i++) {
        killed |= ends[i].signal != 0;
        overdue |= ends[i].overdue != SPAWN_IN_TIME;
        if (ends[i].reported && !ends[i].signal &&
            (worst == UINT32_MAX || ends[i].status > ends[worst].status))
            worst = i;
    }
    int status = worst == UINT32_MAX ? STATUS_FAILED : ends[worst].status;
    for (uint32_t i = 0; i < world; i++)
        if (!ends[i].signal && !ends[i].reported && ends[i].status > STATUS_USAGE)
            status = STATUS_FAILED;
    if (worst != UINT32_MAX && (!killed || ends[worst].status == STATUS_FAILED))
        snprintf(text, sizeof text, "%s", ends[worst].sentence);
    else if (worst != UINT32_MAX && overdue) /* all had come so far, and then one did not end */
        snprintf(text, sizeof text, "%s; but", ends[worst].sentence);
    for (uint32_t i = 0; i < world && !*text; i++) /* it knew why, and then could not close */
        if (ends[i].reported && ends[i].overdue && ends[i].reported_status == STATUS_FAILED)
            snprintf(text, sizeof text, "%s", ends[i].sentence);
    if (killed) {
        status = STATUS_FAILED;
        run_add_killed(ends, world, text, sizeof text);
    }
    if (!*text)
        snprintf(text, sizeof text, "a rank ended with status %d and no word", status);
    return run_say(&job->options, status, text);
}

static int run_here(struct run_job *job, char **argv)
{
    uint32_t world = job->identity.world;
    MK_FREED struct spawn_end *ends = calloc(world, sizeof *ends);
    char text[256];
    struct spawn_how how = {0};
    int status;
    struct run_live live;
    const struct run_subcommand *sub = job->options.subcommand;
    if (run_live_open(&live, job, text, sizeof text))
        return command_refuse(sub->name, "%s", text);
    run_share_cores(world);
    if (sub->before)
        sub->before(job);
    int result = ends ? spawn_ranks(argv, world, job->options.timeout_ns, ends, &how) : -ENOMEM;
    run_live_close(&live);
    if (result) {
        snprintf(text, sizeof text, "the ranks could not be started: %s", strerror(-result));
        status = run_say(&job->options, STATUS_FAILED, text);
    } else {
        status = run_join_ends(job, ends, &how);
    }
    if (sub->after)
        sub->after();
    ending_die(how.interrupted);
    return status;
}

/* The command line, as the trace keeps it. */
static void run_join_words(int argc, char **argv, char *out, size_t size)
{
    snprintf(out, size, "mkernel");
    for (int i = 0; i < argc; i++)
        mk_append(out, size, " %s", argv[i]);
}

/* What this process is: 1 and *me as a rank, 0 where it has to start the ranks, -EINVAL with a
 * sentence. */
static int run_identify(const struct spawn_identity *spawned, int is_spawned,
                        struct run_identity *me, char *error, size_t size)
{
    struct launcher l;
    *me = (struct run_identity){.listen_fd = -1};
    if (is_spawned) {
        *me = (struct run_identity){.rank = spawned->rank,
                                    .world = spawned->world,
                                    .local_world = spawned->world,
                                    .host = "127.0.0.1",
                                    .port = spawned->port,
                                    .listen_fd = spawned->listen_fd,
                                    .launcher = "mkernel"};
        snprintf(me->token, sizeof me->token, "%s", spawned->token);
        return 1;
    }
    int found = launcher_read(&l, (const char *const *)environ, error, size);
    if (found <= 0)
        return found;
    me->rank = l.rank;
    me->world = l.world;
    me->local_world = l.local_world;
    me->port = l.port;
    me->launcher = l.name;
    me->assumed = l.assumed;
    me->guessable = l.guessable;
    memcpy(me->host, l.host, sizeof me->host);
    memcpy(me->token, l.token, sizeof me->token);
    return 1;
}

/* Once a job: rank 0 says it. */
static void run_say_assumed(const struct run_job *job)
{
    const struct run_identity *me = &job->identity;
    if (!me->rank && me->assumed && me->world > 1 && job->problem.topo.nodes == 1)
        fprintf(stderr,
                "mkernel %s: the environment has RANK and WORLD_SIZE but no LOCAL_WORLD_SIZE: all "
                "%u ranks are taken for one node's; --nodes, or LOCAL_RANK and LOCAL_WORLD_SIZE, "
                "say otherwise\n",
                job->options.subcommand->name, me->world);
}

/* Once a job, by who starts it: launches of ranks that share a GPU look as if they hung. */
static void run_say_shared(const struct run_job *job)
{
    const char *name = job->options.subcommand->name;
    if (job->sharing < 2)
        return;
    if (job->share)
        fprintf(stderr,
                "mkernel %s: %u ranks share a GPU, each with %u of its SMs, at once under MPS\n",
                name, job->sharing, job->share);
    else
        fprintf(stderr,
                "mkernel %s: %u ranks share a GPU and take turns of a millisecond or so: right, "
                "but slow. Under MPS they run at once: `nvidia-cuda-mps-control -d` starts it, "
                "`echo quit | nvidia-cuda-mps-control` ends it\n",
                name, job->sharing);
}

/* Closing hangs, in a driver perhaps: what there was to say is said, so the process may go. */
static void run_on_alarm(int number)
{
    _exit(STATUS_FAILED);
}

static const struct spawn_identity *reporter; /* NULL: under a launcher, or no rank */

void run_last_word(const struct run_job *job, int status, const char *sentence)
{
    static int said;
    const struct itimerval bound = {.it_value = {.tv_sec = 1, .tv_usec = 500000}};
    pulse_hide();
    if (reporter)
        spawn_report(reporter, status, sentence);
    /* what went well, or wrong, is the same on every rank */
    else if (!said && (status == STATUS_FAILED || job->identity.rank == 0))
        run_say(&job->options, status, sentence);
    spawn_allow(0);
    if (status == STATUS_FAILED && !said) {
        spawn_stage(SPAWN_FAILED);
        signal(SIGALRM, run_on_alarm);
        setitimer(ITIMER_REAL, &bound, NULL);
    }
    said = 1;
}

static int run_be_rank(struct run_job *job, char *sentence, size_t size)
{
    char name[64];
    snprintf(name, sizeof name, "mkernel %s %s", job->options.subcommand->name,
             plan_op_name(job->options.op));
    pulse_begin(job->identity.rank || job->options.live || job->options.quiet ? NULL : name);
    if (job->options.exec == MK_EXEC_CUDA)
        spawn_allow(GPU_ALLOWANCE_NS);
    /* a closed pipe on standard output is told, and the files are written all the same */
    signal(SIGPIPE, SIG_IGN);
    int status = job->options.subcommand->rank(job, sentence, size);
    run_last_word(job, status, sentence);
    pulse_end();
    fflush(stdout);
    if (status == STATUS_FAILED)
        /* a thread may hang in a launch, and libraries that tidy up at exit would wait for it */
        _exit(status);
    return status;
}

int run_start(int argc, char **argv, const struct run_subcommand *sub)
{
    struct run_options options;
    static struct run_job job; /* with its map of experts, to the end of the process */
    struct spawn_identity spawned;
    struct run_identity me;
    char sentence[SPAWN_SENTENCE] = "";
    const char *name = sub->name;

    int is_spawned = spawn_identity(&spawned), is_rank = 0;
    int result = run_options_parse(argc, argv, sub, &options, sentence, sizeof sentence);
    if (result > 0)
        return STATUS_DONE;
    if (!result)
        is_rank = result = run_identify(&spawned, is_spawned, &me, sentence, sizeof sentence);
    if (result >= 0)
        result = run_job_prepare(&job, &options, is_rank ? &me : NULL, sentence, sizeof sentence);
    if (result)
        return command_refuse(name, "%s", sentence);
    run_join_words(argc, argv, job.command, sizeof job.command);
    if (is_rank && !is_spawned && options.live)
        return command_say("run", STATUS_USAGE,
                           "under a launcher no rank has the terminal; leave --live out and look "
                           "on with `mkernel tui --attach`");
    if (options.dry_run) {
        char plan[256], heap[PROBLEM_HEAP_TEXT];
        snprintf(sentence, sizeof sentence,
                 "%u x %u ranks (%s) would run with %s, and %s; nothing was started",
                 job.problem.topo.nodes, job.problem.topo.gpus, plan_execs[job.options.exec],
                 tuning_words(&job.plan.problem.tuning, plan, sizeof plan),
                 problem_heap_text(&job.plan, heap));
        return run_say(&options, STATUS_DONE, sentence);
    }
    if (!is_spawned && !options.quiet && (!is_rank || !me.rank))
        run_say_shared(&job);
    if (!is_rank)
        return run_here(&job, argv - 1); /* main's argv: the ranks get the same command line */
    launched_warn(name, me.launcher, me.rank, me.port, me.guessable);
    run_say_assumed(&job);
    run_share_cores(me.local_world);
    reporter = is_spawned ? &spawned : NULL;
    return run_be_rank(&job, sentence, sizeof sentence);
}
