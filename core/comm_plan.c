/* The communicator's heap and plans: allocation, and the fields that all ranks have to agree on. */
#include "core/agree.h"
#include "core/comm_parts.h"
#include "core/ops/op.h"

#include <errno.h>
#include <stdlib.h>

void *mk_heap_alloc(struct mk_comm *comm, uint64_t bytes, uint64_t *offset)
{
    struct mk_heap *h = &comm->heap;
    uint64_t first = mk_round_up(h->next_data, MK_HEAP_UNIT);
    if (comm->stage != STAGE_OPEN || first > h->bytes || bytes > h->bytes - first) {
        comm_refuse(
            comm, -ENOSPC,
            "%llu bytes of the symmetric heap: %llu of %llu are free; open it with more heap_bytes",
            (unsigned long long)bytes,
            (unsigned long long)(first < h->bytes ? h->bytes - first : 0),
            (unsigned long long)(h->bytes - h->flag_bytes));
        return NULL;
    }
    h->next_data = first + bytes;
    *offset = first;
    return (uint8_t *)h->base + first;
}

static int comm_plan_check_room(struct mk_comm *comm, const struct mk_plan *p)
{
    const struct mk_heap *h = &comm->heap;
    const struct mk_problem *q = &p->problem;
    uint64_t flags = h->flag_bytes / 8;
    if (p->flag_base + (uint64_t)p->flags > flags)
        return comm_refuse(
            comm, -ENOSPC,
            "%s needs %u flags and %llu of %llu are free: open the communicator with flag_bytes of "
            "at least %llu",
            plan_op_name(q->op), p->flags, (unsigned long long)(flags - p->flag_base),
            (unsigned long long)flags,
            (unsigned long long)mk_round_up((p->flag_base + (uint64_t)p->flags) * 8, COMM_PAGE));
    if (p->heap_base > h->bytes || p->heap_bytes > h->bytes - p->heap_base)
        return comm_refuse(
            comm, -ENOSPC,
            "%s needs %llu bytes of the symmetric heap and %llu of %llu are free: open the "
            "communicator with "
            "heap_bytes of at least %llu",
            plan_op_name(q->op), (unsigned long long)p->heap_bytes,
            (unsigned long long)(p->heap_base < h->bytes ? h->bytes - p->heap_base : 0),
            (unsigned long long)(h->bytes - h->flag_bytes),
            (unsigned long long)mk_round_up(p->heap_base + p->heap_bytes - h->flag_bytes,
                                            COMM_PAGE));
    uint64_t bytes[MK_SPACES - 1];
    op_extents(q, bytes);
    for (uint32_t i = 0; i < MK_SPACES - 1; i++) {
        uint64_t at = op_heap_offset(q, i);
        if (at && (at % MK_HEAP_UNIT || at < h->flag_bytes || at >= h->next_data ||
                   bytes[i] > h->next_data - at))
            return comm_refuse(comm, -EINVAL,
                               "%s at offset %llu of the heap, %llu bytes: not a block that "
                               "mk_heap_alloc returned",
                               op_of(q->op)->arguments[i].name, (unsigned long long)at,
                               (unsigned long long)bytes[i]);
    }
    return 0;
}

/* Its own part of making a plan: no other rank is asked. */
static int comm_plan_build(struct mk_comm *comm, struct mk_plan *p,
                           const struct mk_problem *problem)
{
    if (comm->plan_count == sizeof comm->plans / sizeof *comm->plans)
        return comm_refuse(comm, -ENOSPC, "a communicator has at most %u plans", comm->plan_count);
    int result = tuning_build(p, &comm->tuning, problem, comm->device, comm->heap.next_flag,
                              comm->heap.next_data, comm->error, sizeof comm->error);
    return result ? result : comm_plan_check_room(comm, p);
}

