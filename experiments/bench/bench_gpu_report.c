#include "experiments/bench/bench_gpu_row.h"
#include "experiments/bench/bench_gpu.h"
#include "experiments/job/bench_row.h"
#include "experiments/common/output_file.h"
#include "experiments/common/result_file.h"
#include "experiments/job/op.h"
#include "core/tuning.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

/* One column of the table, the CSV and the JSON: its name and how it is made of a row. NaN: not
 * measured. */
struct column {
    const char *name, *title;
    int width, digits;
    double (*value)(const struct bench_gpu_row *row);
};

int bench_gpu_right(const struct bench_gpu_row *row)
{
    return row->check.launches && !row->check.wrong && gpu_check_error(&row->check) <= row->bound;
}

static double bench_gpu_report_time_of(const struct bench_gpu_row *row, enum bench_gpu_what what)
{
    double ms = row->times[what].ms;
    return ms > 0 && (what != BENCH_FUSED || bench_gpu_right(row)) ? ms : NAN;
}

/* The i-th number of the problem, as on the command line. */
#define NUMBER(i)                                                                                  \
    static double bench_gpu_report_number_##i(const struct bench_gpu_row *r)                       \
    {                                                                                              \
        uint64_t numbers[OP_DIMENSIONS];                                                           \
        op_numbers(&r->problem, numbers);                                                          \
        return (double)numbers[i];                                                                 \
    }
NUMBER(0)
NUMBER(1)
NUMBER(2)
NUMBER(3)
NUMBER(4)
#undef NUMBER

static double bench_gpu_report_column_ms(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_FUSED);
}
static double bench_gpu_report_column_min(const struct bench_gpu_row *r)
{
    return bench_gpu_right(r) ? r->times[BENCH_FUSED].min : NAN;
}
static double bench_gpu_report_column_max(const struct bench_gpu_row *r)
{
    return bench_gpu_right(r) ? r->times[BENCH_FUSED].max : NAN;
}
static double bench_gpu_report_column_tflops(const struct bench_gpu_row *r)
{
    return r->flop / bench_gpu_report_time_of(r, BENCH_FUSED) / 1e9;
}
static double bench_gpu_report_column_product(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_PRODUCT);
}
static double bench_gpu_report_column_second(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_SECOND);
}
static double bench_gpu_report_column_back(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_BACK);
}
static double bench_gpu_report_column_comm(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_COMM);
}
static double bench_gpu_report_column_move(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_MOVE);
}

/* GB/s of a link, each way. */
static double bench_gpu_report_column_link(const struct bench_gpu_row *r)
{
    return (double)BENCH_LINK_BYTES / bench_gpu_report_time_of(r, BENCH_LINK) / 1e6;
}

static double bench_gpu_report_column_network(const struct bench_gpu_row *r)
{
    return r->network_ms > 0 ? r->network_ms : NAN;
}

/* The larger of product and communication; of a layer of both products and both ways. The
 * communication by the faster of the two, an all-reduce at the rate of the links; between nodes at
 * the rate of the NICs, which NCCL does not use on one host's emulated ones. */
