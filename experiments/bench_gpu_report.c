#include "experiments/bench_gpu.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

/* One column of the table, the CSV and the JSON: its name and how it is made of a row. NaN: not measured. */
struct column {
    const char *name, *title;
    int width, digits;
    double (*value)(const struct bench_gpu_row *row);
};

double bench_gpu_error(const struct bench_gpu_row *row)
{
    return row->checked && row->reference2 > 0 ? sqrt(row->difference2 / row->reference2) : 1e30;
}

/* A wrong result has no speed. */
static int right(const struct bench_gpu_row *row)
{
    return row->checked && !row->wrong && bench_gpu_error(row) <= CHECK_FROBENIUS;
}

static double time_of(const struct bench_gpu_row *row, enum bench_gpu_what what)
{
    double ms = row->times[what].ms;
    return ms > 0 && (what != BENCH_FUSED || right(row)) ? ms : NAN;
}

static double column_m(const struct bench_gpu_row *r)
{
    return (double)r->m;
}
static double column_n(const struct bench_gpu_row *r)
{
    return (double)r->n;
}
static double column_k(const struct bench_gpu_row *r)
{
    return (double)r->k;
}
static double column_ms(const struct bench_gpu_row *r)
{
    return time_of(r, BENCH_FUSED);
}
static double column_min(const struct bench_gpu_row *r)
{
    return right(r) ? r->times[BENCH_FUSED].min : NAN;
}
static double column_max(const struct bench_gpu_row *r)
{
    return right(r) ? r->times[BENCH_FUSED].max : NAN;
}
static double column_tflops(const struct bench_gpu_row *r)
{
    return r->flop / time_of(r, BENCH_FUSED) / 1e9;
}
static double column_gemm(const struct bench_gpu_row *r)
{
    return time_of(r, BENCH_GEMM);
}
static double column_gather(const struct bench_gpu_row *r)
{
    return time_of(r, BENCH_GATHER);
}
static double column_move(const struct bench_gpu_row *r)
{
    return time_of(r, BENCH_MOVE);
}

/* The larger of GEMM and communication, the communication by whoever does it faster. */
static double column_ideal(const struct bench_gpu_row *r)
{
    return fmax(time_of(r, BENCH_GEMM), fmin(time_of(r, BENCH_GATHER), time_of(r, BENCH_MOVE)));
}
static double column_efficiency(const struct bench_gpu_row *r)
{
    return column_ideal(r) / time_of(r, BENCH_FUSED);
}
static double column_turns(const struct bench_gpu_row *r)
{
    return time_of(r, BENCH_TURNS);
}
static double column_vs_turns(const struct bench_gpu_row *r)
{
    return time_of(r, BENCH_TURNS) / time_of(r, BENCH_FUSED);
}
static double column_torch(const struct bench_gpu_row *r)
{
    return time_of(r, BENCH_TORCH);
}
static double column_vs_torch(const struct bench_gpu_row *r)
{
    return time_of(r, BENCH_TORCH) / time_of(r, BENCH_FUSED);
}
static double column_error(const struct bench_gpu_row *r)
{
    return bench_gpu_error(r);
}
static double column_wrong(const struct bench_gpu_row *r)
{
    return (double)r->wrong;
}

static const struct column columns[] = {
    {"m", "M", 6, 0, column_m},
    {"n", "N", 6, 0, column_n},
    {"k", "K", 6, 0, column_k},
    {"fused_ms", "fused", 8, 4, column_ms},
    {"fused_min_ms", "min", 8, 4, column_min},
    {"fused_max_ms", "max", 8, 4, column_max},
    {"tflops", "TFLOP/s", 8, 1, column_tflops},
    {"gemm_ms", "GEMM", 8, 4, column_gemm},
    {"gather_nccl_ms", "gather", 8, 4, column_gather},
    {"gather_own_ms", "own", 8, 4, column_move},
    {"ideal_ms", "ideal", 8, 4, column_ideal},
    {"efficiency", "effic.", 7, 3, column_efficiency},
    {"cublas_nccl_ms", "in turn", 8, 4, column_turns},
    {"speedup_cublas_nccl", "ratio", 6, 2, column_vs_turns},
    {"torch_fused_ms", "torch", 8, 4, column_torch},
    {"speedup_torch", "ratio", 6, 2, column_vs_torch},
    {"relative_error", "error", 9, -1, column_error},
    {"wrong", "#wrong", 7, 0, column_wrong},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static void print_cell(FILE *f, const struct column *c, const struct bench_gpu_row *row, int width,
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

static void print_table(const struct bench_gpu_row *rows, uint32_t count)
{
    for (int i = 0; i < COLUMNS; i++)
        printf("%s%*s", i ? " " : "", columns[i].width, columns[i].title);
    printf("  roles, tile, chunk\n");
    for (uint32_t r = 0; r < count; r++) {
        for (int i = 0; i < COLUMNS; i++) {
            if (i)
                putchar(' ');
            print_cell(stdout, &columns[i], &rows[r], columns[i].width, right(&rows[r]) ? "-" : "WRONG");
        }
        const struct bench_gpu_row *row = &rows[r];
        printf("  %u+%u+%u+%u, %ux%u, %u\n", row->split.ctas[0], row->split.ctas[1], row->split.ctas[2],
               row->split.ctas[3], row->tile_m, row->tile_n, row->chunk_rows);
    }
    printf("ms per launch: median of the slowest rank; GEMM: cuBLAS alone; gather: NCCL's all-gather; own: "
           "this kernel with "
           "N = 8;\nideal: the larger of GEMM and the faster gather; effic.: ideal / fused; in turn: NCCL "
           "then cuBLAS; torch: "
           "fused_all_gather_matmul\n");
}

static int write_csv(const char *path, const struct bench_gpu_row *rows, uint32_t count)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return -errno;
    for (int i = 0; i < COLUMNS; i++)
        fprintf(f, "%s%s", i ? "," : "", columns[i].name);
    for (uint32_t r = 0; r < count; r++)
        for (int i = 0; i < COLUMNS; i++) {
            fputc(i ? ',' : '\n', f);
            print_cell(f, &columns[i], &rows[r], 0, "");
        }
    fputc('\n', f);
    return fclose(f) ? -errno : 0;
}

static int write_json(const char *path, const struct run_job *job, const struct bench_gpu_row *rows,
                      uint32_t count)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return -errno;
    fprintf(f, "{\"op\": \"%s\", \"exec\": \"cuda\", \"nodes\": %u, \"gpus\": %u, \"rows\": [",
            plan_op_name(job->problem.op), job->problem.topo.nodes, job->problem.topo.gpus);
    for (uint32_t r = 0; r < count; r++) {
        fprintf(f, "%s\n  {", r ? "," : "");
        for (int i = 0; i < COLUMNS; i++) {
            fprintf(f, "%s\"%s\": ", i ? ", " : "", columns[i].name);
            print_cell(f, &columns[i], &rows[r], 0, "null");
        }
        fputc('}', f);
    }
    fprintf(f, "\n]}\n");
    return fclose(f) ? -errno : 0;
}

int bench_gpu_report(const struct run_job *job, const struct bench_gpu_row *rows, uint32_t count,
                     const char **path)
{
    int result = 0;
    print_table(rows, count);
    if (job->options.csv) {
        *path = job->options.csv;
        result = write_csv(*path, rows, count);
    }
    if (!result && job->options.json) {
        *path = job->options.json;
        result = write_json(*path, job, rows, count);
    }
    return result;
}
