#include "experiments/bench/bench_gpu_row.h"
#include "experiments/bench/bench_gpu.h"
#include "experiments/job/bench_row.h"
#include "experiments/common/output_file.h"
#include "experiments/common/result_file.h"
#include "experiments/common/why_write.h"
#include "experiments/job/op.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What a row has to say: a number each. */
enum value {
    NUMBER, /* the first of the problem's, as on the command line */
    CAUSAL = NUMBER + OP_DIMENSIONS,
    ROWS,
    IMBALANCE,
    FUSED,
    FUSED_MIN,
    FUSED_MAX,
    TFLOPS,
    TOKENS,
    PRODUCT,
    SECOND,
    COMM,
    BACK,
    MOVE,
    LINK,
    NETWORK,
    IDEAL,
    EFFICIENCY,
    TURNS,
    VS_TURNS,
    TORCH,
    VS_TORCH,
    ERROR,
    WRONG,
    VALUES
};

/* How it is called where the operator's product is this: in CSV and JSON, in the table's heading,
 * and what the legend says of it (NULL: nothing). */
struct called {
    const char *name, *title, *legend;
};

enum { PRODUCTS = RUN_LAYER + 1 };

/* One column of the table, the CSV and the JSON. */
struct column {
    int width, digits;          /* digits -1: one, and an exponent */
    struct called of[PRODUCTS]; /* by enum run_product; without a name: there is none */
};

/* The table reads by rows: GEMM, attention, experts, layer. */
/* clang-format off */
#define ALL(...) {__VA_ARGS__}, {__VA_ARGS__}, {__VA_ARGS__}, {__VA_ARGS__}
#define NOT_MOE(...) {__VA_ARGS__}, {__VA_ARGS__}, {0}, {0}
#define BOTH_MOE(...) {__VA_ARGS__}, {__VA_ARGS__}
#define ONLY_MOE(...) {0}, {0}, {__VA_ARGS__}, {__VA_ARGS__}
#define NCCL "the collective alone"
#define NCCL_MOE "the all-to-all alone, a row for each expert of a token"
#define IDEAL_IS                                                                                   \
    "the larger of products and communication, which is the NICs', else the faster of NCCL and "   \
    "own, of an all-reduce 2 (W-1)/W of C's bytes at the link's rate"
#define MOE_TURNS                                                                                  \
    "rows by rank, NCCL, rows by expert, product, of a layer also SwiGLU, product, rows by rank, " \
    "NCCL, sum by weight, all through PyTorch"

