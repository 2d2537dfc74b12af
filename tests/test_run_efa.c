/* `mkernel run OP --fabric efa --check` is right for every operator over real processes and
 * softnic's EFA devices, which reorder what they carry, with one device per rank or several, short
 * requests, full queues and posted receives; what EFA cannot do, and a peer that is lost, is one
 * sentence in time. */
#include "tests/helpers/command.h"
#include "tests/helpers/test.h"
#include "tests/helpers/sanitized.h"

#define SECONDS 60

static struct command_run r;

/* Networks, which the runs take in turn: late and out of order by up to 0.3 ms, and more or less
 * room. */
static const struct {
    char *softnic, *efa;
    int rails;
} networks[] = {
    {"SOFTNIC=reorder=300us", "MK_EFA=", 1},
    {"SOFTNIC=reorder=100us,efa-rdma=4096", "MK_EFA=stripe=256", 4},
    {"SOFTNIC=reorder=200us,efa-depth=64", "MK_EFA=stripe=1024,window=12,depth=8", 2},
    {"SOFTNIC=reorder=50us,efa-caps=write,copy=stream", "MK_EFA=stripe=512,window=16", 3},
};

static void run(const char *line, const char *softnic, const char *efa)
{
    command_start(&r, line, softnic, efa, NULL);
    command_finish(&r, SECONDS);
}

static void expect_right(const char *op, const char *options)
{
    static unsigned turn;
    char line[512];
    unsigned n = turn++ % (sizeof networks / sizeof *networks);
    snprintf(line, sizeof line, "run %s --exec host --nic soft --fabric efa --rails %d --check %s",
             op, networks[n].rails, options);
    run(line, networks[n].softnic, networks[n].efa);
    if (r.status != 0 || !strstr(r.out_text, "verdict   right") ||
        !strstr(r.out_text, "efa over softefa"))
        fail_msg("%s %s mkernel %s: status %d signal %d after %.1f s\n%s%s", networks[n].softnic,
                 networks[n].efa, line, r.status, r.signal, r.seconds, r.out_text, r.err_text);
}

CASE(test_gemms)
{
    static const char *const ops[] = {"ag_gemm", "gemm_rs", "gemm_ar"};
    for (int i = 0; i < 3; i++) {
        expect_right(ops[i], "--nodes 2 --gpus 1 --shape 66,40,72 --deterministic");
        expect_right(
            ops[i],
            "--nodes 2 --gpus 2 --shape 520,200,72 --tile 32,40 --chunk-rows 64 --pieces 3");
        expect_right(ops[i], "--nodes 3 --gpus 2 --shape 390,200,328 --deterministic --iters 4");
        expect_right(ops[i], "--nodes 4 --gpus 1 --shape 132,40,72");
        expect_right(ops[i],
                     "--nodes 2 --gpus 2 --shape 256,64,128 --iters 40 --burst 40 --warmup 0");
    }
}

CASE(test_attention)
{
    expect_right("ring_attention", "--nodes 2 --gpus 1 --attention 2,66,6,2,64 --iters 4");
    expect_right("ring_attention",
                 "--nodes 2 --gpus 2 --attention 1,264,4,2,64 --causal --iters 4");
    expect_right("ring_attention",
                 "--nodes 3 --gpus 2 --attention 1,396,2,1,128 --causal --iters 3 --tile 40,24 "
                 "--chunk-rows 40 --roles compute=3,intra_comm=2,inter_send=2");
    expect_right(
        "ring_attention",
        "--nodes 4 --gpus 1 --attention 3,40,2,2,64 --causal --iters 12 --burst 12 --warmup 0");
}

CASE(test_moe)
{
    static const char *const ops[] = {"moe_dispatch_gemm", "moe_ffn"};
    for (int i = 0; i < 2; i++) {
        expect_right(ops[i], "--nodes 2 --gpus 1 --moe 8,64,8,2,2 --iters 4 --routing none");
        expect_right(ops[i], "--nodes 2 --gpus 2 --moe 64,128,64,4,1 --iters 4 --routing one");
        expect_right(ops[i], "--nodes 3 --gpus 2 --moe 40,64,136,12,3 --iters 4 --routing few "
                             "--tile 16,48 --chunk-rows 8");
        expect_right(ops[i],
                     "--nodes 4 --gpus 1 --moe 24,64,40,8,2 --iters 12 --burst 12 --warmup 0");
    }
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
