/* Opens a trace and refuses, in one sentence, what is not one. */
#include "tracer/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/cta/event.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "core/base/sorted.h"
#include "tracer/bound.h"
#include "tracer/query.h"
#include "tracer/sql.h"

enum trace_state trace_state_of(uint32_t kind, uint32_t cause)
{
    static const uint8_t by_kind[MK_EV_KINDS] = {
        [MK_EV_TILE] = TRACE_TILE,
        [MK_EV_COPY] = TRACE_COPY,
        [MK_EV_COMMAND] = TRACE_COMMAND,
        [MK_EV_REDUCE] = TRACE_REDUCE,
    };
    if (kind == MK_EV_WAIT)
        return cause == MK_CAUSE_BACKPRESSURE ? TRACE_WAIT_BACKPRESSURE
               : cause == MK_CAUSE_NETWORK    ? TRACE_WAIT_NETWORK
                                              : TRACE_WAIT_DATA;
    return kind < MK_EV_KINDS ? by_kind[kind] : TRACE_IDLE;
}

/* The file itself, before SQLite sees it: its errors say less ("unable to open database file"). */
static int reader_check_file(const char *path, char *error, size_t size)
{
    static const char magic[16] = "SQLite format 3";
    char head[100];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for a writer */
    if (fd < 0 || fstat(fd, &st) != 0) {
        int rc = -errno;
        snprintf(error, size, "cannot open trace '%s': %s", path, strerror(-rc));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    if (!S_ISREG(st.st_mode)) {
        snprintf(error, size, "'%s' is not a file", path);
        close(fd);
        return S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
    }
    ssize_t n = read(fd, head, sizeof(head));
    close(fd);
    if (n == 0)
        return mk_fail(-ENODATA, error, size,
                       "trace '%s' is empty: the run that wrote it did not finish", path);
    if (n < 16 || memcmp(head, magic, 16) != 0)
        return mk_fail(-EINVAL, error, size, "'%s' is not a trace of mkernel (not an SQLite file)",
                       path);
    if (n < 100)
        return mk_fail(-EBADMSG, error, size, "trace '%s' is damaged: it ends after %zd bytes",
                       path, n);
    return 0;
}

static const char *const reader_large[] = {"event", "edge",    "level",        "overlap_level",
                                           "flow",  "message", "clock_sample", NULL};

static const struct bound_range reader_ranges[] = {
    {"run.nodes", 1, MK_MAX_RANKS},
    {"run.gpus", 1, MK_MAX_RANKS},
    {"run.seed", INT64_MIN, INT64_MAX},
    {"run.duration_ns", 0, BOUND_NUMBER},
    {"rank.id", 0, MK_MAX_RANKS - 1},
    {"node", 0, MK_MAX_RANKS - 1},
    {"local", 0, MK_MAX_RANKS - 1},
    {"flag.rank", -1, MK_MAX_RANKS - 1},
    {"rank", 0, MK_MAX_RANKS - 1},
    {"source", 0, MK_MAX_RANKS - 1},
    {"destination", 0, MK_MAX_RANKS - 1},
    {"role.id", 0, MK_ROLES - 1},
    {"role", 0, MK_ROLES - 1},
    {"cta", 0, INT32_MAX},
    {"warp", 0, INT32_MAX},
    {"track.id", 1, INT32_MAX},
    {"track", 1, INT32_MAX},
    {"leaves", 0, INT32_MAX},
    {"tracks", 0, INT32_MAX},
    {"level", 0, 63},
    {"zoom.ns", 1, 1ll << 50},
    {"buckets", 0, 1ll << 50},
    {"events", 0, BOUND_NUMBER},
    {"messages", 0, BOUND_NUMBER},
    {"dropped", 0, BOUND_NUMBER},
    {"longest_ns", 0, BOUND_NUMBER},
    {"peak_bytes", 0, BOUND_NUMBER},
    {"plan.id", 0, UINT32_MAX},
    {"m", 0, UINT32_MAX},
    {"n", 0, UINT32_MAX},
    {"k", 0, UINT32_MAX},
    {"tile_m", 0, UINT32_MAX},
    {"tile_n", 0, UINT32_MAX},
    {"chunk_rows", 0, UINT32_MAX},
    {"pieces", 0, UINT32_MAX},
    {"compute", 0, INT32_MAX},
    {"intra_comm", 0, INT32_MAX},
    {"inter_send", 0, INT32_MAX},
    {"inter_reduce", 0, INT32_MAX},
    {NULL, 0, 0},
};

static const struct bound_kind reader_kind = {trace_sql_schema, reader_large, reader_ranges};

static int reader_check_schema(sqlite3 *db, const char *path, char *error, size_t size)
{
    int64_t id = query_integer(db, -1, "PRAGMA application_id", "");
    if (id != TRACE_APPLICATION_ID) {
        int damaged =
            id < 0 && sqlite3_errcode(db) != SQLITE_OK && sqlite3_errcode(db) != SQLITE_DONE;
        if (damaged)
            snprintf(error, size, "trace '%s' is damaged: %s", path, sqlite3_errmsg(db));
        else
            snprintf(error, size, "'%s' is a database, but not a trace of mkernel", path);
        return damaged ? -EBADMSG : -EINVAL;
    }
    int64_t version = query_integer(db, -1, "PRAGMA user_version", "");
    if (version != TRACE_SCHEMA_VERSION)
        return mk_fail(-EPROTO, error, size,
                       "trace '%s' has schema version %ld, this mkernel reads %d: %s", path,
                       version, TRACE_SCHEMA_VERSION,
                       version < TRACE_SCHEMA_VERSION
                           ? "run it again, or read it with the mkernel that wrote it"
                           : "read it with a newer mkernel");
    /* The file's own count of its pages against its size finds a cut file without reading it. */
    int64_t pages = query_integer(db, -1, "PRAGMA page_count", ""),
            page = query_integer(db, -1, "PRAGMA page_size", "");
    struct stat st;
    if (stat(path, &st) == 0 && pages * page > st.st_size)
        return mk_fail(-EBADMSG, error, size,
                       "trace '%s' is damaged: %ld of its %ld bytes are there", path, st.st_size,
                       pages * page);
    if (query_integer(db, -1, "SELECT count(*) FROM run", "") != 1 ||
        query_integer(db, -1, "SELECT count(*) FROM zoom", "") < 0 ||
        query_integer(db, -1, "SELECT count(*) FROM rank", "") < 1 ||
        query_integer(db, -1,
                      "SELECT count(*) FROM sqlite_master WHERE name IN ('event', "
                      "'level', 'message', 'track')",
                      "") != 4) {
        int rc = sqlite3_errcode(db);
        return mk_fail(-EBADMSG, error, size, "trace '%s' is damaged: %s", path,
                       bound_spent() ? bound_spent()
                       : rc != SQLITE_OK && rc != SQLITE_DONE && rc != SQLITE_ROW
                           ? sqlite3_errmsg(db)
                           : "it says nothing about its run");
    }
    return 0;
}

/* A file that was written before there were columns of memory has them, of NULL. SQLite's code. */
static int reader_complete_tables(sqlite3 *db)
{
    if (query_integer(db, -1,
                      "SELECT count(*) FROM pragma_table_info('work') "
                      "WHERE name = 'memory_bytes'",
                      ""))
        return SQLITE_OK;
    return sqlite3_exec(
        db,
        "CREATE TEMP VIEW run AS SELECT *, NULL AS memory_bytes_per_s FROM main.run;"
        "CREATE TEMP VIEW work AS SELECT *, NULL AS memory_bytes FROM main.work;",
        NULL, NULL, NULL);
}

/* views.sql as temporary views, which come before those of the file. SQLite's code. */
static int reader_make_views(sqlite3 *db)
{
    static const char create[] = "CREATE VIEW ", temporary[] = "CREATE TEMP VIEW ";
    size_t views = 0, used = 0;
    for (const char *at = trace_sql_views; (at = strstr(at, create)); at++)
        views++;
    MK_FREED char *sql =
        malloc(strlen(trace_sql_views) + views * (sizeof temporary - sizeof create) + 1);
    if (!sql)
        return SQLITE_NOMEM;
    for (const char *at = trace_sql_views, *next; *at; at = next) {
        int begins = !strncmp(at, create, sizeof create - 1);
        const char *text = begins ? temporary : at;
        next = strstr(at + 1, create);
        next = begins ? at + sizeof create - 1 : next ? next : at + strlen(at);
        size_t n = begins ? sizeof temporary - 1 : (size_t)(next - at);
        memcpy(sql + used, text, n);
        used += n;
    }
    sql[used] = 0;
    return sqlite3_exec(db, sql, NULL, NULL, NULL);
}

static int damage; /* SQLite's code */

static void reader_note_damage(void *context, int code, const char *text)
{
    int kind = code & 0xff;
    if (!damage && (kind == SQLITE_CORRUPT || kind == SQLITE_NOTADB || kind == SQLITE_IOERR))
        damage = code;
}

void trace_watch_damage(void)
{
    sqlite3_config(SQLITE_CONFIG_LOG, reader_note_damage, NULL);
}

const char *trace_damage(void)
{
    return damage ? sqlite3_errstr(damage) : bound_spent();
}

int trace_open(sqlite3 **out, const char *path, char *error, size_t size)
{
    sqlite3 *db = NULL;
    *out = NULL;
    int rc = reader_check_file(path, error, size);
    if (rc)
        return rc;
    if (bound_open(&db, path, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX) != SQLITE_OK) {
        snprintf(error, size, "cannot open trace '%s': %s", path,
                 db ? sqlite3_errmsg(db) : "out of memory");
        sqlite3_close(db);
        return -EIO;
    }
    /* A cache, no mapping: where a mapped file is cut while it is open, reading it is SIGBUS. */
    sqlite3_exec(
        db, "PRAGMA cell_size_check = 1; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY",
        NULL, NULL, NULL);
    rc = reader_check_schema(db, path, error, size);
    if (!rc && (reader_complete_tables(db) != SQLITE_OK || reader_make_views(db) != SQLITE_OK)) {
        rc = sqlite3_errcode(db) == SQLITE_NOMEM ? -ENOMEM : -EBADMSG;
        snprintf(error, size, "trace '%s' cannot be read: %s", path, sqlite3_errmsg(db));
    }
    char why[384];
    if (!rc && (rc = bound_check(db, &reader_kind, why, sizeof why)))
        snprintf(error, size, "trace '%s' %s", path, why);
    sqlite3_exec(db, "PRAGMA query_only = 1", NULL, NULL, NULL);
    if (rc)
        sqlite3_close(db);
    else
        *out = db;
    return rc;
}

void trace_allow(sqlite3 *db)
{
    bound_begin(db);
}

static int reader_compare_places(const void *x, const void *y)
{
    const struct trace_figure *a = x, *b = y;
    return MK_ORDER(a->place, b->place) ?: strcmp(a->name, b->name);
}

int trace_figures(sqlite3 *a, sqlite3 *b, struct trace_figure *out, int room)
{
    int count = 0;
    for (int side = 0; side < (b ? 2 : 1); side++) {
        long long place;
        const char *section, *name, *unit;
        double value;
        QUERY q =
            query_ask(side ? b : a, "SELECT place, section, name, unit, value FROM figures", "");
        while (query_row(q, "itttd", &place, &section, &name, &unit, &value)) {
            struct trace_figure f = {.place = place, .value = {NAN, NAN}};
            snprintf(f.section, sizeof f.section, "%s", section);
            snprintf(f.name, sizeof f.name, "%s", name);
            snprintf(f.unit, sizeof f.unit, "%s", unit);
            int i = 0;
            while (i < count && (strcmp(out[i].section, f.section) || strcmp(out[i].name, f.name)))
                i++;
            if (i == room)
                break;
            if (i == count)
                out[count++] = f;
            out[i].value[side] = value;
        }
    }
    qsort(out, (size_t)count, sizeof *out, reader_compare_places);
    return count;
}
