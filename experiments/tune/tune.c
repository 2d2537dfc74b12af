/* One rank of `mkernel tune OP`. All ranks know all times, so that each comes to the same next step
 * by itself. */
#include "experiments/tune/tune.h"
#include "core/model/choose.h"
#include "core/ops/op.h"
#include "core/base/sentence.h"
#include "experiments/common/commands.h"
#include "experiments/common/output_file.h"
#include "experiments/common/pulse.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LAST = 3 /* plans that the default meets in the last comparison */ };

/* What the shapes came to. */
struct outcome {
    /* wrong: plans; slow: shapes whose default was not within TUNE_WITHIN */
    uint32_t shapes, kept, wrong, slow;
    char first_wrong[512];
    double slowest;
};

static int tune_better(const struct tune *t, uint32_t i, uint32_t than)
{
    const struct tune_plan *a = &t->plans[i], *b = &t->plans[than];
    return a->ms > 0 && !a->wrong && (b->wrong || a->ratio < b->ratio);
}

static uint32_t tune_best_of(const struct tune *t, int last)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < t->count; i++)
        if ((!last || t->plans[i].last) && tune_better(t, i, best))
            best = i;
    return best;
}

/* The job as if it were of one shape alone, the formula's plan, and the default so far. */
static int tune_begin_shape(struct tune *t, const uint64_t shape[OP_DIMENSIONS])
{
    struct mk_plan standing;
    struct mk_problem *q = &t->shape.problem;
    int exact;
    t->shape = *t->job;
    op_set_numbers(q, shape);
    t->count = t->standing = t->unfit = 0;
    t->standing_words[0] = '\0';
    int result = plan_build(&t->shape.plan, q, 0, 0, t->error, t->size);
    if (!result)
        result = tuning_build(&standing, &t->table, q, t->job->device, 0, 0, t->error, t->size);
    if (!result) {
        const struct tuning_entry *e = tuning_find(&t->table, q, t->job->device, &exact);
        struct mk_tuning formula = q->tuning;
        if (!mk_total_ctas(&formula.split) && !formula.tile_m)
            model_choose(machine_default(), q, &formula);
        tune_add(t, &formula);
        if (e && *standing.tuned)
            t->standing = (uint32_t)tune_add(t, &e->tuning);
        snprintf(t->standing_words, sizeof t->standing_words, "%s", standing.tuned);
    }
    return result;
}

static void tune_show_round(const struct tune *t, const char *what, uint64_t round, uint32_t count)
{
    char text[OP_PROBLEM_TEXT];
    pulse_says("%s, %s %lu, %u plans", op_problem_text(&t->shape.problem, text), what, round,
               count);
}

/* Rounds of changing the best in one option, until that is no use. */
static int tune_search(struct tune *t)
{
    uint32_t which[TUNE_PLANS], center = t->standing;
    for (uint64_t round = 1; round <= t->job->options.rounds; round++) {
        uint32_t count = 0, before = t->count;
        tune_space_extend(t, center);
        if (center && round == 1) /* a default that is bad in many ways has no good neighbours */
            tune_space_extend(t, 0);
        if (round > 1 && t->count == before)
            return 0;
        for (uint32_t i = 1; i < t->count; i++)
            if (i >= before || i == center)
                which[count++] = i;
        tune_show_round(t, "round", round, count + 1);
        int result = tune_measure(t, which, count, t->job->options.iters);
        if (result)
            return result;
        uint32_t best = tune_best_of(t, 0);
        if (best == center && round > 1)
            return 0;
        center = best;
    }
    return 0;
}

/* The default, the formula's plan and the best once more, with twice as many launches: the best of
 * many is partly luck. */
static int tune_compare(struct tune *t, uint32_t *best)
{
    uint32_t which[LAST + 1], count = 0;
    t->plans[0].last = 1;
    if (t->standing)
        which[count++] = t->standing;
    t->plans[t->standing].last = 1;
    for (uint32_t n = 0; n < LAST; n++) {
        uint32_t next = 0;
        for (uint32_t i = 1; i < t->count; i++)
            if (!t->plans[i].last && !t->plans[i].wrong &&
                (!next || t->plans[i].ratio < t->plans[next].ratio))
                next = i;
        if (!next)
            break;
        t->plans[next].last = 1;
        which[count++] = next;
    }
    tune_show_round(t, "comparison of", count + 1, count + 1);
    int result = tune_measure(t, which, count, 2 * t->job->options.iters);
    *best = tune_best_of(t, 1);
    return result;
}

/* Each host has its file. */
static int tune_keeps(const struct run_job *job)
{
    const struct run_identity *me = &job->identity;
    int spawned = !me->launcher || !strcmp(me->launcher, "mkernel");
    return me->rank == 0 || (!spawned && me->rank % job->options.gpus == 0);
}

static int tune_keep(struct tune *t, uint32_t chosen)
{
    struct tuning_entry e;
    const struct tune_plan *p = &t->plans[chosen];
    time_t now = time(NULL);
    tuning_key(&e, &t->shape.problem, t->job->device);
    e.tuning = p->asked;
    e.ms = p->ms;
    e.formula_ms = t->plans[0].ms;
    e.simulated = t->job->simulated != NULL;
    strftime(e.date, sizeof e.date, "%Y-%m-%d", gmtime(&now));
    return tune_keeps(t->job) ? tuning_store(t->table.path, &e, t->error, t->size) : 0;
}

