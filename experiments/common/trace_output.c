#include "experiments/common/trace_output.h"
#include "core/base/scoped.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiments/common/output_file.h"
#include "experiments/common/process.h"
#include "tracer/trace.h"

int trace_output_check(const char *path, char *error, size_t size)
{
    return output_check("--out", path, output_replaceable(path) ? OUTPUT_REPLACED : OUTPUT_WRITTEN,
                        error, size);
}

/* Puts gzip between o->out and `file`. 0 or -errno. */
static int trace_output_start_gzip(struct trace_output *o, int file)
{
    int data[2], said[2];
    if (pipe2(data, O_CLOEXEC))
        return -errno;
    if (pipe2(said, O_CLOEXEC)) {
        int rc = -errno;
        close(data[0]);
        close(data[1]);
        return rc;
    }
    char *const words[] = {"gzip", "-c", NULL};
    /* killed with this process: the end of its input alone would look like the end of the trace */
    const struct process_how how = {.program = "gzip",
                                    .words = words,
                                    .in = data[0],
                                    .out = file,
                                    .err = said[1],
                                    .death = SIGKILL};
    fflush(stdout);
    pid_t gzip = process_start(&how);
    int rc = gzip < 0 ? gzip : 0;
    o->gzip = rc ? 0 : gzip;
    close(data[0]);
    close(said[1]);
    o->said = said[0];
    o->out = rc ? NULL : fdopen(data[1], "w");
    if (!o->out) {
        rc = rc ? rc : -errno;
        close(data[1]);
    }
    return rc;
}

static int trace_output_open_direct(struct trace_output *o, const char *path)
{
    MK_CLOSED FILE *f = path ? output_open(path) : NULL;
    if (path && !f)
        return -errno;
    fflush(stdout);
    o->file.fd = dup(f ? fileno(f) : STDOUT_FILENO);
    return o->file.fd < 0 ? -errno : 0;
}

int trace_output_open(struct trace_output *o, const char *path, int gzip, char *error, size_t size)
{
    *o = (struct trace_output){.file.fd = -1};
    int rc = output_replaceable(path) ? mk_new_file_open(&o->file, path, 0666)
                                      : trace_output_open_direct(o, path);
    if (!rc && gzip) {
        signal(SIGPIPE, SIG_IGN);
        rc = trace_output_start_gzip(o, o->file.fd);
    } else if (!rc) {
        o->out = mk_new_file_stream(&o->file);
        rc = o->out ? 0 : -errno;
    }
    if (rc) {
        snprintf(error, size, "cannot write '%s': %s", path ? path : "standard output",
                 strerror(-rc));
        mk_new_file_drop(&o->file);
    }
    return rc;
}

/* Waits for gzip. 0, or -EIO with a sentence that ends in its own reason ("gzip: stdout: No space
 * left on device"). */
static int trace_output_end_gzip(struct trace_output *o, const char *name, char *error, size_t size)
{
    char text[256] = "";
    size_t used = 0;
    int status;
    for (ssize_t n;
         used < sizeof text - 1 && (n = read(o->said, text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)n;
    close(o->said);
    status = process_end(o->gzip);
    if (WIFEXITED(status) && !WEXITSTATUS(status))
        return 0;
    while (used && text[used - 1] == '\n')
        text[--used] = 0;
    const char *reason = strrchr(text, ':');
    if (reason && strchr(reason, '\n'))
        reason = NULL;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        snprintf(error, size, "cannot write %s: gzip is not installed", name);
    else
        snprintf(error, size, "cannot write %s: gzip failed%s", name, reason ? reason : "");
    return -EIO;
}

int trace_output_close(struct trace_output *o, int rc, char *error, size_t size)
{
    const char *name = o->file.target ? o->file.target : "standard output";
    char unused[8];
    int lost = 0;
    if (rc && o->gzip)
        kill(o->gzip, SIGKILL); /* what is cut shall not look whole */
    errno = 0;
    if (fflush(o->out) || ferror(o->out))
        lost = errno ? errno : EIO;
    fclose(o->out);
    o->out = NULL;
    if (o->gzip && trace_output_end_gzip(o, name, rc ? unused : error, rc ? sizeof unused : size) &&
        !rc)
        rc = -EIO; /* where `lost` says that the pipe broke, this says why */
    if (!rc && !lost && o->file.temporary)
        lost = -mk_new_file_keep(&o->file);
    if (!rc && lost) {
        snprintf(error, size, "cannot write %s: %s", name, strerror(lost));
        rc = -lost;
    }
    mk_new_file_drop(&o->file);
    return rc;
}
