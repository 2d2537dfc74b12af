/* How well what is predicted agrees with what was measured: errors, and whether plans of a shape
 * come in the right order. */
#include "experiments/sim/validate.h"
#include "core/base/sorted.h"
#include "core/model/model.h"
#include "core/base/scoped.h"
#include "sim/timed/timed.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NEAR 1.6
#define ALIKE 1.001
#define MOST_THREADS 16

/* ---- predictions ---- */

struct work {
    const struct mk_machine *machine;
    const struct measured *measured;
    enum validate_by by;
    double *predicted;
    uint32_t next; /* atomic */
    int failed;    /* atomic, the first error */
    char *error;
    size_t size;
};

/* ns of a launch that a row's time leaves out. */
static double validate_before(const struct mk_machine *m, const struct measured_row *r)
{
    return r->inside ? m->launch : r->early ? m->early : 0;
}

/* Simulates a row's plan, or takes the quick form's ns of it. 0, or an error and r->sentence. */
static int validate_row(const struct work *w, const struct measured_row *row, double *ns,
                        struct timed_result *r)
{
    const struct mk_machine rested = machine_rested(w->machine),
                            *m = row->rested ? &rested : w->machine;
    struct timed_config c = {.plan = &row->plan, .machine = m, .launches = 1, .seed = 1};
    struct model_time t;
    if (w->by == VALIDATE_MODEL && !model_plan(m, &row->plan, &t)) {
        *ns = t.ns;
        return 0;
    }
    int result = timed_run(&c, r);
    *ns = (double)r->ns;
    return result;
}

