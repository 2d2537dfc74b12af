/* Several files of results into one. */
#include "experiments/results/results_merge.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/results/results_file.h"
#include "tracer/bound.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Of `a` or `b` whichever is known by the same name in both files has the number that it has in
 * main; sweeps and jobs get new numbers, behind those that are there. */
static const char *const merge_steps[] = {
    "INSERT OR IGNORE INTO main.machine (identity, facts) SELECT identity, facts FROM a.machine",
    "INSERT OR IGNORE INTO main.point (key) SELECT key FROM a.point",
    "INSERT OR IGNORE INTO main.setting SELECT m.id, s.name, s.value FROM a.setting s JOIN a.point "
    "p ON p.id = s.point JOIN main.point m ON m.key = p.key",
    "INSERT OR REPLACE INTO main.published SELECT m.id, s.who, s.flop_per_s FROM a.published s "
    "JOIN a.point p ON p.id = s.point JOIN main.point m ON m.key = p.key",
    /* what failed here and was measured there */
    "CREATE TEMP TABLE stale AS SELECT j.id FROM main.job j JOIN main.point m ON m.id = j.point "
    "JOIN a.point p ON p.key = m.key JOIN a.job o ON o.point = p.id AND o.repeat = j.repeat WHERE "
    "j.verdict IN ('failed', 'impossible') AND o.verdict NOT IN ('failed', 'impossible') AND j.id "
    "NOT IN (SELECT job FROM main.sample)",
    "DELETE FROM main.power WHERE job IN (SELECT id FROM temp.stale)",
    "DELETE FROM main.job WHERE id IN (SELECT id FROM temp.stale)",
    "CREATE TEMP TABLE behind AS SELECT (SELECT coalesce(max(id), 0) FROM main.sweep) AS sweeps, "
    "(SELECT coalesce(max(id), 0) FROM main.job) AS jobs",
    "CREATE TEMP TABLE taken AS SELECT j.id, m.id AS point FROM a.job j JOIN a.point p ON p.id = "
    "j.point JOIN main.point m ON m.key = p.key WHERE NOT EXISTS (SELECT 1 FROM main.job o WHERE "
    "o.point = m.id AND o.repeat = j.repeat)",
    "INSERT INTO main.sweep SELECT s.id + behind.sweeps, s.name, s.question, s.text, s.command, "
    "s.seed, m.id, s.begun, s.ended, s.how FROM a.sweep s JOIN a.machine o ON o.id = s.machine "
    "JOIN main.machine m ON m.identity = o.identity, temp.behind WHERE s.id IN (SELECT j.sweep "
    "FROM a.job j JOIN temp.taken t ON t.id = j.id)",
    "INSERT INTO main.job SELECT j.id + behind.jobs, t.point, j.repeat, j.sweep + behind.sweeps, "
    "j.begun, j.seconds, j.command, j.status, j.verdict, j.sentence, j.load, j.result FROM a.job j "
    "JOIN temp.taken t ON t.id = j.id, temp.behind",
    "INSERT INTO main.sample SELECT s.job + behind.jobs, s.what, s.rank, s.number, s.warmup, s.ms "
    "FROM a.sample s JOIN temp.taken t ON t.id = s.job, temp.behind",
    "INSERT INTO main.power SELECT s.job + behind.jobs, s.seconds, s.gpu, s.sm_mhz, s.memory_mhz, "
    "s.watts, s.celsius FROM a.power s JOIN temp.taken t ON t.id = s.job, temp.behind",
    "INSERT OR IGNORE INTO main.trace SELECT m.id, s.path, s.command, s.sentence, s.ideal, "
    "s.exposed FROM a.trace s JOIN a.point p ON p.id = s.point JOIN main.point m ON m.key = p.key",
};

/* Whether `from` would bring another build of mkernel. */
static int merge_is_mixed(sqlite3 *db, const char *into, const char *from, char *error, size_t size)
{
    static const char sql[] =
        "SELECT m.identity, o.identity FROM main.machine m, a.machine o WHERE EXISTS (SELECT * "
        "FROM main.job) AND EXISTS (SELECT * FROM a.job) AND " RESULTS_BUILD(
            "o.identity") " NOT IN (SELECT " RESULTS_BUILD("identity") " FROM main.machine) LIMIT "
                                                                       "1";
    QUERY q = query_ask(db, sql, "");
    int mixed = sqlite3_step(q) == SQLITE_ROW;
    if (mixed)
        snprintf(error, size,
                 "%s was measured with %s, and %s with %s: --mix puts both into one file", into,
                 (const char *)sqlite3_column_text(q, 0), from,
                 (const char *)sqlite3_column_text(q, 1));
    return mixed;
}

