/* Is what a rank ended with right? By another path than the executor's: whole matrices, from inputs made
 * anew. */
#include "experiments/run.h"
#include "experiments/check_attention.h"
#include "experiments/check_moe_ffn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One product is the reference: where ranks are summed over, every rank's A stands side by side, and every
 * rank's B below one another. */
static int check_product(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                         uint64_t launch, const struct check_pace *pace, struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    uint32_t world = mk_world(&q->topo), me = d->job->identity.rank, gathers = q->op == MK_OP_AG_GEMM;
    uint64_t shard = q->m / world, rows = q->op == MK_OP_GEMM_RS ? shard : q->m,
             depth = gathers ? q->k : world * q->k;
    uint64_t first = q->op == MK_OP_GEMM_RS ? me * shard : 0;
    uint16_t *a = malloc(rows * depth * 2), *b = gathers ? NULL : malloc(depth * q->n * 2);
    int status = -ENOMEM;
    if (!a || (!b && !gathers))
        goto out;
    for (uint32_t rank = 0; rank < world; rank++) {
        if (gathers) {
            run_data_input(d, 0, rank, launch, 0, shard * q->k, a + rank * shard * q->k);
            continue;
        }
        for (uint64_t row = 0; row < rows; row++)
            run_data_input(d, 0, rank, launch, (first + row) * q->k, q->k, a + row * depth + rank * q->k);
        if (!q->b_transposed)
            run_data_input(d, 1, rank, launch, 0, q->k * q->n, b + rank * q->k * q->n);
        for (uint64_t col = 0; q->b_transposed && col < q->n; col++)
            run_data_input(d, 1, rank, launch, col * q->k, q->k, b + col * depth + rank * q->k);
    }
    /* Fast: each rank's product is rounded (one rounding of the whole, as they add up), then each of the
     * world - 1 sums in any order, and a node's sum perhaps once more on its way out. */
    int fast = !gathers && !q->deterministic;
    struct check_gemm g = {.m = rows,
                           .n = q->n,
                           .k = depth,
                           .a = a,
                           .b = gathers ? arguments[1] : b,
                           .c = arguments[2],
                           .b_transposed = q->b_transposed,
                           .roundings = fast ? world + 1 : 0,
                           .frobenius = fast ? CHECK_FAST : 0};
    status = check_gemm(&g, pace, result);
out:
    free(a);
    free(b);
    return status;
}

/* K and V of all ranks in the order of the sequence. */
static int check_attended(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                          uint64_t launch, const struct check_pace *pace, struct check_result *result)
{
    const struct mk_attention *t = &d->job->problem.attention;
    uint32_t world = mk_world(&d->job->problem.topo), halves = t->causal ? 2 : 1;
    uint64_t half = t->sequence / world / halves, row = t->kv_heads * t->head_dim;
    struct check_attention c = {.problem = *t, .world = world, .rank = d->job->identity.rank};
    uint16_t *kv[2] = {malloc(t->batch * t->sequence * row * 2), malloc(t->batch * t->sequence * row * 2)};
    int status = -ENOMEM;
    for (uint32_t part = 0; part < 2 && kv[0] && kv[1]; part++)
        for (uint32_t rank = 0; rank < world; rank++)
            for (uint64_t batch = 0; batch < t->batch; batch++)
                for (uint32_t h = 0; h < halves; h++) {
                    uint64_t block = h ? 2 * world - 1 - rank : rank;
                    run_data_input(d, 1 + part, rank, launch, (batch * halves + h) * half * row, half * row,
                                   kv[part] + (batch * t->sequence + block * half) * row);
                }
    c.q = arguments[0];
    c.k = kv[0];
    c.v = kv[1];
    c.o = arguments[3];
    c.lse = arguments[4];
    if (kv[0] && kv[1])
        status = check_attention(&c, pace, result);
    free(kv[0]);
    free(kv[1]);
    return status;
}

