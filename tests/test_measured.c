/* What a bench row or a trace records of a plan is what `calibrate` and `validate` simulate: each
 * option of a plan, written and read back, makes the same plan. */
#include "tests/helpers/test.h"
#include "core/plan/epilogue.h"
#include "core/ops/op.h"
#include "core/plan/tuning.h"
#include "experiments/job/bench_row.h"
#include "experiments/sim/measured.h"
#include "tests/helpers/folder.h"
#include "tracer/part.h"
#include "tracer/store.h"
#include "core/plan/plan_fields.h"

enum { SMS = 132 };

/* A problem of each option that is recorded, beside the defaults. */
static const struct {
    enum mk_op op;
    uint64_t numbers[OP_DIMENSIONS];
    struct mk_problem with;
    uint64_t capacity, logical;
    int drops, halves;
} cases[] = {
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.b_transposed = 1}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.deterministic = 1}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.deterministic = MK_EVERYWHERE}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.fp16 = 1}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.fp8 = 1, .b_transposed = 1}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.fp8 = 1, .b_transposed = 1, .b_columns = 1}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.epilogue = MK_EPILOGUE_BIAS}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.tuning = {.slices = 2}}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.tuning = {.shots = 2, .fanout = 1}}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.tuning = {.pace = 300}}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.tuning = {.pace = MK_PACE_NONE}}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.tuning = {.tile_m = 128, .tile_n = 64}}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM, {4096, 1024, 2048}, {.tuning = {.chunk_rows = 512, .pieces = 2}}, 0, 0, 0, 0},
    {MK_OP_AG_GEMM,
     {4096, 1024, 2048},
     {.tuning = {.split = {.ctas = {[MK_COMPUTE] = 100, [MK_INTRA_COMM] = 20}}}},
     0,
     0,
     0,
     0},
    {MK_OP_GEMM_RS, {256, 4096, 4096}, {.tuning = {.shots = 1, .split_k = 2}}, 0, 0, 0, 0},
    {MK_OP_GEMM_RS, {256, 4096, 4096}, {.tuning = {.shots = 1, .split_k = 1}}, 0, 0, 0, 0},
    {MK_OP_GEMM_AR,
     {256, 4096, 4096},
     {.epilogue = MK_EPILOGUE_RESIDUAL | MK_EPILOGUE_RMSNORM},
     0,
     0,
     0,
     0},
    {MK_OP_GEMM_AR, {256, 4096, 4096}, {.c_in_heap = 1}, 0, 0, 0, 0},
    {MK_OP_RING_ATTENTION,
     {1, 2048, 8, 8, 128},
     {.attention = {.causal = 1, .contiguous = 1}},
     0,
     0,
     0,
     0},
    {MK_OP_RING_ATTENTION, {1, 2048, 8, 8, 128}, {.attention = {.causal = 1}}, 0, 0, 0, 0},
    {MK_OP_MOE_FFN,
     {256, 1024, 512, 16, 2},
     {.fp8 = 1, .b_transposed = 1, .back_fp8 = 1},
     0,
     0,
     0,
     0},
    {MK_OP_MOE_FFN, {256, 1024, 512, 16, 2}, {.fp8 = 0}, 640, 0, 1, 0},
    {MK_OP_MOE_FFN, {256, 1024, 512, 16, 2}, {.fp8 = 0}, 0, 14, 0, 0},
    {MK_OP_MOE_DISPATCH, {256, 1024, 512, 16, 2}, {.fp8 = 1}, 0, 0, 0, 1},
};
enum { CASES = sizeof cases / sizeof *cases };

static struct mk_plan *made(size_t i)
{
    static struct mk_plan plan;
    char error[256] = "";
    struct mk_problem q = cases[i].with;
    q.op = cases[i].op;
    q.exec = MK_EXEC_CUDA;
    q.sms = SMS;
    q.topo = (struct mk_topo){.nodes = 1, .gpus = 2};
    op_set_numbers(&q, cases[i].numbers);
    if (cases[i].capacity)
        plan_field_set(plan_field_named("capacity"), &q, cases[i].capacity);
    if (cases[i].logical)
        plan_field_set(plan_field_named("logical"), &q, cases[i].logical);
    plan_field_set(plan_field_named("overflow"), &q, cases[i].drops);
    plan_field_set(plan_field_named("launch"), &q, cases[i].halves);
    if (plan_build(&plan, &q, 0, 0, error, sizeof error))
        fail_msg("case %zu: %s", i, error);
    plan.id = 1;
    return &plan;
}

