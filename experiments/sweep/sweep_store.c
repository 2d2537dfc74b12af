/* The rows of a sweep in its results file. */
#include "experiments/sweep/sweep_run.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/results/results_merge.h"
#include "tracer/bound.h"
#include "tracer/reader.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

void sweep_now(char text[32])
{
    time_t now = time(NULL);
    struct tm tm;
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
}

/* Another machine than `text` that the file's jobs were measured with; where tasks share the
 * points, another host is none. */
static void sweep_store_find_other(sqlite3 *db, int spread, const char *text, char *other,
                                   size_t size)
{
    static const char sql[] = "SELECT identity FROM machine WHERE CASE WHEN ?2 "
                              "THEN " RESULTS_BUILD("identity") " <> " RESULTS_BUILD(
                                  "?1") " ELSE identity <> ?1 END AND EXISTS (SELECT * FROM job) "
                                        "LIMIT 1";
    QUERY q = query_ask(db, sql, "ti", text, (int64_t)spread);
    const char *found;
    if (query_row(q, "t", &found))
        snprintf(other, size, "%s", found);
}

int sweep_store_begin(struct running *r, char *error, size_t size)
{
    struct sweep *s = r->sweep;
    char now[32];
    MK_FREED char *facts = sweep_machine();
    if (!facts)
        return -ENOMEM;
    snprintf(error, size, "%s cannot be written", r->how->out);
    sweep_now(now);
    static const char identity[] =
        "SELECT json_extract(?1, '$.host') || ', mkernel ' || json_extract(?1, '$.mkernel') || "
        "' at ' || json_extract(?1, '$.commit') || ', ' || json_extract(?1, '$.build') || "
        "', driver ' || json_extract(?1, '$.nvidia_driver')";
    char text[800] = "", other[800] = "";
    QUERY q = query_ask(r->db, identity, "t", facts);
    const char *who_am_i;
    if (query_row(q, "t", &who_am_i))
        snprintf(text, sizeof text, "%s", who_am_i);
    sqlite3_reset(q);
    sweep_store_find_other(r->db, r->how->whole != NULL, text, other, sizeof other);
    if (!*other && r->whole)
        sweep_store_find_other(r->whole, 1, text, other, sizeof other);
    if (*other && !r->how->mix)
        return mk_fail(
            -EINVAL, error, size,
            "%s was measured with %s, and this is %s: name another file with --out, or --mix "
            "puts both into one",
            r->how->whole ? r->how->whole : r->how->out, other, text);
    int rc = sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) ? -EIO : 0;
    rc = rc ? rc
            : results_do(r->db,
                         "INSERT INTO machine (identity, facts) VALUES (?1, ?2) ON CONFLICT DO "
                         "UPDATE SET facts = ?2",
                         "tt", text, facts);
    rc = rc ? rc
            : results_do(r->db,
                         "INSERT INTO sweep (name, question, text, command, seed, machine, begun) "
                         "SELECT ?1, ?2, ?3, ?4, ?5, id, ?6 FROM machine WHERE identity = ?7",
                         "ttttitt", s->name, s->question, s->text, r->how->command,
                         (int64_t)s->seed, now, text);
    r->id = sqlite3_last_insert_rowid(r->db);
    for (uint32_t i = 0; i < s->point_count && !rc; i++) {
        const struct sweep_point *p = &s->points[i];
        rc = results_do(r->db, "INSERT INTO point (key) VALUES (?1) ON CONFLICT DO NOTHING", "t",
                        p->key);
        r->points[i] = query_integer(r->db, 0, "SELECT id FROM point WHERE key = ?1", "t", p->key);
        for (uint32_t k = 0; k < p->count && !rc; k++)
            rc = results_do(r->db, "INSERT INTO setting VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                            "itt", r->points[i], p->settings[k].name, p->settings[k].value);
        for (uint32_t k = 0; k < s->published.count && !rc; k++) {
            const char *who = "";
            double flops = 0;
            if (sweep_is_published(p, &s->published.list[k], &who, &flops))
                rc = results_do(r->db, "INSERT OR REPLACE INTO published VALUES (?1, ?2, ?3)",
                                "itd", r->points[i], who, flops);
        }
        if (!rc && r->how->retry)
            rc = results_do(r->db,
                            "DELETE FROM job WHERE point = ?1 AND verdict IN ('failed', "
                            "'impossible') AND id NOT IN (SELECT job FROM sample)",
                            "i", r->points[i]);
    }
    if (sqlite3_exec(r->db, rc ? "ROLLBACK" : "COMMIT", NULL, NULL, NULL) && !rc)
        rc = -EIO;
    return rc;
}

