/* Ranks that a launcher started with different options end with status 3 and a sentence that names
 * the option, whatever would have followed from it: another heap, more launches, a trace that the
 * others do not gather, other inputs. */
#include "tests/helpers/free_port.h"
#include "tests/helpers/command.h"

#include <arpa/inet.h>
#include "tests/helpers/folder.h"

static struct command_run ranks[2];

/* Both ranks get `line`, rank 1 `more`, too. */
static void start(const char *line, const char *more)
{
    int port = free_port();
    for (int i = 0; i < 2; i++) {
        char all[512], rank[16], local[16], text[32];
        snprintf(all, sizeof all, "%s%s", line, i ? more : "");
        snprintf(rank, sizeof rank, "RANK=%d", i);
        snprintf(local, sizeof local, "LOCAL_RANK=%d", i);
        snprintf(text, sizeof text, "MKERNEL_PORT=%d", port);
        command_start(&ranks[i], all, "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                      "MKERNEL_TOKEN=secret", rank, local, text, NULL);
    }
    for (int i = 0; i < 2; i++)
        command_finish(&ranks[i], 120);
}

static void expect(const char *line, const char *more, const char *says)
{
    start(line, more);
    for (int i = 0; i < 2; i++)
        if (ranks[i].status != 3 || !strstr(ranks[i].err_text, says) ||
            command_lines(ranks[i].err_text) != 1 || ranks[i].out_used)
            fail_msg("rank %d of %s, rank 1 with%s: status %d, \"%s\" lacks \"%s\"; \"%s\"", i,
                     line, more, ranks[i].status, ranks[i].err_text, says, ranks[i].out_text);
}

CASE(options_that_differ_are_named)
{
    char trace[128];
    snprintf(trace, sizeof trace, " --trace %s/t.db", folder);
#define GEMM "run gemm_rs --exec host"
    expect(GEMM, " --shape 1024,512,512",
           "rank 1 was started with --shape M = 1024 where rank 0 has 512");
    expect(GEMM, " --shape 512,512,64",
           "rank 1 was started with --shape K = 64 where rank 0 has 512");
    expect(GEMM, " --iters 3", "rank 1 was started with --iters = 3 where rank 0 has 10");
    expect(GEMM, " --warmup 0", "rank 1 was started with --warmup = 0 where rank 0 has 1");
    expect(GEMM, " --burst 1", "rank 1 was started with --burst = 1 where rank 0 has 4");
    expect(GEMM, " --seed 2", "rank 1 was started with --seed = 2 where rank 0 has 1");
    expect(GEMM, " --check", "rank 1 has --check, which rank 0 has not");
    expect(GEMM, " --deterministic", "rank 1 has --deterministic, which rank 0 has not");
    expect(GEMM, trace, "rank 1 has --trace, which rank 0 has not");
    expect(GEMM, " --b-layout nk", "rank 1 was started with another --b-layout than rank 0");
    expect(GEMM, " --tile 64,64", "rank 1 was started with --tile M = 64 where rank 0 has 0");
    expect(GEMM, " --epilogue residual+rmsnorm",
           "rank 1 was started with another --epilogue than rank 0");
    expect("run moe_ffn --exec host", " --moe 64,256,128,8,2",
           "rank 1 was started with --moe tokens = 64 where rank 0 has 128");
    expect("run moe_ffn --exec host", " --routing one",
           "rank 1 was started with another --routing than rank 0");
    expect("run ring_attention --exec host", " --causal",
           "rank 1 has --causal, which rank 0 has not");
    expect("bench gemm_rs --exec host --iters 2", " --vs blas",
           "rank 1 was started with another --vs than rank 0");
    expect("tune ag_gemm --exec host --iters 2 --tuning none --verify --space pieces=1:2",
           " --rounds 1", "rank 1 was started with --rounds = 1 where rank 0 has 3");
}

/* Where a rank writes its results, and by which NIC it would send, is its own business. */
CASE(what_is_a_ranks_own_may_differ)
{
    char more[160];
    snprintf(more, sizeof more, " --json %s/r.json --nic soft0", folder);
    start("run gemm_rs --exec host --shape 64,64,64 --iters 2 --check", more);
    if (ranks[0].status || ranks[1].status)
        fail_msg("status %d and %d: \"%s\" \"%s\"", ranks[0].status, ranks[1].status,
                 ranks[0].err_text, ranks[1].err_text);
    assert_non_null(strstr(ranks[0].out_text, "verdict   right"));
}

FIXTURE(folder_make, folder_remove)
