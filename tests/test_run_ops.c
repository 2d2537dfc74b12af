/* `mkernel run OP --check` is right for every operator over real processes and the verbs fabric,
 * fast and deterministic, finds one wrong element in each, and its table says the bytes of the
 * plan. */
#include "tests/helpers/command.h"
#include "tests/helpers/test.h"

#define SECONDS 60

static struct command_run r;

static void expect_right(const char *op, const char *options)
{
    char line[512];
    snprintf(line, sizeof line, "run %s --exec host --nic soft --check %s", op, options);
    command_start(&r, line, NULL);
    command_finish(&r, SECONDS);
    if (r.status != 0 || !strstr(r.out_text, "verdict   right") || !strstr(r.err_text, "all right"))
        fail_msg("mkernel %s: status %d signal %d after %.1f s\n%s%s", line, r.status, r.signal,
                 r.seconds, r.out_text, r.err_text);
}

CASE(test_epilogues)
{
    expect_right("ag_gemm", "--nodes 1 --gpus 3 --shape 252,200,72 --epilogue bias+silu");
    assert_non_null(strstr(r.out_text, "252,200,72 bias+silu"));
    expect_right("ag_gemm", "--nodes 2 --gpus 2 --shape 304,136,400 --epilogue bias+gelu_tanh "
                            "--dtype fp8 --b-layout nk");
    expect_right("ag_gemm", "--nodes 2 --gpus 1 --shape 66,40,72 --epilogue silu --shots 2");
    expect_right("ag_gemm", "--nodes 2 --gpus 2 --shape 304,144,400 --epilogue bias+silu+gated");
    expect_right("ag_gemm", "--nodes 1 --gpus 2 --shape 264,272,144 --epilogue bias+silu+gated "
                            "--dtype fp8 --b-layout nk");
    expect_right("ag_gemm", "--nodes 1 --gpus 3 --shape 252,208,72 --epilogue gelu_tanh+gated "
                            "--b-layout nk --dtype fp16");
    expect_right("gemm_rs", "--nodes 1 --gpus 3 --shape 9,200,72 --epilogue residual+rmsnorm");
    expect_right("gemm_rs", "--nodes 2 --gpus 2 --shape 136,136,400 --epilogue residual+rmsnorm "
                            "--deterministic --shots 2");
    expect_right("gemm_ar", "--nodes 1 --gpus 3 --shape 7,200,72 --epilogue residual+rmsnorm");
    expect_right("gemm_ar", "--nodes 2 --gpus 2 --shape 7,208,72 "
                            "--epilogue residual+rmsnorm+quantize");
    assert_non_null(strstr(r.out_text, "7,208,72 residual+rmsnorm+quantize"));
    expect_right("gemm_rs", "--nodes 1 --gpus 2 --shape 24,272,144 --dtype fp8 --b-layout nk "
                            "--epilogue residual+rmsnorm+quantize");
    expect_right("gemm_ar", "--nodes 1 --gpus 2 --shape 304,136,400 --dtype fp8 --b-layout nk "
                            "--epilogue residual --deterministic");
    expect_right("gemm_ar", "--nodes 2 --gpus 2 --shape 130,136,400 --epilogue residual "
                            "--deterministic --shots 2");
    expect_right("gemm_ar", "--nodes 1 --gpus 2 --shape 301,136,400 --epilogue residual+rmsnorm "
                            "--deterministic --shots 2");
}

CASE(test_sums)
{
    static const char *const ops[] = {"gemm_rs", "gemm_ar"};
    for (int i = 0; i < 2; i++) {
        expect_right(ops[i], "--nodes 1 --gpus 1 --shape 33,40,72 --iters 3");
        expect_right(ops[i], "--nodes 1 --gpus 4 --shape 260,136,64 --b-layout nk");
        expect_right(ops[i], "--nodes 2 --gpus 1 --shape 66,40,72 --deterministic");
        expect_right(
            ops[i],
            "--nodes 2 --gpus 2 --shape 520,200,72 --tile 32,40 --chunk-rows 64 --pieces 3");
        expect_right(ops[i], "--nodes 3 --gpus 2 --shape 390,200,328 --deterministic");
        expect_right(ops[i], "--nodes 4 --gpus 1 --shape 132,40,72");
        expect_right(ops[i],
                     "--nodes 2 --gpus 2 --shape 256,64,128 --iters 40 --burst 40 --warmup 0");
        expect_right(ops[i], "--nodes 1 --gpus 3 --shape 252,200,656 --dtype fp8 --b-layout nk");
        expect_right(ops[i], "--nodes 2 --gpus 2 --shape 304,136,400 --dtype fp8 --b-layout nk "
                             "--deterministic --pieces 3");
    }
}

