/* Functions of `mkernel results` that `mkernel sweep` uses, too. */
#pragma once

#include <stddef.h>

/* Prints the table of a file of results; `only`: of points that match ("op=ag_gemm;nodes=2"), NULL
 * for all. An exit status, with a sentence on stderr where it is not 0. */
int results_show(const char *path, const char *only);

/* Compares `path` with the results in `expected`, point by point. Prints what got slower, and then
 * returns status 1. */
int results_expect(const char *path, const char *expected);

/* Whether it is a file of results. 0, or -errno with a sentence. */
int results_check(const char *path, char *error, size_t size);
