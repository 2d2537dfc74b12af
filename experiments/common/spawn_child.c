/* What a rank does about the parent that started it: who it is, what it says, how it shows that it
 * goes on. */
#include "experiments/common/spawn_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of a process that has no parent to watch it. */
static struct spawn_word alone;
static struct spawn_word *word = &alone;

/* The parent alone holds the reading end of the pipe: once it is gone, whatever it died of, so is
 * the rank. The kernel's own word for that, PR_SET_PDEATHSIG, does not outlive a change of
 * credentials. */
static void *spawn_child_watch_parent(void *argument)
{
    struct pollfd p = {.fd = (int)(intptr_t)argument};
    while (poll(&p, 1, -1) < 0 || !(p.revents & POLLERR))
        ;
    _exit(3);
}

static void spawn_child_start_watching(int report_fd)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, old;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are the rank's */
    pthread_create(&thread, &attributes, spawn_child_watch_parent, (void *)(intptr_t)report_fd);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
}

/* The rank's own word in the page that it shares with the parent. One that cannot be had would look
 * like a rank that hangs. */
static void spawn_child_take_word(const struct spawn_identity *me, int fd)
{
    struct spawn_word *words =
        mmap(NULL, SPAWN_WORDS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED) {
        char text[128];
        snprintf(text, sizeof text,
                 "rank %u cannot map the page that it shares with its parent: %s", me->rank,
                 strerror(errno));
        spawn_report(me, 3, text);
        _exit(3);
    }
    close(fd);
    word = &words[me->rank];
    spawn_beat();
}

int spawn_identity(struct spawn_identity *out)
{
    const char *text = getenv(SPAWN_VARIABLE);
    int words_fd;
    memset(out, 0, sizeof *out);
    if (!text)
        return 0;
    int fields = sscanf(text, "%u,%u,%hu,%d,%d,%d,%63s", &out->rank, &out->world, &out->port,
                        &out->listen_fd, &out->report_fd, &words_fd, out->token);
    unsetenv(SPAWN_VARIABLE);
    /* What this process starts in its turn must not hold the parent's pipe open. */
    if (fields == 7 && out->rank < SPAWN_MAX_RANKS) {
        fcntl(out->report_fd, F_SETFD, FD_CLOEXEC);
        if (out->listen_fd >= 0)
            fcntl(out->listen_fd, F_SETFD, FD_CLOEXEC);
        spawn_child_take_word(out, words_fd);
        /* without it, PR_SET_PDEATHSIG is there still */
        spawn_child_start_watching(out->report_fd);
        return 1;
    }
    return 0;
}

void spawn_beat(void)
{
    __atomic_fetch_add(&word->beats, 1, __ATOMIC_RELAXED);
}

void spawn_allow(uint64_t ns)
{
    __atomic_store_n(&word->allowed_ns, ns, __ATOMIC_RELAXED);
    spawn_beat();
}

void spawn_stage(enum spawn_stage stage)
{
    if (word->stage != SPAWN_FAILED) /* there is no way back */
        __atomic_store_n(&word->stage, stage, __ATOMIC_RELEASE);
    spawn_beat();
}

void spawn_report(const struct spawn_identity *me, int status, const char *sentence)
{
    struct spawn_last_word r = {.rank = me->rank, .status = status};
    snprintf(r.sentence, sizeof r.sentence, "%s", sentence);
    while (write(me->report_fd, &r, sizeof r) < 0 && errno == EINTR)
        ;
}
