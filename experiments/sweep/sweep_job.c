/* One command of a sweep in a process group of its own. */
#include "experiments/sweep/sweep.h"
#include "experiments/common/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

int sweep_run_job(struct sweep_ended *out, char *const *words, char *const *environment,
                  uint64_t limit_ns)
{
    struct process_ended ended;
    char *entries[SWEEP_SETTINGS + 3] = {"MKERNEL_PROGRESS=off"};
    int err[2];
    memset(out, 0, sizeof *out);
    for (uint32_t n = 0; environment[n]; n++)
        entries[n + 1] = environment[n];
    if (pipe2(err, O_CLOEXEC))
        return -errno;
    const struct process_how how = {.words = words,
                                    .environment = entries,
                                    .in = -1,
                                    .out = -1,
                                    .err = err[1],
                                    .death = SIGTERM};
    pid_t child = process_start(&how);
    close(err[1]);
    if (child < 0) {
        close(err[0]);
        return child;
    }
    process_wait(&ended, &child, 1, limit_ns, err[0]);
    out->status = ended.status;
    out->signal = ended.signal;
    out->over = ended.over;
    out->stopped = ended.stopped;
    out->seconds = ended.seconds;
    sweep_job_sentence(ended.tail, ended.length, out->sentence, sizeof out->sentence);
    if (out->over)
        snprintf(out->sentence, sizeof out->sentence, "it took longer than %.0f s (`limit`)",
                 (double)limit_ns / 1e9);
    else if (out->signal)
        snprintf(out->sentence, sizeof out->sentence, "it was killed by signal %d (%s)",
                 out->signal, strsignal(out->signal));
    return 0;
}
