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

/* Writes the text to `path` (NULL: standard output). A regular file is replaced as a whole (trace_output.h), and keeps its
 * contents if that fails; to a device, a pipe or the file that is standard output it is appended. 0
 * or -errno. */
int result_close(struct result_file *r, const char *path);

/* Throws it away. */
void result_drop(struct result_file *r);
