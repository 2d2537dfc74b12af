#include "experiments/results/results_points.h"
#include "core/base/grow.h"
#include "core/plan/plan.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "core/base/sorted.h"
#include "core/base/words.h"
#include "experiments/job/op.h"
#include "tracer/bound.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED 20260101u /* of the bootstrap: the same file says the same each time */

const char *result_value(const struct result_point *p, const char *name)
{
    for (uint32_t i = 0; i < p->setting_count; i++)
        if (!strcmp(p->settings[i].name, name))
            return p->settings[i].value;
    return "default";
}

int result_dtype(const struct result_point *p)
{
    int dtype = mk_word(result_value(p, "dtype"), plan_dtypes, MK_PLAN_DTYPES);
    return dtype < 0 ? 0 : dtype;
}

uint32_t result_element(const struct result_point *p)
{
    struct mk_problem q = {0};
    plan_set_dtype(&q, result_dtype(p));
    return op_factor_bytes(&q);
}

static double result_moved(const struct result_point *p)
{
    return p->figures.nvlink_bytes + p->figures.network_bytes;
}

/* Of an operator that has no product: the tensor of its shape. 0: it has one. */
static double result_tensor(const struct result_point *p, enum mk_op op)
{
    struct mk_problem q = {.op = op, .topo = {p->figures.nodes, p->figures.gpus, 0}};
    uint64_t numbers[OP_DIMENSIONS] = {0};
    const char *at = p->figures.shape;
    for (int i = 0; i < OP_DIMENSIONS && *at; i++) {
        char *end;
        numbers[i] = strtoull(at, &end, 10);
        at = *end == ',' ? end + 1 : end + strlen(end);
    }
    op_set_numbers(&q, numbers);
    plan_set_dtype(&q, result_dtype(p));
    return (double)run_op_tensor(&q);
}

double result_size(const struct result_point *p)
{
    double ranks = (double)p->figures.nodes * p->figures.gpus;
    int op = plan_op_by_name(p->figures.op);
    if (ranks < 2 || op < 0 || !(result_moved(p) > 0))
        return NAN;
    double tensor = result_tensor(p, op);
    if (tensor > 0)
        return tensor;
    double whole = result_moved(p) * ranks / (ranks - 1);
    return run_op_of(op)->collective == RUN_ALL_REDUCE ? whole / 2 : whole;
}

double result_algbw(const struct result_point *p)
{
    return result_size(p) / p->ms.median / 1e6;
}

double result_busbw(const struct result_point *p)
{
    return isnan(result_size(p)) ? NAN : result_moved(p) / p->ms.median / 1e6;
}

double result_flops(const struct result_point *p)
{
    return p->figures.flop > 0 ? p->figures.flop / p->ms.median * 1e3 : NAN;
}

double result_efficiency(const struct result_point *p)
{
    return isnan(p->figures.ideal_ms) ? p->ideal_share : p->figures.ideal_ms / p->ms.median;
}

/* ---- loading ---- */

/* The next of an array that grows; zeroed. NULL: no memory. */
static void *results_points_more(void *array, uint32_t *count, size_t bytes)
{
    void *at; /* a pointer to whatever type: its bytes are read */
    if (mk_grow(array, *count, bytes))
        return NULL;
    memcpy(&at, array, sizeof at);
    return memset((char *)at + (size_t)(*count)++ * bytes, 0, bytes);
}

static int results_points_settings(sqlite3 *db, struct result_point *p)
{
    QUERY q =
        query_ask(db, "SELECT name, value FROM setting WHERE point = ?1 ORDER BY name", "i", p->id);
    int rc = q ? 0 : -EIO;
    const char *name, *value;
    while (!rc && query_row(q, "tt", &name, &value)) {
        struct result_setting *s =
            results_points_more(&p->settings, &p->setting_count, sizeof *p->settings);
        if (!s || !(s->name = strdup(name)) || !(s->value = strdup(value)))
            rc = -ENOMEM;
    }
    return rc;
}

#define FUSED " FROM sample WHERE job = ?1 AND what = 'fused' AND warmup = 0 "

