/* For tests: a job of ranks, each a process of this host that runs one function and reports what
 * came of it. */
#pragma once

#include "tests/helpers/test.h"
#include "core/comm/bootstrap.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define JOB_MAX 16

struct job_report {
    int came;       /* 0: the process ended without a report */
    int result;     /* what the function returned */
    double seconds; /* that it took */
    char text[512]; /* what it said */
};

struct job {
    uint32_t world;
    uint64_t timeout_ns;
    uint16_t port;
    int listener;
    double starved; /* seconds, see job_tick */
    pid_t pids[JOB_MAX];
    int pipes[JOB_MAX];
    struct job_report reports[JOB_MAX];
};

/* There under the address sanitizer: whether this process has lost memory. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

typedef int (*job_main)(const struct bootstrap_config *config, char *text, size_t size,
                        void *argument);

__attribute__((unused)) static void job_sleep(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* A job whose rank 0 listens at a port that the kernel chose. */
__attribute__((unused)) static void job_init(struct job *j, uint32_t world, double timeout)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    memset(j, 0, sizeof *j);
    j->world = world;
    j->timeout_ns = (uint64_t)(timeout * 1e9);
    j->listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(j->listener, (struct sockaddr *)&a, sizeof a) || listen(j->listener, 128) ||
        getsockname(j->listener, (struct sockaddr *)&a, &size))
        abort();
    j->port = ntohs(a.sin_port);
}

__attribute__((unused)) static struct bootstrap_config job_config(const struct job *j,
                                                                  uint32_t rank)
{
    struct bootstrap_config c = {.rank = rank,
                                 .world = j->world,
                                 .host = "127.0.0.1",
                                 .port = j->port,
                                 .listen_fd = rank == 0 ? j->listener : -1,
                                 .token = "a token of this test",
                                 .timeout_ns = j->timeout_ns};
    return c;
}

/* Starts process `slot` of the job with the given configuration. */
__attribute__((unused)) static void job_start(struct job *j, uint32_t slot,
                                              const struct bootstrap_config *c, job_main run,
                                              void *argument)
{
    int ends[2];
    if (pipe(ends))
        abort();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        abort();
    if (pid == 0) {
        struct job_report r = {.came = 1};
        double start = test_seconds();
        close(ends[0]);
        if (c->listen_fd < 0)
            close(j->listener);
        r.result = run(c, r.text, sizeof r.text, argument);
        r.seconds = test_seconds() - start;
        if (__lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check()) {
            snprintf(r.text, sizeof r.text, "memory leaked");
            r.result = -1;
        }
        _exit(write(ends[1], &r, sizeof r) == sizeof r ? 0 : 1);
    }
    close(ends[1]);
    j->pids[slot] = pid;
    j->pipes[slot] = ends[0];
}

__attribute__((unused)) static void job_start_all(struct job *j, job_main run, void *argument)
{
    for (uint32_t r = 0; r < j->world; r++) {
        struct bootstrap_config c = job_config(j, r);
        job_start(j, r, &c, run, argument);
    }
}

/* Time that this process asked to sleep and was not woken: on a machine with more to do than cores
 * the ranks lack it too. */
__attribute__((unused)) static void job_tick(struct job *j, struct pollfd *p)
{
    double start = test_seconds();
    if (poll(p, 1, 10) > 0)
        return;
    double late = test_seconds() - start - 0.012;
    j->starved += late > 0 ? late : 0;
}

/* Waits for the report of one process; minutes say that it hangs, and it is killed and has none. */
__attribute__((unused)) static void job_wait(struct job *j, uint32_t slot)
{
    struct job_report *r = &j->reports[slot];
    struct pollfd p = {.fd = j->pipes[slot], .events = POLLIN};
    if (!j->pids[slot])
        return;
    for (double end = test_seconds() + 150; !p.revents && test_seconds() < end;)
        job_tick(j, &p);
    if (!p.revents || read(p.fd, r, sizeof *r) != sizeof *r) {
        memset(r, 0, sizeof *r);
        kill(j->pids[slot], SIGKILL);
    }
    close(p.fd);
    waitpid(j->pids[slot], NULL, 0);
    j->pids[slot] = 0;
}

/* Collects every report that is still out. */
__attribute__((unused)) static void job_finish(struct job *j)
{
    close(j->listener);
    for (uint32_t i = 0; i < JOB_MAX; i++)
        job_wait(j, i);
}

/* Whether process `slot` ended within `seconds`, not counting what the machine was too busy for. */
__attribute__((unused)) static int job_ended_within(const struct job *j, uint32_t slot,
                                                    double seconds)
{
    return j->reports[slot].came && j->reports[slot].seconds <= seconds + 3 * j->starved;
}
