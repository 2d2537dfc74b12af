#include "experiments/common/picture.h"
#include "experiments/common/gnuplot.h"

#include <errno.h>
#include <stdlib.h>

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
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    int rc = f ? script(f, context, error, size) : -ENOMEM;
    if (f && fclose(f) && !rc)
        rc = -ENOMEM;
    if (rc == -ENOMEM)
        snprintf(error, size, "no memory for the picture");
    rc = rc ? rc : gnuplot_picture(text, path, error, size);
    free(text);
    return rc;
}
