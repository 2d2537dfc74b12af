#include "experiments/bench/bench_gpu_row.h"
#include "experiments/bench/bench_gpu.h"
#include "experiments/job/bench_row.h"
#include "experiments/common/output_file.h"
#include "experiments/common/result_file.h"
#include "experiments/job/op.h"

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

static double bench_gpu_report_column_m(const struct bench_gpu_row *r)
{
    return (double)r->m;
}
static double bench_gpu_report_column_n(const struct bench_gpu_row *r)
{
    return (double)r->n;
}
static double bench_gpu_report_column_k(const struct bench_gpu_row *r)
{
    return (double)r->k;
}
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
static double bench_gpu_report_column_gemm(const struct bench_gpu_row *r)
{
    return bench_gpu_report_time_of(r, BENCH_GEMM);
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

/* The larger of GEMM and communication. The communication by whoever does it faster, an all-reduce
 * at the rate of the links; between nodes at the rate of the NICs, which NCCL does not use on one
 * host's emulated ones. */
static double bench_gpu_report_column_ideal(const struct bench_gpu_row *r)
{
    double comm =
        fmin(bench_gpu_report_time_of(r, BENCH_COMM), bench_gpu_report_time_of(r, BENCH_MOVE));
    if (run_op_of(r->op)->collective == RUN_ALL_REDUCE)
        comm = 2.0 * (r->world - 1) / r->world * (double)r->m * (double)r->n * 2 /
               bench_gpu_report_column_link(r) / 1e6;
    if (r->network_ms > 0)
        comm = r->network_ms;
    return fmax(bench_gpu_report_time_of(r, BENCH_GEMM), comm);
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
static double bench_gpu_report_column_wrong(const struct bench_gpu_row *r)
{
    return (double)r->check.wrong;
}

static const struct column columns[] = {
    {"m", "M", 6, 0, bench_gpu_report_column_m},
    {"n", "N", 6, 0, bench_gpu_report_column_n},
    {"k", "K", 6, 0, bench_gpu_report_column_k},
    {"fused_ms", "fused", 8, 4, bench_gpu_report_column_ms},
    {"fused_min_ms", "min", 8, 4, bench_gpu_report_column_min},
    {"fused_max_ms", "max", 8, 4, bench_gpu_report_column_max},
    {"tflops", "TFLOP/s", 8, 1, bench_gpu_report_column_tflops},
    {"gemm_ms", "GEMM", 8, 4, bench_gpu_report_column_gemm},
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
enum { COLUMNS = sizeof columns / sizeof *columns };

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

static int bench_gpu_report_print_table(FILE *out, const struct bench_gpu_row *rows, uint32_t count)
{
    for (int i = 0; i < COLUMNS; i++)
        fprintf(out, "%s%*s", i ? " " : "", columns[i].width, columns[i].title);
    fprintf(out, "  roles, tile, chunk\n");
    for (uint32_t r = 0; r < count; r++) {
        for (int i = 0; i < COLUMNS; i++) {
            if (i)
                fputc(' ', out);
            bench_gpu_report_print_cell(out, &columns[i], &rows[r], columns[i].width,
                                        bench_gpu_right(&rows[r]) ? "-" : "WRONG");
        }
        const struct bench_gpu_row *row = &rows[r];
        const struct mk_tuning *t = &row->tuning;
        fprintf(out, "  %u+%u+%u+%u, %ux%u, %u%s\n", t->split.ctas[0], t->split.ctas[1],
                t->split.ctas[2], t->split.ctas[3], t->tile_m, t->tile_n, t->chunk_rows,
                *row->tuned ? ", tuned" : "");
    }
    for (uint32_t r = 0; r < count; r++)
        if (*rows[r].tuned)
            fprintf(out, "%.0f,%.0f,%.0f is tuned: %s; --tuning none takes the formula's plan\n",
                    bench_gpu_report_column_m(&rows[r]), bench_gpu_report_column_n(&rows[r]),
                    bench_gpu_report_column_k(&rows[r]), rows[r].tuned);
    static const struct {
        const char *name, *torch;
    } words[] = {[RUN_ALL_GATHER] = {"all-gather", "fused_all_gather_matmul"},
                 [RUN_REDUCE_SCATTER] = {"reduce-scatter", "fused_matmul_reduce_scatter"},
                 [RUN_ALL_REDUCE] = {"all-reduce", "has none"}};
    enum run_collective collective = run_op_of(rows->op)->collective;
    int gathers = collective == RUN_ALL_GATHER;
    fprintf(out,
            "ms per launch: median of the slowest rank; GEMM: cuBLAS alone; NCCL: its %s alone; "
            "own: this "
            "kernel with %c = 8; "
            "link: GB/s\nto the next rank by copy engine; NICs: what crosses them, at the rate of "
            "their "
            "ports; ideal: the larger of GEMM "
            "and %s;\neffic.: ideal / fused; in turn: %s; torch: %s\n",
            words[collective].name, gathers ? 'N' : 'K',
            rows->network_ms > 0           ? "that"
            : collective == RUN_ALL_REDUCE ? "2 (W-1)/W of C's bytes at the link's rate"
                                           : "the faster of NCCL and own",
            gathers ? "NCCL then cuBLAS" : "cuBLAS then NCCL", words[collective].torch);
    return output_table_end(out);
}

/* What the plan of a row was made for, and what it chose. */
static struct mk_problem bench_gpu_report_problem_of(const struct run_job *job,
                                                     const struct bench_gpu_row *row)
{
    struct mk_problem q = job->plan.problem;
    q.m = row->m;
    q.n = row->n;
    q.k = row->k;
    q.tuning = row->tuning;
    return q;
}

static void bench_gpu_report_fill_row(struct csv_row *csv, const struct run_job *job,
                                      const struct bench_gpu_row *row)
{
    struct mk_problem q = bench_gpu_report_problem_of(job, row);
    char fabric[RUN_FABRIC_TEXT];
    for (int i = 0; i < COLUMNS; i++) {
        char format[16];
        snprintf(format, sizeof format, columns[i].digits < 0 ? "%%.1e" : "%%.%df",
                 columns[i].digits);
        csv_number(csv, columns[i].name, format, columns[i].value(row));
    }
    csv_text(csv, "op", plan_op_name(q.op));
    csv_whole(csv, "nodes", q.topo.nodes);
    csv_whole(csv, "gpus", q.topo.gpus);
    csv_text(csv, "exec", "cuda");
    bench_row_context(csv, job, &q, row->tuned, run_fabric(job, fabric));
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
    struct bench_gpu_row row = {.op = job->problem.op, .world = 1};
    if (csv_row_open(&csv))
        return -ENOMEM;
    bench_gpu_report_fill_row(&csv, job, &row);
    int rc = csv_row_close(&csv);
    rc = rc ? rc : csv_check_append(job->options.csv, csv.header, error, size);
    csv_row_free(&csv);
    return rc;
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
        struct mk_problem q = bench_gpu_report_problem_of(job, &rows[r]);
        fprintf(f.out, "%s\n{\n", r ? "," : "");
        bench_json_plan(f.out, &q, rows[r].tuned);
        for (int i = 0; i < COLUMNS; i++) {
            fprintf(f.out, "  \"%s\": ", columns[i].name);
            bench_gpu_report_print_cell(f.out, &columns[i], &rows[r], 0, "null");
            fprintf(f.out, ",\n");
        }
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
