/* MoE dispatch+GEMM: an expert's rows, as the ids of all ranks say. */
#include "core/base/quantize.h"
#include "core/base/scoped.h"
#include "experiments/job/op.h"
#include "experiments/ops/check_gemm_gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- FP8 ---- */

enum { MOE_ARGUMENT_B = 1, MOE_ARGUMENT_B_SCALES = 5 };

/* Inputs that are not bf16: of no memory they keep what they had, and the result is wrong. */
static void moe_dispatch_gemm_make(const struct run_data *d, uint32_t argument, uint64_t launch,
                                   void *to)
{
    const struct mk_moe *m = &d->job->problem.moe;
    const uint32_t rank = d->job->identity.rank;
    const uint64_t experts = m->experts / mk_world(&d->job->problem.topo),
                   scales = d->bytes[MOE_ARGUMENT_B_SCALES] / experts / sizeof(float);
    if (op_argument_type(&d->job->problem, argument) == OP_UINT32) {
        run_make_moe(d, argument, launch, to);
        return;
    }
    memset(to, 0, d->bytes[argument]);
    if (!argument) {
        run_moe_records(d, rank, launch, to);
        return;
    }
    for (uint64_t i = 0; i < experts; i++)
        run_moe_quantize(d, run_moe_source(d, MOE_ARGUMENT_B, rank, launch),
                         i * m->inner * m->hidden, m->inner, m->hidden, MK_SCALE_128X128,
                         argument == MOE_ARGUMENT_B ? (uint8_t *)to + i * m->inner * m->hidden
                                                    : NULL,
                         argument == MOE_ARGUMENT_B ? NULL : (float *)to + i * scales);
}

static int moe_check_product(const struct run_data *d, const struct check_gemm *g,
                             struct check_result *result)
{
    const struct check_gemm_gpu on_gpu = {.of = *g, .products = 1};
    return d->cuda && check_gemm_gpu ? check_gemm_gpu(&on_gpu, result)
                                     : check_gemm(g, NULL, result);
}

/* One expert's product, in fp32 as codes and scales say it, against fp64. places: of its `rows`
 * rows, the tokens over all ranks. g has all but A and B. */
static int moe_check_expert_fp8(const struct run_data *d, const struct run_checked *it,
                                uint32_t local, const uint8_t *records, const uint64_t *places,
                                struct check_gemm g)
{
    const uint64_t record = quantize_record(g.k),
                   pitch = mk_round_up(mk_ceil_div(g.k, MK_SCALE_BLOCK), 4);
    MK_FREED float *a = malloc(g.m * g.k * sizeof *a), *b = malloc(g.n * g.k * sizeof *b);
    int status = a && b ? 0 : -ENOMEM;
    for (uint64_t row = 0; row < g.m && !status; row++) {
        const uint8_t *from = records + places[row] * record;
        dequantize_rows(from, 1, g.k, (const float *)(const void *)(from + g.k), 1, a + row * g.k);
    }
    if (!status)
        dequantize_blocks((const uint8_t *)it->arguments[MOE_ARGUMENT_B] + local * g.n * g.k, g.n,
                          g.k,
                          (const float *)it->arguments[MOE_ARGUMENT_B_SCALES] +
                              local * mk_ceil_div(g.n, MK_SCALE_BLOCK) * pitch,
                          pitch, b);
    g.a_wide = a;
    g.b_wide = b;
    g.frobenius = d->job->problem.exec == MK_EXEC_CUDA ? CHECK_FP8 : 0;
    g.cut = d->job->problem.exec == MK_EXEC_CUDA ? CHECK_FP8_CUT : 0;
    return status ? status : moe_check_product(d, &g, it->result);
}

/* ---- the check ---- */

/* One expert of this rank: its rows as the ids of all ranks say, against one product. */
static int moe_dispatch_gemm_check_expert(const struct run_data *d, const struct run_checked *it,
                                          uint32_t local, const void *x, const uint32_t *ids,
                                          void *a, uint64_t *next)
{
    const struct mk_problem *q = &d->job->plan.problem;
    const struct mk_moe *m = &q->moe;
    const uint32_t *said = it->arguments[4];
    uint32_t world = mk_world(&q->topo);
    uint64_t rows = 0, expert = d->job->identity.rank * (m->experts / world) + local;
    for (uint64_t i = 0; i < world * m->tokens * m->k; i++)
        if (ids[i] == expert && q->fp8)
            ((uint64_t *)a)[rows++] = i / m->k;
        else if (ids[i] == expert)
            memcpy((uint16_t *)a + rows++ * m->hidden, (const uint16_t *)x + i / m->k * m->hidden,
                   m->hidden * 2);
    it->result->elements += 2; /* what is said of it counts, too */
    it->result->wrong += (said[2 * local] != *next) + (said[2 * local + 1] != rows);
    struct check_gemm g = {.m = rows,
                           .n = m->inner,
                           .k = m->hidden,
                           .a = a,
                           .b = (const uint16_t *)it->arguments[1] + local * m->hidden * m->inner,
                           .c = (const uint16_t *)it->arguments[3] + *next * m->inner,
                           .b_transposed = q->b_transposed};
    *next += mk_round_up(rows, q->tuning.tile_m);
    if (!rows)
        return 0;
    if (q->fp8)
        return moe_check_expert_fp8(d, it, local, x, a, g);
    return moe_check_product(d, &g, it->result);
}

/* Ranks have different work: they do not meet, so there is nothing to pace. */
static int moe_dispatch_gemm_check(const struct run_data *d, const struct run_checked *it)
{
    const struct mk_moe *m = &d->job->problem.moe;
    uint32_t world = mk_world(&d->job->problem.topo);
    uint64_t next = 0, all = world * m->tokens;
    const int fp8 = d->job->problem.fp8;
    const uint64_t token = fp8 ? quantize_record(m->hidden) : m->hidden * 2;
    MK_FREED uint8_t *x = malloc(all * token);
    /* of an expert's rows */
    MK_FREED void *a = malloc(all * m->k * (fp8 ? sizeof(uint64_t) : token));
    MK_FREED uint32_t *ids = malloc(all * m->k * sizeof *ids);
    int status = x && a && ids ? 0 : -ENOMEM;
    for (uint32_t rank = 0; rank < world && !status; rank++) {
        if (fp8)
            status = run_moe_records(d, rank, it->launch, x + rank * m->tokens * token);
        else
            run_data_input(d, 0, rank, it->launch, 0, m->tokens * m->hidden,
                           (uint16_t *)(void *)(x + rank * m->tokens * token));
        run_data_kept_ids(d, rank, it->launch, ids + rank * m->tokens * m->k);
    }
    for (uint32_t local = 0; local < m->experts / world && !status; local++)
        status = moe_dispatch_gemm_check_expert(d, it, local, x, ids, a, &next);
    return status;
}

static void moe_dispatch_gemm_spoil(const struct run_data *d, uint64_t slot)
{
    run_spoil_rows(d, slot, 3, d->job->plan.problem.moe.inner * 2);
}

const struct run_op run_op_moe_dispatch_gemm = {.source = run_moe_source,
                                                .make = moe_dispatch_gemm_make,
                                                .check = moe_dispatch_gemm_check,
                                                .spoil = moe_dispatch_gemm_spoil,
                                                .routed = 1,
                                                .collective = RUN_ALL_TO_ALL,
                                                .product = RUN_EXPERTS};
