#include "sim/emulated.h"

#include <string.h>

#ifdef MK_HAVE_EMULATION

/* kernels/.../NAME.cu, as localize.sh calls what is in it. */
#define DECLARE_HOST(name)
#define DECLARE_GPU(name)                                                                          \
    int emulated_##name##_prepare(const struct mk_plan *plan, char *error, size_t size);           \
    int emulated_##name##_launch(const struct mk_plan *plan, const struct gpu_launch *launch,      \
                                 void *stream);
#define MK_OPERATOR(name, NAME, where) DECLARE_##where(name)
MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR

static const struct emulated_op emulated_ops[MK_OPS] = {
#define TAKE_HOST(name)                                                                            \
    {                                                                                              \
        NULL, NULL                                                                                 \
    }
#define TAKE_GPU(name)                                                                             \
    {                                                                                              \
        emulated_##name##_prepare, emulated_##name##_launch                                        \
    }
#define MK_OPERATOR(name, NAME, where) [MK_OP_##NAME] = TAKE_##where(name),
    MK_OPERATORS(MK_OPERATOR)
#undef MK_OPERATOR
};

const struct emulated_op *emulated_op_of(enum mk_op op)
{
    return (unsigned)op < MK_OPS && emulated_ops[op].launch ? &emulated_ops[op] : NULL;
}

const int emulated_built = 1;

#else

const int emulated_built = 0;

const struct emulated_op *emulated_op_of(enum mk_op op)
{
    return NULL;
}

#endif

void emulated_launch_begin(struct gpu_launch *l, const struct mk_plan *plan, void *heap,
                           void *const *peers, struct mk_ring *const *rings, uint32_t ring_count,
                           void *const *arguments)
{
    memset(l, 0, sizeof *l);
    l->heap = heap;
    for (uint32_t i = 0; i < plan->problem.topo.gpus; i++)
        l->peers[i] = peers[i];
    l->arguments[MK_SPACE_HEAP] = heap;
    for (int i = 0; i < MK_SPACES - 1; i++)
        l->arguments[MK_SPACE_ARG0 + i] = arguments[i];
    for (uint32_t i = 0; i < ring_count; i++) {
        l->rings[i] = rings[i];
        l->ring_capacity = (uint32_t)rings[i]->capacity;
    }
    l->split = plan->problem.tuning.split;
    l->plan = plan->id;
    l->local = mk_local_of(&plan->problem.topo, plan->problem.topo.rank);
    l->timeout_ns = plan->problem.timeout_ns;
    l->longest_ns = l->timeout_ns * mk_world(&plan->problem.topo);
}
