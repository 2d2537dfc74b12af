/* A program that is started ends with the process that started it, at its time, at a signal, and
 * with what it started; several that are one job end with the first that fails. */
/* WAITS */
#define OWN_MAIN
#include "tests/helpers/test.h"
#include "experiments/common/process.h"
#include "experiments/common/ending.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG 600000000000ull

static pid_t start(const char *script, char *const *environment, int err)
{
    char *const words[] = {(char[]){"sh"}, (char[]){"-c"}, (char *)script, NULL};
    const struct process_how how = {.program = "sh",
                                    .words = words,
                                    .environment = environment,
                                    .in = -1,
                                    .out = err,
                                    .err = err,
                                    .death = SIGKILL};
    pid_t pid = process_start(&how);
    assert_true(pid > 0);
    return pid;
}

/* Runs one; its output is in ended->tail. */
static void run(struct process_ended *ended, const char *script, char *const *environment,
                uint64_t limit_ns)
{
    int err[2];
    assert_int_equal(pipe2(err, O_CLOEXEC), 0);
    pid_t pid = start(script, environment, err[1]);
    close(err[1]);
    process_wait(ended, &pid, 1, limit_ns, err[0]);
}

/* Until nobody holds the write end of a pipe. */
static void all_are_gone(int fd)
{
    struct pollfd p = {.fd = fd};
    char rest[256];
    for (int i = 0; i < 600; i++) {
        while (poll(&p, 1, 0) > 0 && p.revents & POLLIN && read(fd, rest, sizeof rest) > 0)
            ;
        p.events = POLLIN;
        if (poll(&p, 1, 100) > 0 && read(fd, rest, sizeof rest) == 0)
            return;
    }
    fail_msg("a process is left");
}

CASE(status_and_last_words_are_told)
{
    struct process_ended e;
    char *const environment[] = {(char[]){"HOME=here"}, (char[]){"NEW=1"}, NULL};
    run(&e, "echo $HOME $NEW; env | grep -c ^HOME=; exit 5", environment, LONG);
    assert_int_equal(e.status, 5);
    assert_string_equal(e.tail, "here 1\n1\n");
    run(&e, "kill -9 $$", NULL, LONG);
    assert_int_equal(e.status, -1);
    assert_int_equal(e.signal, SIGKILL);
    run(&e, "head -c 100000 /dev/zero | tr '\\0' x; echo end", NULL, LONG);
    assert_int_equal(e.length, PROCESS_TAIL);
    assert_string_equal(e.tail + PROCESS_TAIL - 5, "xend\n");
    char *const words[] = {(char[]){"no such program"}, NULL};
    const struct process_how how = {
        .program = words[0], .words = words, .in = -1, .out = -1, .err = -1, .death = SIGKILL};
    assert_int_equal(WEXITSTATUS(process_end(process_start(&how))), 127);
}

/* Where it listens to SIGTERM and where it does not; what it has started goes with it. */
CASE(its_time_is_bounded_with_all_that_it_started)
{
    static const char *const scripts[] = {"sleep 1000 & sleep 1000",
                                          "trap '' TERM; sleep 1000 & sleep 1000; sleep 1000"};
    for (int i = 0; i < 2; i++) {
        struct process_ended e;
        int alive[2];
        assert_int_equal(pipe2(alive, O_CLOEXEC), 0);
        pid_t pid = start(scripts[i], NULL, alive[1]);
        close(alive[1]);
        process_wait(&e, &pid, 1, 200000000, -1);
        assert_true(e.over);
        assert_int_equal(e.signal, i ? SIGKILL : SIGTERM);
        all_are_gone(alive[0]);
        close(alive[0]);
    }
}

CASE(what_it_leaves_behind_is_ended)
{
    struct process_ended e;
    int alive[2];
    assert_int_equal(pipe2(alive, O_CLOEXEC), 0);
    pid_t pid = start("sleep 1000 & exit 0", NULL, alive[1]);
    close(alive[1]);
    process_wait(&e, &pid, 1, LONG, -1);
    assert_int_equal(e.status, 0);
    all_are_gone(alive[0]);
    close(alive[0]);
}

CASE(the_first_that_fails_ends_the_others)
{
    struct process_ended e;
    pid_t pids[3] = {start("exec sleep 1000", NULL, -1), start("exit 4", NULL, -1),
                     start("exec sleep 1000", NULL, -1)};
    process_wait(&e, pids, 3, LONG, -1);
    assert_true(e.status || e.signal);
    assert_false(e.over);
}

/* Ctrl-C while it waits: they end first, then the signal is the caller's to die by. */
CASE(a_signal_ends_them)
{
    struct process_ended e;
    assert_int_equal(ending_watch(), 0);
    pid_t pid = start("exec sleep 1000", NULL, -1);
    kill(getpid(), SIGINT);
    process_wait(&e, &pid, 1, LONG, -1);
    assert_int_equal(e.stopped, SIGINT);
    assert_int_equal(e.signal, SIGTERM);
    assert_int_equal(kill(pid, 0), -1);
    ending_ignore();
    assert_int_equal(ending_fd(), -1);
}

CASE(they_end_with_who_started_them)
{
    int alive[2];
    assert_int_equal(pipe2(alive, O_CLOEXEC), 0);
    pid_t parent = fork();
    if (!parent) {
        start("exec sleep 1000", NULL, alive[1]);
        raise(SIGKILL);
    }
    close(alive[1]);
    waitpid(parent, NULL, 0);
    all_are_gone(alive[0]);
    close(alive[0]);
}

int main(void)
{
    signal(SIGINT, SIG_DFL); /* a test in the background of a shell ignores it */
    return cmocka_run_group_tests(test_cases, NULL, NULL);
}
