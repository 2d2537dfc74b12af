/* What `mkernel bench moe_dispatch_gemm` and `bench moe_ffn` make of what PyTorch measured: the
 * ideal of dispatch+GEMM is the larger of its product and its all-to-all, that of the layer the
 * larger of both products and both ways; a wrong result has no speed. Nothing of it needs a GPU,
 * but only builds with CUDA have it. */
#include "tests/helpers/test.h"
#include "tests/helpers/folder.h"

#ifdef MK_HAVE_CUDA
#include "experiments/bench/bench_gpu_row.h"
#include "experiments/job/op.h"

static char csv[256], json[256], text[16384];

/* The cell of a column in line `line` of the table, from 1. */
static const char *cell(const char *name, int line)
{
    static char out[64];
    const char *header = text, *row = text;
    int column = 0;
    while (strncmp(header, name, strlen(name)) ||
           (header[strlen(name)] != ',' && header[strlen(name)] != '\n')) {
        header += strcspn(header, ",\n");
        if (*header++ != ',')
            fail_msg("no column %s in %s", name, text);
        column++;
    }
    for (; line; line--)
        row = strchr(row, '\n') + 1;
    for (; column; column--)
        row = strchr(row, ',') + 1;
    snprintf(out, sizeof out, "%.*s", (int)strcspn(row, ",\n"), row);
    return out;
}

static void says(const char *name, int line, const char *wanted)
{
    if (strcmp(cell(name, line), wanted))
        fail_msg("line %d, %s: \"%s\", not \"%s\"", line, name, cell(name, line), wanted);
}

/* The table of two shapes that took 2 ms, the second of which was wrong. */
static void report(enum mk_op op, const char *lines)
{
    static struct run_job job;
    static struct bench_gpu_row rows[2];
    char path[256];
    const char *lost;
    snprintf(path, sizeof path, "%s/torch", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(lines, f);
    assert_int_equal(fclose(f), 0);
    setenv("MKERNEL_BENCH_TORCH", path, 1);
    snprintf(csv, sizeof csv, "%s/table.csv", folder);
    memset(&job, 0, sizeof job);
    memset(rows, 0, sizeof rows);
    snprintf(json, sizeof json, "%s/rows.json", folder);
    job.options = (struct run_options){.op = op, .csv = csv, .json = json, .quiet = 1};
    job.problem = (struct mk_problem){.op = op, .topo = {1, 2, 0}};
    for (int i = 0; i < 2; i++) {
        rows[i].problem = job.problem;
        rows[i].problem.moe = (struct mk_moe){i ? 64 : 512, 256, 128, 8, 2};
        rows[i].times[BENCH_FUSED] = (struct gpu_time){2, 1.5, 2.5};
        rows[i].flop = 1e12;
        rows[i].rows = 1000;
        rows[i].most_rows = 1200;
        rows[i].bound = 1e-2;
        rows[i].check = (struct gpu_check){1e-6, 1, i ? 3 : 0, 2};
    }
    bench_torch_read(rows, 2);
    rows[0].nvlink_bytes = 12345678901;
    assert_int_equal(bench_gpu_report(&job, rows, 2, &lost), 0);
    f = fopen(json, "r"); /* from which `bench collective` has its sizes */
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    assert_non_null(strstr(text, "\"nvlink_bytes\": 12345678901,"));
    test_read_file(csv, text, sizeof text);
    says("tokens", 1, "512");
    says("experts_per_token", 2, "2");
    says("rows", 1, "1000");
    says("imbalance", 1, "1.20");
    says("tflops", 1, "500.0");
    says("tokens_per_us", 1, "0.26");
    says("ms", 1, "2.0000");
    says("ms", 2, "");
    says("efficiency", 2, "");
    says("verdict", 1, "right");
    says("verdict", 2, "wrong");
}

CASE(test_layer)
{
    report(MK_OP_MOE_FFN, "512,256,128,8,2,product,0.7,0.6,0.8\n"
                          "512,256,128,8,2,second,0.5,0.4,0.6\n"
                          "512,256,128,8,2,comm,0.2,0.1,0.3\n"
                          "512,256,128,8,2,back,0.3,0.2,0.4\n"
                          "512,256,128,8,2,in_turn,5,4,6\n"
                          "64,256,128,8,2,product,0.1,0.1,0.1\n"
                          "64,256,128,8,2,second,0.1,0.1,0.1\n"
                          "64,256,128,8,2,comm,0.4,0.1,0.3\n"
                          "64,256,128,8,2,back,0.5,0.2,0.4\n");
    says("product_ms", 1, "0.7000");
    says("second_ms", 1, "0.5000");
    says("comm_nccl_ms", 1, "0.2000");
    says("back_nccl_ms", 1, "0.3000");
    says("ideal_ms", 1, "1.2000");
    says("efficiency", 1, "0.600");
    says("speedup_torch_nccl", 1, "2.50");
    says("ideal_ms", 2, "0.9000");
    says("torch_nccl_ms", 2, "");
}

CASE(test_dispatch)
{
    report(MK_OP_MOE_DISPATCH_GEMM, "512,256,128,8,2,product,0.7,0.6,0.8\n"
                                    "512,256,128,8,2,comm,0.2,0.1,0.3\n"
                                    "512,256,128,8,2,in_turn,3,2,6\n"
                                    "64,256,128,8,2,comm,0.4,0.1,0.3\n");
    says("ideal_ms", 1, "0.7000");
    says("efficiency", 1, "0.350");
    says("speedup_torch_nccl", 1, "1.50");
    says("ideal_ms", 2, ""); /* without a product there is none */
    assert_null(strstr(text, "second_ms"));
}
#else
CASE(test_layer)
{
    print_message("skipped: this build is without CUDA\n");
    skip();
}
#endif

FIXTURE(folder_make, folder_remove)
