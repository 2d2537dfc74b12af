/* A file that appears whole or not at all: it is written under another name in its folder, and
 * renamed once it is on the disk. Readers see the old file or the whole new one. */
#pragma once

#include <stdio.h>
#include <sys/types.h>

struct mk_new_file {
    char *target;    /* the path, or what it is a link to */
    char *temporary; /* TARGET.PID.partial */
    int fd;          /* read and write */
};

/* Makes it, with the permissions of the file that it will replace, or else with `mode`. 0, or
 * -EISDIR and -EEXIST (a device, pipe or socket: a file would take its place), -ENOMEM, -errno of
 * open; then there is nothing to drop. */
int mk_new_file_open(struct mk_new_file *f, const char *path, mode_t mode);

/* A stream that writes to it, which the caller closes before it keeps or drops the file. NULL with
 * errno. */
FILE *mk_new_file_stream(const struct mk_new_file *f);

/* What was written is flushed to the disk and gets its name. 0, or -errno: it is still to be
 * dropped. */
int mk_new_file_keep(struct mk_new_file *f);

/* Removes it; a file of its name stays as it was. Nothing where it was kept or dropped. */
void mk_new_file_drop(struct mk_new_file *f);

/* For the handler of a signal that ends the process, which removes it: the temporary of the file
 * that was opened last, while it is neither kept nor dropped. NULL: none. */
const char *mk_new_file_unfinished(void);
