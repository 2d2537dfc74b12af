/* Whether a file that a command is to write can be written, asked before anything starts: a
 * typing error should cost no run and no device node. */
#pragma once

#include <stddef.h>
#include <stdio.h>

enum output_kind {
    OUTPUT_WRITTEN, /* opened and written: a pipe or /dev/stdout will do */
    /* made under another name in the same folder and renamed: only a regular file may be there */
    OUTPUT_REPLACED,
};

/* `option` is how sentences call it ("--json"). A path of NULL is none, and right. Leaves nothing
 * behind but, where `path` is a link to a file that is not there yet, that file. 0, or -EINVAL with
 * a sentence. */
int output_check(const char *option, const char *path, enum output_kind kind, char *error,
                 size_t error_size);

/* Whether a file made under another name can take its place: not that of a device or pipe, nor of
 * what standard output is, since a process that has it open would go on with the old one. NULL:
 * no. */
int output_replaceable(const char *path);

/* Where a table for people goes, with two result files beside it (NULL: none): standard output;
 * standard error where a file is standard output, which then holds nothing but the result; NULL,
 * nowhere, where `quiet`. Ask before the files are opened. */
FILE *output_table(int quiet, const char *one, const char *other);

/* Ends a table. 0, or -errno where not all of it could be written. NULL is none. */
int output_table_end(FILE *table);

/* Opens it to write it anew; where it is what standard output or error is (/dev/stdout, whatever
 * that leads to), behind what was written there, instead of over it. NULL with errno. */
FILE *output_open(const char *path);

/* Closes `f`, which is all of the file `path` (NULL: standard output, which is only flushed). 0, or
 * -errno where not all of it could be written: then the file is removed, as half of it would
 * mislead, but for a device or a pipe. */
int output_close(FILE *f, const char *path);

/* Removes what was written to `path` so far, where that is a regular file. NULL is none. */
void output_discard(const char *path);

/* Whether two of them are one file. NULL is none. */
int output_same(const char *one, const char *other);
