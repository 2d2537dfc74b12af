/* Least squares of a machine's numbers: those that what is predicted depends on are moved until the
 * logarithms of predicted and measured times differ least. */
#pragma once

#include "core/machine.h"
#include "experiments/sim/measured.h"

#define FIT_NUMBERS 96u

struct fit {
    struct mk_machine *machine;
    const struct measured *measured;
    const double *weights; /* of each row */
    const char *keep;      /* names with commas that stay as they are */
    uint32_t rounds;       /* at most */
    double pull;           /* towards where the numbers began; 0.01 is little */
    void (*progress)(uint32_t round, double error); /* or NULL */
    /* found */
    uint32_t moved;
    double before, after; /* weighted mean of |log(predicted / measured)| */
};

/* 0 or -ENOMEM. The machine has the numbers found. */
int fit_machine(struct fit *fit);

/* Rows weigh by how near the best of their shape they are: a plan that would never be run says
 * little. */
void fit_weights(const struct measured *m, double *weights);
