#include "sim/op.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

const struct sim_op *sim_op_of(enum mk_op op)
{
    static const struct sim_op *const ops[MK_OPS] = {
#define MK_OPERATOR(name, NAME, where) [MK_OP_##NAME] = &sim_op_##name,
        MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
    };
    return (unsigned)op < MK_OPS ? ops[op] : NULL;
}

int sim_wrong(const struct sim_launch *l, const char *format, ...)
{
    char what[256];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    snprintf(l->text, l->size, "launch %lu, rank %u: %s", l->launch, l->plan->problem.topo.rank,
             what);
    return 1;
}

int sim_no_memory(const struct sim_launch *l)
{
    snprintf(l->text, l->size, "no memory to check launch %lu", l->launch);
    return 1;
}
