/* Checks of the files that a command will write, before a run starts: a mistyped path should not
 * waste a run, nor replace a device node. */
#pragma once

#include <stddef.h>
#include <stdio.h>

enum output_kind {
    OUTPUT_WRITTEN, /* opened and written: may be a pipe or /dev/stdout */
    /* written under another name in the same folder and renamed: must be a regular file, if any */
    OUTPUT_REPLACED,
};

/* `option` is how sentences call it ("--json"). A path of NULL is none, and right. Leaves nothing
 * behind but, where `path` is a link to a file that is not there yet, that file. 0, or -EINVAL with
 * a sentence. */
int output_check(const char *option, const char *path, enum output_kind kind, char *error,
                 size_t size);

/* Whether a file made under another name can take its place: not that of a device or pipe, nor of
 * what standard output is, since a process that has it open would go on with the old one. NULL:
 * no. */
int output_replaceable(const char *path);

/* The stream for a table that people read, beside two result files (NULL: none): standard output,
 * but standard error if one of the files is standard output, which is then for the result alone.
 * NULL if `quiet`. Call it before the files are opened. */
FILE *output_table(int quiet, const char *one, const char *other);

/* Ends a table. 0, or -errno where not all of it could be written. NULL is none. */
int output_table_end(FILE *table);

/* Opens a file and empties it; but if it is the same file as standard output or error
 * (/dev/stdout), it appends instead. NULL with errno. */
FILE *output_open(const char *path);

/* Closes `f`, which is all of the file `path` (NULL: standard output, which is only flushed). 0, or
 * -errno where not all of it could be written: then the file is removed, as half of it would
 * mislead, but for a device or a pipe. */
int output_close(FILE *f, const char *path);

/* Whether two of them are one file. NULL is none. */
int output_same(const char *one, const char *other);
