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

/* Opens one to add to, and creates it if there is none or an empty one. Every change is on the disk
 * when its call returns, so that nothing is lost if the process dies. */
int results_create(sqlite3 **db, const char *path, char *error, size_t size);

/* Locks a file of results, which need not exist yet, against other sweeps, but not against readers.
 * The lock ends with the process. 0, or -errno with a sentence: -EBUSY: another sweep has it. */
struct results_hold {
    const char *path; /* the caller's */
    int fd, made;     /* made: it was not there */
};
int results_hold(struct results_hold *h, const char *path, char *error, size_t size);

/* The same, and waits a minute at most for who has it: a sweep, or a task that merges. */
int results_hold_soon(struct results_hold *h, const char *path, char *error, size_t size);

/* Unlocks it, after this process has closed it. Removes a file that results_hold created and that
 * has no job. */
void results_release(struct results_hold *h);

/* query_do with a fresh bound (tracer/bound.h): a sweep may last for days. */
#define results_do(db, ...) (bound_begin(db), query_do(db, __VA_ARGS__))
