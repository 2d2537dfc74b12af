/* A picture of results, of whatever kind. */
#include "experiments/results/results_plot.h"

int plot_script(FILE *out, void *plot, char *error, size_t size)
{
    const struct plot *p = plot;
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
