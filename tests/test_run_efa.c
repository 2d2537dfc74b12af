/* Of `--fabric efa` over softnic's EFA devices: what EFA cannot do, and a peer that is lost, is one
 * sentence in time. (What is right: test_run_matrix.c.) */
#include "tests/helpers/command.h"
#include "tests/helpers/sanitized.h"

#define SECONDS 60

static struct command_run r;

static void run(const char *line, const char *softnic, const char *efa)
{
    command_start(&r, line, softnic, efa, NULL);
    command_finish(&r, SECONDS);
}

static void expect_refused(const char *options, const char *softnic, int status, const char *says)
{
    char line[512];
    snprintf(line, sizeof line,
             "run ag_gemm --fabric efa --nodes 2 --gpus 1 --timeout 5 --iters 1000 %s", options);
    run(line, softnic, "MK_EFA=");
    const char *newline = strchr(r.err_text, '\n');
    if (r.status != status || !strstr(r.err_text, says) || (newline && newline[1]) ||
        r.seconds > 10 + BUSY)
        fail_msg("mkernel %s: status %d signal %d after %.1f s\n%s%s", line, r.status, r.signal,
                 r.seconds, r.out_text, r.err_text);
}

CASE(test_refusals)
{
    expect_refused("--exec host --nic soft0", "SOFTNIC=", 2, "soft0");
    expect_refused("--exec host --nic softefa9", "SOFTNIC=", 2, "there is no NIC softefa9");
    expect_refused("--exec host --nic soft", "SOFTNIC=efa=0", 2, "softnic");
    expect_refused("--exec host --nic soft", "SOFTNIC=efa-caps=read", 3,
                   "softefa0 has no RDMA write, which the efa fabric needs");
    expect_refused("--exec host --nic soft", "SOFTNIC=efa-depth=4", 3, "too few for 1 peers");
    run("run ag_gemm --exec host --fabric efa --nodes 2", "SOFTNIC=", "MK_EFA=lanes=2");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err_text, "the efa options have no 'lanes"));
}

/* In the middle of a run: the sentence names the two ranks, the put that failed, and EFA's own word
 * for it. */
CASE(test_faults)
{
    expect_refused("--exec host --nic soft", "SOFTNIC=drop-peer=softefa0@60", 3,
                   "response timeout error");
    assert_non_null(strstr(r.err_text, "could not reach rank"));
    assert_non_null(strstr(r.err_text, "chunk"));
    expect_refused("--exec host --nic soft", "SOFTNIC=fail-wr=REM_ABORT_ERR@30", 3,
                   "softefa0: aborted error");
}
