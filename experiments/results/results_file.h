/* Results files: SQLite, one schema (experiments/results/schema.sql). */
#ifndef MK_RESULTS_FILE_H
#define MK_RESULTS_FILE_H

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

/* Opens one for reading. 0, or -errno with one sentence. The caller closes *db with
 * sqlite3_close. */
int results_open(sqlite3 **db, const char *path, char *error, size_t size);

/* Opens one to add to; makes it where there is none or an empty one. Every change is on the disk
 * when the call that makes it returns, so that nothing is lost with the process. */
int results_create(sqlite3 **db, const char *path, char *error, size_t size);

/* Holds a file of results, which may not be there yet, against other sweeps (readers are let in): a
 * lock of the file, which ends with the process. 0, or -errno with a sentence: -EBUSY where another
 * sweep holds it. */
struct results_hold {
    const char *path; /* the caller's */
    int fd, made;     /* made: it was not there */
};
int results_hold(struct results_hold *h, const char *path, char *error, size_t size);

/* Gives it back, once nothing in this process has it open. A file that was not there before and has
 * no job goes. */
void results_release(struct results_hold *h);

/* Prepares `sql` and binds what follows by the letters of `types`: t const char * (NULL is NULL),
 * i int64_t, d double (NaN is NULL). NULL where that fails; sqlite3_step of NULL says so, too. */
sqlite3_stmt *results_ask(sqlite3 *db, const char *sql, const char *types, ...);

/* The same, run to its end. 0 or -EIO. */
int results_do(sqlite3 *db, const char *sql, const char *types, ...);

/* The first column of the first row, or `missing`. */
int64_t results_integer(sqlite3 *db, int64_t missing, const char *sql, const char *types, ...);

#endif
