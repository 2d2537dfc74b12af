/* The MoE feed-forward layer: each token's sum over its experts. */
#include "experiments/ops/check_moe_ffn_gpu.h"
#include "experiments/job/op.h"

static struct run_source moe_ffn_source(const struct run_data *d, uint32_t argument, uint32_t rank,
                                        uint64_t launch)
{
    if (argument == 4) /* the second B of an expert */
        return (struct run_source){.key = run_data_key(d, 3000 + rank, launch)};
    return run_data_plain(d, argument, rank, launch);
}

struct any_expert {
    const struct run_data *data;
    uint64_t launch;
};

static void moe_ffn_load_expert(void *context, uint32_t expert, uint16_t *b1, uint16_t *b2)
{
    const struct any_expert *a = context;
    const struct mk_problem *q = &a->data->job->problem;
    uint32_t rank_experts = (uint32_t)q->moe.experts / mk_world(&q->topo),
             rank = expert / rank_experts;
    uint64_t count = q->moe.hidden * q->moe.inner, local = expert % rank_experts;
    run_data_input(a->data, 1, rank, a->launch, local * 2 * count, 2 * count, b1);
    run_data_input(a->data, 4, rank, a->launch, local * count, count, b2);
}

/* The same as moe_ffn_source says. */
static void moe_ffn_find_expert(void *context, uint32_t expert, struct check_moe_ffn_expert *out)
{
    const struct any_expert *a = context;
    const struct mk_problem *q = &a->data->job->problem;
    uint32_t rank_experts = (uint32_t)q->moe.experts / mk_world(&q->topo),
             rank = expert / rank_experts;
    uint64_t count = q->moe.hidden * q->moe.inner, local = expert % rank_experts;
    out->key[0] = run_data_key(a->data, 1 + rank, a->launch);
    out->key[1] = run_data_key(a->data, 3000 + rank, a->launch);
    out->first[0] = local * 2 * count;
    out->first[1] = local * count;
}

static int moe_ffn_check(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                         uint64_t launch, const struct check_pace *pace,
                         struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    struct any_expert any = {d, launch};
    const struct check_moe_ffn c = {
        .problem = q->moe,
        .b_transposed = q->b_transposed,
        .deterministic = q->deterministic,
        .topo = {q->topo.nodes, q->topo.gpus, d->job->identity.rank},
        .x = arguments[0],
        .ids = arguments[2],
        .weights = arguments[3],
        .y = arguments[5],
        .expert = moe_ffn_load_expert,
        .context = &any,
    };
    if (d->cuda && check_moe_ffn_gpu)
        return check_moe_ffn_gpu(&c, moe_ffn_find_expert, result);
    return check_moe_ffn(&c, pace, result);
}

/* Every row is moved and told by itself; sums go back, and each waits for its rows. */
static uint64_t moe_ffn_records(const struct mk_plan *plan)
{
    const struct mk_moe *m = &plan->problem.moe;
    const struct mk_topo *t = &plan->problem.topo;
    return (3 * t->nodes + 2 * mk_world(t)) * m->tokens * m->k + 2 * mk_world(t);
}

const struct run_op run_op_moe_ffn = {.source = moe_ffn_source,
                                      .make = run_make_moe,
                                      .check = moe_ffn_check,
                                      .made_on_gpu = 1 << 1 | 1 << 4,
                                      .records = moe_ffn_records,
                                      .routed = 1,
                                      .collective = RUN_ALL_TO_ALL,
                                      .product = RUN_LAYER};
