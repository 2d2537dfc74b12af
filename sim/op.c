#include "sim/op.h"

#include <stddef.h>

const struct sim_op *sim_op_of(enum mk_op op)
{
    static const struct sim_op *const ops[MK_OPS] = {
#define MK_OPERATOR(name, NAME, where) [MK_OP_##NAME] = &sim_op_##name,
        MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
    };
    return (unsigned)op < MK_OPS ? ops[op] : NULL;
}
