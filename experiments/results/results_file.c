#include "experiments/results/results_file.h"
#include "core/base.h"
#include "core/base/file_lock.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tracer/bound.h"

#define APPLICATION 1835757170
#define VERSION 1

/* schema.sql, so that the binary needs no other file */
extern const char results_schema[];
__asm__(".section .rodata\n.global results_schema\nresults_schema:\n"
        ".incbin \"experiments/results/schema.sql\"\n.byte 0\n"
        ".size results_schema, . - results_schema\n.type results_schema, @object\n.previous\n");

static const char *const results_large[] = {NULL};

static const struct bound_range results_ranges[] = {
    {"sweep.seed", INT64_MIN, INT64_MAX},
    {"repeat", 0, UINT32_MAX},
    {"number", 0, UINT32_MAX},
    {"sample.rank", 0, MK_MAX_RANKS - 1},
    {"ms", 0, BOUND_NUMBER},
    {"seconds", 0, BOUND_NUMBER},
    {NULL, 0, 0},
};

static const struct bound_kind results_kind = {results_schema, results_large, results_ranges};

/* SQLite's sentences about files say less. */
static int results_file_check(const char *path, int may_miss, char *error, size_t size)
{
    struct stat st;
    if (stat(path, &st)) {
        int rc = -errno;
        if (rc == -ENOENT && may_miss)
            return 0;
        return mk_fail(rc, error, size, "%s cannot be opened: %s", path, strerror(-rc));
    }
    if (!S_ISREG(st.st_mode))
        return mk_fail(-EINVAL, error, size, "%s is not a file", path);
    if (!st.st_size && !may_miss)
        return mk_fail(-ENODATA, error, size, "%s is empty: no results are in it", path);
    return 0;
}

static int results_file_is_ours(sqlite3 *db, const char *path, char *error, size_t size)
{
    QUERY q = query_ask(db, "SELECT count(*) FROM sqlite_master", "");
    if (sqlite3_step(q) != SQLITE_ROW) {
        const char *why = sqlite3_errmsg(db);
        if (sqlite3_errcode(db) == SQLITE_NOTADB)
            snprintf(error, size, "%s is no file of results (not an SQLite file)", path);
        else
            snprintf(error, size, "%s cannot be read: %s", path, why);
        return -EINVAL;
    }
    sqlite3_reset(q);
    if (query_integer(db, 0, "PRAGMA application_id", "") != APPLICATION)
        return mk_fail(-EINVAL, error, size, "%s is no file of results: `mkernel sweep` makes them",
                       path);
    if (query_integer(db, 0, "PRAGMA user_version", "") != VERSION)
        return mk_fail(-EINVAL, error, size, "%s was written by another version of mkernel", path);
    char why[384];
    if (bound_check(db, &results_kind, why, sizeof why))
        return mk_fail(-EINVAL, error, size, "%s %s", path, why);
    return 0;
}

/* The schema's views, for this handle: a file's own are never run, and may be older ones. `write`:
 * then those of the file become what they are here, for its other readers. */
static int results_file_views(sqlite3 *db, int write)
{
    sqlite3 *ours = NULL;
    const char *name, *sql;
    int rc = sqlite3_open(":memory:", &ours) || sqlite3_exec(ours, results_schema, NULL, NULL, NULL)
                 ? -ENOMEM
                 : 0;
    sqlite3_stmt *q =
        query_ask(ours, "SELECT name, sql FROM sqlite_master WHERE type = 'view'", "");
    while (!rc && query_row(q, "tt", &name, &sql)) {
        int old =
            write &&
            !query_integer(db, 0, "SELECT count(*) FROM sqlite_master WHERE sql = ?1", "t", sql);
        char *text = sqlite3_mprintf(old ? "DROP VIEW IF EXISTS %s; %s; CREATE TEMP %s"
                                         : "%.0s%.0sCREATE TEMP %s",
                                     name, sql, sql + strlen("CREATE "));
        rc = !text ? -ENOMEM : sqlite3_exec(db, text, NULL, NULL, NULL) ? -EIO : 0;
        sqlite3_free(text);
    }
    sqlite3_finalize(q);
    sqlite3_close(ours);
    return rc;
}

/* The schema, where nothing is there yet. */
static int results_file_make(sqlite3 *db, const char *path, char *error, size_t size)
{
    char *why = NULL;
    int rc = 0;
    if (query_integer(db, -1, "SELECT count(*) FROM sqlite_master", ""))
        return 0;
    if (sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, &why) ||
        sqlite3_exec(db, results_schema, NULL, NULL, &why) ||
        sqlite3_exec(db, "COMMIT", NULL, NULL, &why))
        rc = mk_fail(-EIO, error, size, "%s cannot be written: %s", path, why ? why : "no memory");
    sqlite3_free(why);
    return rc;
}

static int results_file_open(sqlite3 **db, const char *path, int write, char *error, size_t size)
{
    *db = NULL;
    int rc = results_file_check(path, write, error, size);
    if (rc)
        return rc;
    if (bound_open(db, path,
                   write ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY))
        rc = mk_fail(-EIO, error, size, "%s cannot be %s: %s", path, write ? "written" : "opened",
                     sqlite3_errmsg(*db));
    else
        sqlite3_busy_timeout(*db, 5000); /* a sweep that is at work writes for moments */
    if (!rc && write)
        rc = results_file_make(*db, path, error, size);
    rc = rc ? rc : results_file_is_ours(*db, path, error, size);
    if (!rc && write && sqlite3_db_readonly(*db, "main") == 1)
        rc = mk_fail(-EACCES, error, size, "%s cannot be written: it is read-only", path);
    if (!rc && (rc = results_file_views(*db, write)))
        snprintf(error, size, "%s cannot be %s: %s", path, write ? "written" : "read",
                 sqlite3_errmsg(*db));
    if (rc) {
        sqlite3_close(*db);
        *db = NULL;
    }
    return rc;
}

int results_open(sqlite3 **db, const char *path, char *error, size_t size)
{
    return results_file_open(db, path, 0, error, size);
}

int results_create(sqlite3 **db, const char *path, char *error, size_t size)
{
    return results_file_open(db, path, 1, error, size);
}

static int results_hold_for(struct results_hold *h, const char *path, int ms, char *error,
                            size_t size)
{
    *h = (struct results_hold){.path = path, .fd = -1};
    int rc = results_file_check(path, 1, error, size);
    if (rc)
        return rc;
    rc = mk_file_lock(&h->fd, path, ms);
    h->made = access(path, F_OK) != 0;
    if (rc == -EBUSY)
        snprintf(error, size,
                 "another sweep is writing %s: wait for its end, or name another file with --out",
                 path);
    else if (rc)
        snprintf(error, size, "%s cannot be written: %s.lock: %s", path, path, strerror(-rc));
    return rc;
}

int results_hold(struct results_hold *h, const char *path, char *error, size_t size)
{
    return results_hold_for(h, path, 0, error, size);
}

int results_hold_soon(struct results_hold *h, const char *path, char *error, size_t size)
{
    return results_hold_for(h, path, 60000, error, size);
}

void results_release(struct results_hold *h)
{
    char error[256];
    sqlite3 *db;
    int64_t jobs = 0;
    if (h->fd < 0)
        return;
    if (h->made && !results_open(&db, h->path, error, sizeof error)) {
        jobs = query_integer(db, 0, "SELECT count(*) FROM job", "");
        sqlite3_close(db);
    }
    if (h->made && !jobs)
        unlink(h->path);
    mk_file_unlock(h->fd, h->path);
    h->fd = -1;
}
