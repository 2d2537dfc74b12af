/* Measured plans out of traces. */
#include "core/ops/op.h"
#include "core/base/sentence.h"
#include "core/base/words.h"
#include "core/plan/plan_fields.h"
#include "core/plan/tuning.h"
#include "experiments/sim/measured.h"
#include "tracer/query.h"
#include "tracer/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "SQLite format 3"

int measured_is_trace(FILE *f)
{
    char begin[sizeof MAGIC];
    size_t got = fread(begin, 1, sizeof begin, f);
    rewind(f);
    return got == sizeof begin && !memcmp(begin, MAGIC, sizeof begin);
}

/* What table plan has no column for stands among the metrics, "plan 1: pace", in traces made from
 * 2026-11-22 on; -1: it does not. */
static long long trace_option(sqlite3 *db, int64_t plan, const char *name)
{
    char option[48];
    snprintf(option, sizeof option, "plan %ld: %s", plan, name);
    return query_integer(db, -1, "SELECT value FROM metric WHERE name = ?1", "t", option);
}

/* ... in older ones the command that made it may say it: "--pace 360"; -1: it does not. */
static long long trace_option_typed(const char *command, const char *name)
{
    static const char *const typed[] = {"slices", "pace", "fanout", "shots"};
    char option[24];
    char *end;
    snprintf(option, sizeof option, "--%s ", name);
    const char *at = strstr(command, option);
    if (!strcmp(name, "b_transposed"))
        return strstr(command, "--b-layout nk") ? 1 : -1;
    if (!strcmp(name, "pace") && strstr(command, "--pace none"))
        return MK_PACE_NONE;
    long long value = at ? strtoll(at + strlen(option), &end, 10) : -1;
    return mk_word(name, typed, 4) >= 0 && at && (!*end || *end == ' ') ? value : -1;
}

/* A row of PLANS. */
struct measured_trace_plan {
    long long id, tile_m, tile_n, chunk_rows, pieces, ctas[MK_ROLES], deterministic, nodes, gpus;
    const char *op, *shape, *executor, *command;
};

/* All fields that a trace says. 0, or -EINVAL with a sentence. */
static int trace_read_options(sqlite3 *db, const struct measured_trace_plan *p,
                              struct mk_problem *q, char *error, size_t size)
{
    for (const struct plan_field *f = NULL;
         (f = plan_field_next(f, PLAN_IN_TRACE | PLAN_IN_TRACE_SET));) {
        const char *name = plan_field_told(f);
        long long value = trace_option(db, p->id, name);
        value = value < 0 ? trace_option_typed(p->command, name) : value;
        if (value > (f->words ? f->count - 1 + f->least : UINT32_MAX))
            return mk_fail(-EINVAL, error, size, "its plan %lld has %s %lld", p->id, name, value);
        if (value >= 0)
            plan_field_set(f, q, (uint64_t)value);
    }
    if (trace_option(db, p->id, "intra_comm_warps") < 0) /* older than it */
        q->tuning.split = tuning_old_roles(q->tuning.split.ctas);
    return 0;
}

#define PLANS                                                                                      \
    "SELECT p.id, p.op, CASE (SELECT count(*) FROM plan) WHEN 1 THEN r.shape ELSE p.shape END, "   \
    "p.tile_m, p.tile_n, p.chunk_rows, p.pieces, p.compute, "                                      \
    "p.intra_comm, p.inter_send, p.inter_reduce, p.deterministic, r.nodes, r.gpus, r.executor, "   \
    "coalesce(r.command, '') FROM plan p CROSS JOIN run r ORDER BY p.id"

static int trace_next_plan(sqlite3_stmt *q, struct measured_trace_plan *p)
{
    _Static_assert(MK_ROLES == 4, "a column each");
    return query_row(q, "ittiiiiiiiiiiitt", &p->id, &p->op, &p->shape, &p->tile_m, &p->tile_n,
                     &p->chunk_rows, &p->pieces, &p->ctas[0], &p->ctas[1], &p->ctas[2], &p->ctas[3],
                     &p->deterministic, &p->nodes, &p->gpus, &p->executor, &p->command);
}

