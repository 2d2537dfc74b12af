#define _GNU_SOURCE
#include "experiments/spawn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define VARIABLE "MKERNEL_SPAWNED" /* rank,world,port,listen_fd,report_fd,token */

struct report {
    uint32_t rank;
    int32_t status;
    char sentence[SPAWN_SENTENCE];
};

/* A job while it runs, seen by the parent. */
struct job {
    pid_t *pids; /* 0: has ended */
    uint32_t world, alive;
    struct spawn_end *ends;
    int reports, signals; /* fds */
    int interrupted;
    uint64_t grace_ns, deadline; /* 0: no deadline yet */
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The parent alone holds the reading end of the pipe: once it is gone, whatever it died of, so is the rank.
 * The kernel's own word for that, PR_SET_PDEATHSIG, does not outlive a change of credentials. */
static void *watch_parent(void *argument)
{
    struct pollfd p = {.fd = (int)(intptr_t)argument};
    while (poll(&p, 1, -1) < 0 || !(p.revents & POLLERR))
        ;
    _exit(3);
}

static void start_watching(int report_fd)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, old;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the rank's */
    pthread_create(&thread, &attributes, watch_parent, (void *)(intptr_t)report_fd);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
}

int spawn_identity(struct spawn_identity *out)
{
    const char *text = getenv(VARIABLE);
    memset(out, 0, sizeof *out);
    if (!text)
        return 0;
    int fields = sscanf(text, "%u,%u,%hu,%d,%d,%63s", &out->rank, &out->world, &out->port, &out->listen_fd,
                        &out->report_fd, out->token);
    unsetenv(VARIABLE);
    /* What this process starts in its turn must not hold the parent's pipe open. */
    if (fields == 6) {
        fcntl(out->report_fd, F_SETFD, FD_CLOEXEC);
        if (out->listen_fd >= 0)
            fcntl(out->listen_fd, F_SETFD, FD_CLOEXEC);
        start_watching(out->report_fd); /* without it, PR_SET_PDEATHSIG is there still */
    }
    return fields == 6;
}

void spawn_report(const struct spawn_identity *me, int status, const char *sentence)
{
    struct report r = {.rank = me->rank, .status = status};
    snprintf(r.sentence, sizeof r.sentence, "%s", sentence);
    while (write(me->report_fd, &r, sizeof r) < 0 && errno == EINTR)
        ;
}

static int listen_here(uint16_t *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, SPAWN_MAX_RANKS) ||
        getsockname(fd, (struct sockaddr *)&a, &length)) {
        int error = errno;
        close(fd);
        return -error;
    }
    *port = ntohs(a.sin_port);
    return fd;
}

static int make_token(char *token, size_t size)
{
    unsigned char bits[16];
    if (getrandom(bits, sizeof bits, 0) != sizeof bits)
        return -errno;
    for (size_t i = 0; i < sizeof bits && 2 * i + 2 < size; i++)
        snprintf(token + 2 * i, size - 2 * i, "%02x", bits[i]);
    return 0;
}

