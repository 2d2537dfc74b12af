#include "tracer/store.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "tracer/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Makes the bytes durable, so that the rename never shows a file that a power cut empties. */
static int store_flush(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC), rc = 0;
    if (fd < 0)
        return -errno;
    if (fsync(fd) != 0)
        rc = -errno;
    close(fd);
    return rc;
}

static int store_write_temporary(const struct trace_data *d, const char *temporary, char *error,
                                 size_t size)
{
    sqlite3 *db = NULL;
    int disk = 0;
    /* The temporary is made here, not by SQLite, because SQLite's "unable to open database file"
     * hides why. */
    int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        int rc = -errno;
        return mk_fail(rc, error, size, "cannot create the trace '%s': %s", temporary,
                       strerror(-rc));
    }
    close(fd);
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
    if (!rc) {
        rc = store_flush(temporary);
        if (rc)
            snprintf(error, size, "the trace could not be flushed to '%s': %s", temporary,
                     strerror(-rc));
    }
    return rc;
}

static char unfinished[4096];
static int is_unfinished;

void trace_set_unfinished(const char *temporary)
{
    __atomic_store_n(&is_unfinished, 0, __ATOMIC_SEQ_CST);
    if (!temporary || strlen(temporary) >= sizeof unfinished)
        return;
    strcpy(unfinished, temporary);
    __atomic_store_n(&is_unfinished, 1, __ATOMIC_SEQ_CST);
}

const char *trace_unfinished(void)
{
    return __atomic_load_n(&is_unfinished, __ATOMIC_SEQ_CST) ? unfinished : NULL;
}

int store_write(const struct trace_data *d, const char *path, char *error, size_t size)
{
    size_t length = strlen(path) + 32;
    struct stat there;
    /* a rename would take its place */
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode))
        return mk_fail(-EEXIST, error, size,
                       "the trace could not be written to '%s': that is a device, pipe or socket",
                       path);
    MK_FREED char *temporary = malloc(length);
    if (!temporary)
        return mk_fail(-ENOMEM, error, size, "the trace could not be written: out of memory");
    snprintf(temporary, length, "%s.%ld.partial", path, (long)getpid());
    unlink(temporary); /* of a process that had this id and was killed */
    trace_set_unfinished(temporary);
    int rc = store_write_temporary(d, temporary, error, size);
    if (!rc && rename(temporary, path) != 0)
        rc = mk_fail(-errno, error, size, "the trace could not be renamed to '%s': %s", path,
                     strerror(errno));
    if (rc)
        unlink(temporary);
    trace_set_unfinished(NULL);
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
