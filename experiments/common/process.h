/* Other programs: each in a process group of its own, ended with this process, and killed before it
 * is reaped, so that a signal never meets another process that got its number. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROCESS_TAIL 4096u

struct process_how {
    const char *program; /* found in PATH; NULL: this program */
    char *const *words;
    char *const *environment; /* entries that take the place of those of their names; NULL: none */
    int in, out, err;         /* -1: /dev/null */
    int death;                /* the signal that it gets when the thread that started it ends */
};

/* Its number, or -errno. The exit status is 127 where there is no such program. */
pid_t process_start(const struct process_how *how);

/* Kills what is left of its group, and reaps it. Its status, as waitpid has it. */
int process_end(pid_t pid);

/* How programs ended that were waited for together. */
struct process_ended {
    int status;  /* exit status, the first that is not 0; -1: it was killed */
    int signal;  /* that ended it */
    int over;    /* 1: the time was over */
    int stopped; /* the signal that this process got meanwhile (ending_came); 0: none */
    double seconds;
    char tail[PROCESS_TAIL + 1]; /* the last of what came through `err` */
    size_t length;
};

/* Waits for all of them. Where the time is over, a signal came (ending_watch) or one has failed,
 * the others get SIGTERM, and 8 seconds later SIGKILL. `err`: the read end of a pipe, closed at the
 * end; -1: none. */
void process_wait(struct process_ended *out, const pid_t *pids, uint32_t count, uint64_t limit_ns,
                  int err);

/* A file without a name for a script's standard error; the caller closes it. -1: none. */
int process_said_open(void);

/* The line of it that says what went wrong, for a sentence: the last that names an error, else the
 * last of all; "it said nothing" where there is none. */
void process_said(int said, char *line, size_t size);
