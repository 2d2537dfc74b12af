/* The command ring's, the flags' and the efa fabric's protocol holds in every interleaving of its
 * models (tests/spin), and each broken variant of it has one in which it fails. docs/MODEL.md says
 * what the models leave out. */
#include <unistd.h>

#include "tests/helpers/test.h"
#include "tests/helpers/shell.h"

#define ASSERTION "assertion violated"
#define DEADLOCK "invalid end state"

static int can_run(void)
{
    char out[64];
    if (shell("command -v spin >/dev/null 2>&1", out, sizeof out)) {
        print_message("skipped: no spin\n");
        return 0;
    }
    if (shell("command -v ${CC:-cc} >/dev/null 2>&1", out, sizeof out)) {
        print_message("skipped: no C compiler\n");
        return 0;
    }
    if (access("tests/spin/ring.pml", R_OK)) {
        print_message("skipped: this test reads tests/spin; run it in the repository's root\n");
        return 0;
    }
    return 1;
}

/* Searches one model, at most 1 GB and two minutes, in a directory that is gone afterwards. What
 * spin, the compiler and the search say is in out. Returns the last one's exit status, which pan
 * leaves at 0 where it finds errors. */
static int search(const char *model, const char *defines, const char *optimize, char *out,
                  size_t size)
{
    char directory[] = "/tmp/spin-XXXXXX", command[1024], ignored[16];
    assert_non_null(mkdtemp(directory));
    snprintf(command, sizeof command,
             "exec 2>&1; model=$PWD/tests/spin/%s.pml; cd %s && spin -a %s $model && "
             "${CC:-cc} %s -w -DSAFETY -DMEMLIM=1024 -o pan pan.c && timeout 120 ./pan -m100000",
             model, directory, defines, optimize);
    int status = shell(command, out, size);
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(shell(command, ignored, sizeof ignored), 0);
    return status;
}

static void expect_verified(const char *model, const char *defines)
{
    static char out[65536];
    int status = search(model, defines, "-O2", out, sizeof out);
    const char *stored = strstr(out, " states, stored");
    while (stored && stored > out && stored[-1] != '\n')
        stored--;
    long states = stored ? atol(stored) : 0;
    print_message("%-5s %-16s %8ld states\n", model, defines, states);
    if (status || !strstr(out, "errors: 0") || strstr(out, "Search not completed") ||
        strstr(out, "too small")) {
        print_message("%s", out);
        fail_msg("not verified; docs/MODEL.md says how to see the steps: model %s, flags '%s'",
                 model, defines);
    }
    /* Both kinds of error were looked for, and not along one line of steps only. */
    assert_non_null(strstr(out, "assertion violations	+"));
    assert_non_null(strstr(out, "invalid end states	+"));
    assert_true(states > 1000);
}

static void expect_error(const char *model, const char *defines, const char *error)
{
    static char out[65536];
    int status = search(model, defines, "-O0", out, sizeof out);
    if (status || !strstr(out, "errors: 1") || !strstr(out, error)) {
        print_message("%s", out);
        fail_msg("model %s, flags '%s': no %s", model, defines, error);
    }
}

CASE(test_ring)
{
    if (!can_run())
        skip();
    expect_verified("ring", "");
}

CASE(test_ring_mutants)
{
    const char *const mutants[] = {
        "LO_BEFORE_HI",   "HI_READ_FIRST", "PARITY_STUCK",          "SEEN_IGNORED",
        "SEEN_TOO_EARLY", "NO_FENCE",      "COMPLETED_WHEN_POSTED", "COMPLETED_OUT_OF_ORDER",
        "WINDOW_IGNORED", "NO_DRAIN",
    };
    char define[64];
    if (!can_run())
        skip();
    for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        snprintf(define, sizeof define, "-D%s", mutants[i]);
        expect_error("ring", define, ASSERTION);
    }
}

