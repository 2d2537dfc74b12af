/* MoE dispatch+GEMM: an expert's rows, as the ids of all ranks say. */
#include "experiments/job/op.h"
#include "experiments/ops/check_gemm_gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One expert of this rank: its rows as the ids of all ranks say, against one product. */
static int moe_dispatch_gemm_check_expert(const struct run_data *d,
                                          const void *const arguments[RUN_ARGUMENTS],
                                          uint32_t local, const uint16_t *x, const uint32_t *ids,
                                          uint16_t *a, uint64_t *next, struct check_result *result)
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
    if (!rows)
        return 0;
    if (!d->cuda || !check_gemm_gpu)
        return check_gemm(&g, NULL, result);
    const struct check_gemm_gpu on_gpu = {.m = g.m,
                                          .n = g.n,
                                          .k = g.k,
                                          .products = 1,
                                          .a = g.a,
                                          .b = g.b,
                                          .c = g.c,
                                          .b_transposed = g.b_transposed};
    return check_gemm_gpu(&on_gpu, result);
}

/* Ranks have different work: they do not meet, so there is nothing to pace. */
static int moe_dispatch_gemm_check(const struct run_data *d,
                                   const void *const arguments[RUN_ARGUMENTS], uint64_t launch,
                                   const struct check_pace *pace, struct check_result *result)
{
    const struct mk_moe *m = &d->job->problem.moe;
    uint32_t world = mk_world(&d->job->problem.topo);
    uint64_t next = 0, all = world * m->tokens;
    uint16_t *x = malloc(all * m->hidden * 2), *a = malloc(all * m->k * m->hidden * 2);
    uint32_t *ids = malloc(all * m->k * sizeof *ids);
    int status = x && a && ids ? 0 : -ENOMEM;
    for (uint32_t rank = 0; rank < world && !status; rank++) {
        run_data_input(d, 0, rank, launch, 0, m->tokens * m->hidden,
                       x + rank * m->tokens * m->hidden);
        run_data_ids(d, rank, launch, ids + rank * m->tokens * m->k);
    }
    for (uint32_t local = 0; local < m->experts / world && !status; local++)
        status = moe_dispatch_gemm_check_expert(d, arguments, local, x, ids, a, &next, result);
    free(x);
    free(a);
    free(ids);
    return status;
}

/* The last element of the first expert that has rows: behind those it has, nothing is checked. */
static uint16_t *moe_dispatch_gemm_element_of_expert(const struct run_data *d, uint64_t slot)
{
    const struct mk_problem *q = &d->job->plan.problem;
    const uint32_t *begins = run_data_at(d, slot, 4);
    for (uint64_t i = 0; i < q->moe.experts / mk_world(&q->topo); i++)
        if (begins[2 * i + 1])
            return (uint16_t *)run_data_at(d, slot, 3) +
                   (begins[2 * i] + (uint64_t)begins[2 * i + 1]) * q->moe.inner - 1;
    return run_data_at(d, slot, 4); /* no tokens: what is said of the first expert */
}

static void moe_dispatch_gemm_spoil(const struct run_data *d, uint64_t slot)
{
    *moe_dispatch_gemm_element_of_expert(d, slot) ^= 0x4000;
}

/* Every row is moved and told by itself. */
static uint64_t moe_dispatch_gemm_records(const struct mk_plan *plan)
{
    const struct mk_moe *m = &plan->problem.moe;
    const struct mk_topo *t = &plan->problem.topo;
    return 3 * t->nodes * m->tokens * m->k + 2 * mk_world(t);
}

const struct run_op run_op_moe_dispatch_gemm = {.make = run_make_moe,
                                                .check = moe_dispatch_gemm_check,
                                                .spoil = moe_dispatch_gemm_spoil,
                                                .records = moe_dispatch_gemm_records,
                                                .routed = 1,
                                                .collective = RUN_ALL_TO_ALL,
                                                .product = RUN_EXPERTS};
