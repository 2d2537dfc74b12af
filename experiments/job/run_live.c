/* What `mkernel run` shows while it runs: every rank publishes its progress words (tracer/live.h);
 * with --live the viewer has the terminal until the job ends. */
#include "experiments/job/run.h"
#include "experiments/common/commands.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/comm/comm.h"
#include "core/base/sentence.h"
#include "tracer/live.h"

#define VIEWER_END_MS 3000 /* for it to see that the job has ended */

static int run_live_folder(const struct run_job *job, int job_pid, char *path, size_t size)
{
    return live_folder(path, size, job_pid, job->identity.launcher, job->identity.token);
}

struct live *run_live_begin(const struct run_job *job, struct mk_comm *comm,
                            const struct mk_plan *plan)
{
    char folder[256];
    struct live *live = NULL;
    int parent =
        job->identity.launcher && !strcmp(job->identity.launcher, "mkernel") ? getppid() : 0;
    if (job->options.mode != RUN_RUN) /* what is timed has nothing beside it */
        return NULL;
    if (!run_live_folder(job, parent, folder, sizeof folder))
        live_begin(&live, folder, comm, plan, parent, job->options.warmup + job->options.iters,
                   job->command);
    return live; /* NULL: no viewer can look, and the run goes on */
}

/* The viewer in a process of its own: it keeps the terminal, and the ranks write into a file
 * meanwhile. */
static pid_t run_live_start_viewer(const char *folder)
{
    char name[256];
    snprintf(name, sizeof name, "%s", folder);
    char *argv[] = {(char *)"tui", (char *)"--attach", name, (char *)"--until-end", NULL};
    pid_t pid = fork();
    if (pid == 0)
        _exit(command_tui(4, argv));
    return pid;
}

int run_live_open(struct run_live *l, const struct run_job *job, char *error, size_t size)
{
    l->output = -1;
    l->saved[0] = l->saved[1] = -1;
    l->viewer = 0;
    if (run_live_folder(job, getpid(), l->folder, sizeof l->folder)) {
        l->folder[0] = 0;
        snprintf(error, size, "MKERNEL_LIVE is off, so --live has nothing to show");
        return job->options.live ? -EINVAL : 0;
    }
    if (!job->options.live)
        return 0;
    if (!command_tui)
        return mk_fail(-EINVAL, error, size,
                       "--live needs the viewer, which is not in this build (ncurses)");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return mk_fail(
            -EINVAL, error, size,
            "--live needs a terminal; `mkernel tui --attach --dump-screen` prints a screen of "
            "a running job");
    fflush(stdout);
    fflush(stderr);
    l->output = memfd_create("mkernel-output", MFD_CLOEXEC);
    l->viewer = l->output < 0 ? -1 : run_live_start_viewer(l->folder);
    if (l->viewer < 0) {
        snprintf(error, size, "the viewer could not be started: %s", strerror(errno));
        if (l->output >= 0)
            close(l->output);
        l->output = -1;
        return -EINVAL;
    }
    for (int fd = 0; fd < 2; fd++) {
        l->saved[fd] = dup(fd + 1);
        dup2(l->output, fd + 1);
    }
    return 0;
}

/* Waits for the viewer to see the end; one that does not is asked to go, then killed. */
static void run_live_end_viewer(pid_t viewer)
{
    const struct timespec moment = {0, 20000000};
    for (int ms = 0; ms < 2 * VIEWER_END_MS; ms += 20) {
        if (waitpid(viewer, NULL, WNOHANG) != 0)
            return;
        if (ms == VIEWER_END_MS)
            kill(viewer, SIGTERM);
        nanosleep(&moment, NULL);
    }
    kill(viewer, SIGKILL);
    waitpid(viewer, NULL, 0);
}

static void run_live_copy_output(int from)
{
    char text[4096];
    ssize_t n;
    lseek(from, 0, SEEK_SET);
    while ((n = read(from, text, sizeof text)) > 0)
        if (write(STDOUT_FILENO, text, (size_t)n) != n)
            break;
}

void run_live_close(struct run_live *l)
{
    if (l->folder[0])
        live_remove(l->folder);
    if (l->output < 0)
        return;
    run_live_end_viewer(l->viewer);
    fflush(stdout);
    fflush(stderr);
    for (int fd = 0; fd < 2; fd++) {
        dup2(l->saved[fd], fd + 1);
        close(l->saved[fd]);
    }
    run_live_copy_output(l->output);
    close(l->output);
}
