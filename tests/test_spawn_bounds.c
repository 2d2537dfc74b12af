/* A parent ends what does not end by itself, in the time that experiments/common/spawn.h says, and
 * leaves alone what is slow but gets on. The ranks are this program again. */
/* WAITS */
#define OWN_MAIN
#include "experiments/common/spawn.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/helpers/test.h"
#include "tests/helpers/sanitized.h"

#define TIMEOUT_NS 1000000000ull
#define WORLD 3u

static struct spawn_end ends[WORLD];
static struct spawn_how how;

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static _Noreturn void hang(void)
{
    for (;;)
        pause();
}

static _Noreturn void be_rank(const struct spawn_identity *me, const char *what)
{
    int last = me->rank == me->world - 1;
    if (!strcmp(what, "silent"))
        hang();
    if (!strcmp(what, "stopped"))
        raise(SIGSTOP);
    /* three times as long as a silence may be, and one rank alone is seen to go on */
    if (!strcmp(what, "slow"))
        for (int i = 0; i < 90; i++, sleep_ms(100))
            if (last)
                spawn_beat();
    if (!strcmp(what, "allowed")) {
        spawn_allow(60000000000ull);
        sleep_ms(5000);
    }
    if (!strcmp(what, "one stays") && last)
        hang();
    if (!strcmp(what, "one stays, busy"))
        while (last) {
            spawn_beat();
            sleep_ms(100);
        }
    if (!strncmp(what, "failed", 6)) {
        spawn_stage(SPAWN_RUNS);
        if (last && !strcmp(what, "failed, stopped"))
            raise(SIGSTOP);
        if (last && !strcmp(what, "failed, deaf"))
            hang();
        if (!strcmp(what, "failed, says so") || !last) {
            spawn_stage(SPAWN_FAILED);
            sleep_ms(last ? 2500 : 200); /* longer than who is deaf may */
            spawn_report(me, 3, "it failed");
            if (last)
                hang(); /* in closing */
            exit(3);
        }
    }
    spawn_report(me, 0, "done");
    exit(0);
}

/* Runs ranks of a kind; how long it took. */
static double run(const char *what)
{
    char *argv[] = {(char *)"test_spawn_bounds", (char *)what, NULL};
    double start = test_seconds();
    assert_int_equal(spawn_ranks(argv, WORLD, TIMEOUT_NS, ends, &how), 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nobody is left */
    return test_seconds() - start;
}

static void expect_last(enum spawn_overdue overdue, double least, double most)
{
    const struct spawn_end *e = &ends[WORLD - 1];
    assert_int_equal(e->overdue, overdue);
    assert_int_equal(e->signal, SIGKILL);
    if ((double)e->overdue_ns / 1e9 < least || (double)e->overdue_ns / 1e9 > most + BUSY)
        fail_msg("it was ended after %.2f s, not %.1f to %.1f", (double)e->overdue_ns / 1e9, least,
                 most);
}

CASE(test_nobody_gets_on)
{
    run("silent");
    assert_true(how.idle_ns >= 2900000000ull && (double)how.idle_ns <= (4 + BUSY) * 1e9);
    for (uint32_t i = 0; i < WORLD; i++)
        assert_int_equal(ends[i].overdue, SPAWN_OVERDUE);
}

CASE(test_all_stopped)
{
    run("stopped");
    assert_true(how.idle_ns >= 2900000000ull && (double)how.idle_ns <= (4 + BUSY) * 1e9);
    for (uint32_t i = 0; i < WORLD; i++)
        assert_int_equal(ends[i].overdue, SPAWN_STOPPED);
}

CASE(test_slow_is_not_ended)
{
    assert_true(run("slow") >= 9);
    for (uint32_t i = 0; i < WORLD; i++)
        assert_true(ends[i].status == 0 && !ends[i].signal && ends[i].reported);
    assert_int_equal(how.idle_ns, 0);
}

CASE(test_allowed_silence)
{
    run("allowed");
    for (uint32_t i = 0; i < WORLD; i++)
        assert_true(ends[i].status == 0 && !ends[i].signal);
}

/* After the first that ended well, with whatever status, the others have the timeout and 2 s, even
 * where they get on. */
CASE(test_one_stays)
{
    run("one stays, busy");
    assert_int_equal(ends[0].signal, 0);
    expect_last(SPAWN_OVERDUE, 3, 4.2);
    assert_int_equal(how.idle_ns, 0);
    run("one stays");
    assert_int_equal(ends[0].signal, 0);
    assert_int_equal(ends[WORLD - 1].signal, SIGKILL);
}

CASE(test_failed)
{
    run("failed, stopped");
    expect_last(SPAWN_STOPPED, 1.5, 2.5);
    assert_true(ends[0].status == 3 && ends[0].reported_status == 3);
    run("failed, deaf");
    expect_last(SPAWN_OVERDUE, 1.5, 2.5);
}

/* Who knows of the failure has time to say so, and what it says counts. */
CASE(test_failed_and_hangs)
{
    run("failed, says so");
    const struct spawn_end *e = &ends[WORLD - 1];
    expect_last(SPAWN_OVERDUE, 1.9, 4.5);
    assert_true(e->reported && e->reported_status == 3);
    assert_string_equal(e->sentence, "it failed");
}

CASE(test_interrupt)
{
    pid_t pid = fork();
    if (!pid) {
        signal(SIGHUP, SIG_IGN); /* as under nohup */
        signal(SIGINT, SIG_DFL);
        char *argv[] = {(char *)"test_spawn_bounds", (char *)"allowed", NULL};
        pid_t other = fork();
        if (!other) {
            sleep_ms(500);
            kill(getppid(), SIGHUP);
            sleep_ms(500);
            kill(getppid(), SIGINT);
            _exit(0);
        }
        int result = spawn_ranks(argv, WORLD, TIMEOUT_NS, ends, &how);
        _exit(result ? 1 : how.interrupted != SIGINT ? 2 : !ends[0].signal ? 3 : 0);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    struct spawn_identity me;
    if (spawn_identity(&me))
        be_rank(&me, argv[1]);
    return cmocka_run_group_tests(test_cases, NULL, NULL);
}
