/* Time, or efficiency, against size or a setting: a curve for each combination of the others. */
#include "experiments/common/gnuplot.h"
#include "core/scoped.h"
#include "core/sentence.h"
#include "core/sorted.h"
#include "core/words.h"
#include "experiments/common/picture.h"
#include "experiments/results/results_plot.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CURVES 24u
#define WORDS 64u

enum axis { AXIS_SIZE, AXIS_NUMBERS, AXIS_WORDS };

struct curves {
    const struct plot *p;
    enum axis axis;
    const char *words[WORDS];
    uint32_t word_count;
    char *labels[CURVES];
    uint32_t count;
};

static const char *const shapes[] = {"shape", "moe", "attention"};

/* The setting that the x axis is: the one asked for, else a shape; NULL: size. */
static int plot_curves_axis(struct curves *c, char *error, size_t size)
{
    const char *x = c->p->x;
    c->axis = AXIS_SIZE;
    if (!x || !strcmp(x, "size"))
        return 0;
    c->word_count = plot_words(c->p, x, c->words, WORDS);
    if (c->word_count < 2)
        return mk_fail(-EINVAL, error, size, "--x %s: %s", x,
                       c->word_count ? "it is the same in all points" : "no point has it");
    c->axis = AXIS_NUMBERS;
    for (uint32_t i = 0; i < c->word_count; i++) {
        double value;
        if (!plot_is_number(c->words[i], &value) || value <= 0)
            c->axis = AXIS_WORDS;
    }
    return 0;
}

static double plot_curves_x(const struct curves *c, const struct result_point *point)
{
    double value;
    if (c->axis == AXIS_SIZE)
        return isnan(result_size(point)) ? point->figures.flop : result_size(point);
    const char *text = result_value(point, c->p->x);
    if (c->axis == AXIS_NUMBERS)
        return plot_is_number(text, &value) ? value : NAN;
    int word = mk_word(text, c->words, c->word_count);
    return word < 0 ? NAN : word + 1;
}

/* What a curve is called: all settings that vary, but for the one on the x axis. */
static const char *plot_curves_label(const struct curves *c, const struct result_point *point,
                                     char text[RESULT_LABEL])
{
    if (c->axis != AXIS_SIZE)
        return result_label(c->p->results, point, c->p->x, text);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(result_value(point, shapes[i]), "default"))
            return result_label(c->p->results, point, shapes[i], text);
    return result_label(c->p->results, point, NULL, text);
}

static int plot_curves_has(const struct plot *p, const struct result_point *point)
{
    return point->good && (p->kind != PLOT_EFFICIENCY || !isnan(result_efficiency(point))) &&
           (p->kind != PLOT_SPEED || !isnan(result_flops(point)));
}

static int plot_curves_collect(struct curves *c, char *error, size_t size)
{
    char label[RESULT_LABEL];
    for (uint32_t i = 0; i < c->p->results->count; i++) {
        const struct result_point *point = &c->p->results->points[i];
        if (!plot_curves_has(c->p, point) || isnan(plot_curves_x(c, point)))
            continue;
        plot_curves_label(c, point, label);
        if (mk_word(label, (const char *const *)c->labels, c->count) >= 0)
            continue;
        if (c->count == CURVES)
            return mk_fail(-EINVAL, error, size,
                           "more than %u curves: choose with --only, or another --x", CURVES);
        if (!(c->labels[c->count] = strdup(label)))
            return -ENOMEM;
        c->count++;
    }
    if (c->count)
        return 0;
    return mk_fail(-ENODATA, error, size,
                   c->p->kind == PLOT_EFFICIENCY
                       ? "no point has an efficiency: it is known of cuda, sim and traced "
                         "points"
                   : c->p->kind == PLOT_SPEED ? "no point computes"
                                              : "no point has a time");
}

static void plot_curves_data(const struct curves *c, uint32_t curve, FILE *out)
{
    char label[RESULT_LABEL];
    uint32_t used = 0, most = c->p->results->count;
    MK_FREED double(*rows)[4] = calloc(most, sizeof *rows);
    for (uint32_t i = 0; i < most && rows; i++) {
        const struct result_point *point = &c->p->results->points[i];
        double x = plot_curves_x(c, point);
        if (!plot_curves_has(c->p, point) || isnan(x) ||
            strcmp(plot_curves_label(c, point, label), c->labels[curve]))
            continue;
        double *row = rows[used++];
        row[0] = x;
        row[1] = point->ms.median;
        row[2] = point->ms.low;
        row[3] = point->ms.high;
        if (c->p->kind != PLOT_TIME) { /* the longer the time the lower */
            double at_1_ms = c->p->kind == PLOT_SPEED ? point->figures.flop / 1e9
                                                      : result_efficiency(point) * point->ms.median;
            row[1] = at_1_ms / point->ms.median;
            row[2] = at_1_ms / point->ms.high;
            row[3] = at_1_ms / point->ms.low;
        }
    }
    if (rows)
        qsort(rows, used, sizeof *rows, mk_order_numbers);
    fprintf(out, "$curve%u << END\n", curve);
    for (uint32_t i = 0; i < used; i++)
        fprintf(out, "%.9g %.9g %.9g %.9g\n", rows[i][0], rows[i][1], rows[i][2], rows[i][3]);
    fprintf(out, "END\n");
}

#define PUBLISHERS 6u

