#include "core/base/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char unfinished[4096]; /* fixed: a signal's handler reads it */
static int is_unfinished;

static void new_file_set_unfinished(const char *temporary)
{
    __atomic_store_n(&is_unfinished, 0, __ATOMIC_SEQ_CST);
    if (!temporary || strlen(temporary) >= sizeof unfinished)
        return;
    strcpy(unfinished, temporary);
    __atomic_store_n(&is_unfinished, 1, __ATOMIC_SEQ_CST);
}

const char *mk_new_file_unfinished(void)
{
    return __atomic_load_n(&is_unfinished, __ATOMIC_SEQ_CST) ? unfinished : NULL;
}

/* Closes it and forgets its names. */
static void new_file_end(struct mk_new_file *f)
{
    if (f->temporary && !strcmp(f->temporary, unfinished)) /* not that of a file opened later */
        new_file_set_unfinished(NULL);
    if (f->fd >= 0)
        close(f->fd);
    free(f->temporary);
    free(f->target);
    *f = (struct mk_new_file){.fd = -1};
}

static int new_file_make(struct mk_new_file *f, const char *path, mode_t mode)
{
    struct stat old;
    f->target = realpath(path, NULL);
    const int there = f->target && !stat(f->target, &old);
    if (there && !S_ISREG(old.st_mode))
        return S_ISDIR(old.st_mode) ? -EISDIR : -EEXIST;
    if (!f->target)
        f->target = strdup(path);
    if (!f->target || asprintf(&f->temporary, "%s.%ld.partial", f->target, (long)getpid()) < 0) {
        f->temporary = NULL;
        return -ENOMEM;
    }
    unlink(f->temporary); /* of a process that had this id and was killed */
    new_file_set_unfinished(f->temporary);
    /* O_EXCL: a file or link that another process put there is not written to */
    f->fd = open(f->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    return f->fd < 0 || (there && fchmod(f->fd, old.st_mode & 0777)) ? -errno : 0;
}

int mk_new_file_open(struct mk_new_file *f, const char *path, mode_t mode)
{
    *f = (struct mk_new_file){.fd = -1};
    int rc = new_file_make(f, path, mode);
    if (rc)
        mk_new_file_drop(f);
    return rc;
}

FILE *mk_new_file_stream(const struct mk_new_file *f)
{
    int copy = fcntl(f->fd, F_DUPFD_CLOEXEC, 3);
    FILE *out = copy < 0 ? NULL : fdopen(copy, "w");
    if (!out && copy >= 0)
        close(copy);
    return out;
}

int mk_new_file_keep(struct mk_new_file *f)
{
    if (fsync(f->fd) || rename(f->temporary, f->target))
        return -errno;
    new_file_end(f);
    return 0;
}

void mk_new_file_drop(struct mk_new_file *f)
{
    if (f->temporary && f->fd >= 0)
        unlink(f->temporary);
    new_file_end(f);
}
