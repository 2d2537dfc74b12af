#include "core/base/file_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STEP_MS = 20 };

/* PATH.lock. 0 or -ENAMETOOLONG. */
static int lock_name(char name[PATH_MAX], const char *path)
{
    return snprintf(name, PATH_MAX, "%s.lock", path) < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* 0, -EAGAIN: not now; or -errno. */
static int lock_try(int *out, const char *name)
{
    struct stat held, named;
    int fd = open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return -errno;
    int rc = !flock(fd, LOCK_EX | LOCK_NB)            ? 0
             : errno == EWOULDBLOCK || errno == EINTR ? -EAGAIN
                                                      : -errno;
    /* who held it may have taken the name away just now */
    if (!rc && (fstat(fd, &held) || stat(name, &named) || held.st_ino != named.st_ino ||
                held.st_dev != named.st_dev))
        rc = -EAGAIN;
    if (rc)
        close(fd);
    else
        *out = fd;
    return rc;
}

int mk_file_lock(int *fd, const char *path, int ms)
{
    char name[PATH_MAX];
    *fd = -1;
    int rc = lock_name(name, path);
    if (rc)
        return rc;
    while ((rc = lock_try(fd, name)) == -EAGAIN && ms > 0) {
        ms -= STEP_MS;
        nanosleep(&(struct timespec){0, STEP_MS * 1000000l}, NULL);
    }
    return rc == -EAGAIN ? -EBUSY : rc;
}

void mk_file_unlock(int fd, const char *path)
{
    char name[PATH_MAX];
    if (fd < 0)
        return;
    if (!lock_name(name, path))
        unlink(name);
    close(fd);
}
