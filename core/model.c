/* How long a plan takes, wave by wave. */
#include "core/model.h"
#include "core/model_gemm.h"

#include <errno.h>

/* One launch at a clock that is `slower` times as slow; 0 or -ENOTSUP. */
static int model_walk(struct model_walk *w, const struct mk_plan *plan)
{
    switch (plan->problem.op) {
    case MK_OP_AG_GEMM:
        model_ag_gemm(w, &plan->problem, ag_gemm_plan_of(plan));
        return 0;
    case MK_OP_GEMM_RS:
        model_gemm_rs(w, &plan->problem, gemm_rs_plan_of(plan), 0);
        return 0;
    case MK_OP_GEMM_AR:
        model_gemm_rs(w, &plan->problem, &gemm_ar_plan_of(plan)->rs, 1);
        return 0;
    default:
        return -ENOTSUP;
    }
}

int model_knows(enum mk_op op)
{
    return op == MK_OP_AG_GEMM || op == MK_OP_GEMM_RS || op == MK_OP_GEMM_AR;
}

/* First at full clock, which says what the launch draws and how long the warps beside the engine
 * work; then with what follows from that. */
int model_plan(const struct mk_machine *m, const struct mk_plan *plan, struct model_time *out)
{
    struct model_walk w = {.machine = m, .slower = 1};
    for (int pass = 0; pass < 3; pass++) {
        int result = model_walk(&w, plan);
        if (result)
            return result;
        w.guess = w.end;
        if (pass == 1)
            w.slower = machine_slower(m, w.end, w.flop, w.l2_bytes);
    }
    *out = (struct model_time){.ns = w.end + m->between,
                               .compute = w.compute,
                               .moved = w.moved,
                               .network = w.network,
                               .slower = w.slower};
    return 0;
}
