/* The MoE feed-forward layer: each token's sum over its experts. */
#include "experiments/ops/check_moe_ffn_gpu.h"
#include "core/base/quantize.h"
#include "core/base/scoped.h"
#include "experiments/job/op.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct run_source moe_ffn_source(const struct run_data *d, uint32_t argument, uint32_t rank,
                                        uint64_t launch)
{
    if (argument == 4) /* the second B of an expert */
        return (struct run_source){.key = run_data_key(d, 3000 + rank, launch)};
    return run_moe_source(d, argument, rank, launch);
}

/* ---- FP8 ---- */

enum { MOE_FFN_B1 = 1, MOE_FFN_B2 = 4, MOE_FFN_B1_SCALES = 6, MOE_FFN_B2_SCALES = 7 };

struct any_expert {
    const struct run_data *data;
    uint64_t launch;
};

/* Any expert's factor B1 or B2, from its first number on. */
static struct run_source moe_ffn_factor(const struct any_expert *a, uint32_t expert,
                                        uint32_t argument)
{
    const struct mk_problem *q = &a->data->job->problem;
    const uint32_t each = (uint32_t)q->moe.experts / mk_world(&q->topo);
    struct run_source s = moe_ffn_source(a->data, argument, expert / each, a->launch);
    s.before += expert % each * q->moe.hidden * q->moe.inner * (argument == MOE_FFN_B1 ? 2 : 1);
    return s;
}

/* The same as codes and scales; either may be NULL. 0 or -ENOMEM. */
static int moe_ffn_quantize(const struct any_expert *a, uint32_t expert, uint32_t argument,
                            uint8_t *codes, float *scales)
{
    const struct run_data *d = a->data;
    const struct mk_moe *m = &d->job->problem.moe;
    const uint64_t size = m->hidden * m->inner,
                   gated = mk_ceil_div(m->inner, MK_SCALE_BLOCK) *
                           mk_round_up(mk_ceil_div(m->hidden, MK_SCALE_BLOCK), 4);
    const struct run_source s = moe_ffn_factor(a, expert, argument);
    if (argument == MOE_FFN_B2)
        return run_moe_quantize(d, s, 0, m->hidden, m->inner, MK_SCALE_128X128, codes, scales);
    int status = 0;
    for (uint64_t which = 0; which < 2 && !status; which++) /* gate, and up, by themselves */
        status = run_moe_quantize(d, s, which * size, m->inner, m->hidden, MK_SCALE_128X128,
                                  codes ? codes + which * size : NULL,
                                  scales ? scales + which * gated : NULL);
    return status;
}

/* Inputs that are not bf16: of no memory they keep what they had, and the result is wrong. */
static void moe_ffn_make(const struct run_data *d, uint32_t argument, uint64_t launch, void *to)
{
    const uint32_t rank = d->job->identity.rank;
    const uint32_t experts =
        (uint32_t)d->job->problem.moe.experts / mk_world(&d->job->problem.topo);
    const struct any_expert any = {d, launch};
    const uint64_t each = d->bytes[argument] / experts;
    const int scales = argument >= MOE_FFN_B1_SCALES;
    const uint32_t factor =
        argument == MOE_FFN_B1 || argument == MOE_FFN_B1_SCALES ? MOE_FFN_B1 : MOE_FFN_B2;
    if (!argument) {
        run_moe_records(d, rank, launch, to);
    } else if (argument == MOE_FFN_B1 || argument == MOE_FFN_B2 || scales) {
        memset(to, 0, d->bytes[argument]);
        for (uint32_t i = 0; i < experts; i++) {
            uint8_t *at = (uint8_t *)to + i * each;
            moe_ffn_quantize(&any, rank * experts + i, factor, scales ? NULL : at,
                             scales ? (float *)(void *)at : NULL);
        }
    } else {
        run_make_moe(d, argument, launch, to);
    }
}

static void moe_ffn_load_expert(void *context, uint32_t expert, uint16_t *b1, uint16_t *b2)
{
    const struct any_expert *a = context;
    const struct mk_problem *q = &a->data->job->problem;
    const uint32_t each = (uint32_t)q->moe.experts / mk_world(&q->topo), rank = expert / each;
    const uint64_t count = q->moe.hidden * q->moe.inner, at = expert % each * count;
    run_data_input(a->data, MOE_FFN_B1, rank, a->launch, 2 * at, 2 * count, b1);
    run_data_input(a->data, MOE_FFN_B2, rank, a->launch, at, count, b2);
}

