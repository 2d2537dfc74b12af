/* How well what is predicted agrees with what was measured: errors, and whether plans of a shape
 * come in the right order. */
#include "experiments/sim/validate.h"
#include "core/model/model.h"
#include "core/ops/op.h"
#include "sim/timed/timed.h"
#include "tracer/query.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

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

/* validate.sql, so that the binary needs no other file */
extern const char validate_sql[];
__asm__(".section .rodata\n.global validate_sql\nvalidate_sql:\n"
        ".incbin \"experiments/sim/validate.sql\"\n.byte 0\n"
        ".size validate_sql, . - validate_sql\n.type validate_sql, @object\n.previous\n");

/* Not every build of SQLite has it. */
static void validate_root(sqlite3_context *context, int count, sqlite3_value **value)
{
    (void)count;
    sqlite3_result_double(context, sqrt(sqlite3_value_double(*value)));
}

/* As C rounds it; "-": there is none. */
static void validate_figure(sqlite3_context *context, int count, sqlite3_value **value)
{
    char text[32] = "-";
    if (sqlite3_value_type(value[1]) != SQLITE_NULL)
        snprintf(text, sizeof text, count > 2 ? "%+.*f" : "%.*f", sqlite3_value_int(value[0]),
                 sqlite3_value_double(value[1]));
    sqlite3_result_text(context, text, -1, SQLITE_TRANSIENT);
}

static int validate_fill(sqlite3 *db, const struct measured *m, const double *predicted)
{
    int rc = query_do(db,
                      "CREATE TABLE plan (id INTEGER PRIMARY KEY, shape, number, op, said, ranks, "
                      "ms, predicted, of_best, is_default)",
                      "");
    QUERY q = query_ask(
        db, "INSERT INTO plan VALUES (?1, ?2, ?3, ?4, ?5, ?6 || 'x' || ?7, ?8, ?9, ?10, ?11)", "");
    for (uint32_t i = 0; i < m->count && !rc; i++) {
        const struct measured_row *r = &m->rows[i];
        const struct mk_problem *p = &r->plan.problem;
        char text[OP_PROBLEM_TEXT];
        query_again(q, "iiittiidddi", (int64_t)i, (int64_t)r->shape, (int64_t)p->op,
                    plan_op_name(p->op), op_problem_text(p, text), (int64_t)p->topo.nodes,
                    (int64_t)p->topo.gpus, r->ms, predicted[i], r->of_best, (int64_t)r->is_default);
        rc = sqlite3_step(q) == SQLITE_DONE ? 0 : -EIO;
    }
    return rc;
}

int validate_report(const struct measured *m, const double *predicted, FILE *out,
                    struct validate_sum *all)
{
    sqlite3 *db;
    int rc = sqlite3_open(":memory:", &db) ? -ENOMEM : 0;
    sqlite3_create_function(db, "sqrt", 1, SQLITE_UTF8, NULL, validate_root, NULL, NULL);
    sqlite3_create_function(db, "figure", -1, SQLITE_UTF8, NULL, validate_figure, NULL, NULL);
    rc = rc ? rc : validate_fill(db, m, predicted);
    for (const char *sql = validate_sql; *sql && !rc;) {
        QUERY q = NULL;
        int step = sqlite3_prepare_v2(db, sql, -1, &q, &sql);
        while (q && (step = sqlite3_step(q)) == SQLITE_ROW)
            if (out)
                fprintf(out, "%s\n", (const char *)sqlite3_column_text(q, 0));
        rc = step == SQLITE_OK || step == SQLITE_DONE ? 0 : -EIO;
    }
    sqlite3_stmt *q =
        query_ask(db,
                  "SELECT plans, shapes, defaults, apart, ordered, choices, liked_within, "
                  "taken_within, median, mean, worst, default_worst, rank FROM total WHERE "
                  "name = 'all'",
                  "");
    if (all &&
        !query_row(q, "nnnnnnnnddddd", &all->plans, &all->shapes, &all->defaults, &all->apart,
                   &all->right, &all->choices, &all->liked_within, &all->taken_within, &all->median,
                   &all->mean, &all->worst, &all->default_worst, &all->rank))
        rc = rc ? rc : -EIO;
    sqlite3_finalize(q);
    sqlite3_close(db);
    return rc;
}
