/* After any failure under a run, every process ends within the timeout plus 2 s, with status 3 and
 * one sentence that names the failure and the rank. */
/* ALONE */
#include "tests/helpers/command.h"
#include "tests/helpers/sanitized.h"

#define TIMEOUT 3 /* seconds, of the runs */
#define RUN                                                                                        \
    "run ag_gemm --exec host --nic soft --nodes 2 --gpus 2 --shape 512,64,64 --iters 1000000 "     \
    "--timeout 3"

static struct command_run r;

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* CPU time of a process, in ticks. */
static long ticks(pid_t pid)
{
    char path[64];
    long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user,
                    &kernel) != 2)
        user = 0;
    if (f)
        fclose(f);
    return user + kernel;
}

/* Starts a run and returns when its `world` ranks launch: they have used 0.3 s of CPU each, more
 * than setting up takes. */
static void start_and_wait(const char *line, pid_t *ranks, int world)
{
    command_start(&r, line, NULL);
    for (int i = 0; i < 2400; i++) {
        sleep_ms(50);
        int busy = 0, count = command_children(r.pid, ranks, world);
        for (int j = 0; j < count; j++)
            busy += ticks(ranks[j]) >= 30;
        if (count == world && busy == world)
            return;
    }
    command_finish(&r, 0);
    fail_msg("the ranks did not start: %s%s", r.out_text, r.err_text);
}

static void expect_none_left(const pid_t *ranks, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(kill(ranks[i], 0), -1);
}

static void expect_says(const char *word)
{
    if (!strstr(r.err_text, word))
        fail_msg("\"%s\" lacks \"%s\"", r.err_text, word);
}

static void expect_within(double start, double seconds)
{
    double took = test_seconds() - start;
    if (took > seconds + BUSY)
        fail_msg("it took %.1f s, not %.1f: \"%s\"", took, seconds, r.err_text);
}

CASE(test_rank_killed)
{
    pid_t ranks[4];
    start_and_wait(RUN, ranks, 4);
    double killed = test_seconds();
    kill(ranks[2], SIGKILL);
    command_finish(&r, 60);
    expect_within(killed, TIMEOUT + 2);
    assert_int_equal(r.status, 3);
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("ag_gemm: ");
    expect_says("chunk ");
    expect_says("rank 2 is lost");
    expect_says("rank 2 was killed by signal 9");
    expect_says("3 ranks ended with status 3");
    expect_none_left(ranks, 4);
}

CASE(test_rank_0_killed)
{
    pid_t ranks[4];
    start_and_wait(RUN, ranks, 4);
    double killed = test_seconds();
    kill(ranks[0], SIGKILL);
    command_finish(&r, 60);
    expect_within(killed, TIMEOUT + 2);
    assert_int_equal(r.status, 3);
    expect_says("rank 0 is lost");
    expect_says("3 ranks ended with status 3");
    expect_none_left(ranks, 4);
}

/* A rank that hangs is not lost: its peers wait for its chunk, and name it. */
CASE(test_rank_stopped)
{
    pid_t ranks[4];
    start_and_wait(RUN, ranks, 4);
    double stopped = test_seconds();
    kill(ranks[1], SIGSTOP);
    command_finish(&r, 60);
    expect_within(stopped, TIMEOUT + 2);
    assert_int_equal(r.status, 3);
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("ag_gemm: ");
    /* The first to miss it may be a wait for its chunk, a put to it, or the barrier before the next
     * launch. */
    assert_true(strstr(r.err_text, " waited ") || strstr(r.err_text, "the put did not complete"));
    assert_true(strstr(r.err_text, "rank 1 should have produced it") ||
                strstr(r.err_text, "rank 1 should have handed it on") ||
                strstr(r.err_text, "could not reach rank 1 ") ||
                strstr(r.err_text, "would lack chunk 0 of rank 1's A"));
    expect_says("rank 1 did not end");
    expect_says("3 ranks ended with status 3");
    expect_none_left(ranks, 4);
}

/* No rank is left to notice. */
CASE(test_all_ranks_stopped)
{
    pid_t ranks[4];
    start_and_wait(RUN, ranks, 4);
    double stopped = test_seconds();
    for (int i = 0; i < 4; i++)
        kill(ranks[i], SIGSTOP);
    command_finish(&r, 60);
    expect_within(stopped, TIMEOUT + 2);
    assert_int_equal(r.status, 3);
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("no rank got anything done for ");
    expect_says("all 4 were killed (4 of them stopped)");
    expect_none_left(ranks, 4);
}

