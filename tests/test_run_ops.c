/* `mkernel run OP --check` is right over the verbs fabric for what is an operator's own: types,
 * epilogues, masks, routing, bytes, roles; it finds one wrong element in each. */
#include "tests/helpers/run_right.h"

/* ---- over verbs, what is an operator's own ---- */

static const struct {
    const char *line, *says;
} own[] = {
    {"ag_gemm --nodes 2 --gpus 2", " in 3 bursts of up to 4), median of the slowest rank"},
    {"ag_gemm --nodes 2 --gpus 2",
     "all 23068672 elements are within their bounds; 11 launches checked\n"},
    {"ag_gemm --nodes 1 --gpus 1 --shape 100,72,88", "moved     0 B over NVLink"},
    {"ag_gemm --nodes 1 --gpus 8 --shape 1024,64,64", " TFLOP/s a rank\n"},
    {"ag_gemm --nodes 8 --gpus 1 --shape 1024,64,64", "; 10 launches, behind 1 to warm up\n"},
    {"ag_gemm --nodes 2 --gpus 2 --iters 50 --burst 50 --shape 256,64,128 --warmup 0",
     "2 nodes of 2"},
    {"ag_gemm --nodes 2 --gpus 2 --shape 520,136,72 --roles compute=3,intra_comm=2,inter_send=2 "
     "--tile 32,40 --chunk-rows 64 --pieces 3 --b-layout nk --seed 9",
     "compute=3,intra_comm=2,inter_send=2"},
    {"gemm_rs --nodes 2 --gpus 2 --shape 520,200,72 --tile 32,40 --chunk-rows 64 --pieces 3", ""},
    {"gemm_ar --nodes 2 --gpus 2 --shape 520,200,72 --tile 32,40 --chunk-rows 64 --pieces 3", ""},
    {"gemm_ar --nodes 1 --gpus 4 --shape 260,200,328 --pieces 3 --shots 2", ""},
    {"ag_gemm --nodes 1 --gpus 4 --shape 68,136,8 --burst 9 --warmup 0 --shots 1", ""},
    {"gemm_rs --nodes 1 --gpus 4 --shape 68,136,8 --burst 9 --warmup 0 --shots 1 --deterministic",
     ""},
    {"gemm_ar --nodes 1 --gpus 4 --shape 68,136,8 --burst 9 --warmup 0 --shots 1 --deterministic",
     ""},
    /* FP8: blocks of scales that are short, slices and pieces that do not divide them, one shot */
    {"ag_gemm --nodes 1 --gpus 3 --shape 252,200,656 --dtype fp8 --b-layout nk --slices 3 "
     "--pieces 2 --iters 3",
     "252,200,656 fp8"},
    {"ag_gemm --nodes 1 --gpus 2 --shape 72,136,400 --dtype fp8 --b-layout nk --shots 1", ""},
    /* fewer slices than were asked for are told */
    {"ag_gemm --gpus 2 --shape 64,64,64 --slices 4", "rows, 1 slice (there is room for no more),"},
    {"ag_gemm --gpus 2 --shape 64,64,512 --slices 4", "rows, 4 slices, "},
    {"gemm_rs --gpus 2 --shape 64,64,64 --slices 4", "rows, 1 slice (there is room for no more),"},
    {"ag_gemm --nodes 2 --gpus 2 --shape 304,200,656 --dtype fp8 --b-layout nk --pieces 3", ""},
    {"gemm_rs --nodes 1 --gpus 3 --shape 252,200,656 --dtype fp8 --b-layout nk", ""},
    {"gemm_ar --nodes 1 --gpus 3 --shape 252,200,656 --dtype fp8 --b-layout nk", ""},
    {"gemm_rs --nodes 2 --gpus 2 --shape 304,136,400 --dtype fp8 --b-layout nk --deterministic "
     "--pieces 3",
     ""},
    {"gemm_ar --nodes 2 --gpus 2 --shape 304,136,400 --dtype fp8 --b-layout nk --deterministic "
     "--pieces 3",
     ""},
    {"ag_gemm --nodes 1 --gpus 3 --shape 99,72,208 --dtype fp16", "99,72,208 fp16"},
    {"gemm_rs --nodes 1 --gpus 3 --shape 99,72,208 --dtype fp16", "99,72,208 fp16"},
    {"gemm_ar --nodes 1 --gpus 3 --shape 99,72,208 --dtype fp16", "99,72,208 fp16"},
    {"ag_gemm --nodes 2 --gpus 2 --shape 256,136,64 --dtype fp16 --b-layout nk", ""},
    {"gemm_rs --nodes 2 --gpus 2 --shape 256,136,64 --dtype fp16 --b-layout nk", ""},
    {"gemm_ar --nodes 2 --gpus 2 --shape 256,136,64 --dtype fp16 --b-layout nk", ""},
    {"ag_gemm --gpus 2 --shape 32,72,208 --dtype fp16 --epilogue bias+gelu_tanh", ""},
    {"gemm_rs --gpus 2 --shape 32,72,208 --dtype fp16 --deterministic --epilogue residual+rmsnorm",
     ""},
    {"gemm_ar --gpus 2 --shape 32,72,208 --dtype fp16 --deterministic --epilogue residual+rmsnorm",
     ""},
    {"reduce_scatter --nodes 2 --gpus 2 --shape 256,64 --dtype fp16", ""},
    /* epilogues */
    {"ag_gemm --nodes 1 --gpus 3 --shape 252,200,72 --epilogue bias+silu", "252,200,72 bias+silu"},
    {"ag_gemm --nodes 2 --gpus 2 --shape 304,136,400 --epilogue bias+gelu_tanh --dtype fp8 "
     "--b-layout nk",
     ""},
    {"ag_gemm --nodes 2 --gpus 1 --shape 66,40,72 --epilogue silu --shots 2", ""},
    {"ag_gemm --nodes 2 --gpus 2 --shape 304,144,400 --epilogue bias+silu+gated", ""},
    {"ag_gemm --nodes 1 --gpus 2 --shape 264,272,144 --epilogue bias+silu+gated --dtype fp8 "
     "--b-layout nk",
     ""},
    {"ag_gemm --nodes 1 --gpus 3 --shape 252,208,72 --epilogue gelu_tanh+gated --b-layout nk "
     "--dtype fp16",
     ""},
    {"gemm_rs --nodes 1 --gpus 3 --shape 9,200,72 --epilogue residual+rmsnorm", ""},
    {"gemm_rs --nodes 2 --gpus 2 --shape 136,136,400 --epilogue residual+rmsnorm --deterministic "
     "--shots 2",
     ""},
    {"gemm_ar --nodes 1 --gpus 3 --shape 7,200,72 --epilogue residual+rmsnorm", ""},
    {"gemm_ar --nodes 2 --gpus 2 --shape 7,208,72 --epilogue residual+rmsnorm+quantize",
     "7,208,72 residual+rmsnorm+quantize"},
    {"gemm_rs --nodes 1 --gpus 2 --shape 24,272,144 --dtype fp8 --b-layout nk --epilogue "
     "residual+rmsnorm+quantize",
     ""},
    {"gemm_ar --nodes 1 --gpus 2 --shape 304,136,400 --dtype fp8 --b-layout nk --epilogue "
     "residual --deterministic",
     ""},
    {"gemm_ar --nodes 2 --gpus 2 --shape 130,136,400 --epilogue residual --deterministic "
     "--shots 2",
     ""},
    {"gemm_ar --nodes 1 --gpus 2 --shape 301,136,400 --epilogue residual+rmsnorm --deterministic "
     "--shots 2",
     ""},
    /* rows of a causal mask that are contiguous; roles and tiles that differ from the defaults */
    {"ring_attention --nodes 3 --gpus 2 --attention 1,396,2,1,128 --causal --iters 4 --tile 40,24 "
     "--chunk-rows 40 --roles compute=3,intra_comm=2,inter_send=2",
     ""},
    {"ring_attention --nodes 4 --gpus 1 --attention 3,40,2,2,64 --causal --iters 12 --burst 12 "
     "--warmup 0",
     "B,S,heads,kv_heads,D 3,40,2,2,64 causal"},
    {"ring_attention --nodes 1 --gpus 3 --attention 2,99,4,2,64 --causal --split contiguous",
     "B,S,heads,kv_heads,D 2,99,4,2,64 causal contiguous"},
    {"ring_attention --nodes 2 --gpus 2 --attention 1,260,2,1,64 --causal --split contiguous", ""},
    /* routing */
    {"moe_dispatch_gemm --nodes 3 --gpus 2 --moe 40,64,136,12,3 --iters 4 --routing few --tile "
     "16,40 --chunk-rows 8 --roles compute=3,intra_comm=2,inter_send=2",
     ""},
    {"moe_dispatch_gemm --nodes 4 --gpus 1 --moe 24,64,40,8,2 --iters 12 --burst 12 --warmup 0",
     "T,H,I,experts,k 24,64,40,8,2"},
    {"moe_ffn --iters 2", ""},
    {"moe_ffn --nodes 3 --gpus 2 --moe 40,64,136,12,8 --iters 4 --routing few --tile 16,48 "
     "--chunk-rows 8 --roles compute=3,intra_comm=2,inter_send=2,inter_reduce=2",
     ""},
    {"moe_ffn --nodes 4 --gpus 1 --moe 24,64,40,8,2 --iters 12 --burst 12 --warmup 0 "
     "--deterministic --b-layout nk",
     "T,H,I,experts,k 24,64,40,8,2"},
    {"moe_ffn --nodes 3 --gpus 2 --fabric efa --moe 24,64,40,12,4 --routing none --iters 12 "
     "--burst 4",
     ""},
    /* tokens of FP8 bring their scales */
    {"moe_dispatch_gemm --nodes 1 --gpus 3 --moe 61,272,200,6,2 --dtype fp8 --b-layout nk", ""},
    {"moe_dispatch_gemm --nodes 2 --gpus 2 --moe 96,144,136,8,2 --dtype fp8 --b-layout nk "
     "--routing few",
     ""},
    {"moe_dispatch_gemm --nodes 1 --gpus 1 --moe 16,272,136,4,2 --dtype fp8 --b-layout nk", ""},
    {"moe_ffn --nodes 1 --gpus 3 --moe 61,272,208,6,2 --dtype fp8 --b-layout nk --skew 1", ""},
    {"moe_ffn --nodes 2 --gpus 2 --moe 96,144,144,8,2 --dtype fp8 --b-layout nk --routing none "
     "--deterministic",
     ""},
    {"moe_dispatch --nodes 2 --gpus 2 --moe 61,272,8,2 --dtype fp8", ""},
    /* bytes: a block is 64 x 64 elements: (gpus - 1) nodes of them over NVLink, nodes - 1 over the
     * network */
    {"gemm_rs --nodes 2 --gpus 2 --shape 256,64,64",
     "moved     16.00 KiB over NVLink (shared memory) and 8.00 KiB over the network"},
    {"gemm_rs --nodes 2 --gpus 2 --shape 256,64,64 --deterministic",
     "moved     32.00 KiB over NVLink (shared memory) and 16.00 KiB over the network"},
    {"gemm_ar --nodes 2 --gpus 2 --shape 256,64,64",
     "moved     32.00 KiB over NVLink (shared memory) and 16.00 KiB over the network"},
};