static void *validate_run(void *context)
{
    struct work *w = context;
    uint32_t i;
    while ((i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->measured->count &&
           !__atomic_load_n(&w->failed, __ATOMIC_RELAXED)) {
        const struct measured_row *row = &w->measured->rows[i];
        struct timed_result r;
        double ns;
        int expected = 0, result = validate_row(w, row, &ns, &r);
        w->predicted[i] = (ns - validate_before(w->machine, row)) / 1e6;
        if (result && __atomic_compare_exchange_n(&w->failed, &expected, result, 0,
                                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            snprintf(w->error, w->size, "%s, %s: %s", plan_op_name(row->plan.problem.op),
                     row->words, r.sentence);
    }
    return NULL;
}

int validate_predict(const struct mk_machine *machine, const struct measured *m,
                     enum validate_by by, double *predicted, char *error, size_t size)
{
    struct work w = {.machine = machine,
                     .measured = m,
                     .by = by,
                     .predicted = predicted,
                     .error = error,
                     .size = size};
    pthread_t threads[MOST_THREADS];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int count = 0, most = cores < 1 ? 1 : cores > MOST_THREADS ? MOST_THREADS : (int)cores;
    while (count + 1 < most && !pthread_create(&threads[count], NULL, validate_run, &w))
        count++;
    validate_run(&w);
    while (count)
        pthread_join(threads[--count], NULL);
    return w.failed;
}

/* ---- figures ---- */

/* Sorts them. */
static double validate_median(double *values, uint32_t count)
{
    if (!count)
        return NAN;
    mk_sort(values, count);
    return mk_median(values, count);
}

static double validate_mean(const double *values, uint32_t count)
{
    double sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    return count ? sum / count : NAN;
}

/* How slow a plan was for its shape, drift taken out where the table says so. */
static double validate_slowness(const struct measured_row *r)
{
    return r->of_best > 0 ? r->of_best : r->ms;
}

/* The place of values[i] among `count`, equal ones in the middle of theirs. */
static double validate_place(const double *values, uint32_t count, uint32_t i)
{
    double place = 0;
    for (uint32_t j = 0; j < count; j++)
        place += values[j] < values[i] ? 1 : values[j] == values[i] ? 0.5 : 0;
    return place;
}

/* Spearman's correlation. */
static double validate_correlation(const double *a, const double *b, uint32_t count)
{
    double middle = count / 2.0, ab = 0, aa = 0, bb = 0;
    for (uint32_t i = 0; i < count; i++) {
        double x = validate_place(a, count, i) - middle, y = validate_place(b, count, i) - middle;
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return count > 2 && aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

/* Pairs that are measurably apart, and those of them that are predicted in this order. */
static void validate_pairs(const double *slow, const double *says, uint32_t count,
                           struct validate_shape *out)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < count; j++)
            if (slow[i] > slow[j] * VALIDATE_SPREAD) {
                out->apart++;
                out->right += says[i] > says[j];
            }
}

/* Measured slowness of the plan that would be taken: the mean of those that are predicted alike, so
 * that the order of the table does not choose between them. */
static double validate_mean_liked(const double *slow, const double *says, uint32_t count,
                                  double best)
{
    double sum = 0, liked = 0;
    for (uint32_t i = 0; i < count; i++)
        if (says[i] <= best * ALIKE) {
            sum += slow[i];
            liked++;
        }
    return sum / liked;
}

int validate_shape(const struct measured *m, const double *predicted, uint32_t shape,
                   struct validate_shape *out)
{
    MK_FREED double *values = malloc((3ull * m->count + 1) * sizeof *values);
    double *slow = values + m->count, *says = slow + m->count, likes = INFINITY, best = INFINITY,
           formula = NAN, formula_slow = NAN;
    uint32_t n = 0;
    int said = 1;
    *out = (struct validate_shape){.default_error = NAN};
    for (uint32_t i = 0; values && i < m->count; i++) {
        const struct measured_row *r = &m->rows[i];
        if (r->shape != shape)
            continue;
        values[n] = fabs(predicted[i] / r->ms - 1);
        slow[n] = validate_slowness(r);
        says[n] = predicted[i];
        if (says[n] < likes) {
            likes = says[n];
            out->likes = r;
        }
        if (slow[n] < best) {
            best = slow[n];
            out->best = r;
        }
        if (!out->row || r->is_default)
            out->row = r;
        if (r->is_default) {
            out->default_error = predicted[i] / r->ms - 1;
            formula = says[n];
            formula_slow = slow[n];
        }
        said &= r->of_best > 0;
        n++;
    }
    if (n) {
        out->plans = n;
        out->mean = validate_mean(values, n);
        out->rank = validate_correlation(slow, says, n);
        out->median = validate_median(values, n);
        validate_pairs(slow, says, n, out);
        out->liked = validate_mean_liked(slow, says, n, likes) / (said ? 1 : best);
        out->taken =
            formula <= likes * VALIDATE_WORTH ? formula_slow / (said ? 1 : best) : out->liked;
    }
    return n > 0;
}

void validate_sum(const struct measured *m, const double *predicted, int op,
                  struct validate_sum *out)
{
    MK_FREED double *all = malloc((3ull * m->count + 1) * sizeof *all);
    double *near = all + m->count, *defaults = near + m->count;
    uint32_t nears = 0, ranks = 0;
    *out = (struct validate_sum){.plans = 0};
    for (uint32_t shape = 0; all && shape < m->shapes; shape++) {
        struct validate_shape s;
        if (!validate_shape(m, predicted, shape, &s) ||
            (op != MK_OPS && (int)s.row->plan.problem.op != op))
            continue;
        out->shapes++;
        out->choices += s.plans > 1;
        out->liked_within += s.plans > 1 && s.liked <= 1.05;
        out->taken_within += s.plans > 1 && s.taken <= 1.05;
        out->apart += s.apart;
        out->right += s.right;
        if (!isnan(s.rank)) {
            out->rank += s.rank;
            ranks++;
        }
        if (!isnan(s.default_error))
            defaults[out->defaults++] = fabs(s.default_error);
        for (uint32_t i = 0; i < m->count; i++) {
            if (m->rows[i].shape != shape)
                continue;
            double error = fabs(predicted[i] / m->rows[i].ms - 1);
            all[out->plans++] = error;
            if (m->rows[i].ms <= NEAR * s.best->ms)
                near[nears++] = error;
        }
    }
    if (all) {
        out->rank = ranks ? out->rank / ranks : NAN;
        out->mean = validate_mean(all, out->plans);
        out->median = validate_median(all, out->plans);
        out->worst = out->plans ? all[out->plans - 1] : NAN;
        out->near_mean = validate_mean(near, nears);
        out->near_median = validate_median(near, nears);
        out->default_median = validate_median(defaults, out->defaults);
        out->default_worst = out->defaults ? defaults[out->defaults - 1] : NAN;
    }
}
