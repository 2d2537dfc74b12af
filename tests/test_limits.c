/* Where the shell allows a process too little (ulimit), a run ends in time with a sentence that
 * says what is short, and not by somebody's patience. */
#include "tests/helpers/command.h"
#include "tests/helpers/sanitized.h"

static struct command_run r;

static void run_with(const char *limit, int value, const char *options)
{
    static char mkernel[4096], script[8192];
    command_path(mkernel, sizeof mkernel);
    snprintf(
        script, sizeof script,
        "ulimit %s %d; exec %s run ag_gemm --exec host --nodes 2 --gpus 2 --nic soft --timeout 5 "
        "--shape 256,64,64 --iters 3 --check %s",
        limit, value, mkernel, options);
    command_start_program(&r, "/bin/sh", (char *[]){"sh", "-c", script, NULL});
    command_finish(&r, 60);
}

/* Every number from too few to enough, so that the shortage comes at each place where a descriptor
 * is made. */
CASE(few_descriptors)
{
    static const char *const fabrics[] = {"", "--fabric efa"};
    int enough = 0, shortages = 0;
    for (int i = 0; i < 2; i++)
        for (int n = 12; n <= 24; n++) {
            run_with("-n", n, fabrics[i]);
            int named = strstr(r.err_text, "oo many open files") != NULL;
            if (r.status == 0 ? !strstr(r.err_text, "all right") : r.status != 3 || !named)
                fail_msg("ulimit -n %d %s: status %d after %.1f s: %s", n, fabrics[i], r.status,
                         r.seconds, r.err_text);
            assert_true(r.status == 0 || command_lines(r.err_text) == 1);
            enough += r.status == 0;
            shortages += named;
        }
    assert_true(enough && shortages);
}

/* OpenBLAS asks for its buffer again and again where there is no room for it. */
CASE(little_memory)
{
    int enough = 0, told = 0;
    if (SLOWDOWN > 1)
        skip(); /* a sanitizer needs terabytes of addresses */
    for (int kb = 240000; kb <= 640000; kb += 40000) {
        run_with("-v", kb, "");
        if (r.status != 0 && (r.status != 3 || strstr(r.err_text, "did not end within")))
            fail_msg("ulimit -v %d: status %d after %.1f s: %s", kb, r.status, r.seconds,
                     r.err_text);
        enough += r.status == 0;
        told += strstr(r.err_text, "does `ulimit -v` allow less?") != NULL;
    }
    assert_true(enough && told);
}
