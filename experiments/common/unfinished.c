#include "experiments/common/unfinished.h"
#include "tracer/trace.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDING = sizeof ending / sizeof *ending };

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
    struct sigaction act, old;
    memset(&act, 0, sizeof act);
    act.sa_handler = unfinished_on_end;
    act.sa_flags = (int)SA_RESETHAND;
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < ENDING; i++)
        sigaddset(&act.sa_mask, ending[i]);
    for (int i = 0; i < ENDING; i++)
        if (sigaction(ending[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(ending[i], &act, NULL);
}