/* Both are held, and are files of results. */
static int merge_held(const char *into, const char *from, int mix, int64_t *jobs, char *error,
                      size_t size)
{
    sqlite3 *db;
    int rc = results_create(&db, into, error, size);
    if (rc)
        return rc;
    bound_end(db); /* its allowance is for its own length, not for what comes */
    rc = results_do(db, "ATTACH ?1 AS a", "t", from);
    bound_end(db);
    if (!rc && !mix && merge_is_mixed(db, into, from, error, size)) {
        sqlite3_close(db);
        return -EINVAL;
    }
    rc = rc || sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL) ? -EIO : 0;
    for (size_t i = 0; i < sizeof merge_steps / sizeof *merge_steps && !rc; i++)
        rc = sqlite3_exec(db, merge_steps[i], NULL, NULL, NULL) ? -EIO : 0;
    int64_t added = query_integer(db, 0, "SELECT count(*) FROM temp.taken", "");
    if (!rc && sqlite3_exec(db, "COMMIT", NULL, NULL, NULL))
        rc = -EIO;
    if (rc)
        snprintf(error, size, "%s could not be merged into %s: %s", from, into, sqlite3_errmsg(db));
    else
        *jobs += added;
    sqlite3_close(db); /* rolls back what was not committed */
    return rc;
}

int results_merge(const char *into, const char *from, int mix, int64_t *jobs, char *error,
                  size_t size)
{
    struct results_hold hold;
    sqlite3 *db;
    int rc = results_open(&db, from, error, size);
    if (rc)
        return rc;
    sqlite3_close(db);
    rc = results_hold_soon(&hold, into, error, size);
    if (rc)
        return rc;
    rc = merge_held(into, from, mix, jobs, error, size);
    results_release(&hold);
    return rc;
}

/* `into` is held. A part that another sweep writes is left to it. */
static int merge_part(const char *into, const char *part, int mix, int64_t *jobs, char *error,
                      size_t size)
{
    struct results_hold hold;
    sqlite3 *db;
    int rc = results_hold(&hold, part, error, size);
    if (rc)
        return rc;
    /* who died while writing left a journal: opened for writing, the file is put in order */
    rc = results_create(&db, part, error, size);
    sqlite3_close(db);
    rc = rc ? rc : merge_held(into, part, mix, jobs, error, size);
    if (!rc && unlink(part))
        rc = mk_fail(-errno, error, size, "%s is merged, and could not be removed: %s", part,
                     strerror(errno));
    results_release(&hold);
    return rc;
}

int results_merge_parts(const char *into, int mix, struct results_merged *out, char *error,
                        size_t size)
{
    char folder[4200], name[4300], path[9000], sentence[sizeof path + 200];
    const char *slash = strrchr(into, '/');
    struct results_hold hold;
    int rc = 0, held = 0;
    memset(out, 0, sizeof *out);
    error[0] = '\0';
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - into + 1) : 2,
             slash ? into : "./");
    size_t length =
        (size_t)snprintf(name, sizeof name, "%s" RESULTS_PART, slash ? slash + 1 : into);
    MK_CLOSED_DIR DIR *d = opendir(folder);
    if (!d)
        return mk_fail(-errno, error, size, "%s cannot be read: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        const char *rest = strncmp(e->d_name, name, length) ? "" : e->d_name + length;
        if (!*rest || rest[strspn(rest, "0123456789.-")]) /* a journal, a folder of traces */
            continue;
        if (!held && (rc = results_hold_soon(&hold, into, error, size)))
            break;
        held = 1;
        snprintf(path, sizeof path, "%s%s", slash ? folder : "", e->d_name);
        if (access(path, F_OK)) /* another task has merged it meanwhile */
            continue;
        int one = merge_part(into, path, mix, &out->jobs, sentence, sizeof sentence);
        out->parts += !one;
        if (one && (!rc || rc == -EBUSY)) {
            rc = one;
            snprintf(error, size, "%s", sentence);
        }
    }
    if (held)
        results_release(&hold);
    return rc;
}
