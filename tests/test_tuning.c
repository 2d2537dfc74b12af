/* A plan takes its default from the tuned plans: the line that matches, else a near one that fits,
 * else the formula; a line that is not valid is named by file and number, and keeping a plan leaves
 * all other lines as they were. */
#include "core/plan/tuning.h"
#include "core/plan/epilogue.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/helpers/test.h"
#include "tests/helpers/folder.h"

static char error[512], path[256];

static struct mk_problem problem(enum mk_op op, uint64_t m, uint64_t n, uint64_t k)
{
    return (struct mk_problem){
        .op = op, .exec = MK_EXEC_CUDA, .sms = 132, .topo = {1, 4, 0}, .m = m, .n = n, .k = k};
}

static struct tuning_table table_of(const char *text)
{
    struct tuning_table t = {.path = "plans"};
    if (tuning_parse(&t, text, "plans", 0, error, sizeof error))
        fail_msg("%s", error);
    return t;
}

static struct mk_plan build(struct tuning_table *t, const struct mk_problem *q, const char *device)
{
    struct mk_plan p;
    if (tuning_build(&p, t, q, device, 0, 0, error, sizeof error))
        fail_msg("%s", error);
    return p;
}

static const char lines[] =
    "# a comment\n"
    "gemm_rs 8192,8192,2048 kn fast 1x4 NVIDIA_H200 tile=256,128 pace=310 ms=0.5 formula_ms=0.6 "
    "date=2026-11-21\n"
    "\n"
    "  gemm_rs 8192,8192,2048 kn deterministic 1x4 NVIDIA_H200 chunk-rows=512 # of its own\r\n"
    "ag_gemm 8192,1024,8192 nk fast 2x4 NVIDIA_H200 roles=compute=128,intra_comm=2w,inter_send=4 "
    "chunk-rows=512 fanout=2\n"
    "ag_gemm 8192,1024,8192 kn fast 1x4 NVIDIA_H200";

CASE(test_lines)
{
    struct tuning_table t = table_of(lines);
    assert_int_equal(t.count, 4);
    const struct tuning_entry *e = &t.entries[0];
    assert_int_equal(e->op, MK_OP_GEMM_RS);
    assert_int_equal(e->numbers[0], 8192);
    assert_int_equal(e->numbers[2], 2048);
    assert_int_equal(e->line, 2);
    assert_int_equal(e->tuning.tile_m, 256);
    assert_int_equal(e->tuning.tile_n, 128);
    assert_int_equal(e->tuning.pace, 310);
    assert_int_equal(e->tuning.pieces, 0);
    assert_true(e->ms == 0.5 && e->formula_ms == 0.6);
    assert_string_equal(e->date, "2026-11-21");
    assert_true(t.entries[1].deterministic && !t.entries[1].b_transposed);
    assert_int_equal(t.entries[1].line, 4);
    assert_true(t.entries[2].b_transposed);
    assert_int_equal(t.entries[2].nodes, 2);
    assert_int_equal(t.entries[2].tuning.split.ctas[MK_INTER_SEND], 4);
    char words[256];
    assert_string_equal(tuning_words(&t.entries[2].tuning, words, sizeof words),
                        "roles=compute=128,intra_comm=2w,inter_send=4 chunk-rows=512 fanout=2");
    assert_string_equal(tuning_words(&t.entries[3].tuning, words, sizeof words), "formula");
    tuning_close(&t);
}

/* Files that were written until 2026-11-23 are read; what a person writes is refused, with the new
 * spelling. */
