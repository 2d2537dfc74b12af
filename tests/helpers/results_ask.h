/* The file of results that a test's sweeps write, as a user's SQLite opens it, with the file's views.
 * Include behind folder.h. */
#pragma once

#include "tracer/query.h"

static char database[64];

static sqlite3 *results_open_plainly(void)
{
    sqlite3 *db;
    sqlite3_open_v2(database, &db, SQLITE_OPEN_READONLY, NULL);
    sqlite3_busy_timeout(db, 5000);
    return db;
}

/* A number; -1: it is not there yet, or half made. */
static int64_t ask(const char *sql)
{
    sqlite3 *db = results_open_plainly();
    int64_t value = query_integer(db, -1, sql, "");
    sqlite3_close(db);
    return value;
}
