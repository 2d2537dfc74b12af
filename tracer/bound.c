#include "tracer/bound.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/sentence.h"
#include "tracer/query.h"

/* All queries of one command on honest files take at most 4 steps for each byte of the file (`trace
 * export`; summary and the viewer 1), and a million besides. A small file's allowance is half a
 * second of one core. A step may be long: of texts as long as BOUND_TEXT, it is not. */
enum { BOUND_STRIDE = 10000, BOUND_LEAST = 10000000, BOUND_PER_BYTE = 16 };
#define BOUND_TEXT (64 << 20) /* one row's, and one text's; results of many launches are long */

static _Atomic int64_t left;
static char spent_text[256];
static _Atomic(const char *) spent;
static pthread_mutex_t spent_lock = PTHREAD_MUTEX_INITIALIZER;

static int bound_step(void *context)
{
    if (atomic_fetch_sub(&left, BOUND_STRIDE) > 0)
        return 0;
    const char *none = NULL;
    atomic_compare_exchange_strong(&spent, &none,
                                   "its queries take far more steps than any file of its size "
                                   "should");
    return 1;
}

int bound_open(sqlite3 **db, const char *path, int flags)
{
    /* the only module that mkernel's own queries name; pragmas as tables are none */
    const char *modules[] = {"json_each", NULL};
    int rc = sqlite3_open_v2(path, db, flags, NULL);
    if (rc != SQLITE_OK)
        return rc;
    sqlite3_db_config(*db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(*db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(*db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_db_config(*db, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL); /* temporary ones are not off */
    sqlite3_drop_modules(*db, modules);
    sqlite3_limit(*db, SQLITE_LIMIT_LENGTH, BOUND_TEXT);
    /* LIKE is one step, however long it takes: mkernel's own patterns are short */
    sqlite3_limit(*db, SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 16);
    bound_begin(*db);
    return SQLITE_OK;
}

void bound_begin(sqlite3 *db)
{
    struct stat st;
    const char *path = sqlite3_db_filename(db, "main");
    int64_t bytes = path && !stat(path, &st) ? (int64_t)st.st_size : 0;
    int64_t allowed = BOUND_LEAST + BOUND_PER_BYTE * bytes;
    if (left < allowed)
        left = allowed;
    sqlite3_progress_handler(db, BOUND_STRIDE, bound_step, NULL);
}

void bound_end(sqlite3 *db)
{
    sqlite3_progress_handler(db, 0, NULL, NULL);
}

/* ---- numbers ---- */

static int bound_lies_in(sqlite3_stmt *q, int i, int64_t least, int64_t most)
{
    double real;
    switch (sqlite3_column_type(q, i)) {
    case SQLITE_NULL:
        return 1;
    case SQLITE_INTEGER:
        return sqlite3_column_int64(q, i) >= least && sqlite3_column_int64(q, i) <= most;
    case SQLITE_FLOAT:
        real = sqlite3_column_double(q, i);
        return real >= (double)least && real <= (double)most;
    default:
        return 0;
    }
}

/* The row's value in column `i`, for a sentence. */
static const char *bound_value(sqlite3_stmt *q, int i, char text[64])
{
    const char *value = (const char *)sqlite3_column_text(q, i);
    snprintf(text, 64, sqlite3_column_type(q, i) == SQLITE_TEXT ? "'%.32s'" : "%.32s",
             value ? value : "");
    return text;
}

int bound_takes(sqlite3_stmt *q, int i, int64_t most)
{
    char value[64];
    if (bound_lies_in(q, i, -most, most))
        return 1;
    pthread_mutex_lock(&spent_lock);
    if (!spent) {
        snprintf(spent_text, sizeof spent_text, "column %.64s has the value %s, out of its range",
                 sqlite3_column_name(q, i), bound_value(q, i, value));
        spent = spent_text;
    }
    pthread_mutex_unlock(&spent_lock);
    return 0;
}

const char *bound_spent(void)
{
    return spent;
}

static void bound_range_of(const struct bound_kind *kind, const char *table, const char *column,
                           int64_t *least, int64_t *most)
{
    size_t length = strlen(table);
    *least = -BOUND_NUMBER;
    *most = BOUND_NUMBER;
    for (const struct bound_range *r = kind->ranges; r->column; r++) {
        int own = !strncmp(r->column, table, length) && r->column[length] == '.' &&
                  !strcmp(r->column + length + 1, column);
        if (!own && strcmp(r->column, column))
            continue;
        *least = r->least;
        *most = r->most;
        return;
    }
}

/* The tables' columns of numbers are our schema's; `ours` has it. */
static int bound_check_table(sqlite3 *db, sqlite3 *ours, const struct bound_kind *kind,
                             const char *table, char *why, size_t size)
{
    enum { COLUMNS = 32 };
    int64_t least[COLUMNS], most[COLUMNS];
    char sql[2048] = "SELECT NULL", value[64];
    const char *name;
    int count = 1;
    QUERY columns =
        query_ask(ours, "SELECT name FROM pragma_table_info(?1) WHERE type <> 'TEXT'", "t", table);
    for (; count < COLUMNS && query_row(columns, "t", &name); count++) {
        bound_range_of(kind, table, name, &least[count], &most[count]);
        mk_append(sql, sizeof sql, ", t.\"%s\"", name);
    }
    mk_append(sql, sizeof sql, " FROM \"%s\" t", table);
    QUERY q = query_ask(db, sql, "");
    int rc;
    for (int64_t row = 1; (rc = sqlite3_step(q)) == SQLITE_ROW; row++)
        for (int i = 1; i < count; i++)
            if (!bound_lies_in(q, i, least[i], most[i]))
                return mk_fail(-EBADMSG, why, size,
                               "is refused: it has %s as %s in row %ld of table %s, which is not "
                               "from %ld to %ld",
                               bound_value(q, i, value), sqlite3_column_name(q, i), row, table,
                               least[i], most[i]);
    if (rc != SQLITE_DONE)
        return mk_fail(-EBADMSG, why, size, "is damaged: table %s: %s", table,
                       bound_spent() ? bound_spent() : sqlite3_errmsg(db));
    return 0;
}

int bound_check(sqlite3 *db, const struct bound_kind *kind, char *why, size_t size)
{
    static const char runs[] =
        "SELECT coalesce(max(CASE type WHEN 'table' THEN EXISTS (SELECT 1 FROM "
        "pragma_table_xinfo(m.name) WHERE hidden <> 0) WHEN 'index' THEN 2 * EXISTS (SELECT 1 FROM "
        "pragma_index_xinfo(m.name) WHERE cid = -2) END), 0) FROM sqlite_master m";
    static const char *const words[] = {NULL, "a computed column", "an index of an expression"};
    int64_t found = query_integer(db, -1, runs, "");
    if (found)
        return mk_fail(-EBADMSG, why, size, "%s%s",
                       found < 0 ? "is damaged: its schema cannot be read" : "is refused: it has ",
                       found < 0 ? "" : words[found]);
    sqlite3 *ours = NULL;
    int rc = sqlite3_open(":memory:", &ours) || sqlite3_exec(ours, kind->schema, NULL, NULL, NULL)
                 ? mk_fail(-ENOMEM, why, size, "cannot be read: no memory")
                 : 0;
    sqlite3_stmt *tables =
        query_ask(ours, "SELECT name FROM sqlite_master WHERE type = 'table'", "");
    const char *table;
    while (!rc && query_row(tables, "t", &table)) {
        int large = 0;
        for (const char *const *name = kind->large; *name; name++)
            large |= !strcmp(*name, table);
        rc = large ? 0 : bound_check_table(db, ours, kind, table, why, size);
    }
    sqlite3_finalize(tables);
    sqlite3_close(ours);
    return rc;
}
