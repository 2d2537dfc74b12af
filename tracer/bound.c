#include "tracer/bound.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

/* All queries of one command on honest files take at most 4 steps for each byte of the file (`trace
 * export`; summary and the viewer 1), and a million besides. A small file's allowance is half a
 * second of one core. */
enum { BOUND_STRIDE = 10000, BOUND_LEAST = 10000000, BOUND_PER_BYTE = 16 };

static _Atomic int64_t left;
static _Atomic int spent;

static int bound_step(void *context)
{
    if (atomic_fetch_sub(&left, BOUND_STRIDE) > 0)
        return 0;
    spent = 1;
    return 1;
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

const char *bound_check(sqlite3 *db, const char *schema)
{
    static const char *const words[] = {
        NULL,
        "a trigger",
        "a view in a table's place",
        "a virtual table",
        "a computed column",
        "an index of an expression",
    };
    static const char ask[] =
        "SELECT coalesce(max(CASE WHEN type = 'trigger' THEN 1 WHEN type = 'view' THEN 2 * "
        "(instr(?1, 'TABLE ' || lower(name) || ' (') + instr(?1, 'TABLE \"' || lower(name) || '\" "
        "(') > 0) WHEN upper(substr(sql, 1, 14)) = 'CREATE VIRTUAL' THEN 3 WHEN type = 'table' "
        "THEN 4 * EXISTS (SELECT 1 FROM pragma_table_xinfo(m.name) WHERE hidden <> 0) WHEN type = "
        "'index' THEN 5 * EXISTS (SELECT 1 FROM pragma_index_xinfo(m.name) WHERE cid = -2) END), "
        "0) FROM sqlite_master m";
    sqlite3_stmt *q = NULL;
    const char *found = "a schema that SQLite cannot read";
    if (sqlite3_prepare_v2(db, ask, -1, &q, NULL) == SQLITE_OK &&
        sqlite3_bind_text(q, 1, schema, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_step(q) == SQLITE_ROW)
        found = words[sqlite3_column_int(q, 0)];
    sqlite3_finalize(q);
    return found;
}

const char *bound_spent(void)
{
    return spent ? "its queries take far more steps than any file of its size should" : NULL;
}