static const struct column columns[VALUES] = {
    [NUMBER] = {6, 0, {{"m", "M", 0}, {"batch", "B", 0}, BOTH_MOE("tokens", "T", 0)}},
    [NUMBER + 1] = {7, 0, {{"n", "N", 0}, {"sequence", "S", 0}, BOTH_MOE("hidden", "H", 0)}},
    [NUMBER + 2] = {6, 0, {{"k", "K", 0}, {"heads", "H", 0}, BOTH_MOE("inner", "I", 0)}},
    [NUMBER + 3] = {4, 0, {{0}, {"kv_heads", "G", 0}, BOTH_MOE("experts", "E", 0)}},
    [NUMBER + 4] = {4, 0, {{0}, {"head_dim", "D", 0}, BOTH_MOE("experts_per_token", "K", 0)}},
    [CAUSAL] = {6, 0, {{0}, {"causal", "causal", 0}, {0}, {0}}},
    [ROWS] = {7, 0, {ONLY_MOE("rows", "rows", "of a rank, on average")}},
    [IMBALANCE] = {6,
                   2,
                   {ONLY_MOE("imbalance", "imbal.", "rows of the rank that has most, by that")}},
    [FUSED] = {8, 4, {ALL("ms", "fused", 0)}},
    [FUSED_MIN] = {8, 4, {ALL("ms_min", "min", 0)}},
    [FUSED_MAX] = {8, 4, {ALL("ms_max", "max", 0)}},
    [TFLOPS] = {8, 1, {ALL("tflops", "TFLOP/s", 0)}},
    [TOKENS] = {7, 2, {ONLY_MOE("tokens_per_us", "tok/us", "a rank's tokens")}},
    [PRODUCT] = {8, 4, {{"gemm_ms", "GEMM", "cuBLAS alone"},
                        {"attention_ms", "cuDNN",
                         "attention alone, through PyTorch (causal: on a square of as many "
                         "products)"},
                        {"product_ms", "grouped", "PyTorch's grouped product alone"},
                        {"product_ms", "first", "PyTorch's grouped product alone"}}},
    [SECOND] = {8, 4, {{0}, {0}, {0}, {"second_ms", "second", "and the other"}}},
    [COMM] = {8, 4, {{"comm_nccl_ms", "NCCL", NCCL},
                     {"comm_nccl_ms", "NCCL", NCCL},
                     {"comm_nccl_ms", "NCCL", NCCL_MOE},
                     {"comm_nccl_ms", "there", NCCL_MOE}}},
    [BACK] = {8, 4, {{0}, {0}, {0}, {"back_nccl_ms", "back", "and with the results"}}},
    [MOVE] = {8, 4, {NOT_MOE("comm_own_ms", "own", "this kernel with next to no products")}},
    [LINK] = {5, 0, {ALL("link_gb_s", "link", "GB/s to the next rank by copy engine")}},
    [NETWORK] = {8,
                 4,
                 {ALL("network_ms", "NICs", "what crosses them, at the rate of their ports")}},
    [IDEAL] = {8, 4, {ALL("ideal_ms", "ideal", IDEAL_IS)}},
    [EFFICIENCY] = {7, 3, {ALL("efficiency", "effic.", "ideal / fused")}},
    [TURNS] = {8, 4, {{"cublas_nccl_ms", "in turn", "cuBLAS and NCCL, one after the other"},
                      {"nccl_cudnn_ms", "in turn", "NCCL, then cuDNN"},
                      BOTH_MOE("torch_nccl_ms", "in turn", MOE_TURNS)}},
    [VS_TURNS] = {6, 2, {{"speedup_cublas_nccl", "ratio", 0},
                         {"speedup_nccl_cudnn", "ratio", 0},
                         BOTH_MOE("speedup_torch_nccl", "ratio", 0)}},
    [TORCH] = {8, 4, {{"torch_fused_ms", "torch",
                       "its fused operator on symmetric memory, where there is one"},
                      {"torch_context_parallel_ms", "torch", "context_parallel"}, {0}, {0}}},
    [VS_TORCH] = {6, 2, {NOT_MOE("speedup_torch", "ratio", 0)}},
    [ERROR] = {9, -1, {ALL("relative_error", "error", 0)}},
    [WRONG] = {7, 0, {ALL("wrong", "#wrong", 0)}},
};
/* clang-format on */

int bench_gpu_right(const struct bench_gpu_row *row)
{
    return row->check.launches && !row->check.wrong && gpu_check_error(&row->check) <= row->bound;
}

/* The larger of product and communication; of a layer of both products and both ways. The
 * communication by the faster of the two, an all-reduce at the rate of the links; between nodes at
 * the rate of the NICs, which NCCL does not use on one host's emulated ones. */
static double bench_gpu_report_ideal(const struct bench_gpu_row *r, const double v[VALUES])
{
    const struct mk_problem *q = &r->problem;
    uint32_t world = mk_world(&q->topo);
    int layer = run_op_of(q->op)->product == RUN_LAYER;
    double comm = fmin(v[COMM], v[MOVE]) + (layer ? v[BACK] : 0);
    if (run_op_of(q->op)->collective == RUN_ALL_REDUCE)
        comm = 2.0 * (world - 1) / world * (double)q->m * (double)q->n * 2 / v[LINK] / 1e6;
    if (world == 1)
        comm = 0;
    if (r->network_ms > 0)
        comm = r->network_ms;
    double product = v[PRODUCT] + (layer ? v[SECOND] : 0);
    return isnan(product) || isnan(comm) ? NAN : fmax(product, comm);
}