static int comm_plan_agree_on(struct mk_comm *comm, const struct mk_problem *q,
                              const struct mk_plan *made, int result)
{
    const struct mk_tuning *t = &q->tuning;
    const struct op_descriptor *op = op_of(q->op);
    uint64_t numbers[OP_DIMENSIONS] = {0};
    const char *names[OP_DIMENSIONS]; /* where operators differ, that is told */
    for (uint32_t i = 0; i < OP_DIMENSIONS; i++)
        names[i] = op && op->shape->dimensions[i].name ? op->shape->dimensions[i].name : "shape";
    if (op)
        op_numbers(q, numbers);
    const struct agree_field fields[] = {
        {"op", (uint64_t)q->op, 0},
        {names[0], numbers[0], 0},
        {names[1], numbers[1], 0},
        {names[2], numbers[2], 0},
        {names[3], numbers[3], 0},
        {names[4], numbers[4], 0},
        {names[5], numbers[5], 0},
        {"causal", q->attention.causal != 0, 0},
        {"b_transposed", q->b_transposed != 0, 0},
        {"deterministic", q->deterministic != 0, 0},
        {"a_in_heap", q->a_in_heap != 0, 0},
        {"a_offset", q->a_in_heap ? q->a_offset : 0, 0},
        {"c_in_heap", q->c_in_heap != 0, 0},
        {"c_offset", q->c_in_heap ? q->c_offset : 0, 0},
        {"kind of device (its tuned plans are others)",
         comm->tuning.count ? agree_hash(comm->device) : 0, 1},
        {"compute CTAs", t->split.ctas[MK_COMPUTE], 0},
        {"intra_comm CTAs", t->split.ctas[MK_INTRA_COMM], 0},
        {"inter_send CTAs", t->split.ctas[MK_INTER_SEND], 0},
        {"inter_reduce CTAs", t->split.ctas[MK_INTER_REDUCE], 0},
        {"tile_m", t->tile_m, 0},
        {"tile_n", t->tile_n, 0},
        {"cluster", t->cluster, 0},
        {"chunk_rows", t->chunk_rows, 0},
        {"fanout", t->fanout, 0},
        {"slices", t->slices, 0},
        {"pieces", t->pieces, 0},
        {"pace", t->pace, 0},
        {"shots", t->shots, 0},
        {"timeout in ns", q->timeout_ns, 0},
        {"first flag (plans must be made in the same order)", comm->heap.next_flag, 0},
        {"first heap byte (allocations must be made in the same order)", comm->heap.next_data, 0},
        {"layout of its flags and heap", made ? plan_layout(made) : 0, AGREE_MADE},
    };
    return agree(comm->bootstrap, comm->topo.rank, mk_world(&comm->topo), "plans", fields,
                 sizeof fields / sizeof *fields, result, comm->error, sizeof comm->error);
}

int comm_create_plan(struct mk_plan **out, struct mk_comm *comm, const struct mk_problem *problem,
                     int result)
{
    *out = NULL;
    if (comm->stage != STAGE_OPEN)
        return comm_refuse(comm, -EINVAL, "the communicator is not open");
    if (comm_tell_failure(comm))
        return -EIO;
    struct mk_problem q = *problem;
    q.topo = comm->topo;
    q.exec = plan_exec(comm->config.exec);
    q.sms = comm->exec->sms(comm);
    if (!q.timeout_ns)
        q.timeout_ns = comm->config.timeout_ns;
    if (q.timeout_ns > COMM_LONGEST_NS)
        q.timeout_ns = COMM_LONGEST_NS;
    struct plan_handle *handle = calloc(1, sizeof *handle);
    if (!result)
        result = handle ? comm_plan_build(comm, &handle->plan, &q)
                        : comm_refuse(comm, -ENOMEM, "out of memory");
    result = comm_plan_agree_on(comm, &q, handle ? &handle->plan : NULL, result);
    if (comm_failed(comm)) {
        free(handle);
        return comm_tell_failure(comm);
    }
    if (result) {
        free(handle);
        return result;
    }
    struct mk_plan *p = &handle->plan;
    handle->comm = comm;
    p->id = comm->plan_count + 1;
    result = comm->exec->plan(comm, p);
    if (result) {
        free(handle);
        result = comm_give_up(comm, result); /* the others have the plan and would launch it */
        return result == -EINVAL || result == -ENOSPC ? -EIO : result; /* those change nothing */
    }
    spec_options(p, handle->options, sizeof handle->options);
    comm->heap.next_flag = p->flag_base + p->flags;
    comm->heap.next_data = p->heap_base + p->heap_bytes;
    comm->plans[comm->plan_count] = p;
    /* the proxy's thread asks comm_plan */
    __atomic_store_n(&comm->plan_count, p->id, __ATOMIC_RELEASE);
    *out = p;
    return 0;
}

int comm_make_plan(struct mk_plan **out, struct mk_comm *comm, const struct mk_problem *problem)
{
    return comm_create_plan(out, comm, problem, 0);
}

int mk_plan_create(struct mk_plan **out, struct mk_comm *comm, const struct mk_spec *spec)
{
    struct mk_problem q;
    int result = spec_to_problem(&q, spec, comm->error, sizeof comm->error);
    return comm_create_plan(out, comm, &q, result);
}

struct mk_plan *comm_plan(struct mk_comm *comm, uint32_t id)
{
    uint32_t count = __atomic_load_n(&comm->plan_count, __ATOMIC_ACQUIRE);
    return id && id <= count ? comm->plans[id - 1] : NULL;
}