static void right_over_verbs(const char *options, const char *says)
{
    char line[512];
    snprintf(line, sizeof line, "run %s --exec host --nic soft --check", options);
    right(line, NULL, NULL, says);
}

CASE(test_own)
{
    for (size_t i = 0; i < COUNT(own); i++)
        right_over_verbs(own[i].line, own[i].says);
}

/* Sequences of one row and of many, that divide nothing. */
CASE(test_lengths_of_attention)
{
    static const int lengths[] = {1, 17, 193, 1000};
    static const char *const splits[] = {"", "--causal", "--causal --split contiguous"};
    for (int i = 0; i < 12; i++) {
        char options[200];
        snprintf(options, sizeof options, "ring_attention %s --attention 2,%d,4,2,64 %s",
                 i % 2 ? "--nodes 1 --gpus 3" : "--nodes 2 --gpus 1", lengths[i / 3],
                 splits[i % 3]);
        right_over_verbs(options, "");
    }
}

/* What only moves, of each type: half the bytes of bf16 cross. */
CASE(test_moved)
{
    static const char *const ops[] = {"all_gather", "all_to_all"};
    static const char *const dtypes[] = {"bf16", "fp16", "fp8", "bytes"};
    for (int i = 0; i < 2; i++)
        for (int dtype = 0; dtype < 4; dtype++) {
            char options[128], moved[64];
            snprintf(options, sizeof options, "%s --nodes 1 --gpus 3 --shape 297,208 --dtype %s",
                     ops[i], dtypes[dtype]);
            right_over_verbs(options, dtype ? dtypes[dtype] : "");
            /* of 64 rows (all_to_all: 16) of 64 elements to each rank two blocks come over NVLink */
            snprintf(moved, sizeof moved, "moved     %u.00 KiB over NVLink",
                     (i ? 4u : 16u) >> (dtype > 1));
            snprintf(options, sizeof options,
                     "%s --nodes 2 --gpus 2 --shape 256,64 --chunk-rows 8 --dtype %s", ops[i],
                     dtypes[dtype]);
            right_over_verbs(options, moved);
        }
}

