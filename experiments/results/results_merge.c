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

/* merge.sql, so that the binary needs no other file */
extern const char merge_sql[];
__asm__(".section .rodata\n.global merge_sql\nmerge_sql:\n"
        ".incbin \"experiments/results/merge.sql\"\n.byte 0\n"
        ".size merge_sql, . - merge_sql\n.type merge_sql, @object\n.previous\n");

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
    rc = rc || sqlite3_exec(db, merge_sql, NULL, NULL, NULL) ? -EIO : 0;
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
