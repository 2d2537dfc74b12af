/* `mkernel sim` says how long launches take on a cluster that is described: of every operator, with
 * the plan that its GPUs would get, twice the same, traced like a run; what is made slower
 * shows. */
#include "tests/helpers/command.h"
#include "core/ops/op.h"
#include "tests/helpers/folder.h"

static struct command_run r;

static void expect(const char *line, int status, const char *says)
{
    command_expect(&r, line, "MKERNEL_TUNING=none", status, says);
}

/* ms of a launch, in a table's words. */
static double time_of(const char *line)
{
    expect(line, 0, "time      ");
    const char *at = strstr(r.out_text, "time      ") + 10;
    char *end;
    double value = strtod(at, &end);
    return strncmp(end, " ms", 3) ? value / 1e3 : value;
}

/* Small problems, of which each rank has some tiles. */
static const char *const small[] = {
    "all_gather --shape 4096,512",
    "all_to_all --shape 4096,512",
    "reduce_scatter --shape 4096,512",
    "ag_gemm --shape 4096,512,512",
    "gemm_ar --shape 4096,512,512",
    "gemm_rs --shape 4096,512,512",
    "moe_dispatch_gemm --moe 64,256,256,8,2",
    "moe_ffn --moe 64,256,256,8,2",
    "ring_attention --attention 1,4096,4,2,128 --causal",
};

/* The shape that is taken where none is given is the one that the help names. */
CASE(test_default_shape)
{
    static const struct {
        const char *line;
        enum op_size size;
    } cases[] = {{"sim ag_gemm --cluster 1x2", OP_SIZE_GPU},
                 {"sim ag_gemm --cluster 1x2 --plan host", OP_SIZE_HOST}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t numbers[OP_DIMENSIONS] = {0};
        char shape[80];
        op_of(MK_OP_AG_GEMM)->choose_shape(cases[i].size, 2, numbers);
        snprintf(shape, sizeof shape, "%llu,%llu,%llu", (unsigned long long)numbers[0],
                 (unsigned long long)numbers[1], (unsigned long long)numbers[2]);
        expect(cases[i].line, 0, shape);
    }
    expect("sim --help", 0, "Default: as `mkernel run --exec cuda`");
    assert_null(strstr(r.out_text, "Default: as `mkernel run --exec host`"));
}

/* A trace changes nothing, and neither does a second time. */
CASE(test_operators)
{
    char line[256], once[sizeof r.out_text];
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        for (int host = 0; host < 2; host++) {
            snprintf(line, sizeof line, "sim %s --cluster 2x2 --launches 2%s", small[i],
                     host ? " --plan host" : "");
            expect(line, 0, "efficiency 0.");
            assert_non_null(strstr(r.out_text, host ? "plan      host" : "plan      cuda"));
            assert_non_null(strstr(r.out_text, "million/s"));
            *strstr(r.out_text, "speed     ") = '\0';
            snprintf(once, sizeof once, "%s", r.out_text);
            snprintf(line, sizeof line, "sim %s --cluster 2x2 --launches 2%s --trace %s/t.db",
                     small[i], host ? " --plan host" : "", folder);
            expect(line, 0, "trace     ");
            *strstr(r.out_text, "trace     ") = '\0';
            assert_string_equal(r.out_text, once);
            snprintf(line, sizeof line, "trace summary %s/t.db", folder);
            expect(line, 0, "simulated, sim executor, 2 nodes x 2 ranks");
            assert_non_null(strstr(r.out_text, "nothing dropped"));
            assert_non_null(strstr(r.out_text, "2 launches"));
            assert_null(strstr(r.out_text, " 0 messages"));
            assert_non_null(strstr(r.out_text, "busiest link: n"));
            assert_null(strstr(r.out_text, "none was used"));
        }
}

