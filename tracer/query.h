/* Queries with what they are asked for and what they give, by letters: one call a query, one a row.
 */
#pragma once

#include <sqlite3.h>
#include <stdint.h>

/* Prepares `sql` and binds what follows by the letters of `types`: t const char * (NULL is NULL),
 * i int64_t, d double (NaN is NULL). NULL where that fails; query_row and sqlite3_step of NULL say
 * so, too. The caller finalizes it, or declares it as QUERY q = query_ask(...): then the block's
 * end does, which is to come before sqlite3_close. */
sqlite3_stmt *query_ask(sqlite3 *db, const char *sql, const char *types, ...);
void query_end(sqlite3_stmt **q);
#define QUERY __attribute__((cleanup(query_end))) sqlite3_stmt *

/* The next row's columns into what follows, by letters: i long long * (NULL is 0), o the same (NULL
 * is QUERY_NONE), n int *, d double * (NULL is NaN), t const char ** (NULL is ""; valid until the
 * next row), - nothing. 0: there is no row more, or it cannot be read. */
#define QUERY_NONE INT64_MIN
int query_row(sqlite3_stmt *q, const char *types, ...);

/* The first column of the first row; `missing` where there is none, or it is NULL. */
int64_t query_integer(sqlite3 *db, int64_t missing, const char *sql, const char *types, ...);
double query_real(sqlite3 *db, double missing, const char *sql);

/* The same query, run to its end. 0 or -EIO. */
int query_do(sqlite3 *db, const char *sql, const char *types, ...);
