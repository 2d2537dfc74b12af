#include "experiments/common/output_file.h"
#include "core/base/new_file.h"
#include "core/base/sentence.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int output_file_refuse(const char *option, const char *path, const char *why, char *error,
                              size_t size)
{
    return mk_fail(-EINVAL, error, size, "%s %s cannot be written: %s", option, *path ? path : "''",
                   why);
}

/* Whether a new file can be made there. It is tried under the name that it has until it is whole: a
 * command that runs beside this one may make the file itself at any moment and write to it, and
 * what it wrote would go with the trial. 0 or an errno. */
static int output_file_try(const char *path)
{
    struct mk_new_file file;
    char target[PATH_MAX];
    const char *name = strrchr(path, '/');
    if (name && !name[1])
        return EISDIR;
    if (access(path, F_OK) && readlink(path, target, sizeof target) >= 0) {
        /* a link to a file that is not there: made, as writing to it would */
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0 || close(fd))
            return errno;
    }
    int rc = mk_new_file_open(&file, path, 0600);
    mk_new_file_drop(&file);
    return -rc;
}

/* The standard descriptor that is this file; -1: none. */
static int output_file_standard(const struct stat *file)
{
    struct stat s;
    for (int fd = 0; fd <= 2; fd++)
        if (!fstat(fd, &s) && s.st_dev == file->st_dev && s.st_ino == file->st_ino)
            return fd;
    return -1;
}

int output_replaceable(const char *path)
{
    struct stat there;
    return path &&
           (stat(path, &there) || (S_ISREG(there.st_mode) && output_file_standard(&there) < 0));
}

int output_check(const char *option, const char *path, enum output_kind kind, char *error,
                 size_t size)
{
    struct stat file;
    if (!path)
        return 0;
    if (!*path)
        return output_file_refuse(option, path, "it has no name", error, size);
    if (!strcmp(path, "-"))
        return output_file_refuse(option, path, "standard output is /dev/stdout", error, size);
    int there = stat(path, &file) == 0, why = there ? 0 : errno;
    if (!there && why != ENOENT)
        return output_file_refuse(option, path, strerror(why), error, size);
    if (there && S_ISDIR(file.st_mode))
        return output_file_refuse(option, path, "it is a folder", error, size);
    if (there && kind == OUTPUT_REPLACED && !S_ISREG(file.st_mode))
        return output_file_refuse(option, path,
                                  "it is a device, pipe or socket, and a file would take its place",
                                  error, size);
    if (there && kind == OUTPUT_REPLACED && output_file_standard(&file) >= 0)
        return output_file_refuse(
            option, path, "it is standard input, output or error, and a file would take its place",
            error, size);
    if (there && access(path, W_OK))
        return output_file_refuse(option, path, strerror(errno), error, size);
    why = kind == OUTPUT_REPLACED || !there ? output_file_try(path) : 0;
    return why ? output_file_refuse(option, path, strerror(why), error, size) : 0;
}

/* Whether what is written to `path` comes out where standard output leads, be it by /dev/stdout or
 * by the name of its file. Not where both are thrown away. */
static int output_file_leads_to_stdout(const char *path)
{
    struct stat file, out;
    return path && !stat(path, &file) && !fstat(STDOUT_FILENO, &out) && file.st_dev == out.st_dev &&
           file.st_ino == out.st_ino && (!S_ISCHR(out.st_mode) || isatty(STDOUT_FILENO));
}

FILE *output_table(int quiet, const char *one, const char *other)
{
    return quiet                                                                    ? NULL
           : output_file_leads_to_stdout(one) || output_file_leads_to_stdout(other) ? stderr
                                                                                    : stdout;
}

int output_table_end(FILE *table)
{
    errno = 0;
    return table && (fflush(table) || ferror(table)) ? (errno ? -errno : -EIO) : 0;
}

FILE *output_open(const char *path)
{
    struct stat file;
    int fd = stat(path, &file) ? -1 : output_file_standard(&file);
    if (fd <= 0)
        return fopen(path, "we");
    fflush(stdout);
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
    if (!f && copy >= 0)
        close(copy);
    return f;
}

/* Removes what was written to `path` so far, where that is a regular file. NULL is none. */
static void output_file_discard(const char *path)
{
    struct stat written;
    if (path && !lstat(path, &written) && S_ISREG(written.st_mode))
        unlink(path);
}

int output_close(FILE *f, const char *path)
{
    errno = 0;
    int failed = fflush(f) != 0 || ferror(f), error = errno ? errno : EIO;
    if (path && fclose(f) != 0 && !failed) {
        failed = 1;
        error = errno;
    }
    if (failed)
        output_file_discard(path);
    return failed ? -error : 0;
}

int output_same(const char *one, const char *other)
{
    struct stat a, b;
    if (!one || !other)
        return 0;
    return !strcmp(one, other) || (!stat(one, &a) && !stat(other, &b) && S_ISREG(a.st_mode) &&
                                   a.st_dev == b.st_dev && a.st_ino == b.st_ino);
}
