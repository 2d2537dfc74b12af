/* `mkernel results FILE plot KIND PICTURE`. */
#pragma once

#include "experiments/results/results_points.h"

#include <stdio.h>

enum plot_kind {
    PLOT_TIME,       /* ms against size, or a setting */
    PLOT_SPEED,      /* operations per second of a rank, against the same; beside published ones */
    PLOT_EFFICIENCY, /* ideal time by time, against the same */
    PLOT_STACK,      /* the ideal time, and the rest */
    PLOT_HEAT,       /* ms by two settings */
    PLOT_SIMULATED,  /* measured beside simulated */
    PLOT_ROOFLINE,   /* operations per second against operations per byte moved */
    PLOT_KINDS
};
extern const char *const plot_kinds[];

struct plot {
    const struct results *results;
    enum plot_kind kind;
    const char *path, *x, *y; /* x, y: names of settings; NULL: choose */
    int named;                /* the script says where the picture goes */
    double roofs[3];          /* flop/s, NVLink and network bytes/s of a rank; 0: not given */
    int roofs_of_gpus;        /* 1: they come from the results' GPUs, not from the user */
};

/* Writes gnuplot's script of a struct plot, its data in it, as picture_draw wants it. 0, or -errno
 * with a sentence: -ENODATA where there is nothing to draw. */
int plot_script(FILE *out, void *plot, char *error, size_t size);

/* ---- inside ---- */

int plot_curves(const struct plot *p, FILE *out, char *error, size_t size);
int plot_bars(const struct plot *p, FILE *out, char *error, size_t size);
int plot_heat(const struct plot *p, FILE *out, char *error, size_t size);
int plot_simulated(const struct plot *p, FILE *out, char *error, size_t size);
int plot_roofline(const struct plot *p, FILE *out, char *error, size_t size);

/* plot_text.c. Terminal and title: "role-split: time". */
void plot_head(const struct plot *p, FILE *out, const char *what, int height);

/* The values of a setting, each once, numbers in their order. Returns how many. */
uint32_t plot_words(const struct plot *p, const char *name, const char **words, uint32_t most);

/* A text as a column of gnuplot's data. */
void plot_cell(FILE *out, const char *text);

int plot_is_number(const char *text, double *value);
