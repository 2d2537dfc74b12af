#include "experiments/common/process.h"
#include "core/base/clock.h"
#include "core/base/scoped.h"
#include "experiments/common/ending.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_NS 8000000000ull /* from SIGTERM to SIGKILL: `mkernel run` ends its ranks in less */
#define LOOK_MS 200            /* what has no descriptor is looked at so often */
#define FDS 64u

static int process_is_replaced(const char *entry, char *const *by)
{
    size_t name = strcspn(entry, "=") + 1;
    for (; by && *by; by++)
        if (!strncmp(entry, *by, name))
            return 1;
    return 0;
}

/* Made before fork: behind it a thread's lock may be held for ever. */
static char **process_environment(char *const *added)
{
    size_t count = 0, kept = 0;
    for (char **e = environ; *e; e++)
        count++;
    for (char *const *a = added; a && *a; a++)
        count++;
    char **all = calloc(count + 1, sizeof *all);
    if (!all)
        return NULL;
    for (char *const *a = added; a && *a; a++)
        all[kept++] = *a;
    for (char **e = environ; *e; e++)
        if (!process_is_replaced(*e, added))
            all[kept++] = *e;
    return all;
}

static void process_become(const struct process_how *how, char *const *environment,
                           const sigset_t *unblocked, pid_t parent)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int files[3] = {how->in, how->out, how->err};
    prctl(PR_SET_PDEATHSIG, how->death);
    if (getppid() != parent || null < 0)
        _exit(126);
    for (int i = 0; i < 3; i++) /* above what is to be replaced */
        if ((files[i] = fcntl(files[i] < 0 ? null : files[i], F_DUPFD_CLOEXEC, 3)) < 0)
            _exit(126);
    for (int i = 0; i < 3; i++)
        if (dup2(files[i], i) < 0)
            _exit(126);
    setpgid(0, 0); /* Ctrl-C is the parent's to pass on */
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, unblocked, NULL);
    execvpe(how->program ? how->program : "/proc/self/exe", how->words, environment);
    _exit(127);
}

pid_t process_start(const struct process_how *how)
{
    MK_FREED char **environment = process_environment(how->environment);
    sigset_t unblocked;
    if (!environment)
        return -ENOMEM;
    ending_signals(&unblocked);
    sigaddset(&unblocked, SIGCHLD);
    pid_t parent = getpid(), child = fork();
    if (child == 0)
        process_become(how, environment, &unblocked, parent);
    if (child < 0)
        return -errno;
    setpgid(child, child); /* both do it: whoever comes first */
    return child;
}

int process_end(pid_t pid)
{
    int status = 0;
    siginfo_t info;
    while (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        ;
    kill(-pid, SIGKILL); /* whatever it left behind: the group is its own until it is reaped */
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

/* Reads some; 0: there is no more. */
static int process_drain(struct process_ended *out, int fd)
{
    char piece[1024];
    ssize_t n = read(fd, piece, sizeof piece);
    if (n <= 0)
        return 0;
    if (out->length + (size_t)n > PROCESS_TAIL) {
        size_t drop = out->length + (size_t)n - PROCESS_TAIL;
        memmove(out->tail, out->tail + drop, out->length - drop);
        out->length -= drop;
    }
    memcpy(out->tail + out->length, piece, (size_t)n);
    out->length += (size_t)n;
    return 1;
}

/* How many have not ended, and whether one has failed. */
static uint32_t process_look(const pid_t *pids, uint32_t count, int *failed)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < count; i++) {
        siginfo_t info = {.si_pid = 0};
        if (waitid(P_PID, (id_t)pids[i], &info, WEXITED | WNOHANG | WNOWAIT) == 0 && !info.si_pid)
            alive++;
        else
            *failed |= info.si_code != CLD_EXITED || info.si_status;
    }
    return alive;
}

static void process_signal(const pid_t *pids, uint32_t count, int number, int group)
{
    for (uint32_t i = 0; i < count; i++) {
        kill(pids[i], number);
        if (group)
            kill(-pids[i], number); /* its group may not be there yet */
    }
}

void process_wait(struct process_ended *out, const pid_t *pids, uint32_t count, uint64_t limit_ns,
                  int err)
{
    uint64_t start = mk_now_ns(), kill_at = 0;
    struct pollfd fds[FDS] = {{.fd = err, .events = POLLIN}, {.fd = ending_fd(), .events = POLLIN}};
    uint32_t n = 2;
    int failed = 0;
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < count && n < FDS; i++) /* -1 from a kernel before 5.3 */
        fds[n++] =
            (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, pids[i], 0), .events = POLLIN};
    while (process_look(pids, count, &failed)) {
        uint64_t now = mk_now_ns();
        int stopped = ending_came();
        if (!kill_at && (failed || stopped || now - start > limit_ns)) {
            out->over = !failed && !stopped;
            out->stopped = stopped;
            process_signal(pids, count, SIGTERM, 0);
            kill_at = now + GRACE_NS;
        } else if (kill_at && now > kill_at) {
            process_signal(pids, count, SIGKILL, 1);
        }
        poll(fds, n, LOOK_MS);
        for (uint32_t i = 2; i < n; i++)
            if (fds[i].revents) { /* it stays readable */
                close(fds[i].fd);
                fds[i].fd = -1;
            }
        if (fds[0].revents & POLLIN)
            process_drain(out, err);
        else if (fds[0].revents)
            fds[0].fd = -1;
    }
    for (uint32_t i = 2; i < n; i++)
        if (fds[i].fd >= 0)
            close(fds[i].fd);
    for (uint32_t i = 0; i < count; i++) {
        int status = process_end(pids[i]);
        if (!out->status && !out->signal) {
            out->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            out->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        }
    }
    if (err >= 0) {
        fcntl(err, F_SETFL, O_NONBLOCK);
        while (process_drain(out, err))
            ;
        close(err);
    }
    out->seconds = (double)(mk_now_ns() - start) / 1e9;
}

int process_said_open(void)
{
    char name[] = "/tmp/mkernel-said-XXXXXX";
    int said = mkostemp(name, O_CLOEXEC);
    if (said >= 0)
        unlink(name);
    return said;
}

void process_said(int said, char *line, size_t size)
{
    char text[65536], *rest, *found = NULL;
    off_t end = said < 0 ? 0 : lseek(said, 0, SEEK_END);
    size_t most = sizeof text - 1, n = end < 0 ? 0 : (size_t)end;
    int named = 0;
    n = n > most ? most : n;
    ssize_t got = n ? pread(said, text, n, end - (off_t)n) : 0;
    text[got > 0 ? got : 0] = 0;
    for (char *at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
        const char *error = strstr(at, "Error: "); /* torchrun's own has nothing behind it */
        int names = error && error[7] > ' ' && *at != ' ';
        if (at[strspn(at, " \t\r")] && (names || !named))
            found = at;
        named |= names;
    }
    snprintf(line, size, "%s", found ? found : "it said nothing");
}