/* What a seed draws for attention's kernels is a tile that they are built for at its heads. */
CASE(test_emulated_draws)
{
    char line[256];
    for (int seed = 1; seed <= 3; seed++) {
        snprintf(line, sizeof line,
                 "sim ring_attention --explore --exec emulated --random --seed %d --runs 1", seed);
        expect(line, 0, "1 random cases, 0 failed");
    }
    expect("sim ring_attention --explore --exec emulated --vary --attention 1,64,2,2,32", 2,
           "the dimensions that work are 64 and 128");
}

/* The plan is the one that a run on GPUs would take: tuned where there is one, else the formula's,
 * else what is asked for. */
CASE(test_plan)
{
    const char *line = "sim gemm_rs --cluster 1x2 --shape 8192,8192,1024";
    command_start(&r, line, "MKERNEL_TUNING=/nonexistent", NULL);
    command_finish(&r, 120);
    assert_int_equal(r.status, 2);
    expect(line, 0, "plan      cuda: roles compute=");
    assert_null(strstr(r.out_text, "tuned "));
    char path[128], with[256];
    snprintf(path, sizeof path, "%s/tuning", folder);
    test_write_file(path,
                    "gemm_rs 8192,8192,1024 kn fast 1x2 NVIDIA_H200 roles=compute=100 pace=none\n");
    snprintf(with, sizeof with, "%s --tuning %s", line, path);
    expect(with, 0, "roles compute=100; tiles");
    assert_non_null(strstr(r.out_text, "tuned "));
    snprintf(with, sizeof with, "%s --dry-run --tuning %s", line, path);
    expect(with, 0, "");
    assert_string_equal(r.out_text, "");
    assert_non_null(strstr(r.err_text, "1 x 2 ranks would run, with "));
    snprintf(with, sizeof with, "%s --tuning %s --roles compute=120", line, path);
    expect(with, 0, "roles compute=120; tiles");
    expect("sim ag_gemm --cluster 1x2 --shape 64,64,64 --slices 4", 0,
           "rows, 1 slice (there is room for no more), ");
}

CASE(test_what_if)
{
    /* a plan of its own: what is chosen is nobody's business here */
    const char *line = "sim ag_gemm --cluster 2x4 --shape 16384,2048,4096 --tile 256,256";
    static const struct {
        const char *with;
        double least, most; /* times as long */
    } cases[] = {{" --slow rank=0.5@5", 1.45, 2.2}, {" --slow link=0.25@2", 1.2, 5},
                 {" --slow nic=0.25@1", 1.1, 5},    {" --network 400GB/s", 0.5, 1.03},
                 {" --network 10GB/s", 1.5, 6},     {" --jitter 0.05 --seed 3", 1.0001, 1.5}};
    double plain = time_of(line);
    assert_true(time_of(line) == plain);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char with[256];
        snprintf(with, sizeof with, "%s%s", line, cases[i].with);
        double took = time_of(with);
        if (took < cases[i].least * plain || took > cases[i].most * plain)
            fail_msg("%s: %.4f ms, %.4f without", cases[i].with, took, plain);
        if (i == 0) /* the slow one ends last */
            assert_non_null(strstr(r.out_text, "ends on rank 5"));
    }
    /* as `mkernel bench` measures: a launch of a graph begins before the one before has left, and
     * what owners store in peers' C is not delivered there */
    const char *few = "sim gemm_ar --cluster 1x4 --shape 16,8192,4096 --launches 12",
               *large = "sim gemm_ar --cluster 1x2 --shape 8192,8192,1024";
    char with[256];
    snprintf(with, sizeof with, "%s --graph", few);
    double stream = time_of(few), graph = time_of(with);
    assert_true(graph < stream - .0025 && graph > stream - .0035);
    double elsewhere = time_of(large);
    snprintf(with, sizeof with, "%s --c-in-heap", large);
    assert_true(time_of(with) < .99 * elsewhere);
    expect("sim gemm_rs --c-in-heap", 2, "--c-in-heap: gemm_rs does not look");
    expect("sim gemm_ar --explore --graph", 2, "--graph is not for --explore");
}

