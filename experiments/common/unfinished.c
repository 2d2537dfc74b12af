#include "experiments/common/unfinished.h"
#include "tracer/trace.h"

#include <stdio.h>
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
static void unfinished_on_end(int number)
{
    const char *path = trace_unfinished();
    if (path)
        unlink(path);
    raise(number);
}

void unfinished_watch(void)
{
    struct sigaction act = {.sa_handler = unfinished_on_end, .sa_flags = (int)SA_RESETHAND};
    ending_signals(&act.sa_mask);
    for (int i = 0; i < ENDING; i++)
        if (sigismember(&act.sa_mask, ending[i]))
            sigaction(ending[i], &act, NULL);
}