/* Tokens of FP8 bring their scales: half of bf16's bytes and four for 128 elements cross. */
CASE(test_moe_fp8)
{
    expect_right("moe_dispatch_gemm",
                 "--nodes 1 --gpus 3 --moe 61,272,200,6,2 --dtype fp8 --b-layout nk --iters 4");
    expect_right("moe_dispatch_gemm", "--nodes 2 --gpus 2 --moe 96,144,136,8,2 --dtype fp8 "
                                      "--b-layout nk --routing few --iters 4");
    expect_right("moe_dispatch_gemm", "--nodes 1 --gpus 1 --moe 16,272,136,4,2 "
                                      "--dtype fp8 --b-layout nk --iters 2");
    expect_right("moe_ffn", "--nodes 1 --gpus 3 --moe 61,272,208,6,2 --dtype fp8 --b-layout nk "
                            "--skew 1 --iters 4");
    expect_right("moe_ffn", "--nodes 2 --gpus 2 --moe 96,144,144,8,2 --dtype fp8 --b-layout nk "
                            "--routing none --deterministic --iters 4");
}

CASE(test_attention)
{
    expect_right("ring_attention", "--nodes 1 --gpus 1 --attention 2,33,3,1,64 --iters 3");
    expect_right("ring_attention", "--nodes 1 --gpus 4 --attention 1,260,4,4,128 --iters 4");
    expect_right("ring_attention", "--nodes 2 --gpus 1 --attention 2,66,6,2,64 --iters 4");
    expect_right("ring_attention",
                 "--nodes 2 --gpus 2 --attention 1,264,4,2,64 --causal --iters 4");
    expect_right("ring_attention",
                 "--nodes 3 --gpus 2 --attention 1,396,2,1,128 --causal --iters 4 --tile 40,24 "
                 "--chunk-rows 40 --roles compute=3,intra_comm=2,inter_send=2");
    expect_right(
        "ring_attention",
        "--nodes 4 --gpus 1 --attention 3,40,2,2,64 --causal --iters 12 --burst 12 --warmup 0");
    assert_non_null(strstr(r.out_text, "B,S,heads,kv_heads,D 3,40,2,2,64 causal"));
    expect_right("ring_attention", "--nodes 1 --gpus 3 --attention 2,99,4,2,64 --causal --split "
                                   "contiguous --iters 4");
    static const int lengths[] = {1, 17, 193, 1000};
    for (int i = 0; i < 12; i++) {
        static const char *const splits[] = {"", "--causal", "--causal --split contiguous"};
        char options[200];
        snprintf(options, sizeof options, "%s --attention 2,%d,4,2,64 %s --iters 4",
                 i % 2 ? "--nodes 1 --gpus 3" : "--nodes 2 --gpus 1", lengths[i / 3],
                 splits[i % 3]);
        expect_right("ring_attention", options);
    }
    expect_right("ring_attention", "--nodes 1 --gpus 3 --attention 2,99,4,2,64 --causal --split "
                                   "contiguous --iters 4");
    assert_non_null(strstr(r.out_text, "B,S,heads,kv_heads,D 2,99,4,2,64 causal contiguous"));
    expect_right("ring_attention", "--nodes 2 --gpus 2 --attention 1,260,2,1,64 --causal --split "
                                   "contiguous --iters 4");
}

