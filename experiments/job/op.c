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

int run_is_compared(enum run_product product, enum run_collective collective)
{
    return collective != RUN_NO_COLLECTIVE && (product != RUN_GEMM || collective != RUN_ALL_TO_ALL);
}

int run_op_is_compared(enum mk_op op)
{
    return run_is_compared(run_op_of(op)->product, run_op_of(op)->collective);
}

int run_op_is_routed(enum mk_op op)
{
    return run_op_of(op)->routed;
}

uint64_t run_op_tensor(const struct mk_problem *q)
{
    uint64_t bytes[MK_SPACES - 1], most = 0;
    if (op_of(q->op)->describe_tile)
        return 0;
    op_extents(q, bytes);
    for (int i = 0; i < MK_SPACES - 1; i++)
        most = bytes[i] > most ? bytes[i] : most;
    return most;
}
