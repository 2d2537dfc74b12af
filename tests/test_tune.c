/* `mkernel tune` finds the fastest of the plans that it tries, never one that computes wrong
 * results, and keeps it where `run` and `bench` take their default from. The bad plans here are
 * several times slower than the good ones, so that a busy machine does not change the order. */
#include "tests/helpers/command.h"
#include "tests/helpers/folder.h"

#define SECONDS 100
#define SLOW "tile=8,8 roles=compute=1,intra_comm=1 chunk-rows=8"

static struct command_run r;
static char path[256], environment[300], text[4096];

static void judge(const char *line, int status, const char *says)
{
    const char *out = status == 0 || status == 1 ? r.out_text : r.err_text;
    if (r.status != status || (!strstr(out, says) && !strstr(r.err_text, says)) ||
        command_lines(r.err_text) != 1)
        fail_msg("mkernel %s: status %d (want %d) after %.1f s lacks \"%s\"\n%s%s", line, r.status,
                 status, r.seconds, says, r.out_text, r.err_text);
}

static void expect(const char *line, int status, const char *says)
{
    command_start(&r, line, environment, NULL);
    command_finish(&r, SECONDS);
    judge(line, status, says);
}

static void write_plans(const char *lines)
{
    test_write_file(path, lines);
}

static const char *read_plans(void)
{
    test_read_file(path, text, sizeof text);
    return text;
}

/* A bad default is told, replaced, and gone in the next run. Products are so shallow that small
 * tiles take seven times as long: no neighbour on this machine makes that noise. */
CASE(test_bad_default)
{
#define SHAPE "ag_gemm --exec host --gpus 2 --shape 2048,512,16 "
    static const char other[] = "gemm_rs 8,8,8 kn fast 1x2 host # stays\n";
    char both[512];
    snprintf(both, sizeof both, "ag_gemm 2048,512,16 kn fast 1x2 host " SLOW "\n%s", other);
    write_plans(both);
    expect("run " SHAPE "--iters 2 --check", 0, "tuned     " SLOW " as measured at 2048,512,16");
    assert_non_null(strstr(r.out_text, "tiles 8 x 8"));
    expect("bench " SHAPE "--iters 2", 0, "tuned     " SLOW);
    expect("run " SHAPE "--iters 2 --tuning none", 0, "tiles 64 x 64");
    assert_null(strstr(r.out_text, "tuned"));
    /* who gives an option gets the formula for the rest */
    expect("run " SHAPE "--iters 2 --pieces 2", 0, "tiles 64 x 64");
    assert_null(strstr(r.out_text, "tuned"));

    expect("tune " SHAPE "--iters 10 --space tile=8,8 --verify", 1,
           "the defaults of 0 of 1 shapes are within 1.05");
    assert_string_equal(read_plans(), both);
    for (int i = 0; i < 4; i++) { /* much other work at just that time may hide it */
        expect("tune " SHAPE "--iters 10 --space tile=8,8", 0, "1 shape tuned");
        assert_non_null(strstr(r.out_text, SLOW "  <- default"));
        if (strstr(r.out_text, "not within 1.05"))
            break;
    }
    assert_non_null(strstr(r.out_text, "not within 1.05"));
    assert_non_null(strstr(r.out_text, "kept      "));
    assert_non_null(strstr(read_plans(), other));
    assert_null(strstr(text, SLOW));
    assert_non_null(strstr(text, "ag_gemm 2048,512,16 kn fast 1x2 host "));
    assert_non_null(strstr(text, " ms="));
    expect("run " SHAPE "--iters 2 --check", 0, "tiles 64 x 64");
    expect("tune " SHAPE "--iters 10 --space tile=8,8 --verify", 0,
           "the defaults of 1 of 1 shapes are within 1.05");
}

/* A near shape's plan is a default, too, as it was when the command began. */
CASE(test_near)
{
    write_plans("gemm_rs 256,512,256 kn fast 1x2 host tile=8,8 chunk-rows=8\n");
    expect("tune gemm_rs --exec host --gpus 2 --shapes 256,512,256:264,512,264 --iters 4 --rounds "
           "1 --space tile=128,128:16,16",
           0, "2 shapes tuned");
    assert_non_null(strstr(read_plans(), "gemm_rs 264,512,264 kn fast 1x2 host"));
    const char *second = strstr(r.out_text, "gemm_rs 264,512,264");
    assert_non_null(second);
    assert_non_null(strstr(second, "tile=8,8 chunk-rows=8  <- default"));
    assert_non_null(strstr(second, "(tile=8,8 chunk-rows=8 as measured at 256,512,256"));
}

