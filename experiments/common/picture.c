#include "experiments/common/picture.h"
#include "core/scoped.h"
#include "core/sentence.h"
#include "experiments/common/gnuplot.h"
#include "experiments/common/trace_output.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const picture_colours[PICTURE_COLOURS] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#000000"};

void picture_head(FILE *out, const char *path, int named, const char *title, int width, int height)
{
    int svg = gnuplot_is_svg(path);
    fprintf(out, "set terminal %s size %d,%d%s\n", svg ? "svg" : "pngcairo", width, height,
            svg ? " background '#ffffff'" : "");
    if (named) {
        /* what follows a `|` would be a command of the shell */
        fputs(*path == '|' ? "set output './' . " : "set output ", out);
        gnuplot_quoted(out, path);
        fputc('\n', out);
    }
    fputs("set title ", out);
    gnuplot_quoted(out, title);
    fputs(" noenhanced\n", out);
}

int picture_draw(const char *path,
                 int (*script)(FILE *out, void *context, char *error, size_t size), void *context,
                 char *error, size_t size)
{
    struct trace_output o;
    int fd = memfd_create("plot", 0); /* gnuplot opens it by its number */
    MK_CLOSED FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        snprintf(error, size, "cannot write gnuplot's script: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return -EIO;
    }
    int rc = script(f, context, error, size);
    if (rc == -ENOMEM)
        snprintf(error, size, "no memory for the picture");
    if (!rc && (fflush(f) || ferror(f)))
        rc = mk_fail(-EIO, error, size, "cannot write gnuplot's script: %s", strerror(errno));
    if (!rc && !(rc = trace_output_open(&o, path, 0, error, size))) {
        rc = gnuplot_run(fd, o.out, path, error, size);
        rc = trace_output_close(&o, rc, error, size);
    }
    return rc;
}
