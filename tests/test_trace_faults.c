/* Whatever goes wrong under a trace that is being written (no room, a limit, a directory that is
 * not writable or not there, any single write that fails) ends in a sentence and -errno; no partial
 * file stays, and an older trace of that name is untouched. */
#include "tests/helpers/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/helpers/trace_parts.h"

static struct parts p;
static const struct trace_run run = {.executor = "host"};

static int store(const char *path, char *error, size_t size)
{
    parts_make(&p);
    error[0] = 0;
    return store_parts(p.part, PARTS_RANKS, &run, path, error, size);
}

/* Files of the test's directory whose name says that they are unfinished. */
static int partials(void)
{
    int n = 0;
    DIR *d = opendir(parts_directory);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, ".partial") != NULL;
    if (d)
        closedir(d);
    return n;
}

static void assert_sentence(const char *error, const char *says)
{
    if (!strstr(error, says) || strchr(error, '\n'))
        fail_msg("\"%s\" lacks \"%s\", or is more than a sentence", error, says);
}

CASE(test_no_directory)
{
    char error[512];
    assert_int_equal(store(parts_path("none/t.db"), error, sizeof error), -ENOENT);
    assert_sentence(error, "No such file or directory");
}

CASE(test_read_only_directory)
{
    char error[512], directory[128];
    if (geteuid() == 0) {
        /* Root may write anywhere, but no user may make a file in /proc. */
        int rc = store("/proc/t.db", error, sizeof error);
        assert_true(rc == -ENOENT || rc == -EACCES || rc == -EPERM);
        assert_sentence(error, "cannot create the trace '/proc/t.db");
        return;
    }
    snprintf(directory, sizeof directory, "%s", parts_path("locked"));
    assert_int_equal(mkdir(directory, 0500), 0);
    assert_int_equal(store(parts_path("locked/t.db"), error, sizeof error), -EACCES);
    assert_sentence(error, "Permission denied");
}

CASE(test_directory_in_the_way)
{
    char error[512];
    assert_int_equal(mkdir(parts_path("taken.db"), 0700), 0);
    assert_int_equal(store(parts_path("taken.db"), error, sizeof error), -EISDIR);
    assert_sentence(error, "Is a directory");
    assert_int_equal(partials(), 0);
}

/* As root the rename would put a file in a device's place. */
CASE(test_pipe_in_the_way)
{
    char error[512];
    struct stat st;
    assert_int_equal(mkfifo(parts_path("pipe.db"), 0600), 0);
    assert_int_equal(store(parts_path("pipe.db"), error, sizeof error), -EEXIST);
    assert_sentence(error, "pipe");
    assert_int_equal(partials(), 0);
    assert_true(stat(parts_path("pipe.db"), &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(unlink(parts_path("pipe.db")), 0);
}

/* A size limit stands for a full disk at every size, from the first page on. */
CASE(test_file_limit)
{
    char error[512];
    struct rlimit before, now;
    struct stat st;
    assert_int_equal(store(parts_path("old.db"), error, sizeof error), 0);
    assert_int_equal(stat(parts_path("old.db"), &st), 0);
    off_t whole = st.st_size;
    ino_t inode = st.st_ino;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    int failed = 0;
    for (off_t limit = 0; limit < whole; limit += 24 * 1024) {
        now = before;
        now.rlim_cur = (rlim_t)limit;
        setrlimit(RLIMIT_FSIZE, &now);
        int rc = store(parts_path("old.db"), error, sizeof error);
        setrlimit(RLIMIT_FSIZE, &before);
        if (rc != -EFBIG && rc != -ENOSPC && rc != -EIO)
            fail_msg("limit %lld: %d (%s)", (long long)limit, rc, error);
        assert_sentence(error, "the trace could not be written");
        assert_int_equal(partials(), 0);
        assert_int_equal(stat(parts_path("old.db"), &st), 0);
        assert_int_equal(st.st_ino, inode);
        failed++;
    }
    assert_true(failed > 5);
    assert_int_equal(store(parts_path("old.db"), error, sizeof error), 0);
}

CASE(test_dev_full)
{
    char error[512];
    struct stat st;
    if (stat("/dev/full", &st)) {
        printf("no /dev/full here\n");
        skip();
    }
    /* The temporary lies beside its target, so /dev must not get one: a name that cannot be made
     * there says so. */
    int rc = store("/dev/full/t.db", error, sizeof error);
    assert_int_equal(rc, -ENOTDIR);
    assert_sentence(error, "Not a directory");
}

/* A file system whose n-th write, sync or truncation fails, over SQLite's own. */
static struct {
    int countdown, failed;
    sqlite3_io_methods methods;
    const sqlite3_io_methods *real;
} faulty;

static int fails(void)
{
    if (faulty.countdown < 0 || faulty.countdown-- > 0)
        return 0;
    faulty.countdown = 0; /* a broken disk stays broken */
    faulty.failed = 1;
    return 1;
}

static int faulty_write(sqlite3_file *f, const void *data, int n, sqlite3_int64 at)
{
    return fails() ? SQLITE_FULL : faulty.real->xWrite(f, data, n, at);
}

static int faulty_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    return fails() ? SQLITE_IOERR_TRUNCATE : faulty.real->xTruncate(f, size);
}

static int faulty_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    sqlite3_vfs *real = vfs->pAppData;
    int rc = real->xOpen(real, name, f, flags, out);
    if (rc == SQLITE_OK && f->pMethods) {
        faulty.real = f->pMethods;
        faulty.methods = *f->pMethods;
        faulty.methods.xWrite = faulty_write;
        faulty.methods.xTruncate = faulty_truncate;
        f->pMethods = &faulty.methods;
    }
    return rc;
}