/* The times of one job: those of its slowest rank. */
static int results_points_times(sqlite3 *db, int64_t id, struct result_job *j)
{
    QUERY medians = query_ask(
        db,
        "SELECT rank, avg(ms) FILTER (WHERE place IN ((n - 1) / 2, n / 2)) FROM (SELECT rank, ms, "
        "row_number() OVER (PARTITION BY rank ORDER BY ms) - 1 AS place, count(*) OVER (PARTITION "
        "BY "
        "rank) AS n" FUSED ") GROUP BY rank ORDER BY rank",
        "i", id);
    double largest = -1, *of, one;
    long long rank, number;
    while (query_row(medians, "id", &rank, &one)) {
        of = results_points_more(&j->of_rank, &j->ranks, sizeof *j->of_rank);
        if (!of)
            return -ENOMEM;
        *of = one;
        j->slowest = one > largest ? (uint32_t)rank : j->slowest;
        largest = one > largest ? one : largest;
    }
    QUERY q = query_ask(db, "SELECT ms, number" FUSED "AND rank = ?2 ORDER BY ms, number", "ii", id,
                        (int64_t)j->slowest);
    while (query_row(q, "di", &j->worst, &number)) {
        of = results_points_more(&j->ms, &j->times.count, sizeof *j->ms);
        if (!of)
            return -ENOMEM;
        *of = j->worst;
        j->worst_number = (uint32_t)number;
    }
    j->times.ms = j->ms;
    return medians && q ? 0 : -EIO;
}

static int results_points_jobs(sqlite3 *db, struct result_point *p)
{
    static const char sql[] =
        "SELECT job, repeat, verdict, sentence, flop, nvlink_bytes, network_bytes, ideal_ms, "
        "nodes, gpus, shape, fabric, exec FROM jobs WHERE point = ?1 ORDER BY repeat";
    struct result_figures f = {.flop = NAN};
    long long id, repeat, nodes, gpus;
    const char *verdict, *sentence, *shape, *fabric, *exec;
    QUERY q = query_ask(db, sql, "i", p->id);
    int rc = q ? 0 : -EIO;
    p->figures = (struct result_figures){NAN, NAN, NAN, NAN, 0, 0, "", "", "", ""};
    while (!rc && query_row(q, "iittddddoittt", &id, &repeat, &verdict, &sentence, &f.flop,
                            &f.nvlink_bytes, &f.network_bytes, &f.ideal_ms, &nodes, &gpus, &shape,
                            &fabric, &exec)) {
        struct result_job *j = results_points_more(&p->jobs, &p->job_count, sizeof *p->jobs);
        if (!j) {
            rc = -ENOMEM;
            break;
        }
        j->repeat = (uint32_t)repeat;
        snprintf(j->verdict, sizeof j->verdict, "%s", verdict);
        j->sentence = strdup(sentence);
        if (nodes != QUERY_NONE) {
            p->figures = f;
            p->figures.nodes = (uint32_t)nodes;
            p->figures.gpus = (uint32_t)gpus;
            snprintf(p->figures.shape, sizeof f.shape, "%s", shape);
            snprintf(p->figures.fabric, sizeof f.fabric, "%s", fabric);
            snprintf(p->figures.exec, sizeof f.exec, "%s", exec);
        }
        rc = j->sentence ? results_points_times(db, id, j) : -ENOMEM;
        p->good += j->times.count > 0;
    }
    snprintf(p->figures.op, sizeof p->figures.op, "%s", result_value(p, "op"));
    if (!*p->figures.exec || !strcmp(result_value(p, "exec"), "sim"))
        snprintf(p->figures.exec, sizeof p->figures.exec, "%s", result_value(p, "exec"));
    return rc;
}

/* What is said of all launches of a point together. */
static int results_points_weigh(struct result_point *p)
{
    uint32_t used = 0;
    p->p50 = p->p95 = p->p99 = p->worst = NAN;
    p->timed = calloc(p->good ? p->good : 1, sizeof *p->timed);
    for (uint32_t i = 0, n = 0; p->timed && i < p->job_count; i++)
        if (p->jobs[i].times.count) {
            p->timed[n++] = p->jobs[i].times;
            p->launches += p->jobs[i].times.count;
        }
    MK_FREED double *all = malloc((p->launches ? p->launches : 1) * sizeof *all);
    if (!p->timed || !all)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->good; i++) {
        memcpy(all + used, p->timed[i].ms, p->timed[i].count * sizeof *all);
        used += p->timed[i].count;
    }
    if (used) {
        mk_sort(all, used);
        p->p50 = stat_quantile(all, used, 0.5);
        p->p95 = stat_quantile(all, used, 0.95);
        p->p99 = stat_quantile(all, used, 0.99);
        double bound = stat_outlier_bound(all, used);
        for (uint32_t i = 0; i < used; i++)
            p->outliers += all[i] > bound;
        p->worst = 0;
        for (uint32_t i = 0; i < p->job_count; i++)
            if (p->jobs[i].times.count && p->jobs[i].worst > p->worst) {
                p->worst = p->jobs[i].worst;
                p->worst_repeat = p->jobs[i].repeat;
                p->worst_rank = p->jobs[i].slowest;
                p->worst_number = p->jobs[i].worst_number;
            }
    }
    return stat_interval(&p->ms, p->timed, p->good, SEED);
}

