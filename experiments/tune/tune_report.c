/* What a search found: a table for people, CSV for programs. */
#include "experiments/job/bench_row.h"
#include "core/base/sorted.h"
#include "experiments/common/output_file.h"
#include "experiments/tune/tune.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define SHOWN 16u /* plans of a table */

/* Against the best found; of a plan that was not in the last comparison, by way of the formula's
 * plan, which was in all. */
static double tune_report_of_best(const struct tune *t, const struct tune_plan *p, uint32_t best)
{
    return p->ratio / t->plans[best].ratio;
}

/* The last comparison first, then the rest; wrong ones at the end. */
static int tune_report_by_rank(const void *x, const void *y, void *plans)
{
    const struct tune_plan *a = (struct tune_plan *)plans + *(const uint32_t *)x,
                           *b = (struct tune_plan *)plans + *(const uint32_t *)y;
    return a->wrong - b->wrong ?: b->last - a->last ?: MK_ORDER(a->ratio, b->ratio);
}

static void tune_report_print_plan(FILE *out, const struct tune *t, uint32_t i, uint32_t best)
{
    const struct tune_plan *p = &t->plans[i];
    char words[256], made[256];
    if (p->wrong)
        fprintf(out, "     WRONG                               ");
    else
        fprintf(out, "%10.4f %9.4f %9.4f %9.3f", p->ms, p->min, p->max,
                tune_report_of_best(t, p, best));
    fprintf(out, "%s  %s", p->last ? " *" : "  ", tuning_words(&p->asked, words, sizeof words));
    if (i == 0)
        fprintf(out, " (%s)", tuning_words(&p->made, made, sizeof made));
    fprintf(out, "%s\n", i == t->standing ? "  <- default" : "");
}

static void tune_report_fill_row(struct csv_table *r, const struct tune *t, uint32_t i,
                                 uint32_t best)
{
    const struct mk_problem *q = &t->shape.problem;
    const struct tune_plan *p = &t->plans[i];
    double right = p->wrong ? NAN : 1; /* what is wrong has no time */
    char words[256], made[256], fabric[RUN_FABRIC_TEXT];
    uint64_t numbers[OP_DIMENSIONS];
    struct bench_when when;
    bench_when(&when);
    csv_row(r);
    csv_text(r, "op", plan_op_name(q->op));
    for (uint32_t n = 0; n < op_numbers(q, numbers); n++) {
        const char letter[2] = {(char)tolower(op_of(q->op)->shape->dimensions[n].letter[0]), 0};
        csv_whole(r, letter, numbers[n]);
    }
    csv_whole(r, "nodes", q->topo.nodes);
    csv_whole(r, "gpus", q->topo.gpus);
    csv_text(r, "device", t->job->device);
    csv_number(r, "ms", "%.6f", p->ms * right);
    csv_number(r, "ms_min", "%.6f", p->min * right);
    csv_number(r, "ms_max", "%.6f", p->max * right);
    csv_number(r, "of_best", "%.4f", tune_report_of_best(t, p, best) * right);
    csv_whole(r, "last", p->last != 0);
    csv_whole(r, "default", i == t->standing);
    csv_whole(r, "wrong", p->wrong != 0);
    csv_text(r, "asked", tuning_words(&p->asked, words, sizeof words));
    csv_text(r, "made", tuning_words(&p->made, made, sizeof made));
    if (op_of(q->op)->causal)
        csv_whole(r, "causal", q->attention.causal != 0);
    plan_row_problem(r, q);
    csv_text(r, "fabric", run_fabric(t->job, fabric));
    csv_whole(r, "seed", t->job->options.seed);
    csv_whole(r, "launches", t->job->options.iters);
    csv_text(r, "date", when.date);
    csv_text(r, "host", when.host);
    csv_text(r, "mkernel", MK_VERSION);
}

/* A file holds the shapes that are done, whole, whatever becomes of the next; what can only be
 * written on gets each as it is done. */
static int tune_report_write_csv(struct tune *t, const uint32_t *order, uint32_t best, int first)
{
    const char *path = t->job->options.csv;
    size_t before = t->csv.rows_bytes;
    struct stat s;
    for (uint32_t i = 0; i < t->count; i++)
        tune_report_fill_row(&t->csv, t, order[i], best);
    int whole = output_table(0, path, NULL) == stdout && (stat(path, &s) || S_ISREG(s.st_mode));
    return csv_write(&t->csv, path, whole || first ? 0 : before);
}

static int tune_report_print_table(FILE *out, const struct tune *t, const uint32_t *order,
                                   uint32_t best, int first)
{
    const struct mk_problem *q = &t->shape.problem;
    uint32_t slower = 0;
    char text[OP_PROBLEM_TEXT];
    fprintf(out, "%s %s, %u x %u ranks on %s: %u plans", plan_op_name(q->op),
            op_problem_text(q, text), q->topo.nodes, q->topo.gpus, t->job->device, t->count);
    if (t->unfit)
        fprintf(out, "; %u more do not fit (%s)", t->unfit, t->unfit_why);
    fprintf(out, "\n%10s %9s %9s %9s    plan\n", "ms", "min", "max", "of best");
    for (uint32_t i = 0; i < t->count; i++)
        if (i < SHOWN || t->plans[order[i]].wrong)
            tune_report_print_plan(out, t, order[i], best);
        else
            slower++;
    if (slower)
        fprintf(out, "... and %u slower plans, which --csv FILE lists\n", slower);
    if (first)
        fprintf(
            out,
            "ms: a launch, median of the slowest rank; of best: * as compared in the last turns, "
            "twice as many launches; else by way of the\nformula's plan, which was beside each\n");
    return output_table_end(out);
}

int tune_report(struct tune *t, uint32_t best, int first)
{
    uint32_t order[TUNE_PLANS];
    for (uint32_t i = 0; i < t->count; i++)
        order[i] = i;
    qsort_r(order, t->count, sizeof *order, tune_report_by_rank, t->plans);
    FILE *out = output_table(t->job->options.quiet, t->job->options.csv, NULL);
    int result = out ? tune_report_print_table(out, t, order, best, first) : 0;
    int csv = t->job->options.csv ? tune_report_write_csv(t, order, best, first) : 0;
    return csv ? csv : result;
}
