/* A roofline (Williams, Waterman, Patterson, CACM 52(4), 2009), with a slope for each way that
 * bytes take: a point stands at the operations for each byte over NVLink, and once more at those
 * for each byte over the network. */
#include "experiments/common/gnuplot.h"
#include "core/sentence.h"
#include "experiments/results/results_plot.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const struct way {
    const char *name;
    size_t bytes; /* in struct result_figures */
    const char *colour;
} ways[] = {{"NVLink", offsetof(struct result_figures, nvlink_bytes), "#0072b2"},
            {"network", offsetof(struct result_figures, network_bytes), "#d55e00"}};

static double plot_roofline_bytes(const struct result_point *p, int way)
{
    return *(const double *)((const char *)&p->figures + ways[way].bytes);
}

/* Whether a point stands under these roofs: what a CPU does, not under a GPU's. */
static int plot_roofline_has(const struct plot *p, const struct result_point *point)
{
    const char *exec = result_value(point, "exec");
    return point->good &&
           !(p->roofs_of_gpus && (!strcmp(exec, "host") || !strcmp(exec, "emulated")));
}

int plot_roofline(const struct plot *p, FILE *out, char *error, size_t size)
{
    double low = INFINITY, high = 0, least = INFINITY;
    uint32_t count[2] = {0, 0};
    if (!(p->roofs[0] > 0))
        return mk_fail(-EINVAL, error, size,
                       "--roofs is missing: what these ranks can do is not in the results");
    for (uint32_t i = 0; i < p->results->count; i++)
        for (int way = 0; way < 2; way++) {
            const struct result_point *point = &p->results->points[i];
            double x = point->figures.flop / plot_roofline_bytes(point, way);
            if (!plot_roofline_has(p, point) || !isfinite(x) || !(x > 0))
                continue;
            low = fmin(low, x);
            high = fmax(high, x);
            least = fmin(least, result_flops(point));
            count[way]++;
        }
    if (!count[0] && !count[1])
        return mk_fail(-ENODATA, error, size, "no point computes and moves bytes, too%s",
                       p->roofs_of_gpus ? ", under a GPU's roofs (--roofs says others)" : "");
    for (int way = 0; way < 2; way++) /* the ridges are in the picture */
        if (p->roofs[1 + way] > 0) {
            low = fmin(low, p->roofs[0] / p->roofs[1 + way] / 4);
            high = fmax(high, p->roofs[0] / p->roofs[1 + way] * 4);
        }
    plot_head(p, out, "roofline of a rank", 620);
    fprintf(out,
            "set logscale xy\nset xrange [%.6g:%.6g]\nset yrange [%.6g:%.6g]\n"
            "set xlabel 'operations for each byte that moves into a rank'.\"\\n\"\n"
            "set ylabel 'TFLOP/s of a rank'\nset xtics enhanced\nset format x '10^{%%L}'\n",
            low / 2, high * 2, fmin(least, p->roofs[0] / 50) / 2e12, p->roofs[0] * 2 / 1e12);
    const char *ops[16];
    uint32_t op_count = plot_words(p, "op", ops, 16);
    for (uint32_t o = 0; o < op_count; o++)
        for (int way = 0; way < 2; way++) {
            fprintf(out, "$at%u_%d << END\n", o, way);
            for (uint32_t i = 0; i < p->results->count; i++) {
                const struct result_point *point = &p->results->points[i];
                double x = point->figures.flop / plot_roofline_bytes(point, way);
                if (plot_roofline_has(p, point) && isfinite(x) && x > 0 &&
                    !strcmp(result_value(point, "op"), ops[o]))
                    fprintf(out, "%.9g %.9g\n", x, result_flops(point) / 1e12);
            }
            fprintf(out, "END\n");
        }
    fprintf(out, "plot %.9g with lines lw 2 lc rgb '#000000' title 'products: %.4g TFLOP/s'",
            p->roofs[0] / 1e12, p->roofs[0] / 1e12);
    for (int way = 0; way < 2; way++)
        if (p->roofs[1 + way] > 0)
            fprintf(out,
                    ", \\\n  (x * %.9g < %.9g ? x * %.9g : NaN) with lines lw 2 dt %d lc rgb '%s' "
                    "title '%s: %.4g GB/s'",
                    p->roofs[1 + way] / 1e12, p->roofs[0] / 1e12, p->roofs[1 + way] / 1e12, way + 1,
                    ways[way].colour, ways[way].name, p->roofs[1 + way] / 1e9);
    for (uint32_t o = 0; o < op_count; o++)
        for (int way = 0; way < 2; way++)
            if (count[way]) {
                fprintf(out, ", \\\n  $at%u_%d with points pt %u ps 1.5 lc rgb '%s' title ", o, way,
                        (way ? 4 : 5) + 2 * (o % 5), ways[way].colour);
                char title[80];
                snprintf(title, sizeof title, "%s, by bytes over %s", ops[o],
                         way ? "the network" : "NVLink");
                gnuplot_quoted(out, title);
            }
    fprintf(out, "\n");
    return 0;
}
