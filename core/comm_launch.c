/* Launches: an operator's arguments into the executor, and the wait for them. */
#include "core/comm_parts.h"
#include "core/ops/op.h"

#include <errno.h>
#include <string.h>

int op_launch(struct mk_plan *plan, enum mk_op op, void *const arguments[MK_SPACES - 1],
              void *stream)
{
    struct mk_comm *comm = ((struct plan_handle *)(void *)plan)->comm;
    const struct mk_problem *q = &plan->problem;
    if (comm_failed(comm))
        return comm_tell_failure(comm);
    if (q->op != op)
        return comm_refuse(comm, -EINVAL, "mk_%s got a plan of %s", plan_op_name(op),
                           plan_op_name(q->op));
    for (uint32_t i = 0; i < op_arguments(q); i++)
        if ((!arguments[i] && mk_plan_argument_bytes(plan, i)) ||
            (uintptr_t)arguments[i] % (op_argument(q, i)->type == OP_COUNT ? 4 : 16))
            return comm_refuse(comm, -EINVAL,
                               "%s at %p: each argument of mk_%s must be 16-byte aligned memory",
                               op_argument(q, i)->name, arguments[i], plan_op_name(op));
    for (uint32_t i = 0; i < MK_SPACES - 1; i++) {
        uint64_t at = op_heap_offset(q, i);
        if (at && arguments[i] != (uint8_t *)comm->heap.base + at)
            return comm_refuse(comm, -EINVAL,
                               "%s at %p: the plan has it at offset %lu of the symmetric heap, %p",
                               op_argument(q, i)->name, arguments[i], at,
                               (void *)((uint8_t *)comm->heap.base + at));
    }
    return comm->exec->launch(comm, plan, arguments, stream);
}

int mk_launch(struct mk_plan *plan, void *const *arguments, uint32_t count, void *stream)
{
    struct mk_comm *comm = ((struct plan_handle *)(void *)plan)->comm;
    void *all[MK_SPACES - 1] = {0};
    uint32_t wanted = op_arguments(&plan->problem);
    if (count != wanted)
        return comm_refuse(comm, -EINVAL, "%u arguments of %s: it takes %u", count,
                           plan_op_name(plan->problem.op), wanted);
    for (uint32_t i = 0; i < count; i++)
        all[i] = arguments[i];
    return op_launch(plan, plan->problem.op, all, stream);
}

/* What follows a wait of the executor. */
static int comm_launch_waited(struct mk_comm *comm, int result)
{
    if (comm_failed(comm))
        return comm_tell_failure(comm);
    if (!result)
        return 0;
    comm_give_up(comm, result); /* this rank alone knows so far */
    return comm_tell_failure(comm);
}

int mk_wait(struct mk_comm *comm)
{
    if (comm->stage != STAGE_OPEN)
        return comm_refuse(comm, -EINVAL, "the communicator is not open");
    comm->error[0] = '\0';
    return comm_launch_waited(comm, comm->exec->wait(comm));
}

int mk_wait_stream(struct mk_comm *comm, void *stream)
{
    if (comm->stage != STAGE_OPEN)
        return comm_refuse(comm, -EINVAL, "the communicator is not open");
    comm->error[0] = '\0';
    return comm_launch_waited(comm, comm->exec->wait_stream ? comm->exec->wait_stream(comm, stream)
                                                            : comm->exec->wait(comm));
}

int comm_store(struct mk_comm *comm, uint64_t offset, const void *from, uint64_t bytes)
{
    int result = mk_wait(comm);
    if (result)
        return result;
    if (comm->exec->store)
        return comm->exec->store(comm, offset, from, bytes);
    memcpy((uint8_t *)comm->heap.base + offset, from, bytes);
    return 0;
}