/* Who has published something of the points that are shown; each once. */
static uint32_t plot_curves_publishers(const struct curves *c, const char *who[PUBLISHERS])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->p->results->count; i++)
        for (uint32_t k = 0; k < c->p->results->points[i].published_count; k++) {
            const char *name = c->p->results->points[i].published[k].who;
            if (mk_word(name, who, count) < 0 && count < PUBLISHERS)
                who[count++] = name;
        }
    return count;
}

/* What one of them has of a curve's points. Returns how much. */
static uint32_t plot_curves_published(const struct curves *c, uint32_t curve, uint32_t w,
                                      const char *who, FILE *out)
{
    char label[RESULT_LABEL];
    uint32_t count = 0;
    for (uint32_t i = 0; i < c->p->results->count; i++) {
        const struct result_point *point = &c->p->results->points[i];
        double x = plot_curves_x(c, point);
        if (isnan(x) || strcmp(plot_curves_label(c, point, label), c->labels[curve]))
            continue;
        for (uint32_t k = 0; k < point->published_count; k++) {
            if (strcmp(point->published[k].who, who))
                continue;
            if (!count++)
                fprintf(out, "$published%u_%u << END\n", w, curve);
            fprintf(out, "%.9g %.9g\n", x, point->published[k].flops / 1e12);
        }
    }
    if (count)
        fprintf(out, "END\n");
    return count;
}

static void plot_curves_axes(const struct curves *c, FILE *out)
{
    if (c->axis == AXIS_WORDS) {
        fprintf(out, "set xtics (");
        for (uint32_t i = 0; i < c->word_count; i++) {
            fprintf(out, "%s", i ? ", " : "");
            gnuplot_quoted(out, c->words[i]);
            fprintf(out, " %u", i + 1);
        }
        fprintf(out, ") rotate by -25 left\nset xrange [0.5:%u.5]\n", c->word_count);
    } else {
        fprintf(out,
                "set logscale x 2\nset autoscale xfix\nset offsets graph 0.03, graph 0.03, 0, 0\n");
        if (c->axis == AXIS_SIZE)
            fprintf(out, "set format x '%%.0b %%BB'\n");
    }
    fprintf(out, "set xlabel ");
    gnuplot_quoted(out, c->axis == AXIS_SIZE
                            ? "size: bytes of the tensor that moves (of one rank: operations)"
                            : c->p->x);
    fprintf(out, ".\"\\n\" noenhanced\n"); /* the key stands below it */
    if (c->p->kind == PLOT_EFFICIENCY)
        fprintf(out, "set yrange [0:*]\nset ylabel 'efficiency: ideal time / time'\n");
    else if (c->p->kind == PLOT_SPEED)
        fprintf(out, "set logscale y\nset ylabel 'TFLOP/s of a rank, with its 95 %% interval'\n");
    else
        fprintf(out, "set logscale y\nset ylabel 'ms a launch, with its 95 %% interval'\n");
}

int plot_curves(const struct plot *p, FILE *out, char *error, size_t size)
{
    struct curves c = {.p = p};
    int rc = plot_curves_axis(&c, error, size);
    rc = rc ? rc : plot_curves_collect(&c, error, size);
    if (!rc) {
        plot_head(p, out, plot_kinds[p->kind], 500 + 24 * (int)((c.count + 1) / 2));
        plot_curves_axes(&c, out);
        for (uint32_t i = 0; i < c.count; i++)
            plot_curves_data(&c, i, out);
        const char *who[PUBLISHERS];
        uint8_t has[PUBLISHERS][CURVES] = {{0}};
        uint32_t publishers = p->kind == PLOT_SPEED ? plot_curves_publishers(&c, who) : 0;
        for (uint32_t w = 0; w < publishers; w++)
            for (uint32_t i = 0; i < c.count; i++)
                has[w][i] = plot_curves_published(&c, i, w, who[w], out) > 0;
        fprintf(out, "plot ");
        for (uint32_t i = 0; i < c.count; i++) {
            /* side by side, as intervals would hide each other */
            char x[64];
            double aside = (double)i - (c.count - 1) / 2.0;
            snprintf(x, sizeof x, c.axis == AXIS_WORDS ? "($1 + %.4f)" : "($1 * 2**%.4f)",
                     0.12 / c.count * aside);
            fprintf(out,
                    "%s$curve%u using %s:2:3:4 with yerrorlines lw 2 ps 1 pt %u dt %u lc rgb '%s' "
                    "title ",
                    i ? ", \\\n  " : "", i, x, 4 + i % 10, 1 + i / PICTURE_COLOURS,
                    picture_colours[i % PICTURE_COLOURS]);
            gnuplot_quoted(out, c.labels[i]);
        }
        static const int marks[PUBLISHERS] = {2, 3, 1, 12, 14, 10};
        for (uint32_t w = 0; w < publishers; w++) {
            for (uint32_t i = 0; i < c.count; i++)
                if (has[w][i])
                    fprintf(
                        out,
                        ", \\\n  $published%u_%u using 1:2 with points pt %d ps 1.6 lw 2 lc rgb "
                        "'%s' notitle",
                        w, i, marks[w], picture_colours[i % PICTURE_COLOURS]);
            fprintf(out, ", \\\n  keyentry with points pt %d ps 1.6 lw 2 lc rgb '#000000' title ",
                    marks[w]);
            char title[256];
            snprintf(title, sizeof title, "published: %s", who[w]);
            gnuplot_quoted(out, title);
        }
        fprintf(out, "\n");
    }
    for (uint32_t i = 0; i < c.count; i++)
        free(c.labels[i]);
    return rc;
}