/* The same of FP8, as codes and scales say it. Of no memory it is zeros, and the result wrong. */
static void moe_ffn_load_wide(void *context, uint32_t expert, float *b1, float *b2)
{
    const struct mk_moe *m = &((const struct any_expert *)context)->data->job->problem.moe;
    const uint64_t h = m->hidden, inner = m->inner,
                   deep1 = mk_round_up(mk_ceil_div(h, MK_SCALE_BLOCK), 4),
                   deep2 = mk_round_up(mk_ceil_div(inner, MK_SCALE_BLOCK), 4),
                   gated = mk_ceil_div(inner, MK_SCALE_BLOCK) * deep1,
                   down = mk_ceil_div(h, MK_SCALE_BLOCK) * deep2;
    MK_FREED uint8_t *codes = malloc(3 * h * inner);
    MK_FREED float *scales = calloc(2 * gated + down, sizeof *scales);
    memset(b1, 0, 2 * h * inner * sizeof *b1);
    memset(b2, 0, h * inner * sizeof *b2);
    if (codes && scales && !moe_ffn_quantize(context, expert, MOE_FFN_B1, codes, scales) &&
        !moe_ffn_quantize(context, expert, MOE_FFN_B2, codes + 2 * h * inner, scales + 2 * gated)) {
        for (uint64_t which = 0; which < 2; which++)
            dequantize_blocks(codes + which * h * inner, inner, h, scales + which * gated, deep1,
                              b1 + which * h * inner);
        dequantize_blocks(codes + 2 * h * inner, h, inner, scales + 2 * gated, deep2, b2);
    }
}

static void moe_ffn_find_expert(void *context, uint32_t expert, struct check_moe_ffn_expert *out)
{
    for (int i = 0; i < 2; i++) {
        const struct run_source s = moe_ffn_factor(context, expert, i ? MOE_FFN_B2 : MOE_FFN_B1);
        out->key[i] = s.key;
        out->first[i] = s.before;
    }
}

static int moe_ffn_check(const struct run_data *d, const struct run_checked *it)
{
    const struct mk_problem *q = &d->job->problem;
    struct any_expert any = {d, it->launch};
    MK_FREED uint32_t *ids = malloc(q->moe.tokens * q->moe.k * sizeof *ids);
    if (!ids)
        return -ENOMEM;
    run_data_kept_ids(d, d->job->identity.rank, it->launch, ids);
    const uint32_t made = run_data_tokens(d, d->job->identity.rank, it->launch);
    const struct check_result none = {.nothing = !made};
    const struct check_moe_ffn c = {
        .problem = q->moe,
        .behind = (uint32_t)q->moe.tokens - made,
        .b_transposed = q->b_transposed,
        .deterministic = q->deterministic,
        .topo = {q->topo.nodes, q->topo.gpus, d->job->identity.rank},
        .fp8 = q->fp8,
        .back_fp8 = q->back_fp8,
        .cut = q->fp8 && q->exec == MK_EXEC_CUDA ? CHECK_FP8_CUT : 0,
        .x = it->arguments[0],
        .ids = ids,
        .weights = it->arguments[3],
        .y = it->arguments[5],
        .expert = moe_ffn_load_expert,
        .expert_wide = moe_ffn_load_wide,
        .context = &any,
    };
    int status = d->cuda && check_moe_ffn_gpu
                     ? check_moe_ffn_gpu(&c, moe_ffn_find_expert, it->result)
                     : check_moe_ffn(&c, it->pace, it->result);
    check_join(it->result, &none);
    return status;
}

const struct run_op run_op_moe_ffn = {.source = moe_ffn_source,
                                      .make = moe_ffn_make,
                                      .check = moe_ffn_check,
                                      .made_on_gpu = 1 << 1 | 1 << 4,
                                      .records = 2,
                                      .routed = 1,
                                      .collective = RUN_ALL_TO_ALL,
                                      .product = RUN_LAYER};
