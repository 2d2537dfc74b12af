/* Levenberg and Marquardt's method on the logarithms of the numbers, which keeps them positive; an
 * error far above 5 % weighs as its root does (soft L1), since no model is right for every plan. */
#include "experiments/sim/fit.h"
#include "core/model/model.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SOFT 0.05
#define STEP 0.005
#define REACH 2.5 /* a number moves by a factor of e^2.5 at most */

struct state {
    struct fit *fit;
    uint32_t count; /* numbers that are moved */
    double *at[FIT_NUMBERS], begin[FIT_NUMBERS], x[FIT_NUMBERS];
    double *errors, *moved; /* of each row, weighted */
    double *slopes;         /* [count][rows] */
    double normal[FIT_NUMBERS][FIT_NUMBERS + 1];
};

static double fit_predict(const struct fit *fit, uint32_t row)
{
    struct model_time t;
    const struct measured_row *r = &fit->measured->rows[row];
    struct mk_machine rested;
    if (r->rested)
        rested = machine_rested(fit->machine);
    if (model_plan(r->rested ? &rested : fit->machine, &r->plan, &t))
        return 0;
    return log((t.ns - (r->inside ? fit->machine->launch : 0)) / (r->ms * 1e6));
}

static void fit_errors(const struct state *s, double *errors)
{
    for (uint32_t i = 0; i < s->fit->measured->count; i++)
        errors[i] = fit_predict(s->fit, i) * s->fit->weights[i];
}

static double fit_loss(const struct state *s, const double *errors)
{
    double loss = 0;
    for (uint32_t i = 0; i < s->fit->measured->count; i++) {
        double z = errors[i] / SOFT;
        loss += 2 * SOFT * SOFT * (sqrt(1 + z * z) - 1);
    }
    for (uint32_t p = 0; p < s->count; p++) {
        double away = (s->x[p] - s->begin[p]) * s->fit->pull;
        loss += away * away * s->fit->measured->count / 100;
    }
    return loss;
}

static double fit_mean(const struct state *s, const double *errors)
{
    double sum = 0, weights = 0;
    for (uint32_t i = 0; i < s->fit->measured->count; i++) {
        sum += fabs(errors[i]);
        weights += s->fit->weights[i];
    }
    return weights > 0 ? sum / weights : 0;
}

static void fit_set(const struct state *s, const double *x)
{
    for (uint32_t p = 0; p < s->count; p++)
        *s->at[p] = exp(x[p]);
}

static int fit_kept(const char *keep, const char *name)
{
    size_t length = strlen(name);
    for (; *keep; keep += strcspn(keep, ","), keep += *keep == ',')
        if (strcspn(keep, ",") == length && !strncmp(keep, name, length))
            return 1;
    return 0;
}

/* The numbers that some prediction depends on. */
static void fit_choose(struct state *s)
{
    char name[MACHINE_NAME];
    const char *unit;
    double *number, factor;
    for (uint32_t i = 0; (number = machine_number(s->fit->machine, i, name, &unit, &factor)); i++) {
        double was = *number;
        int matters = 0;
        if (was <= 0 || s->count == FIT_NUMBERS || fit_kept(s->fit->keep, name))
            continue;
        *number = was * 1.05;
        for (uint32_t r = 0; r < s->fit->measured->count && !matters; r++)
            matters = fabs(fit_predict(s->fit, r) * s->fit->weights[r] - s->errors[r]) > 1e-9;
        *number = was;
        if (matters) {
            s->begin[s->count] = s->x[s->count] = log(was);
            s->at[s->count++] = number;
        }
    }
}

/* The normal equations at x, errors beyond SOFT weighing less. */
static void fit_linearise(struct state *s)
{
    uint32_t rows = s->fit->measured->count;
    for (uint32_t p = 0; p < s->count; p++) {
        *s->at[p] = exp(s->x[p] + STEP);
        fit_errors(s, s->moved);
        *s->at[p] = exp(s->x[p]);
        for (uint32_t i = 0; i < rows; i++)
            s->slopes[(size_t)p * rows + i] = (s->moved[i] - s->errors[i]) / STEP;
    }
    for (uint32_t p = 0; p < s->count; p++)
        for (uint32_t q = 0; q <= s->count; q++) {
            const double *a = s->slopes + (size_t)p * rows,
                         *b = q < s->count ? s->slopes + (size_t)q * rows : s->errors;
            double sum = 0;
            for (uint32_t i = 0; i < rows; i++) {
                double z = s->errors[i] / SOFT;
                sum += a[i] * b[i] / sqrt(1 + z * z);
            }
            s->normal[p][q] = q < s->count ? sum : -sum;
        }
    for (uint32_t p = 0; p < s->count; p++) {
        double pull = s->fit->pull * s->fit->pull * rows / 100;
        s->normal[p][p] += pull;
        s->normal[p][s->count] -= pull * (s->x[p] - s->begin[p]);
    }
}