/* NaN: not measured, or the result is wrong. */
static void bench_gpu_report_values(const struct bench_gpu_row *r, double v[VALUES])
{
    static const enum bench_gpu_what of[VALUES] = {
        /* of the others there is no time to look up */
        [PRODUCT] = BENCH_PRODUCT, [SECOND] = BENCH_SECOND, [COMM] = BENCH_COMM,
        [BACK] = BENCH_BACK,       [MOVE] = BENCH_MOVE,     [LINK] = BENCH_LINK,
        [TURNS] = BENCH_TURNS,     [TORCH] = BENCH_TORCH};
    const struct mk_problem *q = &r->problem;
    int right = bench_gpu_right(r);
    uint64_t numbers[OP_DIMENSIONS] = {0};
    op_numbers(q, numbers);
    for (int i = 0; i < VALUES; i++) {
        double ms = r->times[of[i]].ms;
        v[i] = of[i] && ms > 0 ? ms : NAN;
    }
    for (int i = 0; i < OP_DIMENSIONS; i++)
        v[NUMBER + i] = (double)numbers[i];
    v[CAUSAL] = q->attention.causal;
    v[ROWS] = r->rows;
    v[IMBALANCE] = r->rows > 0 ? (double)r->most_rows / r->rows : NAN;
    v[FUSED] = right && r->times[BENCH_FUSED].ms > 0 ? r->times[BENCH_FUSED].ms : NAN;
    v[FUSED_MIN] = right ? r->times[BENCH_FUSED].min : NAN;
    v[FUSED_MAX] = right ? r->times[BENCH_FUSED].max : NAN;
    v[TFLOPS] = r->flop / v[FUSED] / 1e9;
    v[TOKENS] = (double)q->moe.tokens / v[FUSED] / 1e3;
    v[LINK] = (double)BENCH_LINK_BYTES / v[LINK] / 1e6; /* each way */
    v[NETWORK] = r->network_ms > 0 ? r->network_ms : NAN;
    v[IDEAL] = bench_gpu_report_ideal(r, v);
    v[EFFICIENCY] = v[IDEAL] / v[FUSED];
    v[VS_TURNS] = v[TURNS] / v[FUSED];
    v[VS_TORCH] = v[TORCH] / v[FUSED];
    v[ERROR] = gpu_check_error(&r->check);
    v[WRONG] = (double)r->check.wrong;
}

static const struct called *bench_gpu_report_called(const struct bench_gpu_row *row, int column)
{
    const struct called *c = &columns[column].of[run_op_of(row->problem.op)->product];
    return c->name ? c : NULL;
}

static void bench_gpu_report_print_cell(FILE *f, const struct column *c, double value, int width,
                                        const char *nothing)
{
    if (isnan(value))
        fprintf(f, "%*s", width, nothing);
    else if (c->digits < 0)
        fprintf(f, "%*.1e", width, value);
    else
        fprintf(f, "%*.*f", width, c->digits, value);
}

/* What the columns mean. */
static void bench_gpu_report_print_legend(FILE *out, const struct bench_gpu_row *rows)
{
    const struct called *c;
    if (rows->problem.c_in_heap)
        fprintf(out, "C lies in the symmetric heap, where peers store it\n");
    int at = fprintf(out, "ms per launch: median of the slowest rank");
    for (int i = 0; i < VALUES; i++) {
        if (!(c = bench_gpu_report_called(rows, i)) || !c->legend)
            continue;
        int wide = at + (int)(strlen(c->title) + strlen(c->legend)) > 150;
        at = wide ? 0 : at;
        at += fprintf(out, ";%s%s: %s", wide ? "\n" : " ", c->title, c->legend);
    }
    fprintf(out, "\n");
}

/* A paragraph for each row. */
static void bench_gpu_report_print_why(FILE *out, const struct bench_gpu_row *rows, uint32_t count)
{
    char text[OP_PROBLEM_TEXT], effic[32];
    double v[VALUES];
    fprintf(out,
            "where the time goes: of the compute CTAs of the slowest rank, in the median of a few "
            "launches that were traced behind the timed ones\n");
    for (uint32_t r = 0; r < count; r++) {
        if (!rows[r].why.there || !bench_gpu_right(&rows[r]))
            continue;
        bench_gpu_report_values(&rows[r], v);
        effic[0] = 0;
        if (!isnan(v[EFFICIENCY]))
            snprintf(effic, sizeof effic, " at efficiency %.3f", v[EFFICIENCY]);
        why_print(out, &rows[r].why.parts,
                  fprintf(out, "  %s%s, ", op_problem_text(&rows[r].problem, text), effic), 4);
    }
}