/* Between fork and exec: only what is safe there. */
static void become_rank(char **argv, const struct spawn_identity *who, pid_t parent, const sigset_t *mask)
{
    char value[160];
    struct spawn_identity me = *who;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(3);
    /* Ctrl-C reaches the whole foreground group; the parent alone decides what it means. */
    signal(SIGINT, SIG_IGN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    fcntl(me.report_fd, F_SETFD, 0);
    if (me.rank == 0)
        fcntl(me.listen_fd, F_SETFD, 0);
    else
        me.listen_fd = -1;
    snprintf(value, sizeof value, "%u,%u,%u,%d,%d,%s", me.rank, me.world, me.port, me.listen_fd, me.report_fd,
             me.token);
    setenv(VARIABLE, value, 1);
    execv("/proc/self/exe", argv);
    char text[SPAWN_SENTENCE];
    snprintf(text, sizeof text, "rank %u could not be started: %s", me.rank, strerror(errno));
    spawn_report(&me, 3, text);
    _exit(3);
}

static void kill_all(const struct job *j, int signal)
{
    for (uint32_t i = 0; i < j->world; i++)
        if (j->pids[i])
            kill(j->pids[i], signal);
}

static void set_deadline(struct job *j, uint64_t after_ns)
{
    uint64_t deadline = now_ns() + after_ns;
    if (!j->deadline || deadline < j->deadline)
        j->deadline = deadline;
}

static void collect_ends(struct job *j)
{
    int status;
    for (uint32_t i = 0; i < j->world; i++) {
        if (!j->pids[i] || waitpid(j->pids[i], &status, WNOHANG) != j->pids[i])
            continue;
        j->pids[i] = 0;
        j->alive--;
        j->ends[i].status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        j->ends[i].signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        if (j->ends[i].status > 1 || j->ends[i].signal)
            set_deadline(j, j->grace_ns);
    }
}

static void collect_reports(struct job *j)
{
    struct report r;
    while (read(j->reports, &r, sizeof r) == sizeof r) {
        if (r.rank >= j->world)
            continue;
        struct spawn_end *e = &j->ends[r.rank];
        e->reported = 1;
        memcpy(e->sentence, r.sentence, sizeof e->sentence);
        e->sentence[sizeof e->sentence - 1] = 0;
    }
}

static void collect_signals(struct job *j)
{
    struct signalfd_siginfo info;
    while (read(j->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD || j->interrupted)
            continue;
        j->interrupted = (int)info.ssi_signo;
        kill_all(j, SIGTERM);
        set_deadline(j, 1000000000);
    }
}

static void wait_for_all(struct job *j)
{
    while (j->alive) {
        struct pollfd fds[] = {{.fd = j->reports, .events = POLLIN}, {.fd = j->signals, .events = POLLIN}};
        int wait_ms = -1;
        if (j->deadline) {
            uint64_t now = now_ns();
            uint64_t left_ms = now < j->deadline ? (j->deadline - now) / 1000000 + 1 : 0;
            wait_ms = left_ms < 1000 ? (int)left_ms : 1000;
        }
        if (poll(fds, 2, wait_ms) == 0 && j->deadline && now_ns() >= j->deadline) {
            for (uint32_t i = 0; i < j->world; i++)
                j->ends[i].overdue = j->pids[i] != 0;
            kill_all(j, SIGKILL);
            j->deadline = UINT64_MAX; /* nobody survives SIGKILL */
        }
        collect_reports(j);
        collect_signals(j);
        collect_ends(j);
    }
    collect_reports(j);
}

int spawn_ranks(char **argv, uint32_t world, uint64_t grace_ns, struct spawn_end *ends, int *interrupted)
{
    struct job j = {.world = world, .ends = ends, .grace_ns = grace_ns, .signals = -1};
    struct spawn_identity who = {.world = world, .listen_fd = -1};
    sigset_t watched, old;
    int pipes[2] = {-1, -1};
    pid_t parent = getpid();

    memset(ends, 0, world * sizeof *ends);
    *interrupted = 0;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGINT);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGHUP);
    sigprocmask(SIG_BLOCK, &watched, &old);

    j.pids = calloc(world, sizeof *j.pids);
    int result = j.pids ? make_token(who.token, sizeof who.token) : -ENOMEM;
    if (result)
        goto out;
    who.listen_fd = listen_here(&who.port);
    j.signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (who.listen_fd < 0 || j.signals < 0 || pipe2(pipes, O_CLOEXEC)) {
        result = who.listen_fd < 0 ? who.listen_fd : -errno;
        goto out;
    }
    j.reports = pipes[0];
    who.report_fd = pipes[1];
    fcntl(j.reports, F_SETFL, O_NONBLOCK);
    for (uint32_t i = 0; i < world; i++) {
        who.rank = i;
        pid_t pid = fork();
        if (pid == 0)
            become_rank(argv, &who, parent, &old);
        if (pid < 0) {
            result = -errno;
            kill_all(&j, SIGKILL);
            break;
        }
        j.pids[i] = pid;
        j.alive++;
    }
    close(pipes[1]);
    pipes[1] = -1;
    close(who.listen_fd);
    who.listen_fd = -1;
    wait_for_all(&j);
    *interrupted = j.interrupted;
out:
    if (who.listen_fd >= 0)
        close(who.listen_fd);
    if (pipes[0] >= 0)
        close(pipes[0]);
    if (pipes[1] >= 0)
        close(pipes[1]);
    if (j.signals >= 0)
        close(j.signals);
    free(j.pids);
    sigprocmask(SIG_SETMASK, &old, NULL);
    return result;
}
