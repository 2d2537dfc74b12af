/* A limit on what mkernel's own queries of an SQLite file may cost, because the file may come from
 * somebody else.
 *
 * A file brings its schema: a view in place of a table, a computed column or a trigger runs inside
 * mkernel's queries and may never end. So each file has an allowance of steps of SQLite's virtual
 * machine (not of seconds, which a busy machine would spend). It grows with the file's size and is
 * four times what files of mkernel need. Once it is spent, every query ends as if it had no more
 * rows; readers ask bound_spent before they trust what they have read. */
#pragma once

#include <sqlite3.h>

/* Gives queries through `db` the full allowance of its file. All handles of the process share the
 * largest allowance. A long-lived process (the viewer, a sweep) calls it again for each action. Any
 * thread. */
void bound_begin(sqlite3 *db);

/* Removes the limit, for queries that the user wrote: they may be long, and Ctrl-C ends them. */
void bound_end(sqlite3 *db);

/* What in the file's schema would run inside mkernel's queries ("a trigger"); NULL: nothing, as in
 * every file that mkernel writes. `schema` is the SQL of the tables that the file should have. A
 * constant string. */
const char *bound_check(sqlite3 *db, const char *schema);

/* Why queries ended early ("its queries ..."); NULL: none did. A constant string. */
const char *bound_spent(void);
