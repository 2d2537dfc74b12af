/* Launches: an operator's arguments into the executor, and the wait for them. */
#include "core/comm/comm_parts.h"
#include "core/ops/op.h"

#include <errno.h>
#include <string.h>

/* A launch writes an output while it still reads inputs, and other CTAs write other outputs. 0: no
 * output shares memory with another argument. */
static int comm_launch_check_overlap(struct mk_comm *comm, const struct mk_plan *plan,
                                     void *const arguments[MK_SPACES - 1])
{
    const struct plan_handle *h = COMM_HANDLE(plan);
    for (uint32_t out = 0; h->outputs >> out; out++)
        for (uint32_t i = 0; h->outputs >> out & 1 && i < MK_SPACES - 1; i++) {
            const uintptr_t at = (uintptr_t)arguments[out], other = (uintptr_t)arguments[i];
            if (i == out || !h->bytes[i] || !h->bytes[out] || at >= other + h->bytes[i] ||
                other >= at + h->bytes[out])
                continue;
            const struct op_argument *a = op_argument(&plan->problem, out),
                                     *b = op_argument(&plan->problem, i);
            if (at != other || !a->in_place || b->type != OP_RESIDUAL)
                return comm_refuse(comm, -EINVAL,
                                   "%s and %s of mk_%s share memory: %s is written, and needs "
                                   "memory of its own",
                                   a->name, b->name, plan_op_name(plan->problem.op), a->name);
        }
    return 0;
}

/* 0: the plan can be launched with these arguments. */
static int comm_launch_check(struct mk_comm *comm, const struct mk_plan *plan, enum mk_op op,
                             void *const arguments[MK_SPACES - 1])
{
    const struct mk_problem *q = &plan->problem;
    if (comm_failed(comm))
        return comm_tell_failure(comm);
    if (q->op != op)
        return comm_refuse(comm, -EINVAL, "mk_%s got a plan of %s", plan_op_name(op),
                           plan_op_name(q->op));
    if (COMM_HANDLE(plan)->begun)
        return comm_refuse(comm, -EINVAL,
                           "a launch of this plan of %s has begun and not ended: call "
                           "mk_launch_end first",
                           plan_op_name(op));
    for (uint32_t i = 0; i < op_arguments(q); i++)
        if ((!arguments[i] && COMM_HANDLE(plan)->bytes[i]) ||
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
    return comm_launch_check_overlap(comm, plan, arguments);
}

/* The first half; checked. */
static int comm_launch_begin(struct plan_handle *h, void *const arguments[MK_SPACES - 1],
                             void *stream)
{
    int result = h->comm->exec->launch(h->comm, &h->plan, MK_BEGIN, arguments, stream);
    h->begun = !result;
    memcpy(h->arguments, arguments, sizeof h->arguments);
    return result;
}

static int comm_launch_end(struct plan_handle *h, void *stream)
{
    int result = h->comm->exec->launch(h->comm, &h->plan, MK_END, h->arguments, stream);
    h->begun = result != 0;
    return result;
}

int op_launch(struct mk_plan *plan, enum mk_op op, void *const arguments[MK_SPACES - 1],
              void *stream)
{
    struct plan_handle *h = (struct plan_handle *)(void *)plan;
    int result = comm_launch_check(h->comm, plan, op, arguments);
    if (result)
        return result;
    if (!op_halves(&plan->problem))
        return h->comm->exec->launch(h->comm, plan, MK_WHOLE, arguments, stream);
    result = comm_launch_begin(h, arguments, stream);
    return result ? result : comm_launch_end(h, stream);
}

/* `count` arguments of a caller, in an array of all that there can be. */
static int comm_launch_take(struct mk_comm *comm, const struct mk_plan *plan,
                            void *const *arguments, uint32_t count, void *all[MK_SPACES - 1])
{
    uint32_t wanted = op_arguments(&plan->problem);
    if (count != wanted)
        return comm_refuse(comm, -EINVAL, "%u arguments of %s: it takes %u", count,
                           plan_op_name(plan->problem.op), wanted);
    memset(all, 0, (MK_SPACES - 1) * sizeof *all);
    memcpy(all, arguments, count * sizeof *all);
    return 0;
}

int mk_launch(struct mk_plan *plan, void *const *arguments, uint32_t count, void *stream)
{
    void *all[MK_SPACES - 1];
    int result = comm_launch_take(COMM_HANDLE(plan)->comm, plan, arguments, count, all);
    return result ? result : op_launch(plan, plan->problem.op, all, stream);
}

/* 0: its launches have halves. */
static int comm_launch_check_halves(struct mk_comm *comm, const struct mk_plan *plan)
{
    return op_halves(&plan->problem)
               ? 0
               : comm_refuse(comm, -EINVAL,
                             "a half of a launch, of a plan of %s that was made without "
                             "launch=halves among its options",
                             plan_op_name(plan->problem.op));
}

int mk_launch_begin(struct mk_plan *plan, void *const *arguments, uint32_t count, void *stream)
{
    struct plan_handle *h = (struct plan_handle *)(void *)plan;
    void *all[MK_SPACES - 1];
    int result = comm_launch_check_halves(h->comm, plan);
    result = result ? result : comm_launch_take(h->comm, plan, arguments, count, all);
    result = result ? result : comm_launch_check(h->comm, plan, plan->problem.op, all);
    return result ? result : comm_launch_begin(h, all, stream);
}

int mk_launch_end(struct mk_plan *plan, void *stream)
{
    struct plan_handle *h = (struct plan_handle *)(void *)plan;
    int result = comm_launch_check_halves(h->comm, plan);
    if (result)
        return result;
    if (comm_failed(h->comm))
        return comm_tell_failure(h->comm);
    if (!h->begun)
        return comm_refuse(h->comm, -EINVAL,
                           "no launch of this plan of %s has begun: call mk_launch_begin first",
                           plan_op_name(plan->problem.op));
    return comm_launch_end(h, stream);
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