/* What only moves, of each type: half the bytes of bf16 cross. */
CASE(test_moved)
{
    static const char *const ops[] = {"all_gather", "all_to_all"}, *const dtypes[] = {"bf16",
                                                                                      "fp16", "fp8",
                                                                                      "bytes"};
    for (int i = 0; i < 2; i++)
        for (int dtype = 0; dtype < 4; dtype++) {
            char options[128];
            snprintf(options, sizeof options,
                     "--nodes 1 --gpus 3 --shape 297,208 --iters 4 --dtype %s", dtypes[dtype]);
            expect_right(ops[i], options);
            snprintf(options, sizeof options,
                     "--nodes 2 --gpus 2 --shape 256,64 --chunk-rows 8 --iters 4 --dtype %s",
                     dtypes[dtype]);
            expect_right(ops[i], options);
            /* of 64 rows (all_to_all: 16) of 64 elements to each rank: two blocks come over
             * NVLink */
            char moved[64];
            snprintf(moved, sizeof moved, "moved     %u.00 KiB over NVLink",
                     (i ? 4u : 16u) >> (dtype > 1));
            assert_non_null(strstr(r.out_text, moved));
            assert_true(!dtype || strstr(r.out_text, dtypes[dtype]));
        }
}

CASE(test_fp16)
{
    static const char *const ops[] = {"ag_gemm", "gemm_rs", "gemm_ar"};
    for (int i = 0; i < 3; i++) {
        expect_right(ops[i], "--nodes 1 --gpus 3 --shape 99,72,208 --iters 4 --dtype fp16");
        assert_non_null(strstr(r.out_text, "99,72,208 fp16"));
        expect_right(ops[i], "--nodes 2 --gpus 2 --shape 256,136,64 --iters 4 --dtype fp16 "
                             "--b-layout nk");
        expect_right(ops[i], i ? "--nodes 1 --gpus 2 --shape 32,72,208 --iters 4 --dtype fp16 "
                                 "--deterministic --epilogue residual+rmsnorm"
                               : "--nodes 1 --gpus 2 --shape 32,72,208 --iters 4 --dtype fp16 "
                                 "--epilogue bias+gelu_tanh");
    }
    expect_right("reduce_scatter", "--nodes 2 --gpus 2 --shape 256,64 --iters 4 --dtype fp16");
}

CASE(test_moe)
{
    expect_right("moe_dispatch_gemm", "--nodes 1 --gpus 1 --moe 24,64,40,3,1 --iters 3");
    expect_right("moe_dispatch_gemm",
                 "--nodes 1 --gpus 4 --moe 40,192,72,16,8 --b-layout nk --iters 4");
    expect_right("moe_dispatch_gemm",
                 "--nodes 2 --gpus 1 --moe 8,64,8,2,2 --iters 4 --routing none");
    expect_right("moe_dispatch_gemm",
                 "--nodes 2 --gpus 2 --moe 64,128,64,4,1 --iters 4 --routing one");
    expect_right("moe_dispatch_gemm",
                 "--nodes 3 --gpus 2 --moe 40,64,136,12,3 --iters 4 --routing few --tile 16,40 "
                 "--chunk-rows 8 --roles compute=3,intra_comm=2,inter_send=2");
    expect_right("moe_dispatch_gemm",
                 "--nodes 4 --gpus 1 --moe 24,64,40,8,2 --iters 12 --burst 12 --warmup 0");
    assert_non_null(strstr(r.out_text, "T,H,I,experts,k 24,64,40,8,2"));
}

/* Rows to experts, and back, without a product. */
CASE(test_moe_rows)
{
    static const char *const ops[] = {"moe_dispatch", "moe_combine"};
    for (size_t i = 0; i < 2; i++) {
        expect_right(ops[i], "--nodes 1 --gpus 1 --moe 24,64,3,1 --iters 3");
        expect_right(ops[i], "--nodes 1 --gpus 4 --moe 40,192,16,8 --iters 4");
        expect_right(ops[i], "--nodes 2 --gpus 1 --moe 8,64,2,2 --iters 4 --routing none");
        expect_right(ops[i], "--nodes 2 --gpus 2 --moe 64,128,4,1 --iters 4 --routing one");
        expect_right(ops[i], "--nodes 3 --gpus 2 --moe 40,64,12,3 --iters 4 --routing few "
                             "--chunk-rows 8 --roles intra_comm=2,inter_send=2,inter_reduce=3");
        expect_right(ops[i], "--nodes 4 --gpus 1 --moe 24,64,8,2 --iters 12 --burst 12 --warmup 0");
        assert_non_null(strstr(r.out_text, "T,H,experts,k 24,64,8,2"));
    }
    expect_right("moe_dispatch", "--nodes 2 --gpus 2 --moe 61,272,8,2 --dtype fp8 --iters 4");
}