static int results_points_trace(sqlite3 *db, struct result_point *p)
{
    QUERY q = query_ask(db, "SELECT ideal, exposed FROM trace WHERE point = ?1", "i", p->id);
    p->ideal_share = p->exposed_share = NAN;
    query_row(q, "dd", &p->ideal_share, &p->exposed_share);
    return q ? 0 : -EIO;
}

static int results_points_published(sqlite3 *db, struct result_point *p)
{
    QUERY q = query_ask(db, "SELECT who, flop_per_s FROM published WHERE point = ?1 ORDER BY who",
                        "i", p->id);
    int rc = q ? 0 : -EIO;
    const char *who;
    double flops;
    while (!rc && query_row(q, "td", &who, &flops)) {
        struct result_published *one =
            results_points_more(&p->published, &p->published_count, sizeof *p->published);
        if (!one || !(one->who = strdup(who)))
            rc = -ENOMEM;
        else
            one->flops = flops;
    }
    return rc;
}

/* "op=ag_gemm;nodes=1:2" into a table of this handle. */
static int results_points_wanted(sqlite3 *db, const char *only, char *error, size_t size)
{
    int rc = query_do(db, "CREATE TEMP TABLE wanted (name, list)", "");
    for (const char *p = only; p && *p && !rc;) {
        size_t length = strcspn(p, ";"), name = strcspn(p, "=");
        char want[256], list[4096];
        if (!name || name + 1 >= length)
            return mk_fail(-EINVAL, error, size, "'%.*s' is not NAME=VALUE", (int)length, p);
        snprintf(want, sizeof want, "%.*s", (int)name, p);
        snprintf(list, sizeof list, ":%.*s:", (int)(length - name - 1), p + name + 1);
        rc = query_do(db, "INSERT INTO wanted VALUES (?1, ?2)", "tt", want, list);
        p += length + (p[length] == ';');
    }
    return rc ? mk_fail(-ENOMEM, error, size, "no memory to choose points") : 0;
}

static void results_points_free(struct result_point *p)
{
    for (uint32_t i = 0; i < p->setting_count; i++) {
        free(p->settings[i].name);
        free(p->settings[i].value);
    }
    for (uint32_t i = 0; i < p->job_count; i++) {
        free(p->jobs[i].sentence);
        free(p->jobs[i].ms);
        free(p->jobs[i].of_rank);
    }
    for (uint32_t i = 0; i < p->published_count; i++)
        free(p->published[i].who);
    free(p->published);
    free(p->settings);
    free(p->jobs);
    free(p->timed);
    free(p->key);
    free(p->label);
}

void results_free(struct results *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        results_points_free(&r->points[i]);
    for (uint32_t i = 0; i < r->varied_count; i++)
        free(r->varied[i]);
    free(r->points);
    memset(r, 0, sizeof *r);
}

/* Whether two points differ in it that could have been the same: a simulation has no --iters. */
static int results_points_differ(const struct result_point *a, const struct result_point *b,
                                 const char *name)
{
    int alike = !strcmp(name, "exec") || !strcmp(result_value(a, "exec"), result_value(b, "exec"));
    return alike && strcmp(result_value(a, name), result_value(b, name));
}

/* Settings that are not the same everywhere, in the order of the alphabet, but op and shape first.
 */
static int results_points_vary(struct results *r)
{
    static const char *const first[] = {"op", "shape", "moe", "attention", "exec", "nodes", "gpus"};
    enum { FIRST = sizeof first / sizeof *first };
    for (uint32_t pass = 0; pass <= FIRST; pass++)
        for (uint32_t i = 0; i < r->count; i++)
            for (uint32_t k = 0; k < r->points[i].setting_count; k++) {
                const char *name = r->points[i].settings[k].name;
                int differs = 0;
                if ((pass < FIRST && strcmp(name, first[pass])) ||
                    mk_word(name, (const char *const *)r->varied, r->varied_count) >= 0)
                    continue;
                for (uint32_t o = 0; o < r->count && !differs; o++)
                    differs = results_points_differ(&r->points[o], &r->points[i], name);
                if (!differs || r->varied_count == sizeof r->varied / sizeof *r->varied)
                    continue;
                if (!(r->varied[r->varied_count] = strdup(name)))
                    return -ENOMEM;
                r->varied_count++;
            }
    return 0;
}

