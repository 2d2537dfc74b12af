/* What a file of SQLite from somebody else may do to its reader: nothing but give numbers and texts
 * that are checked here.
 *
 * - Its schema runs nothing: triggers, views and modules of the file are off, and a computed column
 *   is refused. mkernel's own views are temporary ones.
 * - Its numbers lie in ranges. bound_check reads the small tables once, when a file is opened, so
 *   that code behind it may index by a rank and shift by a level. Large tables would take seconds:
 *   query_row checks each number that it gives (bound_takes).
 * - Its queries end. Each file has an allowance of steps of SQLite's virtual machine (not of
 *   seconds, which a busy machine would spend). It grows with the file's size and is four times
 *   what files of mkernel need. Once it is spent, every query ends as if it had no more rows;
 *   readers ask bound_spent before they trust what they have read. */
#pragma once

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

/* No number of a file lies further from zero: the sum of three times fits 64 bits. As ns it is the
 * year 2043 on a clock that counts from 1970. */
#define BOUND_NUMBER (1ll << 61)

/* What a column's numbers may be. */
struct bound_range {
    const char *column; /* "rank.id", or "rank" in every table that has no row of its own above */
    int64_t least, most;
};

/* A kind of file. */
struct bound_kind {
    const char *schema;       /* SQL of its tables */
    const char *const *large; /* tables that are checked where they are read; ends by NULL */
    const struct bound_range *ranges; /* of other columns: BOUND_NUMBER; ends by a NULL column */
};

/* Opens `path` for queries that end, and begins them (bound_begin). `flags` are sqlite3_open_v2's.
 * Returns SQLite's code; the caller closes *db with sqlite3_close in every case. */
int bound_open(sqlite3 **db, const char *path, int flags);

/* 0, or -EBADMSG or -ENOMEM with words that follow the file's name: "is refused: it has a computed
 * column", "is refused: it has -1 as id in row 2 of table rank, which is not from 0 to 4095". */
int bound_check(sqlite3 *db, const struct bound_kind *kind, char *why, size_t size);

/* Gives queries through `db` the full allowance of its file. All handles of the process share the
 * largest allowance. A long-lived process (the viewer, a sweep) calls it again for each action. Any
 * thread. */
void bound_begin(sqlite3 *db);

/* Removes the limit, for queries that the user wrote: they may be long, and Ctrl-C ends them. */
void bound_end(sqlite3 *db);

/* Whether the number in column `i` of the row lies within `most` of zero; NULL does. If not,
 * bound_spent says so from now on. */
int bound_takes(sqlite3_stmt *q, int i, int64_t most);

/* Why queries ended early ("its queries ..."); NULL: none did. A constant string. */
const char *bound_spent(void);
