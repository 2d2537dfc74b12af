/* `mkernel run ag_gemm` gives the right product on every shape of cluster, launch after launch with
 * new inputs, and says so by status 1 when an element is wrong. */
#include "tests/helpers/command.h"
#include "tests/helpers/test.h"

#define SECONDS 60

static struct command_run r;

static void expect_right(const char *options)
{
    char line[512];
    snprintf(line, sizeof line, "run ag_gemm --exec host --nic soft --check %s", options);
    command_start(&r, line, NULL);
    command_finish(&r, SECONDS);
    if (r.status != 0 || !strstr(r.out_text, "verdict   right") || !strstr(r.err_text, "all right"))
        fail_msg("mkernel %s: status %d signal %d after %.1f s\n%s%s", line, r.status, r.signal,
                 r.seconds, r.out_text, r.err_text);
    assert_int_equal(command_lines(r.err_text), 1);
    assert_non_null(strstr(r.out_text, " elements are within their bounds; "));
    /* a right result comes up to its bounds, and nobody is to be alarmed */
    assert_null(strstr(r.out_text, "of its bound"));
}

CASE(test_two_by_two)
{
    expect_right("--nodes 2 --gpus 2");
    assert_non_null(strstr(r.out_text, "2 nodes of 2"));
    assert_non_null(strstr(r.out_text, " TFLOP/s a rank\n"));
    /* what a time is of, and of how many its range */
    assert_non_null(strstr(r.out_text, " in 3 bursts of up to 4), median of the slowest rank"));
    assert_non_null(strstr(r.out_text, "iB over NVLink (shared memory)"));
    assert_non_null(strstr(r.out_text, "; 10 launches, behind 1 to warm up\n"));
    assert_non_null(
        strstr(r.out_text, "all 23068672 elements are within their bounds; 11 launches checked\n"));
}

CASE(test_odd_shape)
{
    expect_right("--nodes 3 --gpus 2 --shape 390,200,328 --iters 12");
}

CASE(test_one_rank)
{
    expect_right("--nodes 1 --gpus 1 --shape 100,72,88");
    assert_non_null(strstr(r.out_text, "moved     0 B over NVLink"));
}

CASE(test_one_node)
{
    expect_right("--nodes 1 --gpus 8 --shape 1024,64,64");
}

CASE(test_nodes_of_one)
{
    expect_right("--nodes 8 --gpus 1 --shape 1024,64,64");
}

CASE(test_fifty_back_to_back)
{
    expect_right("--nodes 2 --gpus 2 --iters 50 --burst 50 --shape 256,64,128 --warmup 0");
}

/* Roles, tiles, chunks and pieces that differ from the defaults; a B stored the other way round. */
CASE(test_tuning)
{
    expect_right("--nodes 2 --gpus 2 --shape 520,136,72 --roles "
                 "compute=3,intra_comm=2,inter_send=2 --tile 32,40 "
                 "--chunk-rows 64 --pieces 3 --b-layout nk --seed 9");
    assert_non_null(strstr(r.out_text, "compute=3,intra_comm=2,inter_send=2"));
}

/* FP8, by its own reference: blocks of scales that are short, slices and pieces that do not divide
 * them, one shot. */
CASE(test_fp8)
{
    expect_right("--nodes 1 --gpus 3 --shape 252,200,656 --dtype fp8 --b-layout nk --slices 3 "
                 "--pieces 2 --iters 3");
    assert_non_null(strstr(r.out_text, "252,200,656 fp8"));
    expect_right("--nodes 1 --gpus 2 --shape 72,136,400 --dtype fp8 --b-layout nk --shots 1 "
                 "--iters 3");
    expect_right("--nodes 2 --gpus 2 --shape 304,200,656 --dtype fp8 --b-layout nk --pieces 3 "
                 "--iters 3");
}

/* The smallest problem: one row and eight columns a rank. */
CASE(test_smallest)
{
    expect_right("--nodes 2 --gpus 2 --shape 4,8,8 --iters 30");
}

/* MKERNEL_TEST_SPOIL=RANK,LAUNCH changes one element of that result before it is checked. */
CASE(test_wrong_is_status_1)
{
    command_start(
        &r,
        "run ag_gemm --exec host --nic soft --nodes 2 --gpus 2 --check --shape 256,64,64 --iters 6 "
        "--warmup 0",
        "MKERNEL_TEST_SPOIL=2,5", NULL);
    command_finish(&r, SECONDS);
    assert_int_equal(r.status, 1);
    assert_int_equal(command_lines(r.err_text), 1);
    assert_non_null(strstr(r.err_text, "1 of "));
    assert_non_null(strstr(r.err_text, "launch 5 of rank 2"));
    assert_non_null(strstr(r.out_text, "verdict   WRONG"));
    assert_non_null(
        strstr(r.out_text, "; 1 of 393216 elements are beyond their bounds, the worst "));
    assert_null(strstr(r.out_text, "FLOP/s"));
}

CASE(test_json)
{
    char path[] = "/tmp/mkernel_test_json_XXXXXX", line[256], text[4096] = "";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(line, sizeof line, "--nodes 1 --gpus 2 --shape 128,64,64 --iters 3 --json %s", path);
    expect_right(line);
    fd = open(path, O_RDONLY); /* another file has its name now */
    assert_true(read(fd, text, sizeof text - 1) > 0);
    close(fd);
    unlink(path);
    assert_non_null(strstr(text, "\"shape\": [128, 64, 64]"));
    assert_non_null(strstr(text, "\"verdict\": \"right\""));
    assert_non_null(strstr(text, "\"ms_median\": "));
    assert_non_null(strstr(text, "\"wrong\": 0"));
}

/* The trace of a run holds every launch of every rank, and every chunk that crossed the network:
 * each of 4 ranks sends its 128 rows in chunks of 64. */
CASE(test_trace)
{
    char path[] = "/tmp/mkernel_test_trace_XXXXXX", line[256];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(line, sizeof line,
             "--nodes 2 --gpus 2 --shape 512,64,64 --iters 5 --warmup 1 --trace %s", path);
    expect_right(line);
    snprintf(line, sizeof line, "trace summary %s", path);
    command_start(&r, line, NULL);
    command_finish(&r, SECONDS);
    unlink(path);
    assert_int_equal(r.status, 0);
    assert_non_null(
        strstr(r.out_text, "ag_gemm 512,64,64: measured, host executor, 2 nodes x 2 ranks"));
    assert_non_null(strstr(r.out_text, "6 launches, "));
    assert_non_null(strstr(r.out_text, " 48 messages in ")); /* 6 launches x 4 ranks x 2 chunks */
    assert_non_null(strstr(r.out_text, "nothing dropped"));
}

CASE(test_bench)
{
    command_start(
        &r,
        "bench ag_gemm --exec host --nodes 1 --gpus 2 --shape 256,64,64 --iters 5 --vs blas --csv "
        "/dev/stdout",
        NULL);
    command_finish(&r, SECONDS);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err_text, "vs blas"));
    assert_non_null(strstr(r.out_text, "\nag_gemm,256,64,64,1,2,host,"));
    assert_non_null(strstr(r.out_text, ",0,\"256,64,64\","));
    command_start(&r,
                  "bench ring_attention --exec host --gpus 2 --attention 1,32,2,1,64 --causal "
                  "--iters 2 --csv /dev/stdout",
                  NULL);
    command_finish(&r, SECONDS);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out_text, "\nring_attention,,,,1,2,host,"));
    assert_non_null(strstr(r.out_text, ",0,\"1,32,2,1,64 causal\","));
}
