/* The walks of model_plan through the schedules of the GEMM operators. */
#ifndef MK_MODEL_GEMM_H
#define MK_MODEL_GEMM_H

#include "core/machine.h"
#include "core/roles/ag_gemm_plan.h"
#include "core/roles/gemm_ar_plan.h"
#include "core/roles/gemm_rs_plan.h"

struct model_walk {
    /* given */
    const struct mk_machine *machine;
    double slower; /* of the clock */
    double guess;  /* ns that the walk before took; 0: none was */
    /* found; ns from the launch's begin */
    double end, compute, moved, network;
    double flop, l2_bytes; /* that the launch takes power for */
};

void model_ag_gemm(struct model_walk *w, const struct mk_problem *q, const struct ag_gemm_plan *p);
/* gathers: gemm_ar. */
void model_gemm_rs(struct model_walk *w, const struct mk_problem *q, const struct gemm_rs_plan *p,
                   int gathers);

#endif
