/* --json and --csv of `run OP` and, on the host, `bench OP`. */
#include "experiments/job/bench_row.h"
#include "experiments/common/json_write.h"
#include "experiments/common/result_file.h"
#include "core/ops/op.h"
#include "experiments/run/run_rank.h"
#include "experiments/run/run_why.h"
#include "experiments/common/why_write.h"

#include <math.h>

static const char *run_files_verdict(const struct run_summary *s)
{
    return !s->checked ? "not checked" : s->right ? "right" : "wrong";
}

/* Bursts [first, last) of every rank: [[1.5, 1.4], [1.6, 1.3]]. */
static void run_files_write_times(FILE *f, const struct run_summary *s, uint64_t first,
                                  uint64_t last)
{
    for (uint32_t rank = 0; rank < s->job->identity.world; rank++) {
        fprintf(f, rank ? ", [" : "[[");
        for (uint64_t i = first; i < last; i++)
            fprintf(f, "%s%.9g", i > first ? ", " : "", s->bursts[rank * s->burst_count + i]);
        fprintf(f, "]");
    }
    fprintf(f, "]");
}

/* A wrong result has no times. */
static void run_files_write_samples(FILE *f, const struct run_summary *s)
{
    if (!s->bursts || !s->right)
        return;
    fprintf(f, "  \"warmup_ms\": ");
    run_files_write_times(f, s, 0, s->warmup_count);
    fprintf(f, ",\n  \"samples_ms\": {\"fused\": ");
    run_files_write_times(f, s, s->warmup_count, s->burst_count);
    fprintf(f, "},\n");
}

static void run_files_write_json(FILE *f, const struct run_summary *s)
{
    const struct mk_problem *q = &s->job->plan.problem;
    const struct run_result *r = &s->ranks[s->slowest];
    uint64_t nvlink, network;
    double flop;
    plan_work(&s->job->plan, &flop, &nvlink, &network);
    fprintf(f, "{\n");
    bench_json_job(f, s->job, s->fabric);
    bench_json_plan(f, q, s->job->plan.tuned);
    fprintf(f, "  \"flop\": %.0f,\n  \"nvlink_bytes\": %lu,\n  \"network_bytes\": %lu,\n", flop,
            nvlink, network);
    if (s->right) {
        fprintf(f, "  \"slowest_rank\": %u,\n", s->slowest);
        json_number(f, "ms", r->ms);
        json_number(f, "ms_min", r->ms_min);
        json_number(f, "ms_max", r->ms_max);
        json_number(f, "gflops_per_rank", run_gflops(s, flop));
        if (r->gemm_ms > 0)
            json_number(f, "gemm_ms", r->gemm_ms);
    }
    if (s->why && s->why->there && s->right) {
        fprintf(f, "  \"why\": {\n");
        why_json(f, &s->why->parts);
        fprintf(f, "},\n");
    }
    run_files_write_samples(f, s);
    fprintf(f, "  \"checked\": %s,\n", s->checked ? "true" : "false");
    if (s->checked) {
        json_number(f, "relative_error", check_error(&s->check));
        json_number(f, "worst_of_bound", s->check.worst);
        fprintf(f, "  \"wrong\": %lu,\n  \"elements\": %lu,\n", s->check.wrong, s->check.elements);
        fprintf(f, "  \"bits\": \"%016lx\",\n", s->bits); /* of all results of all ranks */
    }
    fprintf(f, "  \"verdict\": \"%s\"\n}\n", run_files_verdict(s));
}

/* M, N and K are cells of their own if the operator's shape has them: what a plan makes of another
 * shape is not. */
void run_fill_row(struct csv_table *row, const struct run_summary *s)
{
    const struct mk_problem *q = &s->job->plan.problem;
    const struct run_result *r = &s->ranks[s->slowest];
    uint64_t nvlink, network;
    double flop, time = s->right ? 1 : NAN; /* a wrong result has no time */
    char shape[OP_PROBLEM_TEXT], bits[24];
    plan_work(&s->job->plan, &flop, &nvlink, &network);
    csv_row(row);
    csv_text(row, "op", plan_op_name(q->op));
    csv_number(row, "m", "%.0f", problem_has(q, &q->m) ? (double)q->m : NAN);
    csv_number(row, "n", "%.0f", problem_has(q, &q->n) ? (double)q->n : NAN);
    csv_number(row, "k", "%.0f", problem_has(q, &q->k) ? (double)q->k : NAN);
    csv_whole(row, "nodes", q->topo.nodes);
    csv_whole(row, "gpus", q->topo.gpus);
    csv_text(row, "exec", plan_execs[s->job->options.exec]);
    csv_number(row, "ms", "%.6f", r->ms * time);
    csv_number(row, "ms_min", "%.6f", r->ms_min * time);
    csv_number(row, "ms_max", "%.6f", r->ms_max * time);
    csv_number(row, "gflops_per_rank", "%.3f", run_gflops(s, flop) * time);
    csv_number(row, "gemm_ms", "%.6f", r->gemm_ms > 0 ? r->gemm_ms * time : NAN);
    csv_number(row, "relative_error", "%.3e", check_error(&s->check));
    csv_whole(row, "wrong", s->check.wrong);
    csv_text(row, "shape", op_problem_text(q, shape));
    bench_row_context(row, s->job, q, s->job->plan.tuned, s->fabric);
    csv_number(row, "flop", "%.0f", flop);
    csv_whole(row, "nvlink_bytes", nvlink);
    csv_whole(row, "network_bytes", network);
    csv_number(row, "slowest_rank", "%.0f", s->slowest * time);
    csv_text(row, "checked", s->checked ? "true" : "false");
    csv_number(row, "worst_of_bound", "%.9g", s->check.worst);
    csv_whole(row, "elements", s->check.elements);
    snprintf(bits, sizeof bits, "%016lx", s->bits);
    csv_text(row, "bits", bits);
    if (s->job->options.why)
        why_csv(row, s->why && s->why->there && s->right ? &s->why->parts : NULL);
    csv_text(row, "verdict", run_files_verdict(s));
}

int run_write_json(const struct run_summary *s)
{
    struct result_file f;
    int result = result_open(&f);
    if (result)
        return result;
    run_files_write_json(f.out, s);
    return result_close(&f, s->job->options.json);
}

int run_check_append(const struct run_job *job, char *error, size_t size)
{
    struct csv_table csv = {.count = 0};
    struct run_result nothing = {.launches = 0};
    struct run_summary s = {.job = job, .ranks = &nothing};
    run_fill_row(&csv, &s);
    return csv_check_append(&csv, job->options.csv, error, size);
}
