/* One command of a sweep in a process group of its own. */
#include "experiments/sweep/sweep.h"
#include "core/clock.h"
#include "experiments/common/unfinished.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_NS 8000000000ull /* from SIGTERM to SIGKILL: `mkernel run` ends its ranks in less */
#define TAIL 4096u

/* Between fork and exec. */
static void sweep_job_become(char *const *words, char *const *environment, int err,
                             const sigset_t *mask, pid_t parent)
{
    int null = open("/dev/null", O_RDWR);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 ||
        dup2(err, 2) < 0)
        _exit(126);
    setpgid(0, 0);
    sigprocmask(SIG_SETMASK, mask, NULL);
    for (; *environment; environment++)
        putenv(*environment);
    setenv("MKERNEL_PROGRESS", "off", 1);
    execv("/proc/self/exe", words);
    _exit(127);
}

/* The last line that says anything, without "mkernel bench OP: " before it. */
static void sweep_job_sentence(char *tail, size_t length, char *out, size_t size)
{
    while (length && (tail[length - 1] == '\n' || tail[length - 1] == ' '))
        length--;
    tail[length] = '\0';
    char *line = strrchr(tail, '\n');
    line = line ? line + 1 : tail;
    if (!strncmp(line, "mkernel ", 8)) {
        char *colon = strstr(line, ": ");
        line = colon ? colon + 2 : line;
    }
    char *help = strstr(line, "; `mkernel "); /* where to read more: not here */
    if (help)
        *help = '\0';
    snprintf(out, size, "%.*s", (int)size - 1, line);
}

/* Reads some; 0: there is no more. */
static int sweep_job_drain(int fd, char tail[TAIL + 1], size_t *length)
{
    char piece[1024];
    ssize_t n = read(fd, piece, sizeof piece);
    if (n <= 0)
        return 0;
    if (*length + (size_t)n > TAIL) {
        size_t drop = *length + (size_t)n - TAIL;
        memmove(tail, tail + drop, *length - drop);
        *length -= drop;
    }
    memcpy(tail + *length, piece, (size_t)n);
    *length += (size_t)n;
    return 1;
}

static int watched_fd = -1;
static sigset_t watched_before;

/* Until the child has ended. */
static void sweep_job_watch(struct sweep_ended *out, pid_t child, int err, uint64_t limit_ns,
                            char tail[TAIL + 1], size_t *length, int *status)
{
    uint64_t start = mk_now_ns(), kill_at = 0;
    /* a kernel without it (before 5.3) gives -1, and the end is seen a little later */
    int gone_fd = (int)syscall(SYS_pidfd_open, child, 0);
    struct pollfd fds[] = {{.fd = err, .events = POLLIN},
                           {.fd = watched_fd, .events = POLLIN},
                           {.fd = gone_fd, .events = POLLIN}};
    for (;;) {
        pid_t gone = waitpid(child, status, WNOHANG);
        if (gone == child || (gone < 0 && errno != EINTR))
            break;
        uint64_t now = mk_now_ns();
        if (!kill_at && now - start > limit_ns) {
            out->over = 1;
            kill(child, SIGTERM);
            kill_at = now + GRACE_NS;
        } else if (kill_at && now > kill_at) {
            kill(-child, SIGKILL);
            kill(child, SIGKILL); /* its group may not be there yet */
        }
        poll(fds, 3, 200);
        if (fds[0].revents & POLLIN)
            sweep_job_drain(err, tail, length);
        else if (fds[0].revents)
            fds[0].fd = -1;
        int stopped = sweep_stopped();
        if (stopped && !out->stopped) {
            out->stopped = stopped;
            kill(child, SIGTERM);
            kill_at = mk_now_ns() + GRACE_NS;
        }
    }
    if (gone_fd >= 0)
        close(gone_fd);
    kill(-child, SIGKILL); /* whatever it left behind */
    fcntl(err, F_SETFL, O_NONBLOCK);
    while (sweep_job_drain(err, tail, length))
        ;
    out->seconds = (double)(mk_now_ns() - start) / 1e9;
}

int sweep_watch(void)
{
    sigset_t watched;
    ending_signals(&watched);
    sigprocmask(SIG_BLOCK, &watched, &watched_before);
    watched_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    return watched_fd < 0 ? -errno : 0;
}

int sweep_stopped(void)
{
    static int came; /* atomic: of several threads only one reads it */
    struct signalfd_siginfo info;
    if (read(watched_fd, &info, sizeof info) == sizeof info)
        __atomic_store_n(&came, (int)info.ssi_signo, __ATOMIC_RELAXED);
    return __atomic_load_n(&came, __ATOMIC_RELAXED);
}

int sweep_run_job(struct sweep_ended *out, char *const *words, char *const *environment,
                  uint64_t limit_ns)
{
    char tail[TAIL + 1];
    size_t length = 0;
    int err[2], status = 0;
    memset(out, 0, sizeof *out);
    if (pipe2(err, O_CLOEXEC))
        return -errno;
    pid_t parent = getpid(), child = fork();
    if (child == 0)
        sweep_job_become(words, environment, err[1], &watched_before, parent);
    int rc = child < 0 ? -errno : 0;
    close(err[1]);
    if (!rc) {
        setpgid(child, child);
        sweep_job_watch(out, child, err[0], limit_ns, tail, &length, &status);
        out->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        out->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        sweep_job_sentence(tail, length, out->sentence, sizeof out->sentence);
        if (out->over)
            snprintf(out->sentence, sizeof out->sentence, "it took longer than %.0f s (`limit`)",
                     (double)limit_ns / 1e9);
        else if (out->signal)
            snprintf(out->sentence, sizeof out->sentence, "it was killed by signal %d (%s)",
                     out->signal, strsignal(out->signal));
    }
    close(err[0]);
    return rc;
}