int sweep_store_has(struct running *r, const struct sweep_job *j)
{
    if (r->whole) {
        bound_begin(r->whole);
        if (query_integer(
                r->whole, 0,
                "SELECT count(*) FROM job j JOIN point p ON p.id = j.point WHERE p.key = ?1 AND "
                "repeat = ?2 AND NOT (?3 AND verdict IN ('failed', 'impossible') AND j.id NOT IN "
                "(SELECT job FROM sample))",
                "tii", r->sweep->points[j->point].key, (int64_t)j->repeat, (int64_t)r->how->retry))
            return 1;
    }
    return query_integer(r->db, 0, "SELECT count(*) FROM job WHERE point = ?1 AND repeat = ?2",
                         "ii", r->points[j->point], (int64_t)j->repeat) > 0;
}

char *sweep_store_result(struct running *r, const char *path)
{
    MK_CLOSED FILE *f = fopen(path, "re");
    struct stat st;
    MK_FREED char *text = f && !fstat(fileno(f), &st) ? calloc(1, (size_t)st.st_size + 1) : NULL;
    size_t length = text ? fread(text, 1, (size_t)st.st_size, f) : 0;
    QUERY q =
        query_ask(r->db,
                  "SELECT CASE WHEN json_valid(?1) THEN CASE WHEN json_extract(?1, '$.rows[0]') "
                  "IS NULL THEN ?1 ELSE json_patch(json_remove(?1, '$.rows'), json_extract(?1, "
                  "'$.rows[0]')) END END",
                  "t", text);
    const char *object;
    return length && query_row(q, "t", &object) && *object ? strdup(object) : NULL;
}

int sweep_store_job(struct running *r, const struct sweep_job *j, const struct outcome *o)
{
    static const char samples[] =
        /* a bench on GPUs has rows; the shape of a job is one */
        "INSERT INTO sample SELECT ?1, w.key, s.key, l.key, 0, l.value FROM "
        "json_each(?2, '$.samples_ms') w, json_each(w.value) s, json_each(s.value) l";
    static const char warmups[] =
        "INSERT INTO sample SELECT ?1, 'fused', s.key, l.key, 1, l.value FROM "
        "json_each(?2, '$.warmup_ms') s, json_each(s.value) l";
    /* a simulation's launches are alike */
    static const char simulated[] =
        "INSERT INTO sample SELECT ?1, 'fused', 0, 0, 0, json_extract(?2, '$.ms') WHERE "
        "json_extract(?2, '$.command') = 'sim' AND json_extract(?2, '$.ms') IS NOT NULL";
    int rc = sqlite3_exec(r->db, "BEGIN IMMEDIATE", NULL, NULL, NULL) ? -EIO : 0;
    rc = rc ? rc
            : results_do(r->db,
                         "INSERT INTO job (point, repeat, sweep, begun, seconds, command, status, "
                         "verdict, sentence, load, result) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, "
                         "?9, ?10, json_remove(?11, '$.samples_ms', '$.warmup_ms'))",
                         "iiitdtittdt", r->points[j->point], (int64_t)j->repeat, r->id, o->begun,
                         o->seconds, o->command, (int64_t)o->status, o->verdict, o->sentence,
                         o->load, o->result);
    int64_t id = sqlite3_last_insert_rowid(r->db);
    if (!rc && o->result && !strcmp(o->verdict, "wrong")) /* a wrong result has no time */
        rc = 0;
    else if (!rc && o->result) {
        rc = results_do(r->db, samples, "it", id, o->result);
        rc = rc ? rc : results_do(r->db, warmups, "it", id, o->result);
        rc = rc ? rc : results_do(r->db, simulated, "it", id, o->result);
    }
    for (uint32_t i = 0; i < o->power_count && !rc; i++) {
        const struct sweep_power_sample *p = &o->power[i];
        rc = results_do(r->db, "INSERT INTO power VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)", "ididddd",
                        id, p->seconds, (int64_t)p->gpu, p->sm_mhz, p->memory_mhz, p->watts,
                        p->celsius);
    }
    if (sqlite3_exec(r->db, rc ? "ROLLBACK" : "COMMIT", NULL, NULL, NULL) && !rc)
        rc = -EIO;
    return rc;
}

void sweep_store_weigh(const char *path, double *ideal, double *exposed)
{
    char error[512];
    sqlite3 *db;
    *ideal = *exposed = NAN;
    if (trace_open(&db, path, error, sizeof error))
        return;
    sqlite3_stmt *q = query_ask(db,
                                "SELECT (SELECT avg(1.0 * ideal_ns / slowest_ns) FROM launches "
                                "WHERE (SELECT told FROM launch_spread)), (SELECT 1.0 * "
                                "sum(comm_only) / sum(end - start) FROM launch_rank)",
                                "");
    /* launches that differ too much have no ideal */
    if (query_row(q, "dd", ideal, exposed) && trace_damage())
        *ideal = *exposed = NAN;
    sqlite3_finalize(q);
    sqlite3_close(db);
}
