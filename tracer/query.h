/* SQLite queries in two calls: query_ask binds all parameters, query_row reads a row's columns. A
 * letter names the type of each. */
#pragma once

#include <sqlite3.h>
#include <stdint.h>

/* Prepares `sql` and binds the arguments by the letters of `types`: t const char * (NULL is NULL),
 * i int64_t, d double (NaN is NULL). NULL if that fails; query_row and sqlite3_step then fail, too.
 * The caller finalizes it, or declares QUERY q = query_ask(...), which finalizes it at the end of
 * the block: before sqlite3_close. */
sqlite3_stmt *query_ask(sqlite3 *db, const char *sql, const char *types, ...);
void query_end(sqlite3_stmt **q);
/* The same query from its beginning, with these arguments. */
void query_again(sqlite3_stmt *q, const char *types, ...);
#define QUERY __attribute__((cleanup(query_end))) sqlite3_stmt *

/* Reads the columns of the next row into the arguments, by letters: i long long * (NULL is 0), o
 * the same (NULL is QUERY_NONE), n int *, d double * (NULL is NaN), t const char ** (NULL is "";
 * valid until the next row), - skips one. A number is checked (bound_takes): an int for its type.
 * 0: there is no further row, or it cannot be read. */
#define QUERY_NONE INT64_MIN
int query_row(sqlite3_stmt *q, const char *types, ...);

/* The first column of the first row; `missing` if there is no row or it is NULL. */
int64_t query_integer(sqlite3 *db, int64_t missing, const char *sql, const char *types, ...);
double query_real(sqlite3 *db, double missing, const char *sql);

/* Runs a statement to its end. 0 or -EIO. */
int query_do(sqlite3 *db, const char *sql, const char *types, ...);
