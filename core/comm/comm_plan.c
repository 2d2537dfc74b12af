/* The communicator's heap and plans: allocation, and the fields that all ranks have to agree on. */
#include "core/base/c_numbers.h"
#include "core/base/clock.h"
#include "core/comm/comm_parts.h"
#include "core/base/random.h"
#include "core/ops/moe.h"
#include "core/ops/moe_map.h"
#include "core/ops/op.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void *mk_heap_alloc(struct mk_comm *comm, uint64_t bytes, uint64_t *offset)
{
    struct mk_heap *h = &comm->heap;
    uint64_t count = bytes > h->bytes ? bytes : mk_round_up(bytes, MK_HEAP_UNIT),
             first = comm->stage == STAGE_OPEN ? ranges_find(&comm->free_bytes, count) : UINT64_MAX;
    if (first == UINT64_MAX || ranges_take(&comm->free_bytes, first, count)) {
        comm_refuse(
            comm, -ENOSPC,
            "%lu bytes of the symmetric heap: %lu of %lu are free; open it with more heap_bytes",
            bytes, ranges_longest(&comm->free_bytes), h->bytes - h->flag_bytes);
        return NULL;
    }
    *offset = first;
    return (uint8_t *)h->base + first;
}

/* A row's first free place, or its end. */
static uint64_t comm_plan_first(const struct ranges *r, uint64_t end)
{
    uint64_t first = ranges_first(r);
    return first < end ? first : end;
}

static uint64_t comm_plan_bytes(const struct mk_plan *p)
{
    return mk_round_up(p->heap_bytes, MK_HEAP_UNIT);
}

/* The plan that has memory among these bytes of the heap; NULL: none. */
static const struct mk_plan *comm_plan_among(const struct mk_comm *comm, uint64_t at,
                                             uint64_t bytes)
{
    for (uint32_t i = 0; i < comm->plan_count; i++) {
        const struct mk_plan *p = comm->plans[i];
        if (p && at < p->heap_base + comm_plan_bytes(p) && p->heap_base < at + bytes)
            return p;
    }
    return NULL;
}

static int comm_plan_check_operands(struct mk_comm *comm, const struct mk_problem *q)
{
    const struct mk_heap *h = &comm->heap;
    uint64_t bytes[MK_SPACES - 1];
    char text[OP_PROBLEM_TEXT];
    op_extents(q, bytes);
    for (uint32_t i = 0; i < MK_SPACES - 1; i++) {
        uint64_t at = op_heap_offset(q, i);
        if (at && (at % MK_HEAP_UNIT || at < h->flag_bytes || at >= h->bytes ||
                   bytes[i] > h->bytes - at || !ranges_are_taken(&comm->free_bytes, at, bytes[i])))
            return comm_refuse(comm, -EINVAL,
                               "%s at offset %lu of the heap, %lu bytes: not a block that "
                               "mk_heap_alloc returned",
                               op_argument(q, i)->name, at, bytes[i]);
        const struct mk_plan *other = at ? comm_plan_among(comm, at, bytes[i]) : NULL;
        if (other)
            return comm_refuse(comm, -EINVAL,
                               "%s at offset %lu of the heap, %lu bytes: memory of plan %u, %s %s; "
                               "mk_heap_alloc returns blocks for arguments",
                               op_argument(q, i)->name, at, bytes[i], other->id,
                               plan_op_name(other->problem.op),
                               op_problem_text(&other->problem, text));
    }
    return 0;
}

/* Where the plan's flags and heap come to lie; it was made for the first free ones. */
static int comm_plan_find_room(struct mk_comm *comm, const struct mk_plan *p, uint64_t *flag,
                               uint64_t *at)
{
    const struct mk_heap *h = &comm->heap;
    uint64_t flags = h->flag_bytes / 8, bytes = comm_plan_bytes(p), all = h->bytes - h->flag_bytes;
    *flag = p->flags ? ranges_find(&comm->free_flags, p->flags) : p->flag_base;
    *at = bytes ? ranges_find(&comm->free_bytes, bytes) : p->heap_base;
    if (*flag == UINT64_MAX)
        return comm_refuse(
            comm, p->flags > flags ? -E2BIG : -ENOSPC,
            "%s needs %u flags and %lu of %lu are free: open the communicator with flag_bytes of "
            "at least %lu",
            plan_op_name(p->problem.op), p->flags, ranges_longest(&comm->free_flags), flags,
            mk_round_up((flags - ranges_last(&comm->free_flags, flags) + p->flags) * 8, COMM_PAGE));
    if (*at == UINT64_MAX)
        return comm_refuse(
            comm, bytes > all ? -E2BIG : -ENOSPC,
            "%s needs %lu bytes of the symmetric heap and %lu of %lu are free: open the "
            "communicator with heap_bytes of at least %lu",
            plan_op_name(p->problem.op), p->heap_bytes, ranges_longest(&comm->free_bytes), all,
            mk_round_up(all - ranges_last(&comm->free_bytes, h->bytes) + bytes, COMM_PAGE));
    return 0;
}