/* A plan whose results are wrong is never taken, however fast, and the status says so. */
CASE(test_wrong)
{
    unlink(path); /* the formula's plan is the fastest by far, and launch 1 is of it */
    command_start(&r,
                  "tune ag_gemm --exec host --gpus 2 --shape 512,256,256 --iters 4 --rounds 1 "
                  "--space tile=8,8",
                  environment, "MKERNEL_TEST_SPOIL=1,1", NULL);
    command_finish(&r, SECONDS);
    judge("tune, spoilt", 1, "1 plan computed wrong results, the first: formula at 512,256,256");
    assert_non_null(strstr(r.out_text, "WRONG"));
    assert_non_null(strstr(read_plans(), "ag_gemm 512,256,256 kn fast 1x2 host tile=8,8 "));
    expect("run ag_gemm --exec host --gpus 2 --shape 512,256,256 --iters 2 --check", 0,
           "tuned     tile=8,8 as measured at 512,256,256");
    assert_non_null(strstr(r.out_text, "tiles 8 x 8"));

    /* Nothing is right, nothing is kept. */
    unlink(path);
    command_start(&r,
                  "tune gemm_rs --exec host --gpus 2 --shape 256,256,128 --iters 4 --rounds 1 "
                  "--space tile=64,64",
                  environment, "MKERNEL_TEST_SPOIL=0,1", NULL);
    command_finish(&r, SECONDS);
    judge("tune, all spoilt", 1, "the first: formula at 256,256,128");
    assert_non_null(strstr(r.out_text, "kept      nothing"));
    assert_int_not_equal(access(path, F_OK), 0);
}

/* One header, and rows of both shapes, in a file and where it can only be written on. */
static void two_shapes_are_one_table(const char *csv)
{
    const char *const paths[] = {csv, "/dev/stdout"};
    for (int i = 0; i < 2; i++) {
        char line[512];
        snprintf(
            line, sizeof line,
            "tune gemm_rs --exec host --gpus 2 --shapes 64,64,64:128,64,64 --iters 4 --rounds 1 "
            "--space tile=32,32 --quiet --csv %s",
            paths[i]);
        expect(line, 0, "2 shapes tuned");
        if (i == 0) {
            test_read_file(csv, r.out_text, sizeof r.out_text);
        }
        assert_memory_equal(r.out_text, "op,m,n,k,", 9);
        assert_null(strstr(r.out_text + 1, "\nop,m,n,k,"));
        const char *one = strstr(r.out_text, "\ngemm_rs,64,64,64,1,2,host,"),
                   *two = strstr(r.out_text, "\ngemm_rs,128,64,64,1,2,host,");
        assert_true(one && two && one < two);
    }
}

CASE(test_nodes)
{
    char csv[300], line[512];
    unlink(path);
    snprintf(csv, sizeof csv, "%s/plans.csv", folder);
    snprintf(line, sizeof line,
             "tune gemm_ar --exec host --nic soft --nodes 2 --gpus 2 --shape 256,64,64 --iters 4 "
             "--rounds 2 "
             "--space tile=32,32;roles --csv %s",
             csv);
    expect(line, 0, "1 shape tuned");
    assert_non_null(strstr(read_plans(), "gemm_ar 256,64,64 kn fast 2x2 host"));
    FILE *f = fopen(csv, "r");
    int rows = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        rows += strstr(line, "gemm_ar,256,64,64,2,2,host,") == line;
    fclose(f);
    assert_true(rows >= 8);
    two_shapes_are_one_table(csv);
    expect("tune ag_gemm --exec host --nic soft --nodes 2 --gpus 2 --shape 256,64,64 --iters 4 "
           "--rounds 1 --deterministic "
           "--b-layout nk",
           0, "1 shape tuned");
    assert_non_null(strstr(read_plans(), "ag_gemm 256,64,64 nk deterministic 2x2 host"));
    assert_non_null(strstr(text, "gemm_ar 256,64,64"));
}