#define SAME(field)                                                                                \
    if (memcmp(&a->field, &b->field, sizeof a->field))                                             \
    fail_msg("case %zu (%s): " #field " differs: %s, read as %s", i, from,                         \
             tuning_words(&a->tuning, words[0], sizeof words[0]),                                  \
             tuning_words(&b->tuning, words[1], sizeof words[1]))

static void is_same(size_t i, const char *from, const struct mk_plan *one, const struct measured *m)
{
    const struct mk_problem *a = &one->problem, *b;
    char words[2][256];
    if (m->count != 1)
        fail_msg("case %zu (%s): left out: %s", i, from, m->left_out_why);
    b = &m->rows[0].plan.problem;
    SAME(op);
    SAME(topo);
    SAME(m);
    SAME(n);
    SAME(k);
    SAME(attention);
    SAME(moe);
    SAME(own);
    SAME(b_transposed);
    SAME(epilogue);
    SAME(fp8);
    SAME(bytes);
    SAME(fp16);
    SAME(b_columns);
    SAME(back_fp8);
    SAME(deterministic);
    SAME(c_in_heap);
    SAME(tuning);
}

CASE(rows_are_read_back)
{
    for (size_t i = 0; i < CASES; i++) {
        const struct mk_plan *plan = made(i);
        const struct mk_problem *q = &plan->problem;
        static struct run_job job;
        char path[128], shape[OP_PROBLEM_TEXT], error[256];
        struct csv_table csv = {.count = 0};
        struct measured m = {.count = 0};
        job.options.op = q->op;
        job.options.ask.replicas = op_logical(q) ? q->moe.experts - op_logical(q) : 0;
        snprintf(path, sizeof path, "%s/rows.csv", folder);
        csv_row(&csv);
        csv_text(&csv, "op", plan_op_name(q->op));
        csv_whole(&csv, "nodes", q->topo.nodes);
        csv_whole(&csv, "gpus", q->topo.gpus);
        csv_text(&csv, "exec", "cuda");
        csv_number(&csv, "ms", "%.3f", 0.5);
        csv_text(&csv, "shape", op_problem_text(q, shape));
        bench_row_context(&csv, &job, q, "", "");
        assert_int_equal(csv_end(&csv, path, 0), 0);
        if (measured_read(&m, path, MEASURED_ALL, SMS, error, sizeof error))
            fail_msg("case %zu: %s", i, error);
        is_same(i, "row", plan, &m);
        measured_free(&m);
    }
}

/* What has no launch is left out, so there is one: two records of a rank's first CTA. */
static void store(const struct mk_plan *plan, const char *path)
{
    char error[256];
    struct trace_part parts[2] = {0};
    void *blocks[2];
    struct trace_plan described[2];
    struct mk_event events[2][4];
    struct mk_track tracks[2];
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(part_of_plan(&described[r], plan, &blocks[r]), 0);
        tracks[r] = (struct mk_track){.events = events[r], .capacity = 4};
        mk_track_add(&tracks[r], mk_event_what(MK_EV_LAUNCH, 1, 1), 1000, 1000);
        mk_track_add(&tracks[r], mk_event_what(MK_EV_TILE, 0, 0), 1000, 500000);
        parts[r] = (struct trace_part){.topo = {.nodes = 1, .gpus = 2, .rank = r},
                                       .track_count = 1,
                                       .track_warps = 1,
                                       .tracks = &tracks[r],
                                       .plans = &described[r],
                                       .plan_count = 1};
    }
    struct trace_run run = {.source = "measured", .executor = "cuda"};
    if (store_parts(parts, 2, &run, path, error, sizeof error))
        fail_msg("%s", error);
    for (int r = 0; r < 2; r++)
        free(blocks[r]);
}

