/* What a run has to show, from one struct: a table for people (run_files.c: JSON and CSV for
 * programs). */
#include "experiments/run/run_rank.h"
#include "core/plan/tuning.h"
#include "experiments/run/run_why.h"
#include "experiments/common/why_write.h"
#include "experiments/common/inputs.h"
#include "experiments/job/op.h"
#include "experiments/common/output_file.h"

#include <stdio.h>
#include <string.h>

void run_summarise(struct run_summary *s, const struct run_job *job, const struct run_result *ranks)
{
    memset(s, 0, sizeof *s);
    s->job = job;
    s->ranks = ranks;
    s->wrong_rank = UINT32_MAX;
    s->checked = job->options.check;
    s->right = 1;
    for (uint32_t i = 0; i < job->identity.world; i++) {
        check_join(&s->check, &ranks[i].check);
        s->bits = mk_hash(s->bits ^ ranks[i].bits);
        if (ranks[i].ms > ranks[s->slowest].ms)
            s->slowest = i;
        if (s->checked && !check_right(&ranks[i].check))
            s->right = 0;
        if (ranks[i].first_wrong && (s->wrong_rank == UINT32_MAX ||
                                     ranks[i].first_wrong < ranks[s->wrong_rank].first_wrong))
            s->wrong_rank = i;
    }
    if (s->wrong_rank != UINT32_MAX)
        s->right = 0;
    run_fabric(job, s->fabric);
}

double run_gflops(const struct run_summary *s, double flop)
{
    double ms = s->ranks[s->slowest].ms;
    return s->right && ms > 0 ? flop / ms / 1e6 : 0;
}

static void run_report_print_bytes(FILE *out, uint64_t bytes)
{
    if (bytes >= 1u << 20)
        fprintf(out, "%.2f MiB", (double)bytes / (1 << 20));
    else if (bytes >= 1u << 10)
        fprintf(out, "%.2f KiB", (double)bytes / (1 << 10));
    else
        fprintf(out, "%lu B", bytes);
}

static void run_report_print_speed(FILE *out, const struct run_summary *s, double flop,
                                   uint64_t moved)
{
    const struct run_result *r = &s->ranks[s->slowest];
    if (!s->right) {
        fprintf(out, "time      not shown: the result is wrong\n");
        return;
    }
    uint64_t times = s->burst_count - s->warmup_count;
    char of[64] = "";
    if (s->job->options.exec == MK_EXEC_CUDA)
        snprintf(of, sizeof of, ", by the GPU's events");
    else if (times < r->launches)
        snprintf(of, sizeof of, " in %lu burst%s of up to %lu", times, times > 1 ? "s" : "",
                 s->job->burst);
    fprintf(out,
            "time      %.3f ms a launch (%.3f to %.3f%s), median of the slowest rank, %u; %lu "
            "launch%s",
            r->ms, r->ms_min, r->ms_max, of, s->slowest, r->launches, r->launches > 1 ? "es" : "");
    if (s->job->options.warmup)
        fprintf(out, ", behind %lu to warm up", s->job->options.warmup);
    fprintf(out, "\n");
    if (flop > 0)
        fprintf(out, "speed     %.4g TFLOP/s a rank\n", run_gflops(s, flop) / 1e3);
    else
        fprintf(out, "speed     %.3f GB/s into each rank\n", (double)moved / r->ms / 1e6);
    if (r->gemm_ms > 0)
        fprintf(out, "vs blas   %.3f ms for the same product by OpenBLAS alone: efficiency %.2f\n",
                r->gemm_ms, r->gemm_ms / r->ms);
}

/* How near to its bound an element comes is said only of one that is beyond: right results come up
 * to it, since half a unit in the last place uses it up (check.h). */
static void run_report_print_check(FILE *out, const struct run_summary *s)
{
    const struct check_result *c = &s->check;
    uint64_t launches = s->job->options.iters + s->job->options.warmup;
    fprintf(out, "check     relative error %.2e (bound %.1e); ", check_error(c), check_bound(c));
    if (c->wrong)
        fprintf(out, "%lu of %lu elements are beyond their bounds, the worst %.2f times; ",
                c->wrong, c->elements, c->worst);
    else
        fprintf(out, "all %lu elements are within their bounds; ", c->elements);
    fprintf(out, "%lu launch%s checked\n", launches, launches > 1 ? "es" : "");
}

int run_print(const struct run_summary *s)
{
    const struct mk_problem *q = &s->job->plan.problem;
    uint64_t nvlink, network;
    double flop;
    char shape[OP_PROBLEM_TEXT], roles[TUNING_ROLES_TEXT] = "";
    const struct run_options *o = &s->job->options;
    FILE *out = output_table(o->quiet, o->json, o->csv);
    if (!out)
        return 0;
    plan_work(&s->job->plan, &flop, &nvlink, &network);
    fprintf(out, "op        %s  %s %s  %sseed %lu\n", plan_op_name(q->op),
            op_of(q->op)->shape->heading, op_problem_text(q, shape), q->fp16 ? "" : "bf16, ",
            s->job->options.seed);
    fprintf(out, "ranks     %u node%s of %u, executor %s%s%s\n", q->topo.nodes,
            q->topo.nodes > 1 ? "s" : "", q->topo.gpus, plan_execs[o->exec], *s->fabric ? ", " : "",
            s->fabric);
    fprintf(out, "plan      roles %s", tuning_say_roles(&q->tuning.split, roles, sizeof roles));
    if (q->tuning.tile_m)
        fprintf(out, "; tiles %u x %u", q->tuning.tile_m, q->tuning.tile_n);
    if (plan_parts_of_k(&q->tuning) > 1)
        fprintf(out, " of two CTAs with half of K each");
    char slices[PROBLEM_SLICES_TEXT];
    fprintf(out, "; chunks of %u rows, %s%u piece%s%s\n", q->tuning.chunk_rows,
            problem_slices(&q->tuning, &s->job->problem.tuning, slices), q->tuning.pieces,
            q->tuning.pieces > 1 ? "s" : "", op_halves(q) ? "; each launch in halves" : "");
    if (*s->job->plan.tuned)
        fprintf(out, "tuned     %s; --tuning none takes the formula's plan\n", s->job->plan.tuned);
    run_report_print_speed(out, s, flop, nvlink + network);
    if (s->why && s->why->there && s->right)
        why_print(out, &s->why->parts, fprintf(out, "why       "), 10);
    fprintf(out, "moved     ");
    run_report_print_bytes(out, nvlink);
    fprintf(out, " over NVLink%s and ", o->exec != MK_EXEC_CUDA ? " (shared memory)" : "");
    run_report_print_bytes(out, network);
    fprintf(out, " over the network, into each rank in each launch%s\n",
            run_op_is_routed(q->op)
                ? "; on average at most, as it depends on what experts tokens name"
                : "");
    uint64_t dropped, named;
    if (op_drops(q) && !run_data_dropped(s->job, 1, &dropped, &named))
        fprintf(out,
                "dropped   %lu of %lu places of all ranks' tokens in launch 1, for want of room\n",
                dropped, named);
    if (s->checked)
        run_report_print_check(out, s);
    if (s->job->options.trace && s->trace_lost && *s->trace_lost)
        fprintf(out, "trace     LOST: %s\n", s->trace_lost);
    else if (s->job->options.trace)
        fprintf(out, "trace     %s; `mkernel trace summary %s` shows the overlap\n",
                s->job->options.trace, s->job->options.trace);
    fprintf(out, "verdict   %s\n",
            !s->checked ? "done, not checked (--check)"
            : s->right  ? "right"
                        : "WRONG");
    return output_table_end(out);
}