/* A MoE's plan is kept by its five numbers. Its result has room for rows as the plan's tiles need:
 * plans with more are right, too. */
CASE(test_moe)
{
#define MOE "moe_dispatch_gemm --exec host --gpus 2 --moe 300,64,64,8,2 "
    write_plans("moe_dispatch_gemm 300,64,64,8,2 kn fast 1x2 host tile=8,8\n");
    expect("run " MOE "--iters 2 --check", 0, "tuned     tile=8,8 as measured at 300,64,64,8,2");
    expect("run moe_dispatch_gemm --exec host --gpus 2 --moe 320,64,64,8,2 --iters 2", 0,
           "tuned     tile=8,8");
    expect("run moe_dispatch_gemm --exec host --gpus 2 --moe 300,64,64,4,2 --iters 2", 0,
           "tiles 32 x 64");
    expect("tune " MOE "--iters 4 --rounds 1 --space tile=8,8:256,64;chunk-rows", 0,
           "1 shape tuned, all right");
    assert_non_null(strstr(r.out_text, "moe_dispatch_gemm 300,64,64,8,2, 1 x 2 ranks on host"));
    assert_non_null(strstr(r.out_text, "  tile=256,64\n"));
    assert_non_null(strstr(r.out_text, "  chunk-rows=8\n"));
    assert_non_null(strstr(read_plans(), "moe_dispatch_gemm 300,64,64,8,2 kn fast 1x2 host"));
    expect(
        "tune moe_ffn --exec host --nic soft --nodes 2 --gpus 1 --shapes 40,64,32,4,2:24,64,32,4,2 "
        "--deterministic --iters 4 --rounds 1 --space tile=16,16",
        0, "2 shapes tuned, all right");
    assert_non_null(strstr(read_plans(), "moe_ffn 24,64,32,4,2 kn deterministic 2x1 host"));
    assert_non_null(strstr(text, "moe_ffn 40,64,32,4,2 kn deterministic 2x1 host"));
    expect("tune moe_dispatch_gemm --exec sim --cluster 1x2 --moe 256,1024,512,8,2 --rounds 1 "
           "--space roles=compute=110,intra_comm=22:compute=131,intra_comm=1 --verify",
           0, "the defaults of 1 of 1 shapes are within 1.05 of the best found");
    assert_non_null(strstr(r.out_text, "roles=compute=131,intra_comm=1"));
    /* all tokens to one expert: another plan is the best, and is for no other tokens */
    expect("tune moe_ffn --exec sim --cluster 1x2 --moe 64,7168,2048,32,8 --rounds 1 --space "
           "tile=128,128 --skew one --verify",
           1, "within 1.05 of the best found");
    expect("tune moe_ffn --exec sim --cluster 1x2 --moe 64,7168,2048,32,8 --skew one --tuning x", 2,
           "a plan is kept for any tokens, and --skew says which these are");
    expect("tune gemm_rs --exec sim --skew one --verify", 2, "skew");
}

/* Attention's plan is kept by its mask, too, and is taken for that mask alone: on the host, on the
 * emulated GPU, in the simulator. */
CASE(test_attention)
{
#define ATTENTION "--attention 1,192,2,1,64 "
    expect("tune ring_attention --exec host --gpus 2 --shapes 1,192,2,1,64:1,128,2,2,64 --causal "
           "--iters 4 --rounds 1 --space tile=16,16:64,16;chunk-rows=32",
           0, "2 shapes tuned, all right");
    assert_non_null(strstr(r.out_text, "ring_attention 1,192,2,1,64 causal, 1 x 2 ranks on host"));
    assert_non_null(strstr(read_plans(), "ring_attention 1,192,2,1,64 causal fast 1x2 host"));
    assert_non_null(strstr(text, "ring_attention 1,128,2,2,64 causal fast 1x2 host"));
    write_plans("ring_attention 1,192,2,1,64 causal fast 1x2 host tile=16,24\n"
                "ring_attention 1,192,2,1,64 causal fast 1x2 emulated pieces=3\n");
    expect("run ring_attention --exec host --gpus 2 " ATTENTION "--causal --iters 2 --check", 0,
           "tuned     tile=16,24 as measured at 1,192,2,1,64 causal");
    expect("run ring_attention --exec host --gpus 2 " ATTENTION "--iters 2 --check", 0,
           "tiles 32 x 32");
    expect("run ring_attention --exec emulated --gpus 2 " ATTENTION "--causal --iters 1 --check", 0,
           "tuned     pieces=3 as measured at 1,192,2,1,64 causal");
    char line[512];
    snprintf(line, sizeof line,
             "tune ring_attention --exec sim --cluster 1x2 --attention 4,1536,16,16,128 --causal "
             "--rounds 1 --space pieces=4:8;pace=300 --tuning %s",
             path);
    expect(line, 0, "1 shape tuned, all right");
    assert_non_null(
        strstr(read_plans(), "ring_attention 4,1536,16,16,128 causal fast 1x2 NVIDIA_H200"));
    assert_non_null(strstr(text, "by=simulation"));
    write_plans("ring_attention 4,1536,16,16,128 causal fast 1x2 NVIDIA_H200 pieces=5 "
                "by=simulation\n");
    command_start(&r, "sim ring_attention --cluster 1x2 --attention 4,1536,16,16,128 --causal",
                  environment, NULL);
    command_finish(&r, SECONDS);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out_text, "pieces=5 as simulated at 4,1536,16,16,128 causal"));
}