static double bench_gpu_report_column_ideal(const struct bench_gpu_row *r)
{
    double comm =
        fmin(bench_gpu_report_time_of(r, BENCH_COMM), bench_gpu_report_time_of(r, BENCH_MOVE));
    const struct mk_problem *q = &r->problem;
    uint32_t world = mk_world(&q->topo);
    int layer = run_op_of(q->op)->product == RUN_LAYER;
    if (layer)
        comm += bench_gpu_report_time_of(r, BENCH_BACK);
    if (run_op_of(q->op)->collective == RUN_ALL_REDUCE)
        comm = 2.0 * (world - 1) / world * (double)q->m * (double)q->n * 2 /
               bench_gpu_report_column_link(r) / 1e6;
    if (world == 1)
        comm = 0;
    if (r->network_ms > 0)
        comm = r->network_ms;
    double product = bench_gpu_report_time_of(r, BENCH_PRODUCT) +
                     (layer ? bench_gpu_report_time_of(r, BENCH_SECOND) : 0);
    return isnan(product) || isnan(comm) ? NAN : fmax(product, comm);
}
static double bench_gpu_report_column_efficiency(const struct bench_gpu_row *r)
{
    return bench_gpu_report_column_ideal(r) / bench_gpu_report_time_of(r, BENCH_FUSED);
}
static double bench_gpu_report_column_turns(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_TURNS);
}
static double bench_gpu_report_column_vs_turns(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_TURNS) / bench_gpu_report_time_of(r, BENCH_FUSED);
}
static double bench_gpu_report_column_torch(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_TORCH);
}
static double bench_gpu_report_column_vs_torch(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_TORCH) / bench_gpu_report_time_of(r, BENCH_FUSED);
}
static double bench_gpu_report_column_error(const struct bench_gpu_row *r)
{
    return gpu_check_error(&r->check);
}
static double bench_gpu_report_column_causal(const struct bench_gpu_row *r)
{
    return r->problem.attention.causal;
}
static double bench_gpu_report_column_wrong(const struct bench_gpu_row *r)
{
    return (double)r->check.wrong;
}

/* Of a rank, in a microsecond. */
static double bench_gpu_report_column_tokens(const struct bench_gpu_row *r)
{
    return (double)r->problem.moe.tokens / bench_gpu_report_time_of(r, BENCH_FUSED) / 1e3;
}
static double bench_gpu_report_column_rows(const struct bench_gpu_row *r)
{
    return r->rows;
}
static double bench_gpu_report_column_imbalance(const struct bench_gpu_row *r)
{
    return r->rows > 0 ? (double)r->most_rows / r->rows : NAN;
}

static const struct column gemm_columns[] = {
    {"m", "M", 6, 0, bench_gpu_report_number_0},
    {"n", "N", 6, 0, bench_gpu_report_number_1},
    {"k", "K", 6, 0, bench_gpu_report_number_2},
    {"fused_ms", "fused", 8, 4, bench_gpu_report_column_ms},
    {"fused_min_ms", "min", 8, 4, bench_gpu_report_column_min},
    {"fused_max_ms", "max", 8, 4, bench_gpu_report_column_max},
    {"tflops", "TFLOP/s", 8, 1, bench_gpu_report_column_tflops},
    {"gemm_ms", "GEMM", 8, 4, bench_gpu_report_column_product},
    {"comm_nccl_ms", "NCCL", 8, 4, bench_gpu_report_column_comm},
    {"comm_own_ms", "own", 8, 4, bench_gpu_report_column_move},
    {"link_gb_s", "link", 5, 0, bench_gpu_report_column_link},
    {"network_ms", "NICs", 8, 4, bench_gpu_report_column_network},
    {"ideal_ms", "ideal", 8, 4, bench_gpu_report_column_ideal},
    {"efficiency", "effic.", 7, 3, bench_gpu_report_column_efficiency},
    {"cublas_nccl_ms", "in turn", 8, 4, bench_gpu_report_column_turns},
    {"speedup_cublas_nccl", "ratio", 6, 2, bench_gpu_report_column_vs_turns},
    {"torch_fused_ms", "torch", 8, 4, bench_gpu_report_column_torch},
    {"speedup_torch", "ratio", 6, 2, bench_gpu_report_column_vs_torch},
    {"relative_error", "error", 9, -1, bench_gpu_report_column_error},
    {"wrong", "#wrong", 7, 0, bench_gpu_report_column_wrong},
};

