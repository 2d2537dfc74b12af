#include "experiments/common/ending.h"
#include "core/base/new_file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDING = sizeof ending / sizeof *ending };

void ending_signals(sigset_t *set)
{
    struct sigaction act;
    sigemptyset(set);
    for (int i = 0; i < ENDING; i++)
        if (!sigaction(ending[i], NULL, &act) && act.sa_handler != SIG_IGN)
            sigaddset(set, ending[i]);
}

static int watched_fd = -1;
static int came; /* atomic: of several threads only one reads it */

int ending_watch(void)
{
    sigset_t watched;
    ending_signals(&watched);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    came = 0;
    watched_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    return watched_fd < 0 ? -errno : 0;
}

void ending_ignore(void)
{
    sigset_t watched;
    if (watched_fd >= 0)
        close(watched_fd);
    watched_fd = -1;
    ending_signals(&watched);
    sigprocmask(SIG_UNBLOCK, &watched, NULL);
}

int ending_fd(void)
{
    return watched_fd;
}

int ending_came(void)
{
    struct signalfd_siginfo info;
    if (watched_fd >= 0 && read(watched_fd, &info, sizeof info) == sizeof info)
        __atomic_store_n(&came, (int)info.ssi_signo, __ATOMIC_RELAXED);
    return __atomic_load_n(&came, __ATOMIC_RELAXED);
}

void ending_die(int number)
{
    sigset_t one;
    if (!number)
        return;
    fflush(stdout);
    signal(number, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, number);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
}

/* SA_RESETHAND has put the default back: raised again, the signal ends the process once this
 * returns. */
static void ending_remove(int number)
{
    const char *path = mk_new_file_unfinished();
    if (path)
        unlink(path);
    raise(number);
}

void ending_remove_unfinished(void)
{
    struct sigaction act = {.sa_handler = ending_remove, .sa_flags = (int)SA_RESETHAND};
    ending_signals(&act.sa_mask);
    for (int i = 0; i < ENDING; i++)
        if (sigismember(&act.sa_mask, ending[i]))
            sigaction(ending[i], &act, NULL);
}
