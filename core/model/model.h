/* How long a plan takes on a machine, in microseconds of arithmetic: what the formula of plans
 * weighs its candidates by, and what `mkernel sim --validate` prints beside measured times. It
 * walks a plan wave by wave (the tiles that run at the same time), with the schedule's own order of
 * tiles, as a chain of queues: the simulator (sim/timed/timed.h) does the same event by event.
 *
 * Ranks are alike: one rank's launch stands for all. No memory is taken, nothing is kept. */
#pragma once

#include "core/model/machine.h"
#include "core/mkernel.h"
#include "core/plan/plan.h"

/* Where the time goes, ns from the launch's begin; for reports. */
struct model_time {
    double ns;      /* of a launch, back to back with others */
    double compute; /* the last tile's end */
    double moved;   /* the last byte pushed to peers has arrived */
    double network; /* the last byte from other nodes has arrived */
    double slower;  /* factor of the clock */
};

/* 0, or -ENOTSUP: an operator that has no such form. */
int model_plan(const struct mk_machine *m, const struct mk_plan *plan, struct model_time *out);

/* Whether model_plan knows the operator: those of GEMM and MoE, whose plans it chooses among. */
int model_knows(enum mk_op op);
