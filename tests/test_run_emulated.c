/* `mkernel run OP --exec emulated`: a process a rank, each with an emulated GPU that runs the
 * kernels' own code. Results are right at sizes that no tile divides, on one rank, on several of a
 * node and over softnic, staged, too; the trace has every tile and what CTAs waited for; a rank
 * that is killed or stopped ends the job with its sentence in time; what has no kernel, or would be
 * timed, is refused. */
#include "tests/helpers/command.h"
#include "tests/helpers/sanitized.h"

#include <sqlite3.h>

#define SECONDS (60 * SLOWDOWN)
#define TIMEOUT 3

static struct command_run r;

static void expect(int status, const char *out, const char *err)
{
    command_finish(&r, SECONDS);
    if (r.status != status || !strstr(r.out_text, out) || !strstr(r.err_text, err))
        fail_msg("status %d, signal %d after %.1f s, not %d with \"%s\" and \"%s\"\n%s%s", r.status,
                 r.signal, r.seconds, status, out, err, r.out_text, r.err_text);
}

static void right(const char *line)
{
    command_start(&r, line, NULL);
    expect(0, "executor emulated", "all right");
    assert_non_null(strstr(r.out_text, "verdict   right"));
}

/* Of a trace. */
static long long number(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    long long n = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return n;
}

#define OF_KIND "FROM event JOIN kind ON kind.id = event.kind WHERE kind.name = "

/* ---- results ---- */

static void gemm(const char *op)
{
    static const struct {
        unsigned nodes, gpus;
        const char *options;
    } forms[] = {{1, 1, "--b-layout nk"},
                 {1, 2, "--tile 128,64 --deterministic"},
                 {1, 3, "--burst 1"},
                 {2, 1, "--b-layout nk --nic soft"}};
    char line[256];
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        snprintf(line, sizeof line,
                 "run %s --exec emulated --nodes %u --gpus %u --shape 390,200,328 --iters 3 "
                 "--seed %u --check %s",
                 op, forms[i].nodes, forms[i].gpus, (unsigned)i, forms[i].options);
        right(line);
    }
}

CASE(test_ag_gemm)
{
    gemm("ag_gemm");
    /* a block of its own that copies by TMA; two rails */
    right("run ag_gemm --exec emulated --gpus 2 --shape 130,72,136 --iters 2 --check "
          "--roles compute=3,intra_comm=2");
    right("run ag_gemm --exec emulated --nodes 2 --gpus 1 --rails 2 --nic soft --shape 66,40,72 "
          "--iters 2 --check");
}

CASE(test_gemm_rs)
{
    gemm("gemm_rs");
}

CASE(test_gemm_ar)
{
    gemm("gemm_ar");
}

CASE(test_ring_attention)
{
    right("run ring_attention --exec emulated --gpus 1 --attention 2,77,3,1,64 --iters 2 --check");
    right("run ring_attention --exec emulated --gpus 3 --attention 1,198,4,2,128 --causal --iters "
          "2 --check");
    right("run ring_attention --exec emulated --nodes 2 --gpus 1 --nic soft --attention "
          "1,130,2,2,64 --iters 2 --check");
    right("run ring_attention --exec emulated --gpus 3 --attention 1,399,2,1,64 --causal --split "
          "contiguous --iters 2 --check");
    right("run ring_attention --exec emulated --gpus 2 --attention 2,1,2,1,64 --iters 3 --check");
    right("run ring_attention --exec emulated --gpus 3 --attention 2,17,4,2,128 --causal --iters 3 "
          "--check");
    right("run ring_attention --exec emulated --engine mma --gpus 3 --attention 2,193,2,1,64 "
          "--causal --iters 2 --check");
    right("run ring_attention --exec emulated --nodes 2 --gpus 1 --nic soft --attention "
          "2,1000,2,1,128 --causal --iters 2 --check");
    /* three warpgroups; and pushed by a thread block of its own, by two warps at a pace */
    right("run ring_attention --exec emulated --gpus 2 --attention 1,400,2,1,64 --causal --tile "
          "192,96 --roles compute=3,intra_comm=3w --iters 2 --check");
    right("run ring_attention --exec emulated --gpus 2 --attention 1,400,2,1,128 --roles "
          "compute=3,intra_comm=1 --iters 2 --check");
    right("run ring_attention --exec emulated --gpus 2 --attention 1,400,2,1,128 --roles "
          "compute=3,intra_comm=2w --pieces 4 --pace 387 --iters 2 --check");
    /* a network without order */
    command_start(&r,
                  "run ring_attention --exec emulated --nodes 2 --gpus 1 --nic soft --fabric efa "
                  "--attention 1,260,2,1,128 --causal --iters 4 --check",
                  "SOFTNIC=reorder=300us", NULL);
    expect(0, "verdict   right", "all right");
}

