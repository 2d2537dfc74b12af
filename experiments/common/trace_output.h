/* Where an export or a picture goes: a file appears whole or not at all. */
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "core/base/new_file.h"

struct trace_output {
    FILE *out; /* write here */
    /* what follows is its own */
    struct mk_new_file file; /* no temporary: written directly, by fd */
    pid_t gzip;              /* the program that compresses what is written; 0: none */
    int said;                /* what it complains, read end */
};

/* Whether `path` can be written, asked before anything starts: as output_check. */
int trace_output_check(const char *path, char *error, size_t size);

/* Opens `path` for writing. A regular file is written under another name in its folder, which is
 * removed if a signal ends this process; a device, a pipe and standard output
 * (NULL) are written directly. With `gzip` the output passes through that program, and SIGPIPE is
 * ignored from then on, so that a gzip that has ended is an error of write. 0, or -errno with a
 * sentence and nothing to close. */
int trace_output_open(struct trace_output *o, const char *path, int gzip, char *error, size_t size);

/* Closes it. rc 0: all of it was written; it gets its name once it is on the disk. Else it is
 * removed, and a file of that name stays as it was. Returns rc, or -errno with a sentence if
 * writing failed. */
int trace_output_close(struct trace_output *o, int rc, char *error, size_t size);
