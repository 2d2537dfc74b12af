/* Every operator over two devices per rank, one of them late by chance or slow, is right on either
 * fabric, moves not a byte more than over one, and leaves each device its share; `mkernel run` says
 * which they are. Where one of the two fails or goes silent, the job ends in time, and names the
 * operator, who misses what, and the device. */
/* WAITS */
#include "tests/helpers/launch.h"
#include "tests/helpers/sanitized.h"

enum { WORLD = 2, SECONDS = 60, DEVICES = 4 };

static const char *const ops[] = {
    "ag_gemm --shape 130,40,72 --tile 16,40 --chunk-rows 16",
    "gemm_rs --shape 130,40,72 --tile 16,40 --chunk-rows 16",
    "gemm_ar --shape 130,40,72 --tile 16,40 --chunk-rows 16",
    "ring_attention --attention 1,256,4,2,64 --causal",
    "moe_dispatch_gemm --moe 96,128,40,8,2",
    "moe_ffn --moe 96,128,40,8,2",
};
#define OPS (sizeof ops / sizeof *ops)

static struct launch job;

/* Data bytes that a device has sent, of all ranks; unlinks the files. */
static uint64_t add_counts(const char *path, uint64_t bytes[DEVICES])
{
    char device[24], line[256];
    unsigned long long sent;
    uint64_t all = 0;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        assert_int_equal(sscanf(line, "%23s %*u %*s %*u %*u %llu", device, &sent), 2);
        int number = device[strlen(device) - 1] - '0';
        assert_in_range(number, 0, DEVICES - 1);
        bytes[number] += sent;
        all += sent;
    }
    fclose(f);
    unlink(path);
    return all;
}

/* Runs one op; returns the data bytes on the network, and by device. */
static uint64_t run(const char *op, const char *fabric, int rails, const char *faults,
                    uint64_t bytes[DEVICES])
{
    char line[512], own[256], path[64];
    uint64_t all = 0;
    memset(bytes, 0, DEVICES * sizeof *bytes);
    snprintf(line, sizeof line,
             "run %s --fabric %s --rails %d --nodes 2 --gpus 1 --exec host --nic soft --check "
             "--warmup 0 --iters 4",
             op, fabric, rails);
    launch_open(&job, WORLD);
    for (int rank = 0; rank < WORLD; rank++) {
        snprintf(own, sizeof own, "SOFTNIC=count=/tmp/mkernel_test_rails_%d_%d%s", (int)getpid(),
                 rank, faults);
        launch_rank(&job, rank, line, own);
    }
    for (int rank = 0; rank < WORLD; rank++) {
        struct command_run *r = &job.ranks[rank];
        command_finish(r, SECONDS);
        if (r->status)
            fail_msg("mkernel %s: rank %d ends with %d: %s", line, rank, r->status, r->err_text);
        snprintf(path, sizeof path, "/tmp/mkernel_test_rails_%d_%d", (int)getpid(), rank);
        all += add_counts(path, bytes);
    }
    return all;
}

static void both(const char *op, const char *fabric, const char *faults)
{
    int efa = !strcmp(fabric, "efa");
    uint64_t one[DEVICES], two[DEVICES], least = run(op, fabric, 1, "", one);
    assert_int_equal(one[0], least);
    uint64_t all = run(op, fabric, 2, faults, two);
    const char *names = efa ? "efa over softefa0+softefa1" : "verbs over soft0+soft1";
    if (!strstr(job.ranks[0].out_text, names))
        fail_msg("%s does not say %s: %s", op, names, job.ranks[0].out_text);
    if (all != least)
        fail_msg("%s, %s: %llu bytes over two devices, %llu over one", op, fabric,
                 (unsigned long long)all, (unsigned long long)least);
    if (two[0] < all / 4 || two[1] < all / 4 || two[0] + two[1] != all)
        fail_msg("%s, %s: shares are %llu and %llu", op, fabric, (unsigned long long)two[0],
                 (unsigned long long)two[1]);
}

CASE(test_verbs)
{
    for (size_t i = 0; i < OPS; i++)
        both(ops[i], "verbs", i % 2 ? ",delay=2ms~0.2,only=soft1,seed=5" : ",delay=2ms~0.1,seed=3");
}

CASE(test_efa)
{
    for (size_t i = 0; i < OPS; i++)
        both(ops[i], "efa",
             i % 2 ? ",delay=2ms~0.1,only=softefa1,seed=5" : ",delay=1ms~0.05,seed=3");
}

CASE(test_slow_device)
{
    uint64_t bytes[DEVICES];
    for (size_t i = 0; i < OPS; i += 2) { /* a hundredth of what softnic does here */
        run(ops[i], "verbs", 2, ",bw=5MB/s,only=soft1", bytes);
        run(ops[i], "efa", 2, ",bw=5MB/s,only=softefa1", bytes);
    }
}

/* Rank 1's second device has a fault; every rank says so, with one sentence. */
static void end_badly(const char *op, const char *fabric, const char *device, const char *fault)
{
    char line[512], own[256], prefix[64];
    double seconds = 0;
    snprintf(prefix, sizeof prefix, "mkernel run %.*s: ", (int)strcspn(op, " "), op);
    snprintf(line, sizeof line,
             "run %s --fabric %s --rails 2 --nodes 2 --gpus 1 --exec host --nic soft --check "
             "--iters 200 --timeout 2",
             op, fabric);
    snprintf(own, sizeof own, "SOFTNIC=%s", fault);
    launch_open(&job, WORLD);
    for (int rank = 0; rank < WORLD; rank++)
        launch_rank(&job, rank, line, rank ? own : NULL);
    for (int rank = 0; rank < WORLD; rank++) {
        struct command_run *r = &job.ranks[rank];
        command_finish(r, SECONDS);
        seconds = r->seconds > seconds ? r->seconds : seconds;
        if (r->status != 3 || strstr(r->out_text, "right") || command_lines(r->err_text) != 1 ||
            strncmp(r->err_text, prefix, strlen(prefix)) || !strstr(r->err_text, "rank 0") ||
            !strstr(r->err_text, "rank 1") || !strstr(r->err_text, " in epoch ") ||
            !strstr(r->err_text, device))
            fail_msg("%s, SOFTNIC=%s: rank %d ends with %d: %s", line, fault, rank, r->status,
                     r->err_text);
    }
    print_message("%s, %s: %.1f s: %s", fabric, fault, seconds, job.ranks[0].err_text);
    assert_true(seconds < 12 + BUSY);
}

CASE(test_failing_device)
{
    end_badly(ops[0], "verbs", "soft1: ", "fail-wr=REM_ACCESS_ERR@9,only=soft1");
    end_badly(ops[3], "verbs", "soft1: ", "drop-peer=soft1@9");
    end_badly(ops[0], "efa", "softefa1: ", "fail-wr=REM_ACCESS_ERR@9,only=softefa1");
    end_badly(ops[3], "efa", "softefa1: ", "drop-peer=softefa1@9");
}
