/* Runs build/mkernel as a person would: arguments in, exit status and both outputs back. For tests,
 * by #include. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/helpers/test.h"

struct command_run {
    pid_t pid;
    int out, err; /* read ends */
    int status;   /* exit status; -1: killed by `signal` */
    int signal;
    double seconds;
    struct timespec start;
    char out_text[16384], err_text[16384];
    size_t out_used, err_used;
};

/* build/mkernel, next to the folder of this test program. */
static void command_path(char *path, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    path[length > 0 ? length : 0] = 0;
    for (int i = 0; i < 2 && strrchr(path, '/'); i++)
        *strrchr(path, '/') = 0;
    strncat(path, "/mkernel", size - strlen(path) - 1);
}

/* Starts a program with both its outputs in pipes. `environment`: entries ("A=b") that are added,
 * ended by NULL. */
static void command_start_with(struct command_run *r, const char *path, char **argv,
                               char **environment)
{
    int out[2], err[2];
    memset(r, 0, sizeof *r);
    if (pipe(out) || pipe(err))
        abort();
    clock_gettime(CLOCK_MONOTONIC, &r->start);
    r->pid = fork();
    if (r->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is killed leaves no run behind */
        signal(SIGINT, SIG_DFL);          /* a test in the background of a shell ignores it */
        dup2(out[1], 1);
        dup2(err[1], 2);
        for (int fd = 3; fd < 64; fd++)
            close(fd);
        putenv("MKERNEL_PROGRESS=off"); /* a slow machine adds no lines to what is expected */
        while (*environment)
            putenv(*environment++);
        execv(path, argv);
        _exit(127);
    }
    if (r->pid < 0) { /* kill(-1) would end every process that this one may end */
        perror("fork");
        abort();
    }
    close(out[1]);
    close(err[1]);
    r->out = out[0];
    r->err = err[0];
}

__attribute__((unused)) static void command_start_program(struct command_run *r, const char *path,
                                                          char **argv)
{
    command_start_with(r, path, argv, (char *[]){NULL});
}

/* Starts `mkernel LINE`; words are separated by blanks, '' is an empty word. Environment entries
 * may follow, ended by NULL. */
__attribute__((unused)) static void command_start(struct command_run *r, const char *line, ...)
{
    static char copy[4096], path[4096];
    char *argv[64], *save, *environment[16];
    int argc = 1, entries = 0;
    va_list args;
    va_start(args, line);
    while (entries < 15 && (environment[entries] = va_arg(args, char *)))
        entries++;
    va_end(args);
    environment[entries] = NULL;
    command_path(path, sizeof path);
    argv[0] = path;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &save); word && argc < 63;
         word = strtok_r(NULL, " ", &save))
        argv[argc++] = strcmp(word, "''") ? word : "";
    argv[argc] = NULL;
    command_start_with(r, path, argv, environment);
}

static void command_drain(int *fd, char *text, size_t *used, size_t size)
{
    char spare[512];
    int room = *used + 1 < size;
    ssize_t n = read(*fd, room ? text + *used : spare, room ? size - 1 - *used : sizeof spare);
    if (n <= 0) {
        close(*fd);
        *fd = -1;
    } else if (room) {
        *used += (size_t)n;
    }
}

/* Waits for its end, at most `seconds`; after that it is killed and the status is -1. */
__attribute__((unused)) static int command_finish(struct command_run *r, double seconds)
{
    int status;
    struct timespec now;
    for (;;) {
        struct pollfd fds[] = {{.fd = r->out, .events = POLLIN}, {.fd = r->err, .events = POLLIN}};
        if (r->out < 0 && r->err < 0)
            break;
        int ready = poll(fds, 2, 100);
        clock_gettime(CLOCK_MONOTONIC, &now);
        r->seconds =
            (double)(now.tv_sec - r->start.tv_sec) + (double)(now.tv_nsec - r->start.tv_nsec) / 1e9;
        if (r->seconds > seconds) {
            if (r->pid > 0)
                kill(r->pid, SIGKILL);
            break;
        }
        if (ready <= 0)
            continue;
        if (fds[0].revents)
            command_drain(&r->out, r->out_text, &r->out_used, sizeof r->out_text);
        if (fds[1].revents)
            command_drain(&r->err, r->err_text, &r->err_used, sizeof r->err_text);
    }
    if (r->out >= 0)
        close(r->out);
    if (r->err >= 0)
        close(r->err);
    waitpid(r->pid, &status, 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
    r->seconds =
        (double)(now.tv_sec - r->start.tv_sec) + (double)(now.tv_nsec - r->start.tv_nsec) / 1e9;
    r->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    r->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return r->status;
}

/* Whether a python3 here has what `mkernel` draws with. */
__attribute__((unused)) static int command_draws(void)
{
    return !system("{ python3 -c 'import matplotlib' || /usr/bin/python3 -c 'import matplotlib'; } "
                   ">/dev/null 2>&1");
}

/* How many lines. */
__attribute__((unused)) static int command_lines(const char *text)
{
    int lines = 0;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

/* Runs `mkernel LINE` with one entry more of the environment, or NULL: it ends with that status, and
 * says the text on stdout, or in one line on stderr where it failed; bad arguments (2) print nothing
 * else. */
__attribute__((unused)) static void command_expect(struct command_run *r, const char *line,
                                                   char *entry, int status, const char *says)
{
    command_start(r, line, entry, NULL);
    command_finish(r, 120);
    if (r->status != status || !strstr(status ? r->err_text : r->out_text, says) ||
        (status && command_lines(r->err_text) != 1) || (status == 2 && r->out_used))
        fail_msg(
            "mkernel %s: status %d (want %d) after %.1f s, \"%s\" is not in one line of \"%s\" "
            "\"%s\"",
            line, r->status, status, r->seconds, says, r->out_text, r->err_text);
}

/* The children of process `pid`: fills pids, returns how many. */
__attribute__((unused)) static int command_children(pid_t pid, pid_t *pids, int most)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    FILE *f = fopen(path, "r");
    int child;
    while (f && count < most && fscanf(f, "%d", &child) == 1)
        pids[count++] = child;
    if (f)
        fclose(f);
    return count;
}