/* One expert of this rank: its rows as the ids of all ranks say, against one product. */
static int check_expert(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS], uint32_t local,
                        const uint16_t *x, const uint32_t *ids, uint16_t *a, uint64_t *next,
                        struct check_result *result)
{
    const struct mk_problem *q = &d->job->plan.problem;
    const struct mk_moe *m = &q->moe;
    const uint32_t *said = arguments[4];
    uint32_t world = mk_world(&q->topo);
    uint64_t rows = 0, expert = d->job->identity.rank * (m->experts / world) + local;
    for (uint64_t i = 0; i < world * m->tokens * m->k; i++)
        if (ids[i] == expert)
            memcpy(a + rows++ * m->hidden, x + i / m->k * m->hidden, m->hidden * 2);
    result->elements += 2; /* what is said of it counts, too */
    result->wrong += (said[2 * local] != *next) + (said[2 * local + 1] != rows);
    struct check_gemm g = {.m = rows,
                           .n = m->inner,
                           .k = m->hidden,
                           .a = a,
                           .b = (const uint16_t *)arguments[1] + local * m->hidden * m->inner,
                           .c = (const uint16_t *)arguments[3] + *next * m->inner,
                           .b_transposed = q->b_transposed};
    *next += mk_round_up(rows, q->tuning.tile_m);
    return rows ? check_gemm(&g, NULL, result) : 0;
}

static int check_experts(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS],
                         uint64_t launch, struct check_result *result)
{
    const struct mk_moe *m = &d->job->problem.moe;
    uint32_t world = mk_world(&d->job->problem.topo);
    uint64_t next = 0, all = world * m->tokens;
    uint16_t *x = malloc(all * m->hidden * 2), *a = malloc(all * m->k * m->hidden * 2);
    uint32_t *ids = malloc(all * m->k * sizeof *ids);
    int status = x && a && ids ? 0 : -ENOMEM;
    for (uint32_t rank = 0; rank < world && !status; rank++) {
        run_data_input(d, 0, rank, launch, 0, m->tokens * m->hidden, x + rank * m->tokens * m->hidden);
        run_data_ids(d, rank, launch, ids + rank * m->tokens * m->k);
    }
    for (uint32_t local = 0; local < m->experts / world && !status; local++)
        status = check_expert(d, arguments, local, x, ids, a, &next, result);
    free(x);
    free(a);
    free(ids);
    return status;
}

struct any_expert {
    const struct run_data *data;
    uint64_t launch;
};

static void load_expert(void *context, uint32_t expert, uint16_t *b1, uint16_t *b2)
{
    const struct any_expert *a = context;
    const struct mk_problem *q = &a->data->job->problem;
    uint32_t rank_experts = (uint32_t)q->moe.experts / mk_world(&q->topo), rank = expert / rank_experts;
    uint64_t count = q->moe.hidden * q->moe.inner, local = expert % rank_experts;
    run_data_input(a->data, 1, rank, a->launch, local * 2 * count, 2 * count, b1);
    run_data_input(a->data, 4, rank, a->launch, local * count, count, b2);
}

static int check_layer(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS], uint64_t launch,
                       const struct check_pace *pace, struct check_result *result)
{
    const struct mk_problem *q = &d->job->problem;
    struct any_expert any = {d, launch};
    const struct check_moe_ffn c = {
        .problem = q->moe,
        .b_transposed = q->b_transposed,
        .deterministic = q->deterministic,
        .node = mk_node_of(&q->topo, d->job->identity.rank),
        .node_experts = (uint32_t)q->moe.experts / mk_world(&q->topo) * q->topo.gpus,
        .x = arguments[0],
        .ids = arguments[2],
        .weights = arguments[3],
        .y = arguments[5],
        .expert = load_expert,
        .context = &any,
    };
    return check_moe_ffn(&c, pace, result);
}

int run_check(const struct run_data *d, const void *const arguments[RUN_ARGUMENTS], uint64_t launch,
              const struct check_pace *pace, struct check_result *result)
{
    switch (d->job->problem.op) {
    case MK_OP_RING_ATTENTION:
        return check_attended(d, arguments, launch, pace, result);
    case MK_OP_MOE_DISPATCH_GEMM: /* ranks have different work: they do not meet */
        return check_experts(d, arguments, launch, result);
    case MK_OP_MOE_FFN:
        return check_layer(d, arguments, launch, pace, result);
    default:
        return check_product(d, arguments, launch, pace, result);
    }
}
