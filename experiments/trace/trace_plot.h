/* `mkernel trace plot`: what its pictures share. */
#pragma once

#include "experiments/trace/trace_cli.h"

struct trace_picture {
    sqlite3 *db;
    enum trace_plot_kind kind;
    FILE *out;        /* gnuplot's script */
    const char *path; /* of the picture; its end says which form */
    /* the script names `path`; else the picture goes to gnuplot's standard output */
    int named;
    struct trace_plot_part part;
};

void trace_plot_head(const struct trace_picture *p, const char *title, int height);

/* Role timelines. 0, -ENODATA: there is nothing to draw; -ENOMEM. */
int trace_plot_timeline(const struct trace_picture *p);
