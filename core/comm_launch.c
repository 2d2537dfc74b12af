/* Launches: each operator's arguments into the executor, and the wait for them. */
#include "core/comm_parts.h"

#include <errno.h>

/* Checks what every launch has in common, then launches. `name` is the caller's, `letters` its arguments',
 * for sentences. */
static int launch(struct mk_plan *plan, enum mk_op op, const char *name, const char *const *letters,
                  void *const arguments[MK_SPACES - 1], void *stream)
{
    struct mk_comm *comm = ((struct plan_handle *)(void *)plan)->comm;
    const struct mk_problem *q = &plan->problem;
    if (comm_failed(comm))
        return comm_tell_failure(comm);
    if (q->op != op)
        return comm_refuse(comm, -EINVAL, "%s got a plan of %s", name, plan_op_name(q->op));
    for (uint32_t i = 0; i < MK_SPACES - 1 && letters[i]; i++)
        if (!arguments[i] || (uintptr_t)arguments[i] % 16)
            return comm_refuse(comm, -EINVAL, "%s at %p: each argument of %s must be 16-byte aligned memory",
                               letters[i], arguments[i], name);
    if (q->a_in_heap && arguments[0] != (uint8_t *)comm->heap.base + q->a_offset)
        return comm_refuse(comm, -EINVAL, "A at %p: the plan has it at offset %llu of the symmetric heap, %p",
                           arguments[0], (unsigned long long)q->a_offset,
                           (void *)((uint8_t *)comm->heap.base + q->a_offset));
    return comm->exec->launch(comm, plan, arguments, stream);
}

static int launch_gemm(struct mk_plan *plan, enum mk_op op, const char *name, const void *a, const void *b,
                       void *c, void *stream)
{
    static const char *const letters[MK_SPACES - 1] = {"A", "B", "C"};
    void *const arguments[MK_SPACES - 1] = {(void *)(uintptr_t)a, (void *)(uintptr_t)b, c};
    return launch(plan, op, name, letters, arguments, stream);
}

int mk_ag_gemm(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    return launch_gemm(plan, MK_OP_AG_GEMM, "mk_ag_gemm", a, b, c, stream);
}

int mk_gemm_ar(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    return launch_gemm(plan, MK_OP_GEMM_AR, "mk_gemm_ar", a, b, c, stream);
}

int mk_gemm_rs(struct mk_plan *plan, const void *a, const void *b, void *c, void *stream)
{
    return launch_gemm(plan, MK_OP_GEMM_RS, "mk_gemm_rs", a, b, c, stream);
}

int mk_ring_attention(struct mk_plan *plan, const void *q, const void *k, const void *v, void *o, float *lse,
                      void *stream)
{
    static const char *const letters[MK_SPACES - 1] = {"Q", "K", "V", "O", "lse"};
    void *const arguments[MK_SPACES - 1] = {(void *)(uintptr_t)q, (void *)(uintptr_t)k, (void *)(uintptr_t)v,
                                            o, lse};
    return launch(plan, MK_OP_RING_ATTENTION, "mk_ring_attention", letters, arguments, stream);
}

int mk_moe_dispatch_gemm(struct mk_plan *plan, const void *x, const void *b, const uint32_t *ids, void *c,
                         uint32_t *rows, void *stream)
{
    static const char *const letters[MK_SPACES - 1] = {"X", "B", "ids", "C", "rows"};
    void *const arguments[MK_SPACES - 1] = {(void *)(uintptr_t)x, (void *)(uintptr_t)b,
                                            (void *)(uintptr_t)ids, c, rows};
    return launch(plan, MK_OP_MOE_DISPATCH_GEMM, "mk_moe_dispatch_gemm", letters, arguments, stream);
}

int mk_moe_ffn(struct mk_plan *plan, const void *x, const uint32_t *ids, const float *weights, const void *b1,
               const void *b2, void *y, void *stream)
{
    static const char *const letters[MK_SPACES - 1] = {"X", "B1", "ids", "weights", "B2", "Y"};
    void *const arguments[MK_SPACES - 1] = {(void *)(uintptr_t)x,   (void *)(uintptr_t)b1,
                                            (void *)(uintptr_t)ids, (void *)(uintptr_t)weights,
                                            (void *)(uintptr_t)b2,  y};
    return launch(plan, MK_OP_MOE_FFN, "mk_moe_ffn", letters, arguments, stream);
}

int mk_wait(struct mk_comm *comm)
{
    if (comm->stage != STAGE_OPEN)
        return comm_refuse(comm, -EINVAL, "the communicator is not open");
    comm->error[0] = '\0';
    int result = comm->exec->wait(comm);
    if (comm_failed(comm))
        return comm_tell_failure(comm);
    if (!result)
        return 0;
    comm_give_up(comm, result); /* this rank alone knows so far */
    return comm_tell_failure(comm);
}
