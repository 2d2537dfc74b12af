/* Whatever fails under an operator's run over real processes ends in time, in no wrong result that
 * is called right, and in a sentence that names the operator, who misses what and from whom; what
 * is only slow or late ends right. */
/* ALONE */
#include "tests/helpers/launch.h"
#include "tests/helpers/sanitized.h"

#define TIMEOUT 5 /* seconds, of the runs */
#define FORM "--exec host --nic soft --nodes 2 --gpus 2 --warmup 0 --check --timeout 5"
#define WORLD 4

/* One line each. */
static const struct {
    const char *name, *shape;
    const char *owes[6]; /* what a rank may lack */
} ops[] = {
    {"ag_gemm", "--shape 264,40,72", {"'s A in epoch"}},
    {"gemm_rs", "--shape 264,40,72", {"'s sum of chunk", "'s part of chunk"}},
    {"gemm_ar",
     "--shape 264,40,72",
     {"'s sum of chunk", "'s part of chunk", "the whole sum of chunk"}},
    {"ring_attention", "--attention 1,64,4,2,64", {"'s K in epoch", "'s V in epoch"}},
    {"moe_dispatch_gemm",
     "--moe 64,128,40,8,2",
     {"tokens' experts", "'s tokens in epoch", "the tokens of its experts",
      "its tables of where tokens go"}},
    {"moe_ffn",
     "--moe 64,128,40,8,2",
     {"tokens' experts", "tokens in epoch", "of the tokens of its experts",
      "its tables of where tokens go", "of its activation", "of its results"}},
};
#define OPS (sizeof ops / sizeof *ops)

/* One line each. */
static const struct {
    const char *name, *device;
} fabrics[] = {{"verbs", "soft"}, {"efa", "softefa"}};
#define FABRICS (sizeof fabrics / sizeof *fabrics)

/* All operators of a test run at once: they mostly wait. */
static struct command_run runs[OPS];
static struct launch jobs[OPS];

static const char *line_of(size_t op, size_t fabric, int launches, const char *more)
{
    static char line[512];
    snprintf(line, sizeof line, "run %s " FORM " --fabric %s --iters %d %s %s", ops[op].name,
             fabrics[fabric].name, launches, ops[op].shape, more);
    return line;
}

static void expect_says(const struct command_run *r, const char *what, const char *word)
{
    if (!strstr(r->err_text, word))
        fail_msg("%s: \"%s\" lacks \"%s\"", what, r->err_text, word);
}

/* Ended with status 3, in time, nothing called right; says which op, and one of what its ranks owe
 * each other, or, where it happened between launches, would have owed. */
static void expect_failure(size_t op, const char *what)
{
    const struct command_run *r = &runs[op];
    int owed = 0;
    if (r->status != 3 || strstr(r->out_text, "right") || command_lines(r->err_text) != 1 ||
        r->seconds > 2 * TIMEOUT + BUSY)
        fail_msg("%s of %s: status %d after %.1f s, \"%s\", \"%s\"", what, ops[op].name, r->status,
                 r->seconds, r->out_text, r->err_text);
    expect_says(r, what, ops[op].name);
    for (int i = 0; i < 6; i++)
        owed |= ops[op].owes[i] && strstr(r->err_text, ops[op].owes[i]);
    owed |= strstr(r->err_text, "the next launch of ") && strstr(r->err_text, " would lack ");
    if (!owed)
        fail_msg("%s of %s: \"%s\" does not say what is missing", what, ops[op].name, r->err_text);
}

/* Every operator with that entry in its environment. */
static void run_all(size_t fabric, int launches, const char *more, const char *own)
{
    for (size_t op = 0; op < OPS; op++)
        command_start(&runs[op], line_of(op, fabric, launches, more), own, NULL);
    for (size_t op = 0; op < OPS; op++)
        command_finish(&runs[op], 60);
}

/* ---- the network ---- */

/* Local rank 1 of both nodes uses device 1: they no longer reach each other. */
CASE(test_lost_peer)
{
    static const int after[] = {0, 60};
    for (size_t fabric = 0; fabric < FABRICS; fabric++)
        for (int i = 0; i < 2; i++) {
            char own[64];
            snprintf(own, sizeof own, "SOFTNIC=drop-peer=%s1@%d", fabrics[fabric].device, after[i]);
            run_all(fabric, 200, "", own);
            for (size_t op = 0; op < OPS; op++) {
                expect_failure(op, own);
                if (!strstr(runs[op].err_text, "rank 1") && !strstr(runs[op].err_text, "rank 3"))
                    fail_msg("%s: \"%s\" names neither rank 1 nor rank 3", own, runs[op].err_text);
            }
        }
}

CASE(test_failed_request)
{
    static const struct {
        const char *own, *says;
    } failures[] = {{"SOFTNIC=fail-wr=REM_ACCESS_ERR@1", "remote access error"},
                    {"SOFTNIC=fail-wr=REM_OP_ERR@31", "remote operation error"}};
    for (size_t fabric = 0; fabric < FABRICS; fabric++)
        for (int i = 0; i < 2; i++) {
            run_all(fabric, 200, "", failures[i].own);
            for (size_t op = 0; op < OPS; op++) {
                expect_failure(op, failures[i].own);
                expect_says(&runs[op], failures[i].own, "'s proxy could not reach rank ");
                expect_says(&runs[op], failures[i].own, failures[i].says);
            }
        }
}