static int bench_gpu_report_print_table(FILE *out, const struct bench_gpu_row *rows, uint32_t count,
                                        int why)
{
    char text[OP_PROBLEM_TEXT], words[256];
    double v[VALUES];
    const struct called *c;
    for (int i = 0; i < VALUES; i++)
        if ((c = bench_gpu_report_called(rows, i)))
            fprintf(out, "%*s ", columns[i].width, c->title);
    fprintf(out, " plan\n");
    for (uint32_t r = 0; r < count; r++) {
        const struct mk_tuning *t = &rows[r].problem.tuning;
        const struct mk_tuning shown = {.tile_m = t->tile_m,
                                        .tile_n = t->tile_n,
                                        .split = t->split,
                                        .chunk_rows = t->chunk_rows};
        bench_gpu_report_values(&rows[r], v);
        for (int i = 0; i < VALUES; i++) {
            if (!bench_gpu_report_called(rows, i))
                continue;
            bench_gpu_report_print_cell(out, &columns[i], v[i], columns[i].width,
                                        bench_gpu_right(&rows[r]) ? "-" : "WRONG");
            fputc(' ', out);
        }
        fprintf(out, " %s%s\n", tuning_words(&shown, words, sizeof words),
                *rows[r].tuned ? ", tuned" : "");
    }
    for (uint32_t r = 0; r < count; r++)
        if (*rows[r].tuned)
            fprintf(out, "%s is tuned: %s; --tuning none takes the formula's plan\n",
                    op_problem_text(&rows[r].problem, text), rows[r].tuned);
    bench_gpu_report_print_legend(out, rows);
    if (why)
        bench_gpu_report_print_why(out, rows, count);
    return output_table_end(out);
}

static void bench_gpu_report_fill_row(struct csv_table *csv, const struct run_job *job,
                                      const struct bench_gpu_row *row)
{
    const struct mk_problem *q = &row->problem;
    const struct called *c;
    char fabric[RUN_FABRIC_TEXT], format[16];
    double v[VALUES];
    bench_gpu_report_values(row, v);
    csv_row(csv);
    for (int i = 0; i < VALUES; i++) {
        int digits = columns[i].digits;
        snprintf(format, sizeof format, digits < 0 ? "%%.1e" : "%%.%df", digits);
        if ((c = bench_gpu_report_called(row, i)))
            csv_number(csv, c->name, format, v[i]);
    }
    csv_text(csv, "op", plan_op_name(q->op));
    csv_whole(csv, "nodes", q->topo.nodes);
    csv_whole(csv, "gpus", q->topo.gpus);
    csv_text(csv, "exec", "cuda");
    bench_row_context(csv, job, q, row->tuned, run_fabric(job, fabric));
    if (job->options.why)
        why_csv(csv, row->why.there && bench_gpu_right(row) ? &row->why.parts : NULL);
    csv_text(csv, "verdict", bench_gpu_right(row) ? "right" : "wrong");
}

static int bench_gpu_report_write_csv(const struct run_job *job, const struct bench_gpu_row *rows,
                                      uint32_t count)
{
    struct csv_table csv = {.count = 0};
    for (uint32_t i = 0; i < count; i++)
        bench_gpu_report_fill_row(&csv, job, &rows[i]);
    return csv_end(&csv, job->options.csv, job->options.append);
}

int bench_gpu_check_append(const struct run_job *job, char *error, size_t size)
{
    struct csv_table csv = {.count = 0};
    struct bench_gpu_row row = {.problem = job->problem};
    bench_gpu_report_fill_row(&csv, job, &row);
    return csv_check_append(&csv, job->options.csv, error, size);
}

