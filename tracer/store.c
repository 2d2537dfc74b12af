#include "tracer/store.h"
#include "core/base/new_file.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tracer/sql.h"

static int store_errno_of(int rc, int disk)
{
    if (rc == SQLITE_NOMEM)
        return -ENOMEM;
    if (rc == SQLITE_FULL)
        return disk ? -disk : -ENOSPC;
    return disk ? -disk : -EIO;
}

/* Runs a script; `disk` gets what the system said where it failed. */
static int run(sqlite3 *db, const char *sql, int *disk)
{
    int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        *disk = sqlite3_system_errno(db);
    return rc;
}

static int store_fill(sqlite3 *db, const struct trace_data *d, int *disk)
{
    struct insert in = {.db = db};
    /* No journal: an unfinished file is thrown away, not repaired. */
    int rc = run(
        db,
        "PRAGMA page_size = 16384; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
        "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY;"
        "PRAGMA threads = 2; BEGIN",
        disk);
    rc = rc ? rc : run(db, trace_sql_schema, disk);
    if (!rc) {
        store_run(&in, d);
        store_tracks(&in, d);
        store_joins(&in, d);
        store_levels(&in, d);
        rc = insert_end(&in);
    }
    if (rc && !*disk)
        *disk = sqlite3_system_errno(db);
    rc = rc ? rc : run(db, trace_sql_index, disk);
    rc = rc ? rc : run(db, trace_sql_views, disk);
    rc = rc ? rc : run(db, "COMMIT", disk);
    return rc;
}

static int store_write_temporary(const struct trace_data *d, const char *temporary, char *error,
                                 size_t size)
{
    sqlite3 *db = NULL;
    int disk = 0;
    int rc = sqlite3_open_v2(temporary, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    rc = rc ? rc : store_fill(db, d, &disk);
    if (rc) {
        int code = store_errno_of(rc, disk);
        snprintf(error, size, "the trace could not be written to '%s': %s", temporary,
                 disk || code == -ENOSPC || code == -ENOMEM ? strerror(-code) : sqlite3_errmsg(db));
        rc = code;
    }
    if (sqlite3_close(db) != SQLITE_OK && !rc)
        rc = -EIO;
    return rc;
}

int store_write(const struct trace_data *d, const char *path, char *error, size_t size)
{
    struct mk_new_file file;
    /* made here, not by SQLite, because SQLite's "unable to open database file" hides why */
    int rc = mk_new_file_open(&file, path, 0666);
    if (rc)
        return mk_fail(rc, error, size, "cannot create the trace '%s': %s", path,
                       rc == -EEXIST ? "that is a device, pipe or socket" : strerror(-rc));
    rc = store_write_temporary(d, file.temporary, error, size);
    if (!rc && (rc = mk_new_file_keep(&file)))
        snprintf(error, size, "the trace could not be written to '%s': %s", path, strerror(-rc));
    mk_new_file_drop(&file);
    return rc;
}

int store_parts(const struct trace_part *parts, uint32_t ranks, const struct trace_run *run,
                const char *path, char *error, size_t size)
{
    struct trace_data d;
    int rc = data_merge(&d, parts, ranks, run, error, size);
    if (rc)
        return rc;
    rc = data_join(&d);
    rc = rc ? rc : data_overlap(&d);
    if (rc)
        snprintf(error, size, "the trace could not be joined: out of memory");
    else
        rc = store_write(&d, path, error, size);
    data_free(&d);
    return rc;
}
