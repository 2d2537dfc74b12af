/* Every kind of bad argument ends mkernel with status 2 and one sentence on stderr that names it,
 * before anything starts. */
#include "tests/helpers/command.h"
#include "tests/helpers/test.h"
#include "tests/helpers/sanitized.h"

static struct command_run r;

static void expect(const char *line, int status, const char *says)
{
    command_start(&r, line, NULL);
    command_finish(&r, 20);
    if (r.status != status || !strstr(status ? r.err_text : r.out_text, says))
        fail_msg("mkernel %s: status %d (want %d), stdout \"%s\", stderr \"%s\" lacks \"%s\"", line,
                 r.status, status, r.out_text, r.err_text, says);
    if (status && (command_lines(r.err_text) != 1 || r.out_used))
        fail_msg("mkernel %s: not one line on stderr alone: \"%s\" \"%s\"", line, r.err_text,
                 r.out_text);
}

CASE(test_commands)
{
    expect("", 2, "a command is missing");
    expect("rnu ag_gemm", 2, "did you mean run?");
    expect("''", 2, "no command");
    expect("frobnicate", 2, "`mkernel --help`");
    expect("--bogus", 2, "--help");
    expect("--help", 0, "examples");
    expect("--version", 0, "mkernel 0");
    expect("run --help", 0, "--roles");
    expect("run ag_gemm --help", 0, "examples");
    expect("bench --help", 0, "--csv");
    expect("info --help", 0, "usage: mkernel info");
    expect("info now", 2, "one argument too many");
    expect("info --json x", 2, "no option --json");
    expect("bench", 2, "missing");
    expect("bench ag_gem", 2, "did you mean ag_gemm?");
}

CASE(test_ops)
{
    expect("run", 2, "op is missing");
    expect("run ag_gemmm", 2, "did you mean ag_gemm?");
    expect("run quaternion", 2, "ops are ag_gemm");
    expect("run ag_gemm gemm_ar", 2, "gemm_ar is one argument too many");
    expect("run moe_ffn --exec host --shape 1,8,8", 2, "moe_ffn does not take --shape");
    expect("run ''", 2, "no op");
}

CASE(test_values)
{
    expect("run ag_gemm --iter 5", 2, "did you mean --iters?");
    expect("run ag_gemm --exec host --epilogue bias+foo", 2,
           "--epilogue bias+foo: 'foo' is none of");
    expect("bench ag_gemm --exec host --gpus 2 --epilogue none --dry-run", 0, "");
    expect("bench ag_gemm --exec host --gpus 2 --epilogue silu --dry-run", 2, "for run");
    expect("run ag_gemm --iters", 2, "--iters needs a value");
    expect("run ag_gemm --iters 0", 2, "--iters 0: out of range");
    expect("run ag_gemm --iters ten", 2, "--iters ten");
    expect("run ag_gemm --iters 99999999999999999999", 2, "out of range");
    expect("run ag_gemm --seed -1", 2, "--seed -1");
    expect("run ag_gemm --check --check", 2, "twice");
    expect("run ag_gemm --check=yes", 2, "takes no value");
    expect("run ag_gemm --timeout 0", 2, "--timeout 0: out of range");
    expect("run ag_gemm --timeout 1e9", 2, "--timeout 1e9");
    expect("run ag_gemm --exec gpu", 2, "host|cuda");
    expect("run ag_gemm --fabric verb", 2, "did you mean verbs?");
    expect("run ag_gemm --exec host --nodes 2 --nic nosuch0", 2, "no NIC nosuch0");
    expect("run ag_gemm --roles compute", 2, "roles are written");
    expect("run ag_gemm --roles intracomm=1", 2, "did you mean intra_comm?");
    expect("run ag_gemm --csv x", 2, "no option --csv");
    expect("run ag_gemm --exec host --trace /nonexistent/folder/t.db", 2,
           "--trace /nonexistent/folder/t.db cannot be written");
    expect("run ag_gemm --exec host --json /proc/x.json", 2,
           "--json /proc/x.json cannot be written");
}

CASE(test_shapes)
{
    expect("run ag_gemm --exec host --shape 8,8", 2, "--shape 8,8");
    expect("run ag_gemm --exec host --shape 8x8x8", 2, "it takes M,N,K");
    expect("run ag_gemm --exec host --shape 9,8,8", 2, "the next that does is 10");
    expect("run ag_gemm --exec host --gpus 1 --shape 8,8,9", 2, "the next K that works is 16");
    expect("run ag_gemm --exec host --gpus 1 --shape 8,9,8", 2, "the next N that works is 16");
    expect("run ag_gemm --exec host --gpus 17", 2, "--gpus 17: out of range");
    expect("run ag_gemm --exec host --nodes 100 --gpus 16", 2, "at most 256");
    expect("run ag_gemm --exec host --gpus 1 --roles compute=1,intra_comm=1", 2, "no intra_comm");
    expect("run ag_gemm --exec host --nodes 2 --roles compute=1,intra_comm=1", 2, "inter_send");
    expect("run ag_gemm --exec host --tile 12,8", 2, "tiles are multiples of 8");
    expect("run ag_gemm --exec host --tile 64,64 --chunk-rows 96", 2, "chunks of tiles");
    expect("run ag_gemm --exec host --pieces 65", 2, "--pieces 65: out of range");
}

/* Nothing has started: bad arguments cost milliseconds, leave no process and no shared memory. */
CASE(test_nothing_started)
{
    expect("run ag_gemm --exec host --nodes 4 --gpus 4 --shape 17,8,8", 2,
           "does not divide by 16 ranks");
    assert_true(r.seconds < BUSY);
}

CASE(test_info)
{
    expect("info", 0, "SQLite 3.");
    assert_non_null(strstr(r.out_text, "cores"));
    assert_non_null(strstr(r.out_text, "GPU"));
    assert_non_null(strstr(r.out_text, "NIC"));
    assert_non_null(strstr(r.out_text, "rails     local rank 0 on "));
    assert_non_null(strstr(r.out_text, "soft-RoCE module rdma_rxe"));
    assert_int_equal(r.err_used, 0);
}
