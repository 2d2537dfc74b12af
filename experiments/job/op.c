#include "experiments/job/op.h"

const struct run_op *run_op_of(enum mk_op op)
{
    static const struct run_op *const ops[MK_OPS] = {
#define MK_OPERATOR(name, NAME, where) [MK_OP_##NAME] = &run_op_##name,
        MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
    };
    return ops[op];
}

int run_op_is_compared(enum mk_op op)
{
    return run_op_of(op)->collective != RUN_NO_COLLECTIVE;
}

int run_op_is_routed(enum mk_op op)
{
    return run_op_of(op)->routed;
}
