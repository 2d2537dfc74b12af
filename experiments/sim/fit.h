/* Fits a machine's numbers by least squares: those that affect the predictions are changed until
 * the logarithms of predicted and measured times differ least. */
#pragma once

#include "core/model/machine.h"
#include "experiments/sim/measured.h"

#define FIT_NUMBERS 96u

struct fit {
    struct mk_machine *machine;
    const struct measured *measured;
    const double *weights; /* of each row */
    const char *keep;      /* names with commas that stay as they are */
    uint32_t rounds;       /* at most */
    double pull;           /* regularisation towards the initial numbers; 0.01 is weak */
    void (*progress)(uint32_t round, double error); /* or NULL */
    /* found */
    uint32_t moved;
    double before, after; /* weighted mean of |log(predicted / measured)| */
};

/* 0 or -ENOMEM. The machine has the numbers found. */
int fit_machine(struct fit *fit);

/* Weights rows by how near they are to the best of their shape: slow plans matter little, as they
 * would never be run. */
void fit_weights(const struct measured *m, double *weights);