CASE(test_flags)
{
    if (!can_run())
        skip();
    expect_verified("flags", "");
    expect_verified("flags", "-DIN_HEAP");
    /* Over RC, where puts leave from the gathered copy, the two buffers protect it even without a
     * drain. */
    expect_verified("flags", "-DNO_DRAIN");
    expect_verified("flags", "-DTURNS -DEPOCHS=3");
}

CASE(test_flags_mutants)
{
    if (!can_run())
        skip();
    expect_error("flags", "-DFLAG_BEFORE_DATA", ASSERTION);
    expect_error("flags", "-DPUT_FLAG_BEFORE_DATA", ASSERTION);
    expect_error("flags", "-DPUT_BEFORE_STAGING", ASSERTION);
    expect_error("flags", "-DCOMPUTE_DOES_NOT_WAIT", ASSERTION);
    expect_error("flags", "-DFORWARDER_DOES_NOT_WAIT", ASSERTION);
    expect_error("flags", "-DFORWARD_NOT_SENT", DEADLOCK);
    expect_error("flags", "-DONE_BUFFER", ASSERTION);
    expect_error("flags", "-DEPOCH_REUSED", ASSERTION);
    expect_error("flags", "-DTURNS -DNO_DRAIN", DEADLOCK); /* the flag goes back */
    expect_error("flags", "-DIN_HEAP -DNO_DRAIN", ASSERTION);
}

CASE(test_flags_srd)
{
    if (!can_run())
        skip();
    expect_verified("flags", "-DSRD");
}

CASE(test_flags_srd_mutants)
{
    if (!can_run())
        skip();
    expect_error("flags", "-DSRD -DFIRST_PART_PUBLISHES", ASSERTION);
    expect_error("flags", "-DSRD -DNO_DRAIN", ASSERTION);
}

CASE(test_moe)
{
    if (!can_run())
        skip();
    expect_verified("moe", "");
    expect_verified("moe", "-DRETURNS");
    expect_verified("moe", "-DHALVES");
}

CASE(test_moe_mutants)
{
    if (!can_run())
        skip();
    expect_error("moe", "-DNO_DRAIN", ASSERTION);
    expect_error("moe", "-DONE_IDS_BUFFER", ASSERTION);
    expect_error("moe", "-DMOVES_BEFORE_IDS", ASSERTION);
    expect_error("moe", "-DROUTES_WITHOUT_ONE", ASSERTION);
    expect_error("moe", "-DROWS_NOT_AWAITED", ASSERTION);
    expect_error("moe", "-DONE_ROW_TOO_FEW", ASSERTION);
    expect_error("moe", "-DHALVES -DNO_DRAIN", ASSERTION);
    expect_error("moe", "-DHALVES -DONE_ROW_BUFFER", ASSERTION);
    expect_error("moe", "-DHALVES -DROUTES_WITHOUT_ONE", ASSERTION);
    expect_error("moe", "-DRETURNS -DMOVES_BEFORE_IDS", ASSERTION);
    expect_error("moe", "-DRETURNS -DSUMS_NOT_AWAITED", ASSERTION);
    expect_error("moe", "-DRETURNS -DEPOCH_REUSED", ASSERTION);
    expect_error("moe", "-DRETURNS -DSUM_NOT_SENT", DEADLOCK);
}

CASE(test_srd)
{
    if (!can_run())
        skip();
    expect_verified("srd", "");
}

CASE(test_srd_mutants)
{
    if (!can_run())
        skip();
    expect_error("srd", "-DHEAD_PUBLISHES", ASSERTION);
    expect_error("srd", "-DNUMBER_IGNORED", ASSERTION);
    expect_error("srd", "-DNO_HOLD_BACK", ASSERTION);
    expect_error("srd", "-DWINDOW_IGNORED", ASSERTION);
    expect_error("srd", "-DGAPS_TOLD", DEADLOCK);
    expect_error("srd", "-DONE_ACK_COMPLETES", ASSERTION);
    expect_error("srd", "-DGROWTH_IGNORED", DEADLOCK);
    expect_error("srd", "-DNEVER_TOLD", DEADLOCK);
    expect_error("srd", "-DCREDIT_TOO_LATE", DEADLOCK);
}
