/* What mkernel's own queries of an SQLite file may cost at most, as the file may be a stranger's.
 *
 * A file brings its schema: a view in a table's place, a computed column or a trigger runs inside
 * mkernel's queries and need not end. So a file has an allowance of SQLite's steps (those of its
 * virtual machine, not seconds: a busy machine refuses nothing) that grows with the file and is
 * four times what honest files take. Once it is spent, every query ends as if it had no more rows,
 * and readers ask bound_spent before they believe what they have. */
#pragma once

#include <sqlite3.h>

/* Gives queries through `db` the allowance of its file, whole again at each call. All handles of
 * the process share the largest allowance. A process that lives long (the viewer, a sweep) calls it
 * for each thing it does. Any thread. */
void bound_begin(sqlite3 *db);

/* Takes the bound off for queries that a person wrote: they may be long, and Ctrl-C ends them. */
void bound_end(sqlite3 *db);

/* What the file's schema has that would run inside mkernel's queries ("a trigger"), NULL where it
 * has nothing of the kind, as every file of mkernel. `schema` is the text of the tables that the
 * file should have. A constant string. */
const char *bound_check(sqlite3 *db, const char *schema);

/* Why queries ended early ("its queries ..."), NULL where none did. A constant string. */
const char *bound_spent(void);