/* All is computed and told; the last rank only has to leave. */
CASE(test_rank_stopped_after_the_table)
{
    command_start(&r,
                  "run ag_gemm --exec host --gpus 2 --shape 512,64,64 --warmup 1 --iters 2 --check "
                  "--timeout 3",
                  "MKERNEL_TEST_STOP=1,5", NULL);
    command_finish(&r, 60);
    if (r.seconds > TIMEOUT + 2 + BUSY)
        fail_msg("it took %.1f s", r.seconds);
    assert_int_equal(r.status, 3);
    assert_non_null(strstr(r.out_text, "verdict   right"));
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("2 launches on 2 ranks done, all right; but rank 1 did not end within ");
    expect_says("(it was stopped)");
}

/* OpenBLAS asks for its memory again and again, inside a tile, on every rank. */
CASE(test_no_memory_in_a_tile)
{
    char path[4096], script[8192];
    if (SLOWDOWN > 1) {
        print_message("skipped: a sanitizer takes more memory than there is to be\n");
        skip();
    }
    command_path(path, sizeof path);
    snprintf(script, sizeof script,
             "ulimit -v 300000; exec %s run ag_gemm --exec host --gpus 2 --shape 512,256,256 "
             "--iters 3 --timeout 3",
             path);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", script, NULL});
    command_finish(&r, 60);
    if (r.seconds > TIMEOUT + 2 + BUSY)
        fail_msg("it took %.1f s", r.seconds);
    if (r.status) /* elsewhere this may be memory enough */
        assert_int_equal(command_lines(r.err_text), 1);
}

/* A wait for a value that several ranks make names no rank. The rank that hangs is named all the
 * same. */
CASE(test_rank_stopped_in_moe)
{
    pid_t ranks[4];
    start_and_wait("run moe_ffn --exec host --gpus 4 --iters 1000000 --timeout 3", ranks, 4);
    kill(ranks[2], SIGSTOP);
    command_finish(&r, 60);
    assert_int_equal(r.status, 3);
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("moe_ffn: ");
    if (!strstr(r.err_text, "rank 2 should have produced it") &&
        !strstr(r.err_text, "rank 2 has not said what it waits for") &&
        !strstr(r.err_text, "would lack chunk 0 of rank 2's tokens"))
        fail_msg("it does not name rank 2: %s", r.err_text);
    expect_none_left(ranks, 4);
}

CASE(test_interrupt)
{
    const int signals[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        pid_t ranks[4];
        start_and_wait(RUN, ranks, 4);
        double start = test_seconds();
        kill(r.pid, signals[i]);
        command_finish(&r, 60);
        assert_true(test_seconds() - start < 2 * BUSY);
        assert_int_equal(r.signal, signals[i]);
        assert_int_equal(command_lines(r.err_text), 1);
        expect_says("interrupted by signal");
        expect_none_left(ranks, 4);
    }
}

/* Ctrl-C goes to the whole group of the terminal. A shell goes on with its loop unless it sees what
 * ended the command. */
CASE(test_interrupt_ends_a_loop)
{
    static const char *const commands[] = {"run ag_gemm", "bench ag_gemm", "tune ag_gemm --verify"};
    if (access("/bin/bash", X_OK)) {
        print_message("skipped: no bash\n");
        skip();
    }
    for (int i = 0; i < 3; i++) {
        char path[4096], script[8192];
        pid_t ranks[2];
        int count = 0;
        command_path(path, sizeof path);
        snprintf(script, sizeof script,
                 "for i in 1 2 3; do echo turn $i; %s %s --exec host --gpus 2 --shape 512,64,64 "
                 "--iters 1000000; done",
                 path, commands[i]);
        command_start_program(&r, "/usr/bin/setsid",
                              (char *[]){"setsid", "bash", "-c", script, NULL});
        for (int j = 0; j < 600 && count < 2; j++) {
            pid_t parent;
            sleep_ms(50);
            count = command_children(r.pid, &parent, 1) ? command_children(parent, ranks, 2) : 0;
        }
        assert_int_equal(count, 2);
        kill(-r.pid, SIGINT);
        command_finish(&r, 60);
        if (!strstr(r.out_text, "turn 1") || strstr(r.out_text, "turn 2"))
            fail_msg("%s: the loop went on after \"%s\"", commands[i], r.err_text);
        assert_int_equal(r.signal, SIGINT);
    }
}