CASE(test_old_lines)
{
    struct tuning_table old = table_of("ag_gemm 8192,1024,8192 kn fast 2x4 G tile=256x128 "
                                       "roles=128+0+4+0 chunk_rows=512 width=2"),
                        new = table_of("ag_gemm 8192,1024,8192 kn fast 2x4 G tile=256,128 "
                                       "roles=compute=128,inter_send=4 chunk-rows=512 fanout=2");
    assert_memory_equal(&old.entries[0].tuning, &new.entries[0].tuning, sizeof(struct mk_tuning));
    assert_int_equal(old.entries[0].tuning.split.ctas[MK_INTER_SEND], 4);
    tuning_close(&old);
    tuning_close(&new);
    static const char *const words[][2] = {
        {"tile=256x128", "'tile=256x128' is written tile=256,128"},
        {"roles=128+0+4+0", "'roles=128+0+4+0' is written roles=compute=128,inter_send=4"},
        {"roles=128+256+4+0",
         "'roles=128+256+4+0' is written roles=compute=128,intra_comm=2w,inter_send=4"},
        {"pace=1", "'pace=1' is written pace=none"},
        {"chunk_rows=512", "'chunk_rows=512' is written chunk-rows=512"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct mk_tuning t;
        assert_int_equal(tuning_read_word(words[i][0], MK_OP_AG_GEMM, &t, error, sizeof error),
                         -EINVAL);
        assert_string_equal(error, words[i][1]);
    }
}

/* A knob's name is the option's, too; it is no part of one, and nothing longer. */
CASE(test_names)
{
    assert_ptr_equal(tuning_option("chunk-rows=512", 10), plan_field_named("chunk_rows"));
    assert_null(tuning_option("chunk_rows=512", 10));
    assert_null(tuning_option("chunk-row", 9));
    assert_null(tuning_option("chunk-rowsx", 11));
    assert_null(tuning_option("", 0));
}

CASE(test_bad_lines)
{
#define KEY "gemm_rs 8192,8192,2048 kn fast 1x4 NVIDIA_H200 "
    static const struct {
        const char *line, *says;
    } bad[] = {
        {"gemm", "'gemm' is not an op with tuned plans"},
        {"all_gather 8,8 kn fast 1x4 X", "'all_gather' is not an op with tuned plans"},
        {"ring_attention 1,1,1,1 full fast 1x4 X", "is not a shape of ring_attention: B,S,H,G,D"},
        {"ring_attention 1,1,1,1,1 kn fast 1x4 X",
         "'kn' is not a mask: full, causal or causal-contiguous"},
        {"ring_attention 1,1,1,1,1 causal fast 1x4",
         "5 words where a plan has at least 6: op B,S,H,G,D full|causal|causal-contiguous "
         "fast|deterministic"},
        {"ring_attention 1,1,1,1,1 full fast 1x4 X shots=1", "ring_attention has no shots"},
        {"moe_ffn 1,1,1 kn fast 1x4 X", "'1,1,1' is not a shape of moe_ffn: T,H,I,E,K"},
        {"moe_ffn 1,8,8,0,1 kn fast 1x4 X", "T,H,I,E,K are at least 1"},
        {"gemm_rs 8192,8192 kn fast 1x4 X", "'8192,8192' is not a shape"},
        {"gemm_rs 8192,0,8 kn fast 1x4 X", "M,N,K are at least 1"},
        {"gemm_rs 8192,-8,8 kn fast 1x4 X", "is not a shape"},
        {"gemm_rs 8192,8,99999999999 kn fast 1x4 X", "is not a shape"},
        {"gemm_rs 8,8,8 tn fast 1x4 X", "'tn' is not B's layout"},
        {"gemm_rs 8,8,8 kn quick 1x4 X", "'quick' is not an order of sums"},
        {"gemm_rs 8,8,8 kn fast 4 X", "'4' is not nodes x ranks"},
        {"gemm_rs 8,8,8 kn fast 0x4 X", "'0x4' is not nodes x ranks"},
        {"gemm_rs 8,8,8 kn fast 1x4", "5 words where a plan has at least 6"},
        {"gemm_rs 8,8,8 kn fast 1x4 tile=64,64", "'tile=64,64' is not a device"},
        {KEY "tile=256", "'tile=256' is not valid; it should look like tile=256,128"},
        {KEY "tile=256,0", "is not valid"},
        {KEY "tile=256,128x1", "is not valid"},
        {KEY "tle=256x128", "'tle=256x128' is no option of a plan"},
        {KEY "pace", "'pace' is no option of a plan"},
        {KEY "pieces=65", "'pieces=65' is not valid; it should look like pieces=8, 1 to 64"},
        {KEY "pace=", "is not valid"},
        {KEY "pace=3e2", "is not valid"},
        {KEY "pace=99999999999999999999", "is not valid"},
        {KEY "roles=1+2", "'roles=1+2': roles are written compute=2,intra_comm=1"},
        {KEY "roles=compute=1,compute=2", "compute is there twice"},
        {KEY "roles=computer=1", "there is no role computer"},
        {KEY "roles=compute=1,", "roles are written compute=2"},
        {KEY "roles=compute=0", "it leaves no CTA"},
        {KEY "roles=compute=65536", "is not a number of CTAs from 0 to"},
        {KEY "roles=inter_reduce=4", "gemm_rs needs compute CTAs"},
        {KEY "fanout=4", "gemm_rs has no fanout"},
        {KEY "ms=fast", "'ms=fast' is not a time"},
        {KEY "ms=-1", "'ms=-1' is not a time"},
        {KEY "ms=nan", "'ms=nan' is not a time"},
        {KEY "date=21.11.2026", "it should look like date=2026-11-21"},
        {KEY "\n" KEY "pace=3", "plans:3: a second plan for the problem of line 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tuning_table t = {0};
        char text[512];
        snprintf(text, sizeof text, "# first\n%s\n", bad[i].line);
        assert_int_equal(tuning_parse(&t, text, "plans", 0, error, sizeof error), -EINVAL);
        if (!strstr(error, bad[i].says) || strncmp(error, "plans:", 6) || strchr(error, '\n'))
            fail_msg("%s: \"%s\" lacks \"%s\"", bad[i].line, error, bad[i].says);
        if (!strstr(bad[i].says, "plans:3"))
            assert_int_equal(strncmp(error, "plans:2: ", 9), 0);
        tuning_close(&t);
    }
    char *text = calloc(1, 2000);
    struct tuning_table t = {0};
    memset(text, 'x', 1999);
    assert_int_equal(tuning_parse(&t, text, "plans", 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "plans:1: more than 511 characters"));
    free(text);
    tuning_close(&t);
}

CASE(test_exact)
{
    struct tuning_table t = table_of(lines);
    struct mk_problem q = problem(MK_OP_GEMM_RS, 8192, 8192, 2048);
    struct mk_plan p = build(&t, &q, "NVIDIA H200"), formula;
    assert_int_equal(p.problem.tuning.tile_n, 128);
    assert_int_equal(p.problem.tuning.pace, 310);
    assert_int_equal(p.problem.tuning.cluster, 2); /* the rest is the formula's */
    assert_string_equal(
        p.tuned, "tile=256,128 pace=310 as measured at 8192,8192,2048 on 2026-11-21 (plans:2)");

    struct tuning_table both = table_of("gemm_rs 8192,8192,2048 kn fast 1x4 G pace=7");
    assert_int_equal(tuning_parse(&both, "gemm_rs 8192,8192,2048 kn fast 1x4 G pace=8",
                                  "core/plan/tuning.plans", 1, error, sizeof error),
                     0);
    /* the user's comes before what is compiled in */
    assert_int_equal(build(&both, &q, "G").problem.tuning.pace, 7);
    tuning_close(&both);

    q.deterministic = 1; /* other sums, layout, cluster, device: another line or none */
    p = build(&t, &q, "NVIDIA H200");
    assert_int_equal(p.problem.tuning.chunk_rows, 512);
    q.b_transposed = 1;
    assert_string_equal(build(&t, &q, "NVIDIA H200").tuned, "");
    struct tuning_table both_types = table_of("ag_gemm 64,64,64 nk fast 1x4 H tile=16,16\n"
                                              "ag_gemm 64,64,64 nk fast 1x4 H dtype=fp8 tile=32,8");
    q = problem(MK_OP_AG_GEMM, 64, 64, 64);
    q.b_transposed = 1;
    q.exec = MK_EXEC_HOST;
    assert_int_equal(build(&both_types, &q, "H").problem.tuning.tile_m, 16);
    q.fp8 = 1;
    assert_int_equal(build(&both_types, &q, "H").problem.tuning.tile_m, 32);
    q.fp8 = 0;
    q.fp16 = 1; /* as fast as bf16 */
    assert_int_equal(build(&both_types, &q, "H").problem.tuning.tile_m, 16);
    assert_non_null(strstr(build(&both_types, &q, "H").tuned, "64,64,64 of bf16 ("));
    tuning_close(&both_types);
    both_types = table_of("ag_gemm 64,64,64 nk fast 1x4 H tile=16,16\n"
                          "ag_gemm 64,64,64 nk fast 1x4 H dtype=fp16 tile=24,8");
    assert_int_equal(build(&both_types, &q, "H").problem.tuning.tile_m, 24);
    assert_null(strstr(build(&both_types, &q, "H").tuned, "bf16"));
    tuning_close(&both_types);
    struct tuning_table both_ways =
        table_of("moe_ffn 64,64,64,8,2 kn fast 1x4 H tile=16,16\n"
                 "moe_ffn 64,64,64,8,2 kn fast 1x4 H back=fp8 tile=32,32");
    q = problem(MK_OP_MOE_FFN, 0, 0, 0);
    q.exec = MK_EXEC_HOST;
    q.moe = (struct mk_moe){64, 64, 64, 8, 2};
    assert_int_equal(build(&both_ways, &q, "H").problem.tuning.tile_m, 16);
    q.back_fp8 = 1;
    assert_int_equal(build(&both_ways, &q, "H").problem.tuning.tile_m, 32);
    tuning_close(&both_ways);
    q = problem(MK_OP_GEMM_RS, 8192, 8192, 2048);
    assert_string_equal(build(&t, &q, "NVIDIA H100").tuned, "");
    assert_string_equal(build(&t, &q, "").tuned, "");
    q.topo.gpus = 8;
    assert_string_equal(build(&t, &q, "NVIDIA H200").tuned, "");
    q.topo.gpus = 4;
    q.op = MK_OP_GEMM_AR;
    assert_string_equal(build(&t, &q, "NVIDIA H200").tuned, "");

    q.op = MK_OP_GEMM_RS; /* an option of one's own: the whole plan is the formula's */
    q.tuning.chunk_rows = 512;
    assert_int_equal(plan_build(&formula, &q, 0, 0, error, sizeof error), 0);
    p = build(&t, &q, "NVIDIA H200");
    assert_string_equal(p.tuned, "");
    assert_memory_equal(&p.problem.tuning, &formula.problem.tuning, sizeof formula.problem.tuning);
    tuning_close(&t);
}

/* Attention's mask is part of its key: a plan of a full one is no plan of a causal one. */
CASE(test_masks)
{
    struct tuning_table t =
        table_of("ring_attention 4,8192,16,16,128 full fast 1x4 G pieces=4 date=2026-11-22\n"
                 "ring_attention 4,8192,16,16,128 causal fast 1x4 G pieces=8 date=2026-11-22\n"
                 "ring_attention 4,65536,16,16,128 full fast 1x4 G pieces=2\n"
                 "gemm_rs 8192,8192,2048 kn fast 1x4 G pace=7\n");
    struct mk_problem q = problem(MK_OP_RING_ATTENTION, 0, 0, 0);
    q.attention = (struct mk_attention){4, 8192, 16, 16, 128, 0, 0, 0};
    struct mk_plan p = build(&t, &q, "G");
    assert_int_equal(p.problem.tuning.pieces, 4);
    assert_string_equal(p.tuned,
                        "pieces=4 as measured at 4,8192,16,16,128 on 2026-11-22 (plans:1)");
    q.attention.sequence = 6144; /* near */
    q.attention.causal = 1;
    p = build(&t, &q, "G");
    assert_int_equal(p.problem.tuning.pieces, 8);
    assert_string_equal(p.tuned,
                        "pieces=8 as measured at 4,8192,16,16,128 causal on 2026-11-22 (plans:2)");
    q.attention.contiguous = 1; /* another division of the work */
    assert_string_equal(build(&t, &q, "G").tuned, "");
    q.attention.contiguous = 0;
    q.attention.sequence = 65536; /* only a full one's is near */
    assert_string_equal(build(&t, &q, "G").tuned, "");
    q = problem(MK_OP_GEMM_RS, 8192, 8192, 2048); /* a mask means nothing to others */
    q.attention.causal = 1;
    assert_int_equal(build(&t, &q, "G").problem.tuning.pace, 7);

    struct tuning_entry e = t.entries[1];
    uint64_t hash = tuning_hash(&t, 1, 4);
    assert_false(tuning_same(&t.entries[0], &e));
    t.entries[1].causal = 0;
    assert_true(tuning_hash(&t, 1, 4) != hash);
    tuning_close(&t);
    snprintf(path, sizeof path, "%s/masks", folder);
    for (e.causal = 0; e.causal < 3; e.causal++)
        for (e.tuning.pieces = 1; e.tuning.pieces <= 2; e.tuning.pieces++)
            assert_int_equal(tuning_store(path, &e, error, sizeof error), 0);
    char text[1024] = "";
    test_read_file(path, text, sizeof text);
    assert_non_null(strstr(text, "\nring_attention 4,8192,16,16,128 full fast 1x4 G pieces=2 "));
    assert_non_null(strstr(text, "\nring_attention 4,8192,16,16,128 causal fast 1x4 G pieces=2 "));
    assert_non_null(
        strstr(text, "\nring_attention 4,8192,16,16,128 causal-contiguous fast 1x4 G pieces=2 "));
    assert_null(strstr(text, "pieces=1"));
}

CASE(test_nearest)
{
    struct tuning_table t =
        table_of("gemm_rs 8192,8192,2048 kn fast 1x4 G pace=1000\n"
                 "gemm_rs 8192,8192,2560 kn fast 1x4 G pace=2000\n"
                 "gemm_rs 1024,8192,2048 kn fast 1x4 G chunk-rows=768 tile=256,256\n");
    const struct {
        uint64_t m, n, k;
        uint32_t pace; /* 0: the formula's */
    } cases[] = {
        {8192, 8192, 2048, 1000}, {8192, 8192, 2560, 2000},
        {8192, 8192, 2056, 1000}, {8192, 8192, 2440, 2000},
        {8704, 8192, 2048, 1000}, {8192, 8192, 1456, 1000}, /* 0.49 of a factor of two away */
        {8192, 8192, 1440, 0},    {8192, 8192, 4096, 0},
        {9728, 9728, 2048, 1000}, {10240, 10240, 2048, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mk_problem q = problem(MK_OP_GEMM_RS, cases[i].m, cases[i].n, cases[i].k);
        struct mk_plan p = build(&t, &q, "G");
        if (cases[i].pace ? p.problem.tuning.pace != cases[i].pace : *p.tuned)
            fail_msg("%llu,%llu,%llu got pace %u: %s", (unsigned long long)q.m,
                     (unsigned long long)q.n, (unsigned long long)q.k, p.problem.tuning.pace,
                     p.tuned);
    }
    struct mk_problem q = problem(MK_OP_GEMM_RS, 1040, 8192, 2048),
                      at = problem(MK_OP_GEMM_RS, 1024, 8192, 2048);
    q.sms = at.sms = 3; /* roles of another kind of device do not fit */
    t.entries[2].tuning.split = (struct mk_role_split){.ctas = {132, 0, 0, 132}};
    assert_string_equal(build(&t, &q, "G").tuned, ""); /* near: the formula steps in */
    struct mk_plan p;
    /* exact: it is told */
    assert_int_equal(tuning_build(&p, &t, &at, "G", 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "plans:3: its plan does not fit: "));
    /* with an epilogue, of which the line does not say whether its plan has it, the formula steps
     * in */
    at.epilogue = MK_EPILOGUE_RESIDUAL;
    assert_string_equal(build(&t, &at, "G").tuned, "");
    tuning_close(&t);
}

/* A plan that is kept is the plan that comes back, other lines stay, and what was kept for the same
 * before is gone. */
CASE(test_store)
{
    struct tuning_entry e;
    struct mk_problem q = problem(MK_OP_GEMM_RS, 8192, 8192, 2048);
    snprintf(path, sizeof path, "%s/a/b/plans", folder);
    tuning_key(&e, &q, "NVIDIA H200 #1=x");
    assert_string_equal(e.device, "NVIDIA_H200__1_x");
    tuning_key(&e, &q, "NVIDIA H200");
    e.tuning = (struct mk_tuning){.tile_m = 256,
                                  .tile_n = 128,
                                  .pieces = 8,
                                  .pace = 77,
                                  .chunk_rows = 512,
                                  .split = {.ctas = {132, 0, 0, 264}}};
    e.ms = 0.25;
    strcpy(e.date, "2026-11-21");
    if (tuning_store(path, &e, error, sizeof error))
        fail_msg("%s", error);
    struct tuning_table t;
    assert_int_equal(tuning_open(&t, path, 0, error, sizeof error), 0);
    int exact;
    const struct tuning_entry *back = tuning_find(&t, &q, "NVIDIA H200", &exact);
    assert_true(back && exact);
    assert_memory_equal(&back->tuning, &e.tuning, sizeof e.tuning);
    assert_true(back->ms == 0.25);
    tuning_close(&t);

    FILE *f = fopen(path, "w");
    fputs(lines, f); /* without a newline at its end */
    fclose(f);
    assert_int_equal(tuning_store(path, &e, error, sizeof error), 0);
    char text[2048] = "", *end = text;
    f = fopen(path, "r");
    end += fread(text, 1, sizeof text - 1, f);
    fclose(f);
    assert_non_null(strstr(text, "# a comment\n\n  gemm_rs 8192,8192,2048 kn deterministic"));
    assert_non_null(strstr(
        text,
        "kn fast 1x4 NVIDIA_H200\ngemm_rs 8192,8192,2048 kn fast 1x4 NVIDIA_H200 tile=256,128 "));
    assert_null(strstr(text, "pace=310"));
    assert_int_equal(end[-1], '\n');
    assert_int_equal(tuning_open(&t, path, 0, error, sizeof error), 0);
    assert_int_equal(tuning_find(&t, &q, "NVIDIA H200", &exact)->tuning.pace, 77);
    uint64_t hash = tuning_hash(&t, 1, 4), other = tuning_hash(&t, 2, 4);
    t.entries[0].tuning.pieces++; /* 1 x 4 */
    assert_true(tuning_hash(&t, 1, 4) != hash);
    assert_true(tuning_hash(&t, 2, 4) == other);
    tuning_close(&t);

    f = fopen(path, "w"); /* a file that is not valid is not overwritten */
    fputs("nonsense\n", f);
    fclose(f);
    assert_int_equal(tuning_store(path, &e, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "plans:1: 'nonsense'"));
    assert_int_equal(tuning_open(&t, path, 0, error, sizeof error), -EINVAL);
    tuning_close(&t);
    char beside[300];
    snprintf(beside, sizeof beside, "%s.%ld.partial", path, (long)getpid());
    assert_int_not_equal(access(beside, F_OK), 0);
    assert_int_not_equal(tuning_store("/proc/none/plans", &e, error, sizeof error), 0);
    assert_non_null(strstr(error, "/proc/none/plans"));
}

static struct tuning_entry entry_of(uint64_t m)
{
    struct tuning_entry e;
    struct mk_problem q = problem(MK_OP_AG_GEMM, m, 64, 64);
    tuning_key(&e, &q, "G");
    e.tuning.pieces = 2;
    return e;
}

/* Several `tune` at once keep all their plans. */
CASE(test_stores_at_once)
{
    enum { STORERS = 4, PLANS = 25 };
    pid_t pids[STORERS];
    snprintf(path, sizeof path, "%s/at_once", folder);
    for (int i = 0; i < STORERS; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        for (int n = 0; !pids[i]; n++) {
            struct tuning_entry e = entry_of((uint64_t)(i * PLANS + n + 1) * 64);
            int result = n < PLANS ? tuning_store(path, &e, error, sizeof error) : 0;
            if (result)
                fprintf(stderr, "%s\n", error);
            if (result || n == PLANS)
                _exit(result != 0);
        }
    }
    for (int i = 0; i < STORERS; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    struct tuning_table t;
    uint32_t kept = 0;
    assert_int_equal(tuning_open(&t, path, 0, error, sizeof error), 0);
    for (uint32_t i = 0; i < t.count; i++)
        kept += !t.entries[i].shipped;
    tuning_close(&t);
    assert_int_equal(kept, STORERS * PLANS);
    char lock[300];
    snprintf(lock, sizeof lock, "%s.lock", path);
    assert_int_not_equal(access(lock, F_OK), 0);
}

/* Nothing is written to a link or file that lies in the way of the file that is renamed into
 * place. */
CASE(test_store_through_a_trap)
{
    char trap[300], victim[300], text[32] = "";
    struct tuning_entry e = entry_of(64);
    snprintf(path, sizeof path, "%s/trap", folder);
    snprintf(trap, sizeof trap, "%s.%ld.partial", path, (long)getpid());
    snprintf(victim, sizeof victim, "%s.victim", path);
    test_write_file(victim, "precious");
    assert_int_equal(symlink(victim, trap), 0);
    assert_int_equal(tuning_store(path, &e, error, sizeof error), 0);
    FILE *f = fopen(victim, "r");
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    assert_string_equal(text, "precious");
    struct stat s;
    assert_int_equal(lstat(path, &s), 0);
    assert_true(S_ISREG(s.st_mode));
    snprintf(trap, sizeof trap, "%s.lock", path);
    assert_int_equal(symlink(victim, trap), 0);
    assert_int_equal(tuning_store(path, &e, error, sizeof error), -ELOOP);
    assert_non_null(strstr(error, "the tuned plan cannot be kept in "));
    unlink(trap);
    unlink(victim);
}

/* A file that the path is a link to is replaced, not the link, and keeps its permissions; a device
 * is not replaced. */
CASE(test_store_through_a_link)
{
    char target[300];
    struct tuning_entry e = entry_of(64);
    struct stat s;
    snprintf(path, sizeof path, "%s/link", folder);
    snprintf(target, sizeof target, "%s.target", path);
    assert_int_equal(tuning_store(target, &e, error, sizeof error), 0);
    assert_int_equal(chmod(target, 0640), 0);
    assert_int_equal(symlink(target, path), 0);
    e = entry_of(128);
    assert_int_equal(tuning_store(path, &e, error, sizeof error), 0);
    assert_true(!lstat(path, &s) && S_ISLNK(s.st_mode));
    assert_true(!lstat(target, &s) && (s.st_mode & 0777) == 0640);
    struct tuning_table t;
    assert_int_equal(tuning_open(&t, target, 0, error, sizeof error), 0);
    assert_int_equal(t.entries[1].numbers[0], 128);
    tuning_close(&t);
    unlink(target);
    unlink(path);
    assert_int_equal(symlink("/dev/null", path), 0);
    assert_int_equal(tuning_store(path, &e, error, sizeof error), -EEXIST);
    assert_true(!stat("/dev/null", &s) && S_ISCHR(s.st_mode));
    unlink(path);
}

/* Which file is read, and that what is compiled in makes sense. */
CASE(test_places)
{
    struct tuning_table t;
    char config[128];
    snprintf(config, sizeof config, "%s/config", folder);
    setenv("XDG_CONFIG_HOME", config, 1);
    unsetenv("MKERNEL_TUNING");
    if (tuning_open(&t, "", 0, error, sizeof error)) /* nothing there: nothing wrong */
        fail_msg("%s", error);
    snprintf(path, sizeof path, "%s/mkernel/tuning", config);
    assert_string_equal(t.path, path);
    for (uint32_t i = 0; i < t.count; i++)
        assert_true(t.entries[i].shipped);
    uint32_t shipped = t.count;
    tuning_close(&t);

    struct tuning_entry e;
    struct mk_problem q = problem(MK_OP_AG_GEMM, 64, 64, 64);
    tuning_key(&e, &q, "G");
    assert_int_equal(tuning_store(path, &e, error, sizeof error), 0);
    assert_int_equal(tuning_open(&t, "", 0, error, sizeof error), 0);
    assert_int_equal(t.count, shipped + 1);
    assert_false(t.entries[0].shipped); /* the user's come first */
    tuning_close(&t);

    setenv("MKERNEL_TUNING", "/nowhere/plans", 1);
    assert_int_equal(tuning_open(&t, "", 0, error, sizeof error), -ENOENT);
    assert_non_null(strstr(error, "/nowhere/plans"));
    tuning_close(&t);
    assert_int_equal(tuning_open(&t, "", 1, error, sizeof error), 0);
    tuning_close(&t);
    setenv("MKERNEL_TUNING", "none", 1);
    assert_int_equal(tuning_open(&t, "", 0, error, sizeof error), 0);
    assert_int_equal(t.count, 0);
    tuning_close(&t);
    /* a file that is named is read */
    assert_int_equal(tuning_open(&t, path, 0, error, sizeof error), 0);
    assert_int_equal(t.count, shipped + 1);
    tuning_close(&t);
    assert_int_equal(tuning_open(&t, folder, 0, error, sizeof error), -EISDIR);
    tuning_close(&t);
}

FIXTURE(folder_make, folder_remove)