/* Rows to experts, and back, without a product. */
CASE(test_moe_rows)
{
    static const char *const ops[] = {"moe_dispatch", "moe_combine"};
    static const char *const options[] = {
        "--nodes 1 --gpus 1 --moe 24,64,3,1",
        "--nodes 1 --gpus 4 --moe 40,192,16,8",
        "--nodes 2 --gpus 1 --moe 8,64,2,2 --routing none",
        "--nodes 2 --gpus 2 --moe 64,128,4,1 --routing one",
        "--nodes 3 --gpus 2 --moe 40,64,12,3 --routing few --chunk-rows 8 --roles "
        "intra_comm=2,inter_send=2,inter_reduce=3",
        "--nodes 4 --gpus 1 --moe 24,64,8,2 --iters 12 --burst 12 --warmup 0"};
    for (size_t i = 0; i < 2 * COUNT(options); i++) {
        char line[256];
        snprintf(line, sizeof line, "%s %s", ops[i % 2], options[i / 2]);
        right_over_verbs(line, i / 2 == 5 ? "T,H,experts,k 24,64,8,2" : "");
    }
}

/* ---- what is wrong, and what is written ---- */

/* MKERNEL_TEST_SPOIL=RANK,LAUNCH makes one element of that result wrong before it is checked, of a
 * rank with tokens or without. */