int tune_is_apart(const struct tune_plan *fast, const struct tune_plan *slow)
{
    double above = 1.57 * (fast->high - fast->low) / sqrt((double)fast->launches),
           below = 1.57 * (slow->high - slow->low) / sqrt((double)slow->launches);
    return fast->ms + above < slow->ms - below;
}

/* What it all means, in a line, and what is kept. */
static int tune_conclude(struct tune *t, uint32_t best, struct outcome *o)
{
    const struct run_job *job = t->job;
    const struct tune_plan *standing = &t->plans[t->standing], *fastest = &t->plans[best];
    double slower = standing->ratio / fastest->ratio;
    int apart = tune_is_apart(fastest, standing), result = 0, usable = !fastest->wrong;
    int within = !standing->wrong && (slower <= TUNE_WITHIN || !apart);
    uint32_t chosen = !standing->wrong && (slower <= TUNE_KEEPS || !apart) ? t->standing : best;
    char words[256], text[OP_PROBLEM_TEXT];
    for (uint32_t i = 0; i < t->count; i++)
        if (t->plans[i].wrong && !o->wrong++)
            snprintf(o->first_wrong, sizeof o->first_wrong, "%s at %s",
                     tuning_words(&t->plans[i].asked, words, sizeof words),
                     op_problem_text(&t->shape.problem, text));
    o->slow += !within;
    o->slowest = slower > o->slowest && apart ? slower : o->slowest;
    if (!job->options.verify && usable)
        result = tune_keep(t, chosen);
    FILE *out =
        job->identity.rank ? NULL : output_table(job->options.quiet, job->options.csv, NULL);
    if (result || job->identity.rank)
        return result;
    o->kept += usable && !job->options.verify;
    if (!out)
        return 0;
    if (slower > TUNE_KEEPS && !apart && !standing->wrong)
        fprintf(out,
                "default   %.3f of the best found, which is no difference: half of its %lu "
                "launches took %.4f to %.4f ms, of the best's %.4f to %.4f (%s)\n",
                slower, standing->launches, standing->low, standing->high, fastest->low,
                fastest->high, *t->standing_words ? t->standing_words : "the formula's");
    else
        fprintf(out, "default   %.3f of the best found: %swithin %.2f (%s)\n", slower,
                within ? "" : "not ", TUNE_WITHIN,
                *t->standing_words ? t->standing_words : "the formula's");
    if (!usable)
        fprintf(out, "kept      nothing: all results are wrong\n");
    else if (!job->options.verify)
        fprintf(out, "kept      %s, %.3f of the best found, in %s\n",
                tuning_words(&t->plans[chosen].asked, words, sizeof words),
                t->plans[chosen].ratio / t->plans[best].ratio, t->table.path);
    fprintf(out, "\n");
    return output_table_end(out);
}

static int tune_all(struct tune *t, struct outcome *o)
{
    const struct run_job *job = t->job;
    int result = 0;
    for (uint32_t i = 0; i < job->shape_count && !result; i++) {
        uint32_t best = 0;
        result = tune_begin_shape(t, job->shapes[i]);
        result = result ? result : tune_search(t);
        result = result ? result : tune_compare(t, &best);
        if (!result && job->identity.rank == 0) {
            pulse_hide();
            result = tune_report(t, best, i == 0);
            if (result)
                t->running = NULL; /* that was no plan's fault */
            if (result)
                snprintf(t->error, t->size, "the table or %s could not be written: %s",
                         job->options.csv ? job->options.csv : "standard output",
                         strerror(-result));
        }
        result = result ? result : tune_conclude(t, best, o);
        o->shapes += !result;
    }
    return result;
}

int tune_rank(const struct run_job *job, char *sentence, size_t size)
{
    struct tune t = {.job = job, .listen_fd = -1, .error = sentence, .size = size};
    struct outcome o = {0};
    char words[256];
    t.plans = calloc(TUNE_PLANS, sizeof *t.plans);
    int result =
        t.plans ? tune_space_parse(&t.space, job->options.op, job->options.space, sentence, size)
                : -ENOMEM;
    if (!t.plans)
        snprintf(sentence, size, "no memory for the plans");
    if (!result)
        result = tuning_open(&t.table, job->options.tuning ? job->options.tuning : "", 1, sentence,
                             size);
    if (!result)
        result = tune_all(&t, &o);
    if (result && t.running) {
        mk_append(sentence, size, "; it measured %s",
                  tuning_words(&t.running->asked, words, sizeof words));
    }
    if (tune_gpu_close)
        tune_gpu_close(&t);
    if (t.listen_fd >= 0)
        close(t.listen_fd);
    tuning_close(&t.table);
    csv_free(&t.csv);
    free(t.plans);
    if (result)
        return STATUS_FAILED;
    if (o.wrong)
        snprintf(sentence, size, "%u plan%s computed wrong results, the first: %s", o.wrong,
                 o.wrong > 1 ? "s" : "", o.first_wrong);
    else if (job->options.verify)
        snprintf(sentence, size,
                 "the defaults of %u of %u shapes are within %.2f of the best found, the slowest "
                 "is %.3f of it",
                 o.shapes - o.slow, o.shapes, TUNE_WITHIN, o.slowest);
    else
        snprintf(sentence, size, "%u shape%s tuned, all right", o.shapes, o.shapes > 1 ? "s" : "");
    return o.wrong || (job->options.verify && o.slow) ? STATUS_WRONG : STATUS_DONE;
}