/* ---- a rank ---- */

/* Dies before its first launch, in the middle of a burst, between two launches, after the last
 * one. */
CASE(test_rank_dies)
{
    static const struct {
        int before;
        const char *more;
    } deaths[] = {{1, ""}, {3, ""}, {4, "--burst 1"}, {7, ""}};
    for (int each = 0; each < 4 * (int)FABRICS; each++) {
        int i = each / (int)FABRICS;
        char own[64];
        snprintf(own, sizeof own, "MKERNEL_TEST_DIE=2,%d", deaths[i].before);
        run_all((size_t)each % FABRICS, 6, deaths[i].more, own);
        for (size_t op = 0; op < OPS; op++) {
            if (deaths[i].before <= 6) {
                expect_failure(op, own);
                expect_says(&runs[op], own, "rank 2 is lost");
            }
            assert_int_equal(runs[op].status, 3);
            assert_null(strstr(runs[op].out_text, "right"));
            expect_says(&runs[op], own, "rank 2 was killed by signal 9");
            expect_says(&runs[op], own, "3 ranks ended with status 3");
        }
    }
}

static void finish_right(struct launch *job, const char *what)
{
    for (int rank = 0; rank < WORLD; rank++) {
        command_finish(&job->ranks[rank], 60);
        if (job->ranks[rank].status)
            fail_msg("%s: rank %d ends with %d, signal %d: \"%s\"", what, rank,
                     job->ranks[rank].status, job->ranks[rank].signal, job->ranks[rank].err_text);
    }
    assert_non_null(strstr(job->ranks[0].out_text, "verdict   right"));
}

/* One NIC has a hundredth of the others' bandwidth. Each of these runs sends at least 15 KB over
 * it. */
CASE(test_slow_nic)
{
    for (size_t fabric = 0; fabric < FABRICS; fabric++) {
        for (size_t op = 0; op < OPS; op++) {
            launch_open(&jobs[op], WORLD);
            for (int rank = 0; rank < WORLD; rank++)
                launch_rank(&jobs[op], rank, line_of(op, fabric, 3, ""),
                            rank == 1 ? "SOFTNIC=bw=100KB/s" : "SOFTNIC=bw=10MB/s");
        }
        for (size_t op = 0; op < OPS; op++) {
            finish_right(&jobs[op], ops[op].name);
            assert_true(jobs[op].ranks[0].seconds > 0.14);
        }
    }
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void late_rank(size_t fabric)
{
    for (int late = 0; late < 2; late++) {
        sleep_ms(late ? 700 : 0);
        for (size_t op = 0; op < OPS; op++) {
            if (!late)
                launch_open(&jobs[op], WORLD);
            for (int rank = late ? WORLD - 1 : 0; rank < (late ? WORLD : WORLD - 1); rank++)
                launch_rank(&jobs[op], rank, line_of(op, fabric, 3, ""), NULL);
        }
    }
    for (size_t op = 0; op < OPS; op++) {
        finish_right(&jobs[op], ops[op].name);
        assert_true(jobs[op].ranks[0].seconds > 0.7);
    }
}

CASE(test_late_rank)
{
    for (size_t fabric = 0; fabric < FABRICS; fabric++)
        late_rank(fabric);
}

/* A rank that stands still for a while, but less than the timeout, in the middle of its
 * launches. */
static void rank_that_pauses(size_t fabric)
{
    for (size_t op = 0; op < OPS; op++) {
        launch_open(&jobs[op], WORLD);
        for (int rank = 0; rank < WORLD; rank++)
            launch_rank(&jobs[op], rank, line_of(op, fabric, 100, ""), NULL);
    }
    sleep_ms(150);
    for (size_t op = 0; op < OPS; op++)
        kill(jobs[op].ranks[2].pid, SIGSTOP);
    sleep_ms(500);
    for (size_t op = 0; op < OPS; op++)
        kill(jobs[op].ranks[2].pid, SIGCONT);
    for (size_t op = 0; op < OPS; op++) {
        finish_right(&jobs[op], ops[op].name);
        assert_true(jobs[op].ranks[0].seconds > 0.5);
    }
}

CASE(test_rank_that_pauses)
{
    for (size_t fabric = 0; fabric < FABRICS; fabric++)
        rank_that_pauses(fabric);
}

/* One that never comes is named, and those that came end. */
CASE(test_rank_missing)
{
    struct launch *job = &jobs[0];
    launch_open(job, WORLD);
    for (int rank = 0; rank < WORLD; rank++)
        if (rank != 2)
            launch_rank(job, rank, line_of(0, 0, 3, ""), NULL);
    for (int rank = 0; rank < WORLD; rank++) {
        if (rank == 2)
            continue;
        command_finish(&job->ranks[rank], 60);
        assert_int_equal(job->ranks[rank].status, 3);
        assert_true(job->ranks[rank].seconds < 2 * TIMEOUT + BUSY);
        if (rank == 0)
            expect_says(&job->ranks[0], "a missing rank", "rank 2");
    }
}
