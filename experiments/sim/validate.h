/* Predicted against measured times: `mkernel sim --validate`. */
#pragma once

#include "core/model/machine.h"
#include "experiments/sim/measured.h"

enum validate_by {
    VALIDATE_MODEL /* core/model/model.h, where it knows the operator */,
    VALIDATE_EVENTS /* sim/timed */
};

/* Of all plans. */
struct validate_sum {
    int plans, shapes, defaults;
    double median, mean, worst; /* of |predicted / measured - 1| */
    double default_worst;       /* ... of the formula's plans */
    double rank;                /* Spearman's correlation of a shape's plans, mean of shapes */
    int apart, right;           /* pairs that differ by more than 5 %; predicted in their order */
    int choices;                /* shapes of several plans, and of them */
    int liked_within; /* those whose plan that is predicted best is within 1.05 of the best, */
    int taken_within; /* and whose plan that would be taken is */
};

/* Predicts each row into predicted[], ms, on some threads. An operator without a quick form is
 * always simulated. 0, or -errno with a sentence. */
int validate_predict(const struct mk_machine *machine, const struct measured *m,
                     enum validate_by by, double *predicted, char *error, size_t size);

/* The lines of validate.sql into `out` (NULL: none), and the figures of all plans (NULL: not asked
 * for). 0 or -errno. */
int validate_report(const struct measured *m, const double *predicted, FILE *out,
                    struct validate_sum *all);

/* `mkernel sim --validate ...`, with its own options. Returns a status of
 * experiments/common/commands.h. */
int sim_validate(int argc, char **argv);
