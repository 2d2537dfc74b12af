#include "experiments/common/picture.h"
#include "core/base/scoped.h"
#include "core/base/sentence.h"
#include "experiments/common/process.h"
#include "experiments/common/trace_output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* picture.py, so that the binary needs no other file */
extern const char picture_shared[];
__asm__(".section .rodata\n.global picture_shared\npicture_shared:\n"
        ".incbin \"experiments/common/picture.py\"\n.byte 0\n"
        ".size picture_shared, . - picture_shared\n.type picture_shared, @object\n.previous\n");

static int picture_is(const char *path, const char *ending)
{
    const char *dot = strrchr(path, '.');
    return dot && !strcasecmp(dot, ending);
}

int picture_check_path(const char *option, const char *path, char *error, size_t size)
{
    if (picture_is(path, ".png") || picture_is(path, ".svg"))
        return 0;
    return mk_fail(-EINVAL, error, size, "%s must end in .png or .svg", option);
}

static int picture_write_script(FILE *out, void *script, char *error, size_t size)
{
    (void)error, (void)size;
    fprintf(out, "%s\n%s", picture_shared, (const char *)script);
    return 0;
}

/* A file in memory, and at its beginning. Its number, or -errno with a sentence. */
static int picture_written(int (*write)(FILE *out, void *context, char *error, size_t size),
                           void *context, char *error, size_t size)
{
    int fd = memfd_create("picture", 0), rc = 0; /* Python opens it by its number */
    MK_CLOSED FILE *f = fd < 0 ? NULL : fdopen(dup(fd), "w");
    if (f && !(rc = write(f, context, error, size)) && !fflush(f) && !ferror(f) &&
        lseek(fd, 0, SEEK_SET) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    if (rc == -ENOMEM)
        snprintf(error, size, "no memory for the picture");
    return rc ? rc : mk_fail(-EIO, error, size, "no memory for the picture: %s", strerror(errno));
}

/* Runs a script with its data, and writes what it draws to `out`. */
static int picture_run(int script, int data, int said, const char *path, FILE *out, char *error,
                       size_t size)
{
    char name[32], piece[65536], last[512],
        *form = !path                      ? "data"
                : picture_is(path, ".svg") ? "svg"
                                           : "png";
    int drawn[2], rc = 0;
    snprintf(name, sizeof name, "/dev/fd/%d", script);
    if (pipe2(drawn, O_CLOEXEC))
        return mk_fail(-EIO, error, size, "cannot start python3: %s", strerror(errno));
    const struct process_how how = {.program = "python3",
                                    .words = (char *[]){"python3", name, form, NULL},
                                    .in = data,
                                    .out = drawn[1],
                                    .err = said,
                                    .death = SIGKILL};
    pid_t child = process_start(&how);
    close(drawn[1]);
    for (ssize_t n; child > 0 && !rc && (n = read(drawn[0], piece, sizeof piece)) > 0;)
        if (fwrite(piece, 1, (size_t)n, out) < (size_t)n || fflush(out))
            rc = mk_fail(-errno, error, size, "cannot write '%s': %s", path ? path : "it",
                         strerror(errno));
    close(drawn[0]);
    if (child < 0)
        return mk_fail(-EIO, error, size, "cannot start python3: %s", strerror(-child));
    int status = process_end(child), code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (rc || !code)
        return rc;
    process_said(said, last, sizeof last);
    if (code == 127)
        return mk_fail(-EIO, error, size,
                       "python3 is not installed (packages python3 and python3-matplotlib)");
    if (code == 2 || code == 3)
        return mk_fail(code == 2 ? -EINVAL : -EIO, error, size, "%s", last);
    return mk_fail(-EIO, error, size, "python3 could not draw '%s': %s", path ? path : "it", last);
}

int picture_draw(const struct picture *p, const char *path, char *error, size_t size)
{
    struct trace_output o;
    int data = picture_written(p->write, p->context, error, size);
    if (data < 0)
        return data;
    int script = picture_written(picture_write_script, (void *)p->script, error, size);
    int said = process_said_open();
    int rc = script < 0 ? script : trace_output_open(&o, path, 0, error, size);
    if (!rc) {
        rc = picture_run(script, data, said, path, o.out, error, size);
        rc = trace_output_close(&o, rc, error, size);
    }
    close(data);
    if (script >= 0)
        close(script);
    if (said >= 0)
        close(said);
    return rc;
}