/* On engine mma: a block of its own pushes, or each before it computes; between nodes, on more than
 * one rail, over a network without order. Each tile is noted once a launch. */
CASE(test_ring_attention_on_mma)
{
    char file[] = "/tmp/mkernel-emulated-XXXXXX", line[512];
    int fd = mkstemp(file);
    sqlite3 *db = NULL;
    assert_true(fd >= 0);
    close(fd);
    snprintf(line, sizeof line,
             "run ring_attention --exec emulated --engine mma --gpus 2 --attention 1,280,3,1,128 "
             "--tile 128,64 --warmup 0 --iters 3 --check --trace %s",
             file);
    right(line);
    assert_int_equal(sqlite3_open_v2(file, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(number(db, "SELECT count(*) " OF_KIND "'tile' AND ns > 0"), 3 * 2 * 6);
    assert_int_equal(number(db, "SELECT count(DISTINCT argument) " OF_KIND "'tile'"), 6);
    assert_true(number(db, "SELECT count(*) " OF_KIND "'copy'") > 0);
    assert_int_equal(number(db, "SELECT count(*) " OF_KIND "'wait' AND argument <> 16777215 AND "
                                "argument NOT IN (SELECT id FROM flag)"),
                     0);
    sqlite3_close(db);
    unlink(file);
    right("run ring_attention --exec emulated --engine mma --gpus 3 --attention 1,150,4,2,64 "
          "--causal --roles compute=2,intra_comm=2w --pieces 3 --iters 2 --check");
    command_start(&r,
                  "run ring_attention --exec emulated --engine mma --nodes 2 --gpus 1 --rails 2 "
                  "--nic soft --fabric efa --attention 1,132,2,1,128 --causal --iters 3 --check",
                  "SOFTNIC=reorder=300us", NULL);
    expect(0, "verdict   right", "all right");
    command_start(&r,
                  "run ring_attention --exec emulated --engine mma --gpus 2 --attention "
                  "1,256,1,1,64 --tile 192,96",
                  NULL);
    expect(2, "", "not built for engine mma; with heads of 64 256x64 are");
}

/* As on a laptop: each GPU is a node of its own, no NIC reaches its memory, all puts are staged. */
CASE(test_staged)
{
    static const char *const lines[] = {
        "run ag_gemm --exec emulated --nic soft --engine mma --shape 132,72,136 --iters 3 --check",
        "run gemm_ar --exec emulated --nic soft --shape 131,72,136 --iters 3 --check",
        "run moe_ffn --exec emulated --nic soft --moe 16,64,32,4,2 --iters 2 --check",
        "run moe_ffn --exec emulated --nic soft --engine mma --moe 16,64,40,4,2 --iters 2 --check"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        command_start(&r, lines[i], "MKERNEL_P2P=off", NULL);
        expect(0, "2 nodes of 1, executor emulated", "all right");
    }
    command_start(&r, "run ag_gemm --exec emulated --gpus 2", "MKERNEL_P2P=off", NULL);
    expect(2, "", "(MKERNEL_P2P=off), so each is a node of its own: --nodes 2 --gpus 1");
    command_start(&r, "run ag_gemm --exec emulated --gpus 2", "MKERNEL_P2P=of", NULL);
    expect(2, "", "MKERNEL_P2P=of: it is on or off");
}

/* New inputs in each, every result checked: epochs, and both buffers a hundred times. */
CASE(test_two_hundred_launches)
{
    right("run ring_attention --exec emulated --gpus 2 --attention 1,256,1,1,64 --roles "
          "compute=2,intra_comm=1w --iters 200 --burst 50 --check");
    assert_non_null(strstr(r.err_text, "200 launches on 2 ranks done, all right"));
}

CASE(test_moe_dispatch_gemm)
{
    right("run moe_dispatch_gemm --exec emulated --gpus 2 --moe 16,272,136,4,2 --dtype fp8 "
          "--b-layout nk --iters 2 --check");
    right("run moe_dispatch_gemm --exec emulated --gpus 2 --moe 23,72,40,4,2 --iters 2 --check");
    right("run moe_dispatch_gemm --exec emulated --nodes 2 --gpus 1 --nic soft --moe 9,40,136,6,3 "
          "--iters 2 --routing few --b-layout nk --check");
    right("run moe_dispatch_gemm --exec emulated --gpus 3 --moe 33,40,72,6,3 --iters 3 --check "
          "--routing one --burst 1");
    right("run moe_dispatch_gemm --exec emulated --nodes 2 --gpus 2 --nic soft --fabric efa "
          "--moe 40,40,72,8,3 --chunk-rows 8 --iters 3 --check --routing none "
          "--roles compute=2,intra_comm=3,inter_send=1");
}

CASE(test_moe_rows)
{
    right("run moe_dispatch --exec emulated --gpus 2 --moe 23,72,4,2 --iters 2 --check");
    right(
        "run moe_dispatch --exec emulated --gpus 2 --moe 16,272,4,2 --dtype fp8 --iters 2 --check");
    right("run moe_dispatch --exec emulated --nodes 2 --gpus 1 --nic soft --moe 9,40,6,3 --iters 2 "
          "--routing few --check --engine mma");
    right("run moe_combine --exec emulated --gpus 3 --moe 33,40,6,3 --iters 3 --check --burst 1");
    for (int combine = 0; combine < 2; combine++) /* the other SMs are for a user's product */
        right(combine
                  ? "run moe_combine --exec emulated --gpus 2 --sms 3 --moe 23,72,4,2 --check"
                  : "run moe_dispatch --exec emulated --gpus 2 --sms 3 --moe 23,72,4,2 --check");
    right("run moe_combine --exec emulated --nodes 2 --gpus 2 --nic soft --fabric efa --moe "
          "9,40,8,3 --iters 2 --check --routing none");
}

CASE(test_moe_ffn)
{
    right("run moe_ffn --exec emulated --gpus 1 --moe 23,72,40,4,2 --iters 2 --check");
    right("run moe_ffn --exec emulated --gpus 3 --moe 23,72,40,6,2 --iters 2 --check "
          "--b-layout nk --deterministic");
    right("run moe_ffn --exec emulated --nodes 2 --gpus 1 --nic soft --moe 9,40,136,6,3 "
          "--iters 2 --check");
    right(
        "run moe_ffn --exec emulated --nodes 2 --gpus 2 --nic soft --fabric efa --moe 9,40,72,8,3 "
        "--iters 2 --check");
    right("run moe_ffn --exec emulated --nodes 2 --gpus 2 --nic soft --moe 9,136,40,8,3 --iters 2 "
          "--check --back fp8");
}

/* On engine mma: both products' tiles are noted, each once a launch. */
CASE(test_moe_ffn_on_mma)
{
    char file[] = "/tmp/mkernel-emulated-XXXXXX", line[512];
    int fd = mkstemp(file);
    sqlite3 *db = NULL;
    assert_true(fd >= 0);
    close(fd);
    /* both experts have all 16 tokens: two tiles of up and two of down */
    snprintf(line, sizeof line,
             "run moe_ffn --exec emulated --engine mma --gpus 1 --moe 16,72,40,2,2 --warmup 0 "
             "--iters 3 --check --trace %s",
             file);
    right(line);
    assert_int_equal(sqlite3_open_v2(file, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(number(db, "SELECT count(*) " OF_KIND "'tile' AND ns > 0"), 3 * 2 * 4);
    assert_int_equal(number(db, "SELECT count(DISTINCT argument) " OF_KIND "'tile'"), 2 * 4);
    assert_int_equal(number(db, "SELECT count(*) FROM metric WHERE name = 'plan 1: engine' AND "
                                "unit = 'mma'"),
                     1);
    sqlite3_close(db);
    snprintf(line, sizeof line, "trace summary %s", file);
    command_start(&r, line, NULL);
    expect(0, "measured, emulated executor, engine mma, 1 node x 1 rank", "");
    unlink(file);
    right("run moe_ffn --exec emulated --engine mma --gpus 3 --moe 23,72,40,6,2 --iters 2 --check "
          "--b-layout nk --deterministic");
    right("run moe_ffn --exec emulated --engine mma --gpus 2 --moe 141,72,136,4,2 --iters 2 "
          "--check --tile 128,128 --routing none");
    command_start(&r,
                  "run moe_ffn --exec emulated --engine mma --nodes 2 --gpus 2 --nic soft "
                  "--fabric efa --moe 9,40,72,8,3 --iters 3 --check",
                  "SOFTNIC=reorder=300us", NULL);
    expect(0, "verdict   right", "all right");
    command_start(&r, "run moe_ffn --exec emulated --engine mma --moe 9,40,72,8,3 --tile 128,256",
                  NULL);
    expect(2, "", "tiles of 128 x 256 are not built for the GPU; 128x128, 64x64 are");
}

/* One shot: of a warp that waits for others' sums the lead alone has a track. */
CASE(test_one_shot_traced)
{
    static const char *const runs[] = {"run gemm_ar --exec emulated --gpus 2 --shape 64,264,136",
                                       "run gemm_rs --exec emulated --gpus 3 --shape 66,264,136"};
    for (int i = 0; i < 2; i++) {
        char file[] = "/tmp/mkernel-emulated-XXXXXX", line[512];
        int fd = mkstemp(file);
        assert_true(fd >= 0);
        close(fd);
        snprintf(line, sizeof line, "%s --shots 1 --iters 3 --check --trace %s", runs[i], file);
        right(line);
        unlink(file);
    }
}

CASE(test_wrong_result)
{
    command_start(&r, "run gemm_rs --exec emulated --gpus 2 --shape 66,40,72 --iters 2 --check",
                  "MKERNEL_TEST_SPOIL=1,2", NULL);
    expect(1, "verdict   WRONG", "wrong: 1 of ");
}

/* ---- the trace ---- */

CASE(test_trace)
{
    char file[] = "/tmp/mkernel-emulated-XXXXXX", json[64], line[512], text[4096];
    int fd = mkstemp(file);
    sqlite3 *db = NULL;
    assert_true(fd >= 0);
    close(fd);
    snprintf(json, sizeof json, "%s.json", file);
    snprintf(line, sizeof line,
             "run ag_gemm --exec emulated --nodes 2 --gpus 1 --nic soft --shape 390,200,328 "
             "--warmup 1 --iters 2 --check --json %s --trace %s",
             json, file);
    command_start(&r, line, NULL);
    expect(0, "verdict   right", "all right");
    test_read_file(json, text, sizeof text);
    unlink(json);
    assert_non_null(strstr(text, "\"exec\": \"emulated\""));
    assert_int_equal(sqlite3_open_v2(file, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(number(db, "SELECT executor = 'emulated' AND dropped = 0 FROM run"), 1);
    long long tiles = number(db, "SELECT tiles FROM plan");
    assert_true(tiles > 1);
    /* every tile of every launch of each rank, once */
    assert_int_equal(number(db, "SELECT count(*) " OF_KIND "'tile'"), 3 * 2 * tiles);
    assert_int_equal(number(db, "SELECT count(DISTINCT argument) " OF_KIND "'tile'"), tiles);
    assert_int_equal(number(db, "SELECT count(DISTINCT launch) " OF_KIND "'tile'"), 3);
    assert_int_equal(number(db, "SELECT count(*) " OF_KIND "'tile' AND ns <= 0"), 0);
    assert_true(number(db, "SELECT count(*) " OF_KIND "'wait' AND ns > 0") > 0);
    /* each wait is for something that the plan knows, and what came over the network ended some */
    assert_int_equal(number(db, "SELECT count(*) " OF_KIND "'wait' AND argument <> 16777215 AND "
                                "argument NOT IN (SELECT id FROM flag)"),
                     0);
    assert_true(number(db, "SELECT count(*) FROM message") > 0);
    assert_int_equal(number(db, "SELECT count(*) FROM message WHERE seen IS NULL OR completed IS "
                                "NULL OR arrived IS NULL OR arrived < seen"),
                     0);
    sqlite3_close(db);
    snprintf(line, sizeof line, "tui %s --dump-screen", file);
    command_start(&r, line, NULL);
    expect(0, "emulated", "");
    unlink(file);
}

/* ---- failures ---- */

static char state_of(pid_t pid)
{
    char path[64], letter = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%*d (%*[^)]) %c", &letter) != 1)
        letter = 0;
    if (f)
        fclose(f);
    return letter;
}

/* Waits until one of the job's processes is in a state of `letters`: stopped, or a zombie; or until
 * the job has ended, when nobody has seen it in that state. */
static void wait_for_state(const char *letters)
{
    const struct timespec moment = {0, 10000000};
    for (double start = test_seconds(); test_seconds() - start < SECONDS;
         nanosleep(&moment, NULL)) {
        pid_t children[8];
        int count = command_children(r.pid, children, 8);
        for (int i = 0; i < count; i++) {
            char letter = state_of(children[i]);
            if (letter && strchr(letters, letter))
                return;
        }
        char own = state_of(r.pid);
        if (!own || own == 'Z')
            return;
    }
    fail_msg("no rank came to state %s", letters);
}

/* The timeout and 2 s, behind whatever the other kernels had to do before they came to wait, on a
 * machine that does other things. */
static void expect_in_time(double from, const char *err)
{
    expect(3, "", err);
    double took = test_seconds() - from;
    if (took > (TIMEOUT + 2 + 10) * SLOWDOWN)
        fail_msg("it took %.1f s\n%s", took, r.err_text);
    assert_int_equal(command_lines(r.err_text), 1);
}

CASE(test_killed_rank)
{
    static const char *const lines[] = {
        "run gemm_ar --exec emulated --gpus 3 --shape 390,200,328 --timeout 3",
        "run ring_attention --exec emulated --gpus 3 --attention 1,390,2,1,64 --timeout 3",
        "run moe_ffn --exec emulated --gpus 2 --moe 60,136,72,4,2 --timeout 3"};
    for (int i = 0; i < 3; i++) {
        command_start(&r, lines[i], "MKERNEL_TEST_DIE=1,3", NULL);
        wait_for_state("ZX");
        expect_in_time(test_seconds(), "rank 1 was killed by signal 9");
        assert_non_null(strstr(r.err_text, "rank 1 is lost"));
    }
}

/* Its peer's kernel waits in vain, over the node's memory and over the network. There the put that
 * the stopped rank does not acknowledge may be the first to say so: it has the same timeout. */
CASE(test_stopped_rank)
{
    static const char *const lines[] = {
        "run ag_gemm --exec emulated --gpus 2 --shape 390,200,328 --timeout 3",
        "run gemm_rs --exec emulated --nodes 2 --gpus 1 --nic soft --shape 390,200,328 --timeout "
        "3",
        "run ring_attention --exec emulated --gpus 2 --attention 1,390,2,1,64 --timeout 3",
        "run moe_ffn --exec emulated --gpus 2 --moe 60,136,72,4,2 --timeout 3"};
    for (int i = 0; i < 4; i++) {
        command_start(&r, lines[i], "MKERNEL_TEST_STOP=1,3", NULL);
        wait_for_state("Tt");
        expect_in_time(test_seconds(), "; rank 1 did not end");
        if (i == 1 && strstr(r.err_text, "rank 0's proxy could not reach rank 1 with "))
            continue;
        assert_non_null(strstr(r.err_text, "rank 0 CTA "));
        assert_non_null(strstr(r.err_text, " waited 3."));
        assert_non_null(strstr(r.err_text, "; rank 1 should have produced it; rank 1 did not end"));
    }
}

/* ---- what is refused ---- */

CASE(test_refused)
{
    static const struct {
        const char *line, *sentence;
    } cases[] = {
        {"bench ag_gemm --exec emulated", "an emulated GPU has no speed to measure"},
        {"tune ag_gemm --exec emulated", "an emulated GPU has no speed to measure"},
        {"run ag_gemm --exec emulated --tile 64,128", "no GPU kernel is built for tiles of 64x128"},
        {"run ag_gemm --exec emulated --gpus 1 --tile 256,128 --roles compute=21",
         "21 thread blocks in clusters of 2 on a GPU of 20 SMs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        command_start(&r, cases[i].line, NULL);
        expect(2, "", cases[i].sentence);
        assert_int_equal(command_lines(r.err_text), 1);
    }
}