static const struct column attention_columns[] = {
    {"batch", "B", 4, 0, bench_gpu_report_number_0},
    {"sequence", "S", 7, 0, bench_gpu_report_number_1},
    {"heads", "H", 4, 0, bench_gpu_report_number_2},
    {"kv_heads", "G", 4, 0, bench_gpu_report_number_3},
    {"head_dim", "D", 4, 0, bench_gpu_report_number_4},
    {"causal", "causal", 6, 0, bench_gpu_report_column_causal},
    {"fused_ms", "fused", 8, 4, bench_gpu_report_column_ms},
    {"fused_min_ms", "min", 8, 4, bench_gpu_report_column_min},
    {"fused_max_ms", "max", 8, 4, bench_gpu_report_column_max},
    {"tflops", "TFLOP/s", 8, 1, bench_gpu_report_column_tflops},
    {"attention_ms", "cuDNN", 8, 4, bench_gpu_report_column_product},
    {"comm_nccl_ms", "NCCL", 8, 4, bench_gpu_report_column_comm},
    {"comm_own_ms", "own", 8, 4, bench_gpu_report_column_move},
    {"link_gb_s", "link", 5, 0, bench_gpu_report_column_link},
    {"network_ms", "NICs", 8, 4, bench_gpu_report_column_network},
    {"ideal_ms", "ideal", 8, 4, bench_gpu_report_column_ideal},
    {"efficiency", "effic.", 7, 3, bench_gpu_report_column_efficiency},
    {"nccl_cudnn_ms", "in turn", 8, 4, bench_gpu_report_column_turns},
    {"speedup_nccl_cudnn", "ratio", 6, 2, bench_gpu_report_column_vs_turns},
    {"torch_context_parallel_ms", "torch", 8, 4, bench_gpu_report_column_torch},
    {"speedup_torch", "ratio", 6, 2, bench_gpu_report_column_vs_torch},
    {"relative_error", "error", 9, -1, bench_gpu_report_column_error},
    {"wrong", "#wrong", 7, 0, bench_gpu_report_column_wrong},
};

static const struct column moe_columns[] = {
    {"tokens", "T", 6, 0, bench_gpu_report_number_0},
    {"hidden", "H", 6, 0, bench_gpu_report_number_1},
    {"inner", "I", 6, 0, bench_gpu_report_number_2},
    {"experts", "E", 4, 0, bench_gpu_report_number_3},
    {"experts_per_token", "K", 3, 0, bench_gpu_report_number_4},
    {"rows", "rows", 7, 0, bench_gpu_report_column_rows},
    {"imbalance", "imbal.", 6, 2, bench_gpu_report_column_imbalance},
    {"fused_ms", "fused", 8, 4, bench_gpu_report_column_ms},
    {"fused_min_ms", "min", 8, 4, bench_gpu_report_column_min},
    {"fused_max_ms", "max", 8, 4, bench_gpu_report_column_max},
    {"tflops", "TFLOP/s", 8, 1, bench_gpu_report_column_tflops},
    {"tokens_per_us", "tok/us", 7, 2, bench_gpu_report_column_tokens},
    {"product_ms", "grouped", 8, 4, bench_gpu_report_column_product},
    {"comm_nccl_ms", "NCCL", 8, 4, bench_gpu_report_column_comm},
    {"link_gb_s", "link", 5, 0, bench_gpu_report_column_link},
    {"network_ms", "NICs", 8, 4, bench_gpu_report_column_network},
    {"ideal_ms", "ideal", 8, 4, bench_gpu_report_column_ideal},
    {"efficiency", "effic.", 7, 3, bench_gpu_report_column_efficiency},
    {"torch_nccl_ms", "in turn", 8, 4, bench_gpu_report_column_turns},
    {"speedup_torch_nccl", "ratio", 6, 2, bench_gpu_report_column_vs_turns},
    {"relative_error", "error", 9, -1, bench_gpu_report_column_error},
    {"wrong", "#wrong", 7, 0, bench_gpu_report_column_wrong},
};