CASE(test_parent_killed)
{
    pid_t ranks[4];
    start_and_wait(RUN, ranks, 4);
    kill(r.pid, SIGKILL);
    command_finish(&r, 60);
    for (int i = 0; i < 40 && !kill(ranks[0], 0); i++)
        sleep_ms(50);
    /* reaped by another process, perhaps not yet: a zombie uses no CPU */
    for (int i = 0; i < 4; i++)
        if (!kill(ranks[i], 0)) {
            long before = ticks(ranks[i]);
            sleep_ms(200);
            assert_true(ticks(ranks[i]) == before || kill(ranks[i], 0));
        }
}

CASE(test_failed_work_request)
{
    command_start(&r, RUN, "SOFTNIC=fail-wr=REM_ACCESS_ERR@20", NULL);
    command_finish(&r, 60);
    assert_true(r.seconds <= TIMEOUT + 2 + BUSY);
    assert_int_equal(r.status, 3);
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("ag_gemm: ");
    expect_says("could not reach rank ");
    expect_says("remote access error");
}

/* Runs a shell line in a mount namespace of its own, $MKERNEL being the command. Skips where that
 * is not allowed. */
static void run_in_mounts(const char *script)
{
    char path[4096], whole[8192];
    command_path(path, sizeof path);
    if (system("unshare -rm true >/dev/null 2>&1")) {
        print_message("skipped: no mount namespaces here (unshare -rm)\n");
        skip();
    }
    snprintf(whole, sizeof whole, "MKERNEL=%s; %s", path, script);
    command_start_program(&r, "/usr/bin/unshare",
                          (char *[]){"unshare", "-rm", "sh", "-c", whole, NULL});
    command_finish(&r, 60);
}

#define SHORT "run ag_gemm --exec host --nic soft --nodes 2 --gpus 2 --shape 512,64,64 --check"

CASE(test_full_disk)
{
    run_in_mounts("d=$(mktemp -d) && mount -t tmpfs -o size=16k tmpfs $d && $MKERNEL " SHORT
                  " --trace $d/t.db; s=$?; "
                  "ls -A $d | grep . && echo LEFTOVERS; umount $d; rmdir $d; exit $s");
    /* what follows in a shell line (&& mkernel trace summary) would show another run's */
    assert_int_equal(r.status, 3);
    assert_non_null(strstr(r.out_text, "verdict   right"));
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("all right; but the trace is lost: ");
    expect_says("No space left on device");
    assert_null(strstr(r.out_text, "LEFTOVERS"));

    run_in_mounts("d=$(mktemp -d) && mount -t tmpfs -o size=16k tmpfs $d && $MKERNEL sim ag_gemm "
                  "--shape 512,64,64 --launches 1 "
                  "--trace $d/t.db; s=$?; "
                  "ls -A $d | grep . && echo LEFTOVERS; umount $d; rmdir $d; exit $s");
    assert_int_equal(r.status, 3);
    assert_non_null(strstr(r.out_text, "a launch, mean of 1"));
    assert_non_null(strstr(r.out_text, "trace     LOST: "));
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("1 launch on 4 ranks done; but the trace is lost: ");
    assert_null(strstr(r.out_text, "LEFTOVERS"));
}

CASE(test_full_disk_under_the_table)
{
    char path[4096], script[8192];
    command_path(path, sizeof path);
    snprintf(script, sizeof script, "%s " SHORT " > /dev/full", path);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", script, NULL});
    command_finish(&r, 60);
    assert_int_equal(r.status, 3);
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("all right; but the table could not be written: No space left on device");
}

/* A folder that cannot be written is no place to start a run in whose results go there; any other
 * run does not mind. */
CASE(test_read_only_folder)
{
    run_in_mounts("d=$(mktemp -d) && mount -t tmpfs -o ro tmpfs $d && cd $d && $MKERNEL " SHORT
                  "; s=$?; cd /; umount $d; "
                  "rmdir $d; exit $s");
    assert_int_equal(r.status, 0);
    run_in_mounts("d=$(mktemp -d) && mount -t tmpfs -o ro tmpfs $d && cd $d && $MKERNEL " SHORT
                  " --trace t.db; s=$?; cd /; "
                  "umount $d; rmdir $d; exit $s");
    assert_int_equal(r.status, 2);
    assert_int_equal(command_lines(r.err_text), 1);
    expect_says("--trace t.db cannot be written: Read-only file system");
}