/* The same plan at another place. */
static int comm_plan_move(struct mk_comm *comm, struct mk_plan *p, uint64_t flag, uint64_t at)
{
    char tuned[sizeof p->tuned];
    struct mk_problem made = p->problem;
    memcpy(tuned, p->tuned, sizeof tuned);
    int result = plan_build(p, &made, (uint32_t)flag, at, comm->error, sizeof comm->error);
    memcpy(p->tuned, tuned, sizeof tuned);
    return result;
}

/* Its own part of making a plan: no other rank is asked. After 0 its flags and heap are taken. */
static int comm_plan_build(struct mk_comm *comm, struct mk_plan *p,
                           const struct mk_problem *problem)
{
    const struct mk_heap *h = &comm->heap;
    uint32_t slot = 0;
    uint64_t flag, at;
    while (slot < COMM_MOST_PLANS && comm->plans[slot])
        slot++;
    if (slot == COMM_MOST_PLANS || comm->last_plan_id == COMM_MOST_PLAN_IDS)
        return comm_refuse(comm, -ENOSPC,
                           "a communicator has at most %u plans at a time, and makes %u",
                           COMM_MOST_PLANS, COMM_MOST_PLAN_IDS);
    int result =
        tuning_build(p, &comm->tuning, problem, comm->device,
                     (uint32_t)comm_plan_first(&comm->free_flags, h->flag_bytes / 8),
                     comm_plan_first(&comm->free_bytes, h->bytes), comm->error, sizeof comm->error);
    result = result ? result : comm_plan_find_room(comm, p, &flag, &at);
    result = result ? result : comm_plan_check_operands(comm, &p->problem);
    if (!result && (flag != p->flag_base || at != p->heap_base))
        result = comm_plan_move(comm, p, flag, at);
    if (result)
        return result;
    p->slot = slot;
    p->id = comm->last_plan_id + 1;
    if (ranges_take(&comm->free_flags, p->flag_base, p->flags))
        return comm_refuse(comm, -ENOMEM, "out of memory");
    if (ranges_take(&comm->free_bytes, p->heap_base, comm_plan_bytes(p))) {
        ranges_give(&comm->free_flags, p->flag_base, p->flags);
        return comm_refuse(comm, -ENOMEM, "out of memory");
    }
    return 0;
}

static void comm_plan_give_room(struct mk_comm *comm, const struct mk_plan *p)
{
    ranges_give(&comm->free_flags, p->flag_base, p->flags);
    ranges_give(&comm->free_bytes, p->heap_base, comm_plan_bytes(p));
}

/* What is free before a plan is made: the same on all ranks, or their plans would not fit
 * together. */
struct comm_free {
    uint64_t first_flag, first_byte, digest;
};

static struct comm_free comm_plan_free(const struct mk_comm *comm)
{
    return (struct comm_free){ranges_first(&comm->free_flags), ranges_first(&comm->free_bytes),
                              mk_mix(ranges_digest(&comm->free_flags)) ^
                                  ranges_digest(&comm->free_bytes)};
}

static int comm_plan_agree_on(struct mk_comm *comm, const struct mk_problem *q,
                              const struct comm_free *free_before, const struct mk_plan *made,
                              int result)
{
    struct agree_field fields[AGREE_FIELDS];
    uint32_t count = comm_fields(comm, q, fields);
    const struct agree_field more[] = {
        {"first flag (plans must be made in the same order)", free_before->first_flag, 0},
        {"first heap byte (allocations must be made in the same order)", free_before->first_byte,
         0},
        {"free heap (plans must be made and destroyed in the same order)", free_before->digest,
         AGREE_OPAQUE},
        {"layout of its flags and heap", made ? plan_layout(made) : 0, AGREE_MADE},
    };
    memcpy(fields + count, more, sizeof more);
    comm_calls(comm, COMM_CALL_PLAN, q->op);
    result = agree(comm->bootstrap, comm->topo.rank, mk_world(&comm->topo), "plans", fields,
                   count + sizeof more / sizeof *more, result, comm->error, sizeof comm->error);
    comm_calls(comm, COMM_CALL_NONE, MK_OPS);
    return result;
}