static const struct column layer_columns[] = {
    {"tokens", "T", 6, 0, bench_gpu_report_number_0},
    {"hidden", "H", 6, 0, bench_gpu_report_number_1},
    {"inner", "I", 6, 0, bench_gpu_report_number_2},
    {"experts", "E", 4, 0, bench_gpu_report_number_3},
    {"experts_per_token", "K", 3, 0, bench_gpu_report_number_4},
    {"rows", "rows", 7, 0, bench_gpu_report_column_rows},
    {"imbalance", "imbal.", 6, 2, bench_gpu_report_column_imbalance},
    {"fused_ms", "fused", 8, 4, bench_gpu_report_column_ms},
    {"fused_min_ms", "min", 8, 4, bench_gpu_report_column_min},
    {"fused_max_ms", "max", 8, 4, bench_gpu_report_column_max},
    {"tflops", "TFLOP/s", 8, 1, bench_gpu_report_column_tflops},
    {"tokens_per_us", "tok/us", 7, 2, bench_gpu_report_column_tokens},
    {"product_ms", "first", 8, 4, bench_gpu_report_column_product},
    {"second_ms", "second", 8, 4, bench_gpu_report_column_second},
    {"comm_nccl_ms", "there", 8, 4, bench_gpu_report_column_comm},
    {"back_nccl_ms", "back", 8, 4, bench_gpu_report_column_back},
    {"link_gb_s", "link", 5, 0, bench_gpu_report_column_link},
    {"network_ms", "NICs", 8, 4, bench_gpu_report_column_network},
    {"ideal_ms", "ideal", 8, 4, bench_gpu_report_column_ideal},
    {"efficiency", "effic.", 7, 3, bench_gpu_report_column_efficiency},
    {"torch_nccl_ms", "in turn", 8, 4, bench_gpu_report_column_turns},
    {"speedup_torch_nccl", "ratio", 6, 2, bench_gpu_report_column_vs_turns},
    {"relative_error", "error", 9, -1, bench_gpu_report_column_error},
    {"wrong", "#wrong", 7, 0, bench_gpu_report_column_wrong},
};

struct columns {
    const struct column *of;
    int count;
};

static struct columns bench_gpu_report_columns(enum mk_op op)
{
    if (run_op_of(op)->product == RUN_ATTENTION)
        return (struct columns){attention_columns,
                                sizeof attention_columns / sizeof *attention_columns};
    if (run_op_of(op)->product == RUN_EXPERTS)
        return (struct columns){moe_columns, sizeof moe_columns / sizeof *moe_columns};
    if (run_op_of(op)->product == RUN_LAYER)
        return (struct columns){layer_columns, sizeof layer_columns / sizeof *layer_columns};
    return (struct columns){gemm_columns, sizeof gemm_columns / sizeof *gemm_columns};
}

static void bench_gpu_report_print_cell(FILE *f, const struct column *c,
                                        const struct bench_gpu_row *row, int width,
                                        const char *nothing)
{
    double v = c->value(row);
    if (isnan(v))
        fprintf(f, "%*s", width, nothing);
    else if (c->digits < 0)
        fprintf(f, "%*.1e", width, v);
    else
        fprintf(f, "%*.*f", width, c->digits, v);
}