CASE(test_one_wrong)
{
    static const char *const lines[] = {"ag_gemm --shape 64,64,64",
                                        "gemm_rs --shape 64,64,64",
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
    for (size_t i = 0; i < COUNT(lines); i++)
        for (int rank = 0; rank < 2; rank++) {
            char line[256], spoil[64], says[64];
            snprintf(line, sizeof line, "run %s --exec host --gpus 2 --iters 2 --warmup 0 --check",
                     lines[i]);
            snprintf(spoil, sizeof spoil, "MKERNEL_TEST_SPOIL=%d,2", rank);
            snprintf(says, sizeof says, "first in launch 2 of rank %d", rank);
            command_start(&r, line, spoil, NULL);
            command_finish(&r, SECONDS);
            if (r.status != 1 || !strstr(r.err_text, "wrong: 1 of ") || !strstr(r.err_text, says) ||
                command_lines(r.err_text) != 1 || !strstr(r.out_text, "verdict   WRONG") ||
                !strstr(r.out_text, "; 1 of ") || strstr(r.out_text, "FLOP/s"))
                fail_msg("%s mkernel %s: status %d, \"%s\"\n%s", spoil, line, r.status, r.err_text,
                         r.out_text);
        }
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
             "ag_gemm --nodes 2 --gpus 2 --shape 512,64,64 --iters 5 --warmup 1 --trace %s", path);
    right_over_verbs(line, "");
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
    static const struct {
        const char *line, *err, *out[2];
    } of[] = {{"bench ag_gemm --exec host --nodes 1 --gpus 2 --shape 256,64,64 --iters 5 --vs blas "
               "--csv /dev/stdout",
               "vs blas",
               {"\nag_gemm,256,64,64,1,2,host,", ",0,\"256,64,64\","}},
              {"bench ring_attention --exec host --gpus 2 --attention 1,32,2,1,64 --causal "
               "--iters 2 --csv /dev/stdout",
               "",
               {"\nring_attention,,,,1,2,host,", ",0,\"1,32,2,1,64 causal\","}}};
    for (size_t i = 0; i < COUNT(of); i++) {
        command_start(&r, of[i].line, NULL);
        command_finish(&r, SECONDS);
        if (r.status || !strstr(r.err_text, of[i].err) || !strstr(r.out_text, of[i].out[0]) ||
            !strstr(r.out_text, of[i].out[1]))
            fail_msg("mkernel %s: status %d\n%s%s", of[i].line, r.status, r.out_text, r.err_text);
    }
}