/* LAPACK's, which OpenBLAS has: solves A x = b in place. */
extern void dgesv_(const int *n, const int *columns, double *a, const int *pitch, int *pivots,
                   double *b, const int *b_pitch, int *info);

/* The normal equations, with the diagonal raised by `damping`. */
static void fit_solve(const struct state *s, double damping, double *step)
{
    static _Thread_local double a[FIT_NUMBERS][FIT_NUMBERS + 1];
    const int n = (int)s->count, one = 1, pitch = FIT_NUMBERS + 1;
    int pivots[FIT_NUMBERS], info;
    memcpy(a, s->normal, sizeof a);
    for (int p = 0; p < n; p++) {
        a[p][p] += damping * (a[p][p] + 1e-9);
        step[p] = a[p][n];
    }
    dgesv_(&n, &one, a[0], &pitch, pivots, step, &n, &info); /* the matrix is symmetric */
    if (info)
        memset(step, 0, s->count * sizeof *step); /* no step: it makes nothing better */
}

/* One step; 0 where none makes it better. */
static int fit_step(struct state *s, double *damping, double *loss)
{
    double step[FIT_NUMBERS], was[FIT_NUMBERS];
    memcpy(was, s->x, sizeof was);
    for (int attempt = 0; attempt < 8; attempt++) {
        fit_solve(s, *damping, step);
        for (uint32_t p = 0; p < s->count; p++) {
            double x = was[p] + fmax(-0.5, fmin(0.5, step[p]));
            s->x[p] = fmax(s->begin[p] - REACH, fmin(s->begin[p] + REACH, x));
        }
        fit_set(s, s->x);
        fit_errors(s, s->moved);
        double now = fit_loss(s, s->moved);
        if (now < *loss) {
            int much = now < *loss * 0.9995;
            memcpy(s->errors, s->moved, s->fit->measured->count * sizeof *s->errors);
            *loss = now;
            *damping = fmax(*damping / 4, 1e-6);
            return much;
        }
        *damping *= 4;
    }
    memcpy(s->x, was, sizeof was);
    fit_set(s, s->x);
    return 0;
}

int fit_machine(struct fit *fit)
{
    MK_FREED struct state *s = calloc(1, sizeof *s);
    uint32_t rows = fit->measured->count;
    int result = -ENOMEM;
    if (!s)
        return result;
    s->fit = fit;
    s->errors = malloc((rows + 1) * sizeof(double));
    s->moved = malloc((rows + 1) * sizeof(double));
    s->slopes = malloc(((size_t)rows * FIT_NUMBERS + 1) * sizeof(double));
    if (s->errors && s->moved && s->slopes) {
        double damping = 1e-2;
        fit_errors(s, s->errors);
        fit->before = fit_mean(s, s->errors);
        fit_choose(s);
        double loss = fit_loss(s, s->errors);
        for (uint32_t round = 0; round < fit->rounds; round++) {
            fit_linearise(s);
            if (!fit_step(s, &damping, &loss))
                break;
            if (fit->progress)
                fit->progress(round, fit_mean(s, s->errors));
        }
        fit->after = fit_mean(s, s->errors);
        fit->moved = s->count;
        result = 0;
    }
    free(s->slopes);
    free(s->moved);
    free(s->errors);
    return result;
}

void fit_weights(const struct measured *m, double *weights)
{
    for (uint32_t i = 0; i < m->count; i++) {
        double best = m->rows[i].ms;
        for (uint32_t j = 0; j < m->count; j++)
            if (m->rows[j].shape == m->rows[i].shape && m->rows[j].ms < best)
                best = m->rows[j].ms;
        double ratio = m->rows[i].ms / best;
        weights[i] = ratio > 3 ? 0.15 : ratio > 1.6 ? 0.4 : 1;
        if (m->rows[i].is_default)
            weights[i] *= 2;
    }
}
