/* A picture of results, of whatever kind. */
#include "experiments/results/results_plot.h"
#include "experiments/common/picture.h"

int plot_script(const struct plot *p, FILE *out, char *error, size_t size)
{
    switch (p->kind) {
    case PLOT_STACK:
        return plot_bars(p, out, error, size);
    case PLOT_HEAT:
        return plot_heat(p, out, error, size);
    case PLOT_SIMULATED:
        return plot_simulated(p, out, error, size);
    case PLOT_ROOFLINE:
        return plot_roofline(p, out, error, size);
    default:
        return plot_curves(p, out, error, size);
    }
}

static int results_plot_into(FILE *out, void *context, char *error, size_t size)
{
    return plot_script(context, out, error, size);
}

int plot_draw(const struct plot *p, char *error, size_t size)
{
    struct plot copy = *p;
    return picture_draw(p->path, results_plot_into, &copy, error, size);
}