static int results_points_is_shape(const char *name)
{
    return !strcmp(name, "shape") || !strcmp(name, "moe") || !strcmp(name, "attention");
}

int result_word(const struct results *r, const struct result_point *point, uint32_t varied,
                char text[RESULT_LABEL])
{
    const char *name = r->varied[varied], *value = result_value(point, name);
    int shape = results_points_is_shape(name);
    int plain = shape || !strcmp(name, "op") || !strcmp(name, "exec");
    snprintf(text, RESULT_LABEL, "%s%s%s", plain ? "" : name, plain ? "" : "=", value);
    return !shape || strcmp(value, "default");
}

/* A point's settings that vary; its operator where none does. */
static char *results_points_label(const struct results *r, const struct result_point *point)
{
    char text[RESULT_LABEL] = "", word[RESULT_LABEL];
    for (uint32_t i = 0; i < r->varied_count; i++)
        if (result_word(r, point, i, word))
            mk_append(text, sizeof text, "%s%s", *text ? " " : "", word);
    return strdup(*text ? text : result_value(point, "op"));
}

static void results_points_head(sqlite3 *db, struct results *r)
{
    QUERY q = query_ask(
        db,
        "SELECT name, question, json_extract(facts, '$.host') || ', mkernel ' || "
        "json_extract(facts, '$.commit') || ', ' || json_extract(facts, '$.cpu') || ', ' || "
        "json_array_length(facts, '$.gpus') || ' GPUs, ' || substr(begun, 1, 10) FROM sweep "
        "JOIN machine m ON m.id = sweep.machine ORDER BY sweep.id LIMIT 1",
        "");
    const char *title, *question, *machine;
    if (query_row(q, "ttt", &title, &question, &machine)) {
        snprintf(r->title, sizeof r->title, "%s", title);
        snprintf(r->question, sizeof r->question, "%s", question);
        snprintf(r->machine, sizeof r->machine, "%s", machine);
    }
}

int results_load(struct results *r, const char *path, const char *only, char *error, size_t size)
{
    sqlite3 *db;
    memset(r, 0, sizeof *r);
    int rc = results_open(&db, path, error, size);
    rc = rc ? rc : results_points_wanted(db, only, error, size);
    if (rc) {
        sqlite3_close(db);
        return rc;
    }
    /* a sweep may be writing: what is read is of one moment */
    sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
    results_points_head(db, r);
    sqlite3_stmt *q = query_ask(
        db,
        "SELECT id, key FROM point p WHERE NOT EXISTS (SELECT 1 FROM wanted w LEFT JOIN setting s "
        "ON s.point = p.id AND s.name = w.name WHERE NOT instr(list, ':' || coalesce(value, "
        "'default') || ':')) ORDER BY id",
        "");
    rc = q ? 0 : -EIO;
    long long id;
    const char *key;
    while (!rc && query_row(q, "it", &id, &key)) {
        struct result_point *p = results_points_more(&r->points, &r->count, sizeof *r->points);
        if (!p) {
            rc = -ENOMEM;
            break;
        }
        p->id = id;
        p->key = strdup(key);
        rc = p->key ? results_points_settings(db, p) : -ENOMEM;
        rc = rc ? rc : results_points_jobs(db, p);
        rc = rc ? rc : results_points_trace(db, p);
        rc = rc ? rc : results_points_published(db, p);
        rc = rc ? rc : results_points_weigh(p);
    }
    sqlite3_finalize(q);
    rc = rc ? rc : results_points_vary(r);
    for (uint32_t i = 0; i < r->count && !rc; i++) {
        r->points[i].label = results_points_label(r, &r->points[i]);
        rc = r->points[i].label ? 0 : -ENOMEM;
    }
    rc = rc ? rc : bound_spent() ? -EBADMSG : 0;
    if (rc)
        snprintf(error, size, "%s cannot be read: %s", path,
                 rc == -ENOMEM   ? "no memory"
                 : bound_spent() ? bound_spent()
                                 : sqlite3_errmsg(db));
    else if (!r->count)
        rc = mk_fail(-ENODATA, error, size, "%s has no point%s%s", path, only ? " with " : "",
                     only ? only : "");
    sqlite3_close(db);
    if (rc)
        results_free(r);
    return rc;
}
