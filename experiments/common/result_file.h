/* A result file (--json, --csv): made in memory and written in the end, in full or not at all. */
#pragma once

#include <stdio.h>

struct result_file {
    FILE *out; /* write here */
    char *text;
    size_t bytes;
};

/* 0 or -ENOMEM; nothing is open then. */
int result_open(struct result_file *r);

/* Writes what was made to `path`: a regular file gets it at once (trace_output.h), and keeps what
 * it had where that fails; a device, a pipe, or what standard output is, behind what was written
 * there before. 0 or -errno. */
int result_close(struct result_file *r, const char *path);

/* Throws it away. */
void result_drop(struct result_file *r);
