/* A command that takes long says on stderr how far it is: on a terminal soon and in one line, in a
 * log now and then, and never where it is told not to. */
#include "experiments/common/progress.h"
#include "tests/helpers/command.h"

#define SECOND 1000000000ull

static char text[256];

static const char *line(const struct progress *p, uint64_t done, uint64_t all, uint64_t now)
{
    return progress_line(p, "mkernel sim ag_gemm", "4 launches", done, all, now, text, sizeof text);
}

CASE(test_terminal)
{
    struct progress p;
    progress_begin(&p, 1, NULL, 7 * SECOND);
    /* a command that is over soon says nothing */
    assert_false(progress_due(&p, 7 * SECOND + SECOND / 4));
    assert_true(progress_due(&p, 7 * SECOND + SECOND / 2));
    assert_false(progress_due(&p, 7 * SECOND + SECOND / 2 + SECOND / 10));
    assert_true(progress_due(&p, 8 * SECOND));
    assert_string_equal(line(&p, 1, 4, 10 * SECOND),
                        "\r\033[Kmkernel sim ag_gemm: 4 launches, 25 %, 3 s");
}

CASE(test_log)
{
    struct progress p;
    int lines = 0;
    progress_begin(&p, 0, NULL, SECOND);
    assert_false(progress_due(&p, 30 * SECOND));
    for (uint64_t now = SECOND; now <= 601 * SECOND; now += SECOND / 10)
        lines += progress_due(&p, now);
    assert_int_equal(lines, 10);
    assert_string_equal(line(&p, 0, 0, 601 * SECOND), "mkernel sim ag_gemm: 4 launches, 600 s\n");
    assert_string_equal(line(&p, 5, 4, 601 * SECOND),
                        "mkernel sim ag_gemm: 4 launches, 100 %, 600 s\n");
}

CASE(test_setting)
{
    struct progress p;
    progress_begin(&p, 1, "off", 0);
    assert_false(progress_due(&p, 1000 * SECOND));
    progress_begin(&p, 1, "5", 0); /* whole lines, on a terminal too */
    assert_false(progress_due(&p, 4 * SECOND));
    assert_true(progress_due(&p, 5 * SECOND));
    assert_string_equal(line(&p, 0, 0, 5 * SECOND), "mkernel sim ag_gemm: 4 launches, 5 s\n");
}

static struct command_run r;

/* Until the line is there: how long anything takes here, nobody knows. */
static void expect_line(const char *command, const char *says)
{
    command_start(&r, command, "MKERNEL_PROGRESS=1", NULL);
    for (int i = 0; i < 600 && r.err >= 0 && !strstr(r.err_text, says); i++) {
        struct pollfd p = {.fd = r.err, .events = POLLIN};
        if (poll(&p, 1, 100) == 1)
            command_drain(&r.err, r.err_text, &r.err_used, sizeof r.err_text);
    }
    if (!strstr(r.err_text, says))
        fail_msg("mkernel %s: \"%s\" lacks \"%s\"", command, r.err_text, says);
    kill(r.pid, SIGTERM);
    command_finish(&r, 30);
    assert_int_equal(r.out_used, 0); /* standard output is for results */
}

CASE(test_commands)
{
    expect_line("sim ag_gemm --shape 2048,512,512 --launches 1000000",
                "mkernel sim ag_gemm: 1000000 launches on 4 ranks, 0 %, ");
    expect_line("sim ag_gemm --explore --runs 1000000", " of 1000000, ");
    expect_line("run ag_gemm --exec host --gpus 2 --shape 512,64,64 --iters 1000000",
                " of 1000001 ");
    expect_line("tune ag_gemm --verify --exec host --gpus 2 --shape 512,64,64 --iters 1000000 "
                "--tuning none",
                "mkernel tune ag_gemm: 512,64,64, round 1, ");
}

CASE(test_quiet)
{
    command_start(&r, "sim ag_gemm --json /dev/null", "MKERNEL_PROGRESS=off", NULL);
    command_finish(&r, 60);
    assert_int_equal(r.status, 0);
    assert_int_equal(r.err_used, 0);
}