/* 0, or -EINVAL with why the plan is left out. */
static int trace_plan(sqlite3 *db, const struct measured_trace_plan *p, struct measured_row *row,
                      uint32_t sms, char *why, size_t size)
{
    int op = plan_op_by_name(p->op);
    if (op < 0 || (strcmp(p->executor, "cuda") && strcmp(p->executor, "sim")))
        return mk_fail(-EINVAL, why, size,
                       "a trace of %s by executor %s: neither a GPU's nor a simulated one", p->op,
                       p->executor);
    struct mk_problem q = {.op = op,
                           .exec = MK_EXEC_CUDA,
                           .sms = sms,
                           .deterministic = (int)p->deterministic,
                           .tuning = {.tile_m = (uint32_t)p->tile_m,
                                      .tile_n = (uint32_t)p->tile_n,
                                      .chunk_rows = (uint32_t)p->chunk_rows,
                                      .pieces = (uint32_t)p->pieces},
                           .topo = {.nodes = (uint32_t)p->nodes, .gpus = (uint32_t)p->gpus}};
    for (int r = 0; r < MK_ROLES; r++)
        q.tuning.split.ctas[r] = (uint32_t)p->ctas[r];
    int result = trace_read_options(db, p, &q, why, size);
    if (result)
        return result;
    if (op_read_problem(&q, p->shape))
        return mk_fail(-EINVAL, why, size, "'%.64s' is no shape of %s", p->shape, p->op);
    measured_old(&q);
    result = result ? result : plan_build(&row->plan, &q, 0, 0, why, size);
    if (!result)
        tuning_words(&row->plan.problem.tuning, row->words, sizeof row->words);
    return result;
}

/* Launches back to back: those behind a pause find the GPU's clock and caches cold, and take a
 * third longer at a quarter of a millisecond. */
#define RIGHT_BEHIND 50000 /* ns */

/* The median of a plan's launches that came right behind another, else of all but the first, ns; 0:
 * none. A launch's time is from when the last rank began to when the last ended. */
static double trace_median(sqlite3 *db, int64_t plan)
{
    double median = 0;
    QUERY q = query_ask(
        db,
        "WITH a AS (SELECT l.id, l.plan, min(r.start) AS first, max(r.start) AS last, max(r.end) "
        "AS "
        "ended FROM launch l JOIN launch_rank r ON r.launch = l.id GROUP BY l.id), "
        "b AS (SELECT *, first - lag(ended) OVER (ORDER BY id) < ?2 AS behind FROM a), "
        "c AS (SELECT *, row_number() OVER (ORDER BY id) AS number, max(behind) OVER () AS any "
        "FROM b "
        "WHERE plan = ?1), "
        "d AS (SELECT ended - last AS ns, row_number() OVER (ORDER BY ended - last) - 1 AS place, "
        "count(*) OVER () AS n FROM c WHERE CASE WHEN any THEN behind ELSE number > 1 OR (SELECT "
        "count(*) FROM c) = 1 END) SELECT ns FROM d WHERE place = n / 2",
        "ii", plan, (int64_t)RIGHT_BEHIND);
    query_row(q, "d", &median);
    return median;
}

int measured_read_trace(struct measured *m, const char *path, enum measured_half half, uint32_t sms,
                        char *error, size_t size)
{
    sqlite3 *db;
    char why[256];
    int result = trace_open(&db, path, error, size);
    if (result)
        return result;
    sqlite3_stmt *q = query_ask(db, PLANS, "");
    struct measured_trace_plan p;
    for (uint32_t shape = 0; !result && trace_next_plan(q, &p); shape++) {
        m->shapes++;
        if (!measured_wanted(half, shape))
            continue;
        struct measured_row *row;
        result = measured_next(m, &row);
        if (result)
            break;
        row->inside = 1;
        row->shape = m->shapes - 1;
        row->ms = trace_median(db, p.id) / 1e6;
        snprintf(why, sizeof why, "it has no launch");
        if (!(row->ms > 0) || trace_plan(db, &p, row, sms, why, sizeof why))
            measured_leave_out(m, why);
        else
            m->count++;
    }
    if (!result && (!q || sqlite3_reset(q) || trace_damage()))
        result = -EBADMSG;
    if (result)
        snprintf(error, size, "the trace '%s': %s", path,
                 result == -ENOMEM ? "no memory"
                 : trace_damage()  ? trace_damage()
                                   : sqlite3_errmsg(db));
    sqlite3_finalize(q);
    sqlite3_close(db);
    return result;
}