static void comm_plan_set(struct mk_comm *comm, uint32_t slot, struct mk_plan *p)
{
    pthread_mutex_lock(&comm->plans_lock);
    comm->plans[slot] = p;
    if (comm->plan_count <= slot)
        comm->plan_count = slot + 1;
    pthread_mutex_unlock(&comm->plans_lock);
}

int comm_create_plan(struct mk_plan **out, struct mk_comm *comm, const struct mk_problem *problem,
                     int result)
{
    MK_C_NUMBERS;
    *out = NULL;
    if (comm->stage != STAGE_OPEN)
        return comm_refuse(comm, -EINVAL, "the communicator is not open");
    if (comm_tell_failure(comm))
        return -EIO;
    struct mk_problem q = *problem;
    q.topo = comm->topo;
    q.exec = plan_exec(comm->config.exec);
    q.sms = comm->exec->sms(comm);
    q.block_shared = comm->exec->block_shared ? comm->exec->block_shared(comm) : 0;
    uint32_t share = comm->exec->share ? comm->exec->share(comm) : 0;
    if (share && (!q.sms_most || share < q.sms_most))
        q.sms_most = share;
    if (q.engine == MK_ENGINE_DEVICE && comm->exec->engine)
        q.engine = comm->exec->engine(comm);
    if (!q.timeout_ns)
        q.timeout_ns = comm->config.timeout_ns;
    if (q.timeout_ns > COMM_LONGEST_NS)
        q.timeout_ns = COMM_LONGEST_NS;
    struct comm_free free_before = comm_plan_free(comm);
    struct plan_handle *handle = calloc(1, sizeof *handle);
    struct mk_plan *p = handle ? &handle->plan : NULL, *built = NULL, *prepared = NULL;
    if (!result && !handle)
        result = comm_refuse(comm, -ENOMEM, "out of memory");
    if (!result) {
        handle->comm = comm;
        result = comm_plan_build(comm, p, &q);
        built = result ? NULL : p;
    }
    if (!result && spec_options(p, handle->options, sizeof handle->options))
        result = comm_refuse(comm, -ENOSPC, "the options of the plan take over %zu letters",
                             sizeof handle->options - 2);
    if (!result) { /* before the ranks agree: what one rank's device refuses, all do not have */
        result = comm->exec->plan(comm, p);
        prepared = result ? NULL : p;
    }
    result = comm_plan_agree_on(comm, &q, &free_before, p, result);
    if (comm_failed(comm)) {
        free(handle);
        return comm_tell_failure(comm);
    }
    if (result) {
        if (prepared)
            comm->exec->unplan(comm, p);
        if (built)
            comm_plan_give_room(comm, p);
        free(handle);
        return result;
    }
    handle->outputs = op_extents(&p->problem, handle->bytes);
    comm->last_plan_id = p->id;
    comm_plan_set(comm, p->slot, p);
    *out = p;
    return 0;
}

int comm_make_plan(struct mk_plan **out, struct mk_comm *comm, const struct mk_problem *problem)
{
    return comm_create_plan(out, comm, problem, 0);
}

int mk_plan_create(struct mk_plan **out, struct mk_comm *comm, const struct mk_spec *spec)
{
    MK_C_NUMBERS;
    struct mk_problem q;
    int result = spec_to_problem(&q, spec, comm->error, sizeof comm->error);
    return comm_create_plan(out, comm, &q, result);
}

void comm_describe(struct mk_comm *comm, uint32_t plan_id, struct mk_failure *f)
{
    pthread_mutex_lock(&comm->plans_lock);
    for (uint32_t i = 0; i < comm->plan_count; i++) {
        const struct mk_plan *p = comm->plans[i];
        struct mk_flag_meaning meaning;
        if (!p || p->id != plan_id)
            continue;
        f->op = p->problem.op;
        if (f->flag == UINT32_MAX)
            continue;
        plan_describe_flag(p, f->flag, &meaning);
        f->chunk = meaning.chunk;
        memcpy(f->what, meaning.text, sizeof f->what);
    }
    pthread_mutex_unlock(&comm->plans_lock);
}

/* ---- plans that go ---- */

/* Until nothing that this rank has put is under way: a put that a peer has had may still want to be
 * acknowledged, or to be sent again. Its launches have ended. */