/* {"fused": [[1.5, 1.4], [1.6, 1.3]], "gemm": ...}: by what, by rank, in the order of launches. */
static void bench_gpu_report_write_samples(FILE *f, const struct bench_gpu_row *row)
{
    static const char *const names[BENCH_WHATS] = {
        [BENCH_FUSED] = "fused",   [BENCH_PRODUCT] = "gemm",  [BENCH_COMM] = "nccl",
        [BENCH_MOVE] = "own_comm", [BENCH_TURNS] = "in_turn", [BENCH_LINK] = "link",
        [BENCH_TORCH] = "torch",   [BENCH_SECOND] = "second", [BENCH_BACK] = "back"};
    if (!row->samples || !bench_gpu_right(row))
        return;
    fprintf(f, "  \"samples_ms\": {");
    for (int what = 0, any = 0; what < BENCH_WHATS; what++) {
        if (!row->counts[what])
            continue;
        fprintf(f, "%s\"%s\": ", any++ ? ", " : "", names[what]);
        for (uint32_t rank = 0; rank < mk_world(&row->problem.topo); rank++) {
            const float *times = row->samples + ((size_t)rank * BENCH_WHATS + what) * row->room;
            fprintf(f, rank ? ", [" : "[[");
            for (uint32_t i = 0; i < row->counts[what]; i++)
                fprintf(f, "%s%.9g", i ? ", " : "", times[i]);
            fprintf(f, "]");
        }
        fprintf(f, "]");
    }
    fprintf(f, "},\n");
}

static int bench_gpu_report_write_json(const struct run_job *job, const struct bench_gpu_row *rows,
                                       uint32_t count)
{
    struct result_file f;
    const struct called *c;
    char fabric[RUN_FABRIC_TEXT];
    double v[VALUES];
    int rc = result_open(&f);
    if (rc)
        return rc;
    fprintf(f.out, "{\n");
    bench_json_job(f.out, job, run_fabric(job, fabric));
    fprintf(f.out, "  \"op\": \"%s\",\n  \"nodes\": %u,\n  \"gpus\": %u,\n  \"rows\": [",
            plan_op_name(job->problem.op), job->problem.topo.nodes, job->problem.topo.gpus);
    for (uint32_t r = 0; r < count; r++) {
        fprintf(f.out, "%s\n{\n", r ? "," : "");
        bench_json_plan(f.out, &rows[r].problem, rows[r].tuned);
        fprintf(f.out, "  \"nvlink_bytes\": %.0f,\n  \"network_bytes\": %.0f,\n",
                rows[r].nvlink_bytes, rows[r].network_bytes);
        bench_gpu_report_values(&rows[r], v);
        for (int i = 0; i < VALUES; i++) {
            if (i == CAUSAL || !(c = bench_gpu_report_called(&rows[r], i)))
                continue; /* the plan has said whether it is causal */
            fprintf(f.out, "  \"%s\": ", c->name);
            bench_gpu_report_print_cell(f.out, &columns[i], v[i], 0, "null");
            fprintf(f.out, ",\n");
        }
        if (rows[r].why.there && bench_gpu_right(&rows[r])) {
            fprintf(f.out, "  \"why\": {\n");
            why_json(f.out, &rows[r].why.parts);
            fprintf(f.out, "},\n");
        }
        bench_gpu_report_write_samples(f.out, &rows[r]);
        fprintf(f.out, "  \"verdict\": \"%s\"\n}", bench_gpu_right(&rows[r]) ? "right" : "wrong");
    }
    fprintf(f.out, "\n]}\n");
    return result_close(&f, job->options.json);
}

int bench_gpu_report(const struct run_job *job, const struct bench_gpu_row *rows, uint32_t count,
                     const char **path)
{
    const struct run_options *o = &job->options;
    FILE *out = output_table(o->quiet, o->json, o->csv);
    *path = "the table";
    int result = out ? bench_gpu_report_print_table(out, rows, count, o->why) : 0;
    int csv = o->csv ? bench_gpu_report_write_csv(job, rows, count) : 0,
        json = o->json ? bench_gpu_report_write_json(job, rows, count) : 0;
    if (csv || json)
        *path = csv ? o->csv : o->json;
    return csv ? csv : json ? json : result;
}