CASE(test_ids)
{
    char path[128], line[256];
    snprintf(path, sizeof path, "%s/ids", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 4 * 512 * 2; i++)
        fprintf(f, "%d%s", i % 2, i % 7 ? " " : ",\n");
    fclose(f);
    const char *even = "sim moe_dispatch_gemm --cluster 1x4 --moe 512,4096,4096,32,2";
    double took = time_of(even);
    snprintf(line, sizeof line, "%s --ids %s", even, path);
    assert_true(time_of(line) > 1.2 * took);
    snprintf(line, sizeof line, "%s --skew zipf:2", even);
    assert_true(time_of(line) > 1.1 * took);
    /* all to the first expert is what these ids say */
    f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 4 * 512; i++)
        fputs("0 ", f);
    fclose(f);
    snprintf(line, sizeof line,
             "sim moe_dispatch_gemm --cluster 1x4 --moe 512,4096,4096,32,1 "
             "--ids %s",
             path);
    took = time_of(line);
    assert_true(
        time_of("sim moe_dispatch_gemm --cluster 1x4 --moe 512,4096,4096,32,1 --skew one") == took);
    snprintf(line, sizeof line,
             "sim moe_dispatch_gemm --cluster 1x4 --moe 512,4096,4096,32,4 "
             "--ids %s",
             path);
    expect(line, 2, "has 2048 numbers: 4 ranks of 512 tokens with 4 experts each have 8192");
    test_write_file(path, "1 2 three");
    expect(line, 2, "behind number 2");
}

/* The search over simulated times keeps the plan that it found, marked, and sim takes it; its time
 * is what sim says of it. */
CASE(test_tune)
{
    const char *problem = "--cluster 1x2 --shape 4096,4096,512";
    char line[512], path[128], kept[512] = "", tuned[sizeof r.out_text];
    snprintf(path, sizeof path, "%s/found", folder);
    snprintf(line, sizeof line,
             "tune gemm_rs --exec sim %s --rounds 2 --space "
             "roles=compute=100,inter_reduce=32:compute=116,inter_reduce=16;pieces=1:2 "
             "--tuning %s --csv %s/found.csv",
             problem, path, folder);
    command_start(&r, line, NULL);
    command_finish(&r, 120);
    if (r.status)
        fail_msg("%s: %d \"%s\"", line, r.status, r.err_text);
    snprintf(tuned, sizeof tuned, "%s", r.out_text);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(kept, sizeof kept, f) && strncmp(kept, "gemm_rs", 7))
        ;
    fclose(f);
    if (!strstr(kept, "gemm_rs 4096,4096,512 kn fast 1x2 NVIDIA_H200 ") ||
        !strstr(kept, " by=simulation"))
        fail_msg("\"%s\" is kept", kept);
    double ms = strtod(strstr(kept, " ms=") + 4, NULL);
    snprintf(line, sizeof line, "sim gemm_rs %s --tuning %s", problem, path);
    double took = time_of(line);
    assert_non_null(strstr(r.out_text, " as simulated at 4096,4096,512"));
    if (took < 0.998 * ms || took > 1.002 * ms)
        fail_msg("%f ms, \"%s\"", took, kept);
    snprintf(line, sizeof line, "sim gemm_rs %s --tuning none", problem);
    assert_true(time_of(line) > 0.999 * took); /* it was one of the plans */
    expect("tune gemm_rs --exec sim", 2, "kept where --tuning says");
    expect("tune gemm_rs --exec sim --cluster 4by8 --verify", 2, "are written 4x8");
    expect("tune gemm_rs --exec sim --verify --shape 4095,8,8", 2, "does not divide");
    expect("tune gemm_rs --exec sim --verify --space colour=1", 2, "colour");
    expect("tune gemm_rs --exec sim --verify --nic soft", 2, "nic");
    expect("tune all_gather --exec sim --verify", 2, "all_gather has no plans");
}

FIXTURE(folder_make, folder_remove)