/* What the columns mean. */
static void bench_gpu_report_print_legend(FILE *out, const struct bench_gpu_row *rows)
{
    const struct run_op *op = run_op_of(rows->problem.op);
    struct run_collective_words words = run_collective_words(op->collective);
    if (op->product == RUN_ATTENTION) {
        fprintf(
            out,
            "ms per launch: median of the slowest rank; cuDNN: attention alone, through PyTorch, "
            "in turns with the operator (causal: on a square of as many products); NCCL: its "
            "all-gather of\nK and V alone; own: this kernel without products; link: GB/s to the "
            "next rank by copy engine; NICs: what crosses them, at the rate of their ports; ideal: "
            "the larger\nof cuDNN and %s; effic.: ideal / fused; in turn: NCCL then cuDNN; torch: "
            "context_parallel\n",
            rows->network_ms > 0 ? "that" : "the faster of NCCL and own");
        return;
    }
    if (op->product == RUN_EXPERTS) {
        fprintf(out,
                "ms per launch: median of the slowest rank; rows: of a rank, on average; imbal.: "
                "of the rank that has most, by that; tok/us: a rank's tokens;\ngrouped: PyTorch's "
                "grouped product alone; NCCL: the all-to-all alone, a row for each expert of a "
                "token; link: GB/s to the next rank by copy engine;\nNICs: what crosses them, at "
                "the rate of their ports; ideal: the larger of grouped and %s; effic.: ideal / "
                "fused;\nin turn: rows by rank, NCCL, rows by expert, grouped product, all "
                "through PyTorch\n",
                rows->network_ms > 0 ? "that" : "NCCL");
        return;
    }
    if (op->product == RUN_LAYER) {
        fprintf(out,
                "ms per launch: median of the slowest rank; rows: of a rank, on average; imbal.: "
                "of the rank that has most, by that; tok/us: a rank's tokens;\nfirst, second: "
                "PyTorch's grouped products, each alone; there, back: NCCL's all-to-all alone, a "
                "row for each expert of a token; link: GB/s to the next rank by copy "
                "engine;\nNICs: what crosses them, at the rate of their ports; ideal: the larger "
                "of both products and %s; effic.: ideal / fused;\nin turn: rows by rank, NCCL, "
                "rows by expert, product, SwiGLU, product, rows by rank, NCCL, sum by weight, all "
                "through PyTorch\n",
                rows->network_ms > 0 ? "that" : "both ways");
        return;
    }
    int gathers = op->collective == RUN_ALL_GATHER;
    if (rows->problem.c_in_heap)
        fprintf(out, "C lies in the symmetric heap, where peers store it\n");
    fprintf(out,
            "ms per launch: median of the slowest rank; GEMM: cuBLAS alone; NCCL: its %s alone; "
            "own: this kernel with %c = 8; link: GB/s\nto the next rank by copy engine; NICs: what "
            "crosses them, at the rate of their ports; ideal: the larger of GEMM and %s;\neffic.: "
            "ideal / fused; in turn: %s; torch: %s\n",
            words.name, gathers ? 'N' : 'K',
            rows->network_ms > 0               ? "that"
            : op->collective == RUN_ALL_REDUCE ? "2 (W-1)/W of C's bytes at the link's rate"
                                               : "the faster of NCCL and own",
            gathers ? "NCCL then cuBLAS" : "cuBLAS then NCCL",
            words.torch ? words.torch : "nothing of the kind");
}

static int bench_gpu_report_print_table(FILE *out, const struct bench_gpu_row *rows, uint32_t count)
{
    const struct columns columns = bench_gpu_report_columns(rows->problem.op);
    char text[PROBLEM_TEXT];
    for (int i = 0; i < columns.count; i++)
        fprintf(out, "%s%*s", i ? " " : "", columns.of[i].width, columns.of[i].title);
    fprintf(out, "  plan\n");
    for (uint32_t r = 0; r < count; r++) {
        for (int i = 0; i < columns.count; i++) {
            if (i)
                fputc(' ', out);
            bench_gpu_report_print_cell(out, &columns.of[i], &rows[r], columns.of[i].width,
                                        bench_gpu_right(&rows[r]) ? "-" : "WRONG");
        }
        const struct bench_gpu_row *row = &rows[r];
        const struct mk_tuning *t = &row->problem.tuning;
        const struct mk_tuning shown = {.tile_m = t->tile_m,
                                        .tile_n = t->tile_n,
                                        .split = t->split,
                                        .chunk_rows = t->chunk_rows};
        char words[256];
        fprintf(out, "  %s%s\n", tuning_words(&shown, words, sizeof words),
                *row->tuned ? ", tuned" : "");
    }
    for (uint32_t r = 0; r < count; r++)
        if (*rows[r].tuned)
            fprintf(out, "%s is tuned: %s; --tuning none takes the formula's plan\n",
                    problem_text(&rows[r].problem, text), rows[r].tuned);
    bench_gpu_report_print_legend(out, rows);
    return output_table_end(out);
}

