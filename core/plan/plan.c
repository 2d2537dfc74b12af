#include "core/cta/command.h"
#include "core/base/digest.h"
#include "core/plan/plan.h"
#include "core/ops/op.h"
#include "core/plan/pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int plan_build(struct mk_plan *p, const struct mk_problem *problem, uint32_t flag_base,
               uint64_t heap_base, char *error, size_t size)
{
    memset(p, 0, sizeof *p);
    p->problem = *problem;
    p->problem.sms = plan_sms(problem);
    p->flag_base = flag_base;
    p->heap_base = heap_base > MK_CMD_MAX_OFFSET ? heap_base : mk_round_up(heap_base, MK_HEAP_UNIT);
    if (!p->problem.timeout_ns)
        p->problem.timeout_ns = MK_TIMEOUT_NS;
    const struct mk_topo *t = &problem->topo;
    if (!t->nodes || !t->gpus || t->gpus > MK_MAX_LOCAL ||
        (uint64_t)t->nodes * t->gpus > MK_MAX_RANKS || t->rank >= mk_world(t)) {
        snprintf(error, size, "%u nodes of %u ranks: 1 to %u ranks a node and at most %u in all",
                 t->nodes, t->gpus, MK_MAX_LOCAL, MK_MAX_RANKS);
        return -EINVAL;
    }
    if (!op_of(problem->op)) {
        snprintf(error, size, "%s has no schedule", plan_op_name(problem->op));
        return -EINVAL;
    }
    int result = plan_choose_engine(&p->problem, error, size);
    result = result ? result : plan_check_shape(&p->problem, error, size);
    result = result ? result : plan_check_dtype(&p->problem, error, size);
    result = result ? result : plan_check_epilogue(&p->problem, error, size);
    result = result ? result : plan_check_sums(&p->problem, error, size);
    result = result ? result : plan_check_back(&p->problem, error, size);
    return result ? result : op_of(problem->op)->build(op_of(problem->op), p, error, size);
}

uint64_t plan_layout(const struct mk_plan *p)
{
    const uint64_t numbers[] = {p->flag_base,  p->flags, p->heap_base, p->heap_bytes,
                                p->zero_bytes, p->tiles, p->chunks};
    uint64_t digest = mk_digest(MK_DIGEST, numbers, sizeof numbers);
    return mk_digest(digest, &p->problem.tuning, sizeof p->problem.tuning);
}

int plan_op_by_name(const char *name)
{
    for (int i = 0; i < MK_OPS; i++)
        if (!strcmp(name, plan_op_name(i)))
            return i;
    return -EINVAL;
}

const char *const plan_execs[MK_EXECS] = {"host", "cuda", "emulated"};
const char *const plan_dtypes[MK_PLAN_DTYPES] = {"bf16", "fp16", "fp8", "bytes"};
const char *const plan_splits[2] = {"zigzag", "contiguous"};
const char *const plan_engines[MK_ENGINES] = {"device", "wgmma", "mma"};
const char *const plan_shots[MK_SHOTS] = {"one_shot", "two_shot", "shared_columns",
                                          "column_blocks"};
const char *const plan_backs[2] = {"bf16", "fp8"};
const char *const plan_b_scales[2] = {"blocks", "columns"};
const char *const plan_sums[MK_PLAN_SUMS] = {"fast", "deterministic", "everywhere"};

const char *plan_role_name(enum mk_role role)
{
    static const char *const names[MK_ROLES] = {"compute", "intra_comm", "inter_send",
                                                "inter_reduce"};
    return (unsigned)role < MK_ROLES ? names[role] : "unknown role";
}

const char *plan_cause_name(enum mk_cause cause)
{
    static const char *const names[MK_CAUSES] = {[MK_CAUSE_NONE] = "none",
                                                 [MK_CAUSE_DATA] = "data",
                                                 [MK_CAUSE_BACKPRESSURE] = "back-pressure",
                                                 [MK_CAUSE_NETWORK] = "network"};
    return (unsigned)cause < MK_CAUSES && names[cause] ? names[cause] : "unknown cause";
}

void plan_describe_tile(const struct mk_plan *p, uint32_t id, struct mk_tile *out)
{
    memset(out, 0, sizeof *out);
    out->id = id;
    if (id < p->tiles)
        op_of(p->problem.op)->describe_tile(p, id, out);
}

/* What a table points to is written by plan_lay_out alone. */
void plan_tables(const struct mk_plan *p, struct op_tables *t)
{
    memset(t, 0, sizeof *t);
    op_of(p->problem.op)->tables((struct mk_plan *)(uintptr_t)p, t);
}

void plan_pipeline(const struct mk_plan *p, struct mk_pipeline *out)
{
    const struct op_descriptor *op = op_of(p->problem.op);
    *out = (struct mk_pipeline){.slices = 1, .together = 1};
    if (op->pipeline)
        op->pipeline(p, out);
}

void plan_describe_flag(const struct mk_plan *p, uint32_t flag, struct mk_flag_meaning *out)
{
    struct op_tables t = {.flag_count = 0};
    out->producer = p->problem.topo.rank;
    out->chunk = UINT32_MAX;
    snprintf(out->text, sizeof out->text, "flag %u, which this plan does not have", flag);
    if (p->flags)
        plan_tables(p, &t);
    for (uint32_t i = 0; i < t.flag_count; i++)
        if (flag >= *t.flags[i].first && flag - *t.flags[i].first < plan_flag_count(&t.flags[i]))
            plan_describe_flag_of(&p->problem.topo, &t.flags[i], flag - *t.flags[i].first, out);
}

void plan_describe_chunk(const struct mk_plan *p, uint32_t id, uint32_t *rank, uint32_t *number,
                         uint64_t *bytes)
{
    *rank = *number = UINT32_MAX;
    *bytes = 0;
    if (id < p->chunks)
        op_of(p->problem.op)->describe_chunk(p, id, rank, number, bytes);
}

void plan_work(const struct mk_plan *p, double *flop, uint64_t *nvlink_bytes,
               uint64_t *network_bytes)
{
    op_of(p->problem.op)->work(p, flop, nvlink_bytes, network_bytes);
}

double plan_memory_bytes(const struct mk_plan *p)
{
    const struct op_descriptor *op = op_of(p->problem.op);
    uint64_t bytes[MK_SPACES - 1];
    double sum = 0;
    if (op->memory)
        return op->memory(p);
    op_extents(&p->problem, bytes);
    for (int i = 0; i < MK_SPACES - 1; i++)
        sum += (double)bytes[i];
    return sum;
}

struct mk_kernel_choice mk_kernel_choice_of(const struct mk_plan *plan)
{
    const struct mk_problem *q = &plan->problem;
    return (struct mk_kernel_choice){.engine = q->engine,
                                     .split = q->tuning.split,
                                     .tile_m = q->tuning.tile_m,
                                     .tile_n = q->tuning.tile_n,
                                     .slices = q->tuning.slices,
                                     .sms_most = q->sms_most,
                                     .block_shared = q->block_shared,
                                     .b_transposed = q->b_transposed,
                                     .fp8 = q->fp8,
                                     .fp16 = q->fp16,
                                     .b_columns = q->b_columns,
                                     .deterministic = q->deterministic};
}
