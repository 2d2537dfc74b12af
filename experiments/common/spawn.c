/* The parent starts its ranks. */
#include "experiments/common/spawn_internal.h"
#include "core/comm/bootstrap.h"
#include "core/base/scoped.h"
#include "experiments/common/ending.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

static int spawn_make_token(char *token, size_t size)
{
    unsigned char bits[16];
    if (getrandom(bits, sizeof bits, 0) != sizeof bits)
        return -errno;
    for (size_t i = 0; i < sizeof bits && 2 * i + 2 < size; i++)
        snprintf(token + 2 * i, size - 2 * i, "%02x", bits[i]);
    return 0;
}

/* Between fork and exec: only what is safe there. */
static void spawn_become_rank(char **argv, const struct spawn_identity *who, int words_fd,
                              pid_t parent, const sigset_t *mask)
{
    char value[192];
    struct spawn_identity me = *who;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(3);
    /* Ctrl-C reaches the whole foreground group; the parent alone decides what it means. */
    signal(SIGINT, SIG_IGN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    fcntl(me.report_fd, F_SETFD, 0);
    fcntl(words_fd, F_SETFD, 0);
    if (me.rank == 0)
        fcntl(me.listen_fd, F_SETFD, 0);
    else
        me.listen_fd = -1;
    snprintf(value, sizeof value, "%u,%u,%u,%d,%d,%d,%s", me.rank, me.world, me.port, me.listen_fd,
             me.report_fd, words_fd, me.token);
    setenv(SPAWN_VARIABLE, value, 1);
    execv("/proc/self/exe", argv);
    char text[SPAWN_SENTENCE];
    snprintf(text, sizeof text, "rank %u could not be started: %s", me.rank, strerror(errno));
    spawn_report(&me, 3, text);
    _exit(3);
}

/* A page that the ranks write into and the parent reads. Its fd, or -errno. */
static int spawn_share_words(struct spawn_job *j)
{
    int fd = memfd_create("mkernel-ranks", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    void *words = ftruncate(fd, SPAWN_WORDS_BYTES)
                      ? MAP_FAILED
                      : mmap(NULL, SPAWN_WORDS_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED) {
        int error = errno;
        close(fd);
        return -error;
    }
    j->words = words;
    return fd;
}

static int spawn_start(struct spawn_job *j, char **argv, struct spawn_identity *who, int words_fd,
                       const sigset_t *mask)
{
    pid_t parent = getpid();
    for (uint32_t i = 0; i < j->world; i++) {
        who->rank = i;
        pid_t pid = fork();
        if (pid == 0)
            spawn_become_rank(argv, who, words_fd, parent, mask);
        if (pid < 0) {
            int error = errno;
            while (i--)
                kill(j->pids[i], SIGKILL);
            return -error;
        }
        j->pids[i] = pid;
        j->alive++;
    }
    return 0;
}

static void spawn_close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int spawn_ranks(char **argv, uint32_t world, uint64_t timeout_ns, struct spawn_end *ends,
                struct spawn_how *how)
{
    MK_FREED pid_t *pids = calloc(world, sizeof *pids);
    MK_FREED uint64_t *beats = calloc(world, sizeof *beats);
    MK_FREED uint64_t *reported_at = calloc(world, sizeof *reported_at);
    struct spawn_job j = {.world = world,
                          .ends = ends,
                          .timeout_ns = timeout_ns,
                          .signals = -1,
                          .how = how,
                          .pids = pids,
                          .beats = beats,
                          .reported_at = reported_at};
    struct spawn_identity who = {.world = world, .listen_fd = -1};
    sigset_t watched, old;
    int pipes[2] = {-1, -1}, words_fd = -1;

    memset(ends, 0, world * sizeof *ends);
    *how = (struct spawn_how){0};
    ending_signals(&watched);
    sigaddset(&watched, SIGCHLD);
    sigprocmask(SIG_BLOCK, &watched, &old);

    int result =
        pids && beats && reported_at ? spawn_make_token(who.token, sizeof who.token) : -ENOMEM;
    if (result)
        goto out;
    words_fd = spawn_share_words(&j);
    who.listen_fd = words_fd < 0 ? words_fd : bootstrap_listen("127.0.0.1", &who.port);
    j.signals = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (who.listen_fd < 0 || j.signals < 0 || pipe2(pipes, O_CLOEXEC)) {
        result = who.listen_fd < 0 ? who.listen_fd : -errno;
        goto out;
    }
    j.reports = pipes[0];
    who.report_fd = pipes[1];
    fcntl(j.reports, F_SETFL, O_NONBLOCK);
    result = spawn_start(&j, argv, &who, words_fd, &old);
    spawn_close_fd(&pipes[1]);
    spawn_close_fd(&who.listen_fd);
    spawn_wait(&j);
out:
    spawn_close_fd(&words_fd);
    spawn_close_fd(&who.listen_fd);
    spawn_close_fd(&pipes[0]);
    spawn_close_fd(&pipes[1]);
    spawn_close_fd(&j.signals);
    if (j.words)
        munmap((void *)(uintptr_t)j.words, SPAWN_WORDS_BYTES);
    sigprocmask(SIG_SETMASK, &old, NULL);
    return result;
}
