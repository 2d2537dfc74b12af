/* How long a plan takes, wave by wave. */
#include "core/model/model.h"
#include "core/model/gemm.h"
#include "core/ops/op.h"

#include <errno.h>

int model_knows(enum mk_op op)
{
    return op_of(op)->model != NULL;
}

/* Peers that push to one GPU at once: those of a fan-out, else all of its node. */
static uint32_t model_peers(const struct mk_problem *q)
{
    return op_of(q->op)->knobs & OP_FANOUT && q->tuning.shots == MK_TWO_SHOT ? q->tuning.fanout
           : q->topo.gpus > 1                                                ? q->topo.gpus - 1
                                                                             : 1;
}

/* First at full clock, which says what the launch draws and how long the warps beside the engine
 * work; then with what follows from that. */
int model_plan(const struct mk_machine *m, const struct mk_plan *plan, struct model_time *out)
{
    struct mk_machine joint = *m; /* what peers push at once meets in the switch */
    struct model_walk w = {.machine = &joint, .slower = 1};
    double peers = model_peers(&plan->problem);
    const struct op_descriptor *op = op_of(plan->problem.op);
    double flop;
    uint64_t nvlink, network;
    if (!op->model)
        return -ENOTSUP;
    plan_work(plan, &flop, &nvlink, &network);
    /* (of one peer the way out stands for both) */
    double in = (m->nvlink_in > m->nvlink_out ? m->nvlink_in : m->nvlink_out) *
                (1 - m->nvlink_joint * (peers - 1) / peers);
    joint.nvlink_out = in < m->nvlink_out ? in : m->nvlink_out;
    for (int pass = 0; pass < 3; pass++) {
        op->model(&w, plan);
        if (m->joule_byte > 0)
            w.l2_bytes += (double)nvlink * m->joule_link / m->joule_byte;
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