static void bench_gpu_report_fill_row(struct csv_row *csv, const struct run_job *job,
                                      const struct bench_gpu_row *row)
{
    const struct mk_problem *q = &row->problem;
    const struct columns columns = bench_gpu_report_columns(q->op);
    char fabric[RUN_FABRIC_TEXT];
    for (int i = 0; i < columns.count; i++) {
        const struct column *c = &columns.of[i];
        char format[16];
        snprintf(format, sizeof format, c->digits < 0 ? "%%.1e" : "%%.%df", c->digits);
        csv_number(csv, c->name, format, c->value(row));
    }
    csv_text(csv, "op", plan_op_name(q->op));
    csv_whole(csv, "nodes", q->topo.nodes);
    csv_whole(csv, "gpus", q->topo.gpus);
    csv_text(csv, "exec", "cuda");
    bench_row_context(csv, job, q, row->tuned, run_fabric(job, fabric));
    csv_text(csv, "verdict", bench_gpu_right(row) ? "right" : "wrong");
}

static int bench_gpu_report_write_csv(const struct run_job *job, const struct bench_gpu_row *rows,
                                      uint32_t count)
{
    struct csv_row csv[RUN_SHAPES];
    uint32_t open = 0;
    int rc = 0;
    for (; open < count && !rc; open++) {
        rc = csv_row_open(&csv[open]);
        if (rc)
            break;
        bench_gpu_report_fill_row(&csv[open], job, &rows[open]);
        rc = csv_row_close(&csv[open]);
    }
    rc = rc ? rc : csv_write(job->options.csv, csv, count, job->options.append);
    while (open--)
        csv_row_free(&csv[open]);
    return rc;
}

int bench_gpu_check_append(const struct run_job *job, char *error, size_t size)
{
    struct csv_row csv;
    struct bench_gpu_row row = {.problem = job->problem};
    if (csv_row_open(&csv))
        return -ENOMEM;
    bench_gpu_report_fill_row(&csv, job, &row);
    int rc = csv_row_close(&csv);
    rc = rc ? rc : csv_check_append(job->options.csv, csv.header, error, size);
    csv_row_free(&csv);
    return rc;
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
    char fabric[RUN_FABRIC_TEXT];
    int rc = result_open(&f);
    if (rc)
        return rc;
    fprintf(f.out, "{\n");
    bench_json_job(f.out, job, run_fabric(job, fabric));
    fprintf(f.out, "  \"op\": \"%s\",\n  \"nodes\": %u,\n  \"gpus\": %u,\n  \"rows\": [",
            plan_op_name(job->problem.op), job->problem.topo.nodes, job->problem.topo.gpus);
    for (uint32_t r = 0; r < count; r++) {
        const struct columns columns = bench_gpu_report_columns(job->problem.op);
        fprintf(f.out, "%s\n{\n", r ? "," : "");
        bench_json_plan(f.out, &rows[r].problem, rows[r].tuned);
        for (int i = 0; i < columns.count; i++) {
            if (columns.of[i].value == bench_gpu_report_column_causal)
                continue; /* the plan has said it */
            fprintf(f.out, "  \"%s\": ", columns.of[i].name);
            bench_gpu_report_print_cell(f.out, &columns.of[i], &rows[r], 0, "null");
            fprintf(f.out, ",\n");
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
    int result = out ? bench_gpu_report_print_table(out, rows, count) : 0;
    int csv = o->csv ? bench_gpu_report_write_csv(job, rows, count) : 0,
        json = o->json ? bench_gpu_report_write_json(job, rows, count) : 0;
    if (csv || json)
        *path = csv ? o->csv : o->json;
    return csv ? csv : json ? json : result;
}