CASE(test_rank_dies)
{
    unlink(path);
    command_start(&r,
                  "tune gemm_rs --exec host --gpus 2 --shape 256,256,128 --iters 4 --space "
                  "tile=32,32 --timeout 3",
                  environment, "MKERNEL_TEST_DIE=1,3", NULL);
    command_finish(&r, SECONDS);
    judge("tune, a rank dies", 3, "it measured tile=32,32");
    assert_non_null(strstr(r.err_text, "rank 1"));
    assert_int_not_equal(access(path, F_OK), 0);
}

CASE(test_refusals)
{
    unlink(path);
    expect("tune all_gather --exec host", 2, "all_gather has no plans to choose from");
    expect("tune ring_attention --exec host --space shots=1", 2, "ring_attention has no shots");
    expect("tune ring_attention --exec emulated", 2, "an emulated GPU has no speed to measure");
    expect("tune ag_gemm --exec host --tuning none", 2, "there is no file to keep plans in");
    expect("tune ag_gemm --exec host --tuning /proc/plans", 2, "/proc/plans cannot be written");
    expect("tune ag_gemm --exec host --space tile=64", 2, "it should look like tile=256,128");
    /* as it was written until 2026-11-23 */
    expect("tune ag_gemm --exec host --space tile=64x64,32x32:pieces=2", 2,
           "options ;, as in 'tile=256,128:128,128;pace=none:300'");
    expect("tune ag_gemm --exec host --space tile:pieces", 2, "values have : between them");
    expect("tune ag_gemm --exec host --space tile=64x64", 2, "'tile=64x64' is written tile=64,64");
    expect("tune ag_gemm --exec host --space slice", 2,
           "'slice' is no option of a plan (did you mean slices?)");
    expect("tune gemm_rs --exec host --space tile;pace=3", 2, "pace is for --exec cuda");
    expect("tune gemm_rs --exec host --space fanout=2", 2, "gemm_rs has no fanout");
    expect("tune ag_gemm --exec host --shapes 8,8,8:9,8,8", 2, "M = 9 does not divide by 2 ranks");
    expect("tune ag_gemm --exec host --shapes 8,8", 2, "--shapes 8,8: not M,N,K:M,N,K");
    expect("tune ag_gemm --exec host --roles compute=2", 2, "no option --roles");
    expect("run ag_gemm --exec host --tuning /nowhere/plans", 2, "/nowhere/plans cannot be read");
    write_plans("ag_gemm 512,512,512 kn fast 1x2 host tile=60,64\n");
    expect("run ag_gemm --exec host --shape 512,512,512", 2, "plans:1: its plan does not fit");
    write_plans("# mine\nag_gemm 512,512,512 kn fst 1x2 host\n");
    expect("run ag_gemm --exec host", 2, "plans:2: 'fst' is not an order of sums");
    expect("tune ag_gemm --exec host", 2, "plans:2: 'fst'");
}

static int set_up(void **state)
{
    if (folder_make(state))
        return -1;
    snprintf(path, sizeof path, "%s/plans", folder);
    snprintf(environment, sizeof environment, "MKERNEL_TUNING=%s", path);
    return 0;
}

FIXTURE(set_up, folder_remove)
