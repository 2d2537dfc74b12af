/* What a search found: a table for people, CSV for programs. */
#define _GNU_SOURCE /* qsort_r */
#include "experiments/output_file.h"
#include "experiments/tune.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 16u /* plans of a table */

/* Against the best found; of a plan that was not in the last comparison, by way of the formula's plan, which was in all. */
static double of_best(const struct tune *t, const struct tune_plan *p, uint32_t best)
{
    return p->ratio / t->plans[best].ratio;
}

/* The last comparison first, then the rest; wrong ones at the end. */
static int by_rank(const void *x, const void *y, void *plans)
{
    const struct tune_plan *a = (struct tune_plan *)plans + *(const uint32_t *)x, *b = (struct tune_plan *)plans + *(const uint32_t *)y;
    if (a->wrong != b->wrong)
        return a->wrong - b->wrong;
    if (a->last != b->last)
        return b->last - a->last;
    return (a->ratio > b->ratio) - (a->ratio < b->ratio);
}

static void print_plan(FILE *out, const struct tune *t, uint32_t i, uint32_t best)
{
    const struct tune_plan *p = &t->plans[i];
    char words[256], made[256];
    if (p->wrong)
        fprintf(out, "     WRONG                               ");
    else
        fprintf(out, "%10.4f %9.4f %9.4f %9.3f", p->ms, p->min, p->max, of_best(t, p, best));
    fprintf(out, "%s  %s", p->last ? " *" : "  ", tuning_words(&p->asked, words, sizeof words));
    if (i == 0)
        fprintf(out, " (%s)", tuning_words(&p->made, made, sizeof made));
    fprintf(out, "%s\n", i == t->standing ? "  <- default" : "");
}

static int write_csv(const struct tune *t, const uint32_t *order, uint32_t best, int first)
{
    const struct mk_problem *q = &t->shape.problem;
    FILE *f = first ? output_open(t->job->options.csv) : fopen(t->job->options.csv, "ae");
    char words[256], made[256];
    if (!f)
        return -errno;
    if (first)
        fprintf(f, "op,m,n,k,nodes,gpus,device,ms,ms_min,ms_max,of_best,last,default,wrong,asked,made\n");
    for (uint32_t i = 0; i < t->count; i++) {
        const struct tune_plan *p = &t->plans[order[i]];
        fprintf(f, "%s,%llu,%llu,%llu,%u,%u,%s,", plan_op_name(q->op), (unsigned long long)q->m, (unsigned long long)q->n,
                (unsigned long long)q->k, q->topo.nodes, q->topo.gpus, t->job->device);
        if (p->wrong)
            fprintf(f, ",,,,");
        else
            fprintf(f, "%.6f,%.6f,%.6f,%.4f,", p->ms, p->min, p->max, of_best(t, p, best));
        fprintf(f, "%d,%d,%d,%s,%s\n", p->last, order[i] == t->standing, p->wrong, tuning_words(&p->asked, words, sizeof words),
                tuning_words(&p->made, made, sizeof made));
    }
    return fclose(f) ? -errno : 0;
}

static int print_table(FILE *out, const struct tune *t, const uint32_t *order, uint32_t best, int first)
{
    const struct mk_problem *q = &t->shape.problem;
    uint32_t slower = 0;
    fprintf(out, "%s %llu,%llu,%llu, %u x %u ranks on %s: %u plans", plan_op_name(q->op),
            (unsigned long long)q->m, (unsigned long long)q->n, (unsigned long long)q->k, q->topo.nodes,
            q->topo.gpus, t->job->device, t->count);
    if (t->unfit)
        fprintf(out, "; %u more do not fit (%s)", t->unfit, t->unfit_why);
    fprintf(out, "\n%10s %9s %9s %9s    plan\n", "ms", "min", "max", "of best");
    for (uint32_t i = 0; i < t->count; i++)
        if (i < SHOWN || t->plans[order[i]].wrong)
            print_plan(out, t, order[i], best);
        else
            slower++;
    if (slower)
        fprintf(out, "... and %u slower plans, which --csv FILE lists\n", slower);
    if (first)
        fprintf(out, "ms: a launch, median of the slowest rank; of best: * as compared in the last turns, "
                     "twice as many launches; else by "
                     "way of the\nformula's plan, which was beside each\n");
    return output_table_end(out);
}

int tune_report(const struct tune *t, uint32_t best, int first)
{
    uint32_t order[TUNE_PLANS];
    for (uint32_t i = 0; i < t->count; i++)
        order[i] = i;
    qsort_r(order, t->count, sizeof *order, by_rank, t->plans);
    FILE *out = output_table(t->job->options.quiet, t->job->options.csv, NULL);
    int result = out ? print_table(out, t, order, best, first) : 0;
    int csv = t->job->options.csv ? write_csv(t, order, best, first) : 0;
    return csv ? csv : result;
}
