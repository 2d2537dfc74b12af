/* A heat map: the time by two settings. A cell is one point. */
#include "experiments/common/gnuplot.h"
#include "core/sentence.h"
#include "experiments/results/results_plot.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define WORDS 40u

static int plot_heat_axis(const struct plot *p, const char *option, const char *name,
                          const char **words, uint32_t *count, char *error, size_t size)
{
    if (!name)
        return mk_fail(-EINVAL, error, size, "heat has two axes: --x NAME and --y NAME");
    *count = plot_words(p, name, words, WORDS);
    if (*count < 2)
        return mk_fail(-EINVAL, error, size, "%s %s: it is the same in all points", option, name);
    return 0;
}

static void plot_heat_tics(FILE *out, const char *axis, const char **words, uint32_t count)
{
    fprintf(out, "set %stics (", axis);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, "%s", i ? ", " : "");
        gnuplot_quoted(out, words[i]);
        fprintf(out, " %u", i);
    }
    fprintf(out, ") scale 0%s\n", *axis == 'x' ? " rotate by -25 left" : "");
}

/* The point of a cell: NULL, or -EINVAL in *rc where there are two. */
static const struct result_point *plot_heat_cell(const struct plot *p, const char *x, const char *y,
                                                 int *rc, char *error, size_t size)
{
    const struct result_point *found = NULL;
    for (uint32_t i = 0; i < p->results->count; i++) {
        const struct result_point *point = &p->results->points[i];
        if (!point->good || strcmp(result_value(point, p->x), x) ||
            strcmp(result_value(point, p->y), y))
            continue;
        if (found) {
            snprintf(error, size,
                     "several points have %s=%s and %s=%s (%s; %s): choose with --only", p->x, x,
                     p->y, y, found->label, point->label);
            *rc = -EINVAL;
        }
        found = point;
    }
    return found;
}

int plot_heat(const struct plot *p, FILE *out, char *error, size_t size)
{
    const char *xs[WORDS], *ys[WORDS];
    uint32_t columns, rows, cells = 0;
    int rc = plot_heat_axis(p, "--x", p->x, xs, &columns, error, size);
    rc = rc ? rc : plot_heat_axis(p, "--y", p->y, ys, &rows, error, size);
    if (rc)
        return rc;
    plot_head(p, out, "ms a launch", 180 + 60 * (int)rows);
    plot_heat_tics(out, "x", xs, columns);
    plot_heat_tics(out, "y", ys, rows);
    fputs("set xlabel ", out);
    gnuplot_quoted(out, p->x);
    fputs(" noenhanced\nset ylabel ", out);
    gnuplot_quoted(out, p->y);
    fprintf(out,
            " noenhanced\nunset grid\nunset key\n"
            "set xrange [-0.5:%u.5]\nset yrange [-0.5:%u.5]\nset cblabel 'ms'\n",
            columns - 1, rows - 1);
    /* cividis (Nunez, Anderton, Renslow, 2018): the same to those who do not see all colours */
    fprintf(out, "set palette defined (0 '#fee838', 0.25 '#bcae6c', 0.5 '#7d7c78', 0.75 '#414d6b', "
                 "1 '#00204c')\n$cells << END\n");
    double least = INFINITY, most = 0;
    for (uint32_t y = 0; y < rows; y++)
        for (uint32_t x = 0; x < columns; x++) {
            const struct result_point *point = plot_heat_cell(p, xs[x], ys[y], &rc, error, size);
            if (rc)
                return rc;
            if (!point)
                continue;
            cells++;
            least = fmin(least, point->ms.median);
            most = fmax(most, point->ms.median);
            fprintf(out, "%u %u %.9g\n", x, y, point->ms.median);
        }
    fprintf(out, "END\n");
    if (!cells)
        return mk_fail(-ENODATA, error, size, "no point has a time");
    /* A box a point: an image would move the cells behind a hole. White words where it is dark. */
    fprintf(out,
            "set style fill solid noborder\nplot $cells using 1:2:($1-0.5):($1+0.5):($2-0.5):"
            "($2+0.5):3 with boxxyerror lc palette, \\\n  $cells using 1:2:(sprintf('%%.3g', "
            "$3)):($3 > %.9g ? 0xffffff : 0x000000) with labels tc rgb variable\n",
            (least + most) / 2);
    return 0;
}
