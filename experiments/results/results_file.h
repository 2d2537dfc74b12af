/* Results files: SQLite, one schema (experiments/results/schema.sql). */
#pragma once

#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>

#include "tracer/bound.h"
#include "tracer/query.h"

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

/* query_do, bounded anew: a sweep lasts for days. */
#define results_do(db, ...) (bound_begin(db), query_do(db, __VA_ARGS__))