CASE(test_every_write)
{
    char error[512];
    sqlite3_vfs *real = sqlite3_vfs_find(NULL), vfs = *real;
    int rounds = 0;
    vfs.zName = "faulty";
    vfs.pAppData = real;
    vfs.xOpen = faulty_open;
    assert_int_equal(sqlite3_vfs_register(&vfs, 1), SQLITE_OK);
    for (int n = 0;; n++, rounds++) {
        faulty.countdown = n;
        faulty.failed = 0;
        int rc = store(parts_path("every.db"), error, sizeof error);
        faulty.countdown = -1;
        if (!faulty.failed) {
            assert_int_equal(rc, 0);
            break;
        }
        if (rc != -ENOSPC && rc != -EIO)
            fail_msg("write %d failed: %d (%s)", n, rc, error);
        assert_sentence(error, "the trace could not be written");
        assert_int_equal(partials(), 0);
        assert_int_equal(access(parts_path("every.db"), F_OK), -1);
    }
    sqlite3_vfs_unregister(&vfs);
    sqlite3_vfs_register(real, 1);
    assert_true(rounds > 10);
}

/* The n-th allocation of SQLite fails, for a spread of n. */
static sqlite3_mem_methods memory;
static int allocations;

static void *failing_malloc(int n)
{
    return allocations >= 0 && allocations-- <= 0 ? (allocations = 0, NULL) : memory.xMalloc(n);
}

static void *failing_realloc(void *old, int n)
{
    return allocations >= 0 && allocations-- <= 0 ? (allocations = 0, NULL)
                                                  : memory.xRealloc(old, n);
}

CASE(test_memory)
{
    char error[512];
    int failures = 0;
    sqlite3_shutdown();
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_GETMALLOC, &memory), SQLITE_OK);
    sqlite3_mem_methods methods = memory;
    methods.xMalloc = failing_malloc;
    methods.xRealloc = failing_realloc;
    allocations = -1;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods), SQLITE_OK);
    sqlite3_initialize();
    for (int n = 0; n < 20000; n += 1 + n / 8) {
        allocations = n;
        int rc = store(parts_path("memory.db"), error, sizeof error);
        allocations = -1;
        if (rc) {
            failures++;
            if (rc != -ENOMEM && rc != -EIO && rc != -ENOSPC)
                fail_msg("allocation %d failed: %d (%s)", n, rc, error);
            assert_int_equal(partials(), 0);
        }
    }
    assert_true(failures > 10);
    assert_int_equal(store(parts_path("memory.db"), error, sizeof error), 0);
    sqlite3_shutdown();
    sqlite3_config(SQLITE_CONFIG_MALLOC, &memory);
}

FIXTURE(NULL, parts_clean)
