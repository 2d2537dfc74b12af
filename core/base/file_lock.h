/* One writer at a time for a file that several processes write anew or add to.
 *
 * The lock is flock(2)'s, on PATH.lock beside the file: the file itself may be replaced, and on NFS
 * a lock of the whole file would shut out SQLite's own. The holder removes PATH.lock; one that a
 * killed process left is taken. It ends with the process. */
#pragma once

/* Waits `ms` at most. 0, or -EBUSY: another process has it; -ENAMETOOLONG; -errno of open and flock
 * (ENOLCK, ENOSYS: the file system knows no locks). *fd is -1 then. Any thread. */
int mk_file_lock(int *fd, const char *path, int ms);

/* Of the path that was locked; nothing where fd is -1. */
void mk_file_unlock(int fd, const char *path);
