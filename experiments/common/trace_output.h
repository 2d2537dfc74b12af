/* Where an export or a picture goes: a file appears whole or not at all. */
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct trace_output {
    FILE *out; /* write here */
    /* what follows is its own */
    /* the file that `temporary` becomes; NULL where it is written directly */
    char *target, *temporary;
    int fd;     /* of the file itself; -1: standard output's */
    pid_t gzip; /* the program that compresses what is written; 0: none */
    int said;   /* what it complains, read end */
};

/* Whether `path` can be written, asked before anything starts: as output_check. */
int trace_output_check(const char *path, char *error, size_t error_size);

/* Opens `path` for writing: where it is to be a regular file, under another name beside it, which a
 * signal that ends this process takes away (trace_unfinished); else (NULL is standard output; a
 * device, a pipe) directly. With `gzip` what is written passes through that program, and SIGPIPE is
 * ignored from then on: a gzip that ended is an error of write. 0, or -errno with a sentence; then
 * there is nothing to close. */
int trace_output_open(struct trace_output *o, const char *path, int gzip, char *error,
                      size_t error_size);

/* Ends it. rc 0: all of it was written, and gets its name once the disk has it. Else it is thrown
 * away, and the file that had the name stays as it was. Returns rc, or -errno with a sentence where
 * writing failed. */
int trace_output_close(struct trace_output *o, int rc, char *error, size_t error_size);