CASE(traces_are_read_back)
{
    for (size_t i = 0; i < CASES; i++) {
        const struct mk_plan *plan = made(i);
        char path[128], error[256];
        struct measured m = {.count = 0};
        snprintf(path, sizeof path, "%s/%zu.db", folder, i);
        store(plan, path);
        if (measured_read(&m, path, MEASURED_ALL, SMS, error, sizeof error))
            fail_msg("case %zu: %s", i, error);
        is_same(i, "trace", plan, &m);
        measured_free(&m);
    }
}

/* Halves for fitting and testing stay apart however many shapes there are. */
CASE(shapes_are_counted_without_bound)
{
    char path[128], error[256];
    struct measured m = {.count = 0};
    snprintf(path, sizeof path, "%s/many.csv", folder);
    FILE *f = fopen(path, "w");
    fputs("op,m,n,k,nodes,gpus,ms,made\n", f);
    for (int i = 0; i < 1500; i++)
        fprintf(f, "ag_gemm,4096,1024,%d,1,2,0.5,formula\n", 64 * (i + 1));
    fclose(f);
    assert_int_equal(measured_read(&m, path, MEASURED_EVEN, SMS, error, sizeof error), 0);
    assert_int_equal(m.shapes, 1500);
    assert_int_equal(m.count + m.left_out, 750);
    measured_free(&m);
}

CASE(numbers_are_numbers)
{
    static const char *const rows[] = {
        "ag_gemm,4096,1024,2048,1,2,0.5,pieces=1", /* the right one */
        "ag_gemm,4096,1024,2048,1,4294967298,0.5,pieces=1",
        "ag_gemm,-4096,1024,2048,1,2,0.5,pieces=1",
        "ag_gemm,4096,1024,2048,1,2x,0.5,pieces=1",
        "ag_gemm,4096,1024,2048,1,2,inf,pieces=1",
        "ag_gemm,4096,1024,2048,1,2,0.5x,pieces=1",
        "ag_gemm,4096,1024,2048,1,2,0.5,pieces=1,nan",
        "ag_gemm,4096,1024,2048,1,2,0.5,pieces=1,one",
        "ag_gemm,4096,1024,2048,1,2,0.5,pieces=1,-1",
        "ag_gemm,4096,1024,2048,1,2,0.5,pieces=1,4294967296"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[128], error[256];
        struct measured m = {.count = 0};
        snprintf(path, sizeof path, "%s/bad.csv", folder);
        FILE *f = fopen(path, "w");
        fprintf(f, "op,m,n,k,nodes,gpus,ms,made%s\n%s\n", i < 6 ? "" : ",wrong", rows[i]);
        fclose(f);
        assert_int_equal(measured_read(&m, path, MEASURED_ALL, SMS, error, sizeof error), 0);
        assert_int_equal(m.count, i == 0);
        assert_int_equal(m.left_out, i != 0);
        measured_free(&m);
    }
}

/* What an old trace has of a plan stands in its command alone, with all its digits. */
CASE(typed_numbers_have_all_digits)
{
    static const struct {
        const char *command;
        uint32_t pace; /* 0: the row is left out */
    } typed[] = {{"run ag_gemm --pace 300", 300},
                 {"run ag_gemm --pace 1234567890 --exec cuda", 1234567890},
                 {"run ag_gemm --pace 4294967297", 0},
                 {"run ag_gemm --pace 18446744073709551617", 0}};
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        char path[128], sql[256], error[256];
        struct measured m = {.count = 0};
        sqlite3 *db;
        snprintf(path, sizeof path, "%s/old-%zu.db", folder, i);
        store(made(0), path);
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        snprintf(sql, sizeof sql,
                 "DELETE FROM metric WHERE name LIKE 'plan 1: %%' AND "
                 "name NOT LIKE '%%warps'; UPDATE run SET command = '%s'",
                 typed[i].command);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        sqlite3_close(db);
        if (measured_read(&m, path, MEASURED_ALL, SMS, error, sizeof error))
            fail_msg("%s: %s", typed[i].command, error);
        assert_int_equal(m.count, typed[i].pace != 0);
        if (m.count)
            assert_int_equal(m.rows[0].plan.problem.tuning.pace, typed[i].pace);
        measured_free(&m);
    }
}

FIXTURE(folder_make, folder_remove)
