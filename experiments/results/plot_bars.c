/* Bars: what an ideal launch would have taken and what it took beyond; and measured beside
 * simulated. */
#include "experiments/common/picture.h"
#include "core/sentence.h"
#include "experiments/results/results_diff.h"
#include "experiments/results/results_plot.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define BARS 60u

int plot_bars(const struct plot *p, FILE *out, char *error, size_t size)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->results->count; i++)
        count += p->results->points[i].good && !isnan(result_efficiency(&p->results->points[i]));
    if (!count || count > BARS) {
        snprintf(error, size,
                 count ? "%u bars are more than %u: choose with --only"
                       : "no point has an ideal time: it is known of cuda, sim and traced points",
                 count, BARS);
        return count ? -EINVAL : -ENODATA;
    }
    plot_head(p, out, "where the time goes", 120 + 34 * (int)count);
    /* lying, since the labels are long */
    fprintf(
        out,
        "set yrange [%u.6:0.4]\nset xrange [0:*]\nset xlabel 'ms a launch'\n"
        "set style fill solid noborder\nset ytics scale 0\nunset grid\nset grid x lt 1 lw 1 lc rgb "
        "'#dddddd'\nset lmargin 44\n$bars << END\n",
        count);
    for (uint32_t i = 0, n = 0; i < p->results->count; i++) {
        const struct result_point *point = &p->results->points[i];
        double ideal = result_efficiency(point) * point->ms.median;
        if (!point->good || isnan(ideal))
            continue;
        fprintf(out, "%u %.9g %.9g ", ++n, ideal, point->ms.median);
        plot_cell(out, point->label);
        fprintf(out, "\n");
    }
    fprintf(out,
            "END\nplot $bars using (0):1:(0):2:($1-0.35):($1+0.35):yticlabels(4) "
            "with boxxyerror lc rgb '%s' title 'ideal: the longest of products, memory, NVLink and "
            "network', \\\n  $bars using 2:1:2:3:($1-0.35):($1+0.35) with boxxyerror lc rgb '%s' "
            "title 'exposed: what it took beyond'\n",
            picture_colours[0], picture_colours[1]);
    return 0;
}

/* The point that is the same but for the executor, which is the simulator. */
static const struct result_point *plot_bars_twin(const struct plot *p,
                                                 const struct result_point *of)
{
    static const char *const exec[] = {"exec"};
    for (uint32_t i = 0; i < p->results->count; i++) {
        const struct result_point *twin = &p->results->points[i];
        if (!strcmp(result_value(twin, "exec"), "sim") && twin->good &&
            result_same(of, twin, exec, 1))
            return twin;
    }
    return NULL;
}

int plot_simulated(const struct plot *p, FILE *out, char *error, size_t size)
{
    const struct result_point *pairs[BARS][2];
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->results->count; i++) {
        const struct result_point *point = &p->results->points[i], *twin;
        if (!point->good || !strcmp(result_value(point, "exec"), "sim") ||
            !(twin = plot_bars_twin(p, point)))
            continue;
        if (count == BARS)
            return mk_fail(-EINVAL, error, size, "more than %u pairs: choose with --only", BARS);
        pairs[count][0] = point;
        pairs[count++][1] = twin;
    }
    if (!count)
        return mk_fail(-ENODATA, error, size,
                       "no point was measured and simulated, too: exec: [host, sim]");
    plot_head(p, out, "measured beside simulated", 140 + 44 * (int)count);
    fprintf(out,
            "set yrange [%u.6:0.4]\nset logscale x\nset xlabel 'ms a launch'\nset ytics scale "
            "0\nunset grid\nset grid x lt 1 lw 1 lc rgb '#dddddd'\nset lmargin 44\n$pairs << END\n",
            count);
    for (uint32_t i = 0; i < count; i++) {
        const struct result_point *a = pairs[i][0], *b = pairs[i][1];
        fprintf(out, "%u %.9g %.9g %.9g %.9g ", i + 1, a->ms.median, a->ms.low, a->ms.high,
                b->ms.median);
        plot_cell(out, a->label);
        fprintf(out, "\n");
    }
    fprintf(out,
            "END\nplot $pairs using 2:1:($5-$2):(0):yticlabels(6) with vectors "
            "nohead lc rgb '#bbbbbb' lw 2 notitle, \\\n  $pairs using 2:1:3:4 with xerrorbars pt 7 "
            "ps 1.3 lw 2 lc rgb '%s' title 'measured, with its 95 %% interval', \\\n  $pairs using "
            "5:1 with points pt 6 ps 1.6 lw 2 lc rgb '%s' title 'simulated'\n",
            picture_colours[0], picture_colours[1]);
    return 0;
}
