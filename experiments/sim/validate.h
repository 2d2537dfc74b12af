/* Predicted against measured times: `mkernel sim --validate`. */
#pragma once

#include "core/model/machine.h"
#include "experiments/sim/measured.h"

enum validate_by {
    VALIDATE_MODEL /* core/model/model.h, where it knows the operator */,
    VALIDATE_EVENTS /* sim/timed */
};

/* The time of one plan varies by about so much from run to run: of two plans that differ by less,
 * no measurement tells which is faster. */
#define VALIDATE_SPREAD 1.05
#define VALIDATE_WORTH 1.05 /* as core/model/choose.c has it */

struct validate_shape {
    const struct measured_row *row; /* one of its plans, the formula's where there is one */
    uint32_t plans;
    double median, mean;  /* of |predicted / measured - 1| */
    double default_error; /* of the formula's plan, signed; NAN: it is not there */
    double rank;          /* Spearman's correlation of the plans; NAN: fewer than three */
    uint32_t apart;       /* pairs of plans that differ by more than VALIDATE_SPREAD */
    uint32_t right;       /* of them, those that are predicted in this order */
    /* measured time of the plan predicted best, over the best's: what the table calls so, where it
     * says of_best, as tune compared it in its last turns (what it measured in earlier turns alone
     * may be below), else the least */
    double liked;
    /* ... of the plan that would be taken: the formula's, unless another promises VALIDATE_WORTH */
    double taken;
    const struct measured_row *likes, *best;
};

/* All of one operator, or of all (op: MK_OPS). */
struct validate_sum {
    uint32_t plans, shapes, defaults;
    double median, mean, worst;    /* of all plans */
    double near_median, near_mean; /* of those within 1.6 of their shape's best */
    double default_median, default_worst;
    double rank;           /* mean of shapes */
    uint32_t apart, right; /* of all shapes */
    uint32_t choices;      /* shapes of several plans, and of them */
    uint32_t liked_within; /* those whose liked plan is within 1.05 of the best, */
    uint32_t taken_within; /* and whose taken plan is */
};

/* Predicts each row into predicted[], ms, on some threads. An operator without a quick form is
 * always simulated. 0, or -errno with a sentence. */
int validate_predict(const struct mk_machine *machine, const struct measured *m,
                     enum validate_by by, double *predicted, char *error, size_t size);

/* Of shape number `shape`; 0 where it has no plans. */
int validate_shape(const struct measured *m, const double *predicted, uint32_t shape,
                   struct validate_shape *out);

void validate_sum(const struct measured *m, const double *predicted, int op,
                  struct validate_sum *out);

/* `mkernel sim --validate ...`, with its own options. Returns a status of
 * experiments/common/commands.h. */
int sim_validate(int argc, char **argv);