static int comm_plan_drain(struct mk_comm *comm)
{
    uint64_t began = mk_now_ns(), posted[MK_MAX_RINGS];
    for (uint32_t i = 0; i < comm->ring_count; i++)
        posted[i] = comm->rings[i]->posted;
    int result = comm->ring_count && comm->exec->posted ? comm->exec->posted(comm, posted) : 0;
    if (result)
        return comm_give_up(comm, result);
    for (uint32_t i = 0; i < comm->ring_count; i++) {
        const struct mk_ring *ring = comm->rings[i];
        while (__atomic_load_n(&ring->completed, __ATOMIC_ACQUIRE) != posted[i]) {
            if (comm_interrupted(comm) || comm_failed(comm))
                return -EIO;
            if (mk_now_ns() - began > comm->config.timeout_ns)
                return comm_give_up(comm,
                                    comm_refuse(comm, -ETIMEDOUT, "puts of a plan do not end"));
            nanosleep(&(struct timespec){0, 50000}, NULL);
        }
    }
    return 0;
}

/* All ranks come here when their own launches have ended; it returns when all have. */
static int comm_plan_agree_to_destroy(struct mk_comm *comm, const struct mk_plan *p, int result)
{
    const struct agree_field fields[] = {{"plan", p->id, AGREE_NUMBER}};
    comm_calls(comm, COMM_CALL_DESTROY, p->problem.op);
    result = agree(comm->bootstrap, comm->topo.rank, mk_world(&comm->topo), "destroys", fields, 1,
                   result, comm->error, sizeof comm->error);
    comm_calls(comm, COMM_CALL_NONE, MK_OPS);
    return result;
}

int mk_plan_destroy(struct mk_plan *p)
{
    MK_C_NUMBERS;
    if (!p)
        return 0;
    struct plan_handle *handle = (struct plan_handle *)(void *)p;
    struct mk_comm *comm = handle->comm;
    int result = 0;
    if (comm->trace_state)
        result = comm_refuse(comm, -EINVAL,
                             "a trace is being recorded, and tells of the plans: call mk_trace_end "
                             "before mk_plan_destroy");
    if (handle->begun)
        result = comm_refuse(comm, -EINVAL,
                             "a launch of %s has begun and not ended: call mk_launch_end before "
                             "mk_plan_destroy",
                             plan_op_name(p->problem.op));
    result = result ? result : mk_wait(comm);
    result = result ? result : comm_plan_drain(comm);
    if (!comm_failed(comm))
        result = comm_plan_agree_to_destroy(comm, p, result);
    if (comm_failed(comm))
        return comm_tell_failure(comm);
    if (result)
        return result;
    result = comm->exec->unplan(comm, p);
    if (result) {
        comm_give_up(comm, result); /* the others use its heap for the next plan */
        return -EIO;
    }
    comm_plan_set(comm, p->slot, NULL);
    if (comm->topo.nodes > 1) /* fabrics count on flags that never go back */
        ranges_give(&comm->free_bytes, p->heap_base, comm_plan_bytes(p));
    else
        comm_plan_give_room(comm, p);
    free(handle);
    return 0;
}

int mk_moe_set_experts(struct mk_plan *plan, const int32_t *slots, uint32_t experts,
                       uint32_t copies)
{
    struct mk_comm *comm = COMM_HANDLE(plan)->comm;
    const struct mk_problem *q = &plan->problem;
    const struct moe_map map = {experts, copies, slots};
    const uint64_t logical = op_logical(q);
    if (comm_failed(comm))
        return comm_tell_failure(comm);
    if (!logical)
        return comm_refuse(comm, -EINVAL,
                           "a map of experts for a plan of %s that was made without logical= among "
                           "its options",
                           plan_op_name(q->op));
    if (experts != logical || !copies || !slots)
        return comm_refuse(comm, -EINVAL,
                           "a map of %u experts in %u columns: the plan has logical=%lu, and there "
                           "is one column at least",
                           experts, copies, logical);
    uint32_t *row = malloc(experts * sizeof *row);
    int result =
        row ? moe_map_check(&map, (uint32_t)q->moe.experts, comm->error, sizeof comm->error)
            : comm_refuse(comm, -ENOMEM, "out of memory");
    if (!result) {
        moe_map_row(&map, &q->topo, (uint32_t)(q->moe.experts / mk_world(&q->topo)), row);
        result = comm_store(comm, plan_moe_map(plan), row, experts * sizeof *row);
    }
    free(row);
    return result;
}