CASE(test_moe_ffn)
{
    expect_right("moe_ffn", "--iters 2");
    expect_right("moe_ffn", "--nodes 1 --gpus 1 --moe 24,64,40,3,1 --iters 3");
    expect_right("moe_ffn", "--nodes 1 --gpus 4 --moe 40,192,72,16,8 --b-layout nk --iters 4");
    expect_right("moe_ffn",
                 "--nodes 2 --gpus 1 --moe 8,64,8,2,2 --iters 4 --routing none --deterministic");
    expect_right("moe_ffn", "--nodes 2 --gpus 2 --moe 64,128,64,4,1 --iters 4 --routing one");
    expect_right("moe_ffn",
                 "--nodes 3 --gpus 2 --moe 40,64,136,12,8 --iters 4 --routing few --tile 16,48 "
                 "--chunk-rows 8 --roles compute=3,intra_comm=2,inter_send=2,inter_reduce=2");
    expect_right(
        "moe_ffn",
        "--nodes 4 --gpus 1 --moe 24,64,40,8,2 --iters 12 --burst 12 --warmup 0 --deterministic "
        "--b-layout nk");
    assert_non_null(strstr(r.out_text, "T,H,I,experts,k 24,64,40,8,2"));
    expect_right(
        "moe_ffn",
        "--nodes 3 --gpus 2 --fabric efa --moe 24,64,40,12,4 --routing none --iters 12 --burst 4");
}

CASE(test_bytes_in_the_table)
{
    /* A block is 64 x 64 elements: (gpus - 1) nodes of them over NVLink, nodes - 1 over the
     * network. */
    expect_right("gemm_rs", "--nodes 2 --gpus 2 --shape 256,64,64");
    assert_non_null(
        strstr(r.out_text,
               "moved     16.00 KiB over NVLink (shared memory) and 8.00 KiB over the network"));
    expect_right("gemm_rs", "--nodes 2 --gpus 2 --shape 256,64,64 --deterministic");
    assert_non_null(
        strstr(r.out_text,
               "moved     32.00 KiB over NVLink (shared memory) and 16.00 KiB over the network"));
    expect_right("gemm_ar", "--nodes 2 --gpus 2 --shape 256,64,64");
    assert_non_null(
        strstr(r.out_text,
               "moved     32.00 KiB over NVLink (shared memory) and 16.00 KiB over the network"));
}

/* MKERNEL_TEST_SPOIL makes one element wrong, of a rank with tokens or without. */
CASE(test_one_wrong)
{
    static const char *const lines[] = {"gemm_rs --shape 64,64,64",
                                        "gemm_ar --shape 64,64,64",
                                        "all_gather --shape 64,64 --dtype fp8",
                                        "all_to_all --shape 64,64 --dtype bytes",
                                        "ring_attention --attention 1,64,2,1,64",
                                        "moe_ffn --moe 16,64,40,4,2",
                                        "moe_dispatch_gemm --moe 16,64,40,4,2",
                                        "moe_dispatch_gemm --moe 16,64,40,4,2 --routing one",
                                        "moe_dispatch_gemm --moe 16,64,40,4,2 --routing few",
                                        "moe_dispatch_gemm --moe 16,64,40,4,2 --routing none",
                                        "moe_dispatch --moe 16,64,4,2 --routing one",
                                        "moe_combine --moe 16,64,4,2"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        for (int rank = 0; rank < 2; rank++) {
            char line[256], spoil[64], says[64];
            snprintf(line, sizeof line, "run %s --exec host --gpus 2 --iters 2 --warmup 0 --check",
                     lines[i]);
            snprintf(spoil, sizeof spoil, "MKERNEL_TEST_SPOIL=%d,2", rank);
            snprintf(says, sizeof says, "first in launch 2 of rank %d", rank);
            command_start(&r, line, spoil, NULL);
            command_finish(&r, SECONDS);
            if (r.status != 1 || !strstr(r.err_text, "wrong: 1 of ") || !strstr(r.err_text, says))
                fail_msg("%s mkernel %s: status %d, \"%s\"", spoil, line, r.status, r.err_text);
        }
}
