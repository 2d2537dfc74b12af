/* A layer of FP8 over inputs that are not numbers alone, for the host's executor and the emulated
 * GPU: a NaN of a token, of a gate and of B2 reaches exactly the sums that it should, a row of zeros
 * is zeros, and scales of 2^-40 and 2^40 come to what those of 1 do. */
#pragma once

#include "core/base/bf16.h"
#include "core/base/quantize.h"
#include "sim/op.h"
#include "sim/ops/exact_moe.h"
#include "sim/ops/exact_moe_ffn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { FP8_NAN_TOKEN = 0, FP8_ZERO_TOKEN = 1, FP8_NAN_COLUMN = 3 };

/* Expert 0 has a NaN in a gate, the last one in column FP8_NAN_COLUMN of B2; rank 0's first token has
 * one, and its second is zeros. */
static void moe_fp8_fill_nan(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const uint32_t rank = l->plan->problem.topo.rank, world = mk_world(&l->plan->problem.topo);
    uint8_t *x = l->arguments[0], *b1 = l->arguments[1], *b2 = l->arguments[4];
    exact_moe_ffn_fill(l);
    if (rank == 0) {
        x[FP8_NAN_TOKEN * quantize_record(m->hidden) + m->hidden - 1] = 0x7f;
        for (uint64_t i = 0; i < m->hidden; i++)
            x[FP8_ZERO_TOKEN * quantize_record(m->hidden) + i] = 0;
        b1[(m->inner - 1) * m->hidden + 5] = 0xff;
    }
    if (rank == world - 1)
        b2[(m->experts / world - 1) * m->hidden * m->inner + FP8_NAN_COLUMN * m->inner + 1] = 0x7f;
}

static int moe_fp8_verify_nan(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const uint32_t rank = l->plan->problem.topo.rank;
    const uint16_t *y = l->arguments[5];
    uint32_t *ids = malloc(m->tokens * m->k * sizeof *ids);
    int wrong = !ids;
    snprintf(l->text, l->size, "no memory");
    if (ids)
        exact_moe_taken(l->plan, l->seed, l->launch, rank, ids);
    for (uint64_t i = 0; i < m->tokens * m->hidden && !wrong; i++) {
        const uint64_t token = i / m->hidden;
        const float value = mk_bf16_to_float(y[i]);
        int any = 0, poisoned = 0;
        for (uint64_t place = token * m->k; place < (token + 1) * m->k; place++) {
            any |= ids[place] < m->experts;
            poisoned |= ids[place] == 0 ||
                        (ids[place] == m->experts - 1 && i % m->hidden == FP8_NAN_COLUMN);
        }
        poisoned |= any && rank == 0 && token == FP8_NAN_TOKEN;
        wrong = poisoned ? !isnan(value) : !isfinite(value);
        wrong |= !poisoned && rank == 0 && token == FP8_ZERO_TOKEN && value != 0;
        snprintf(l->text, l->size, "launch %llu, rank %u: Y[%llu][%llu] is %g%s",
                 (unsigned long long)l->launch, rank, (unsigned long long)token,
                 (unsigned long long)(i % m->hidden), (double)value,
                 poisoned ? " and should be no number" : "");
    }
    free(ids);
    return wrong;
}

/* Tokens' scales 2^-40 of what they were, B1's 2^40 times, or the other way round. */
static void moe_fp8_fill_far(const struct sim_launch *l)
{
    const struct mk_moe *m = &l->plan->problem.moe;
    const uint64_t blocks = mk_ceil_div(m->hidden, MK_SCALE_BLOCK),
                   all = m->experts / mk_world(&l->plan->problem.topo) * 2 *
                         mk_ceil_div(m->inner, MK_SCALE_BLOCK) * mk_round_up(blocks, 4);
    const int by = l->seed % 2 ? 40 : -40;
    exact_moe_ffn_fill(l);
    for (uint64_t token = 0; token < m->tokens; token++) {
        float *scales = (float *)(void *)((uint8_t *)l->arguments[0] +
                                          token * quantize_record(m->hidden) + m->hidden);
        for (uint64_t i = 0; i < blocks; i++)
            scales[i] = ldexpf(scales[i], by);
    }
    for (uint64_t i = 0; i < all; i++)
        ((float *)l->arguments[6])[i] = ldexpf(((float *)l->arguments[6])[i], -by);
}

/* The operator with these inputs; far: scales, else NaN. */
static const struct sim_op *moe_fp8_op(struct sim_op *op, int far)
{
    *op = *sim_op_of(MK_OP_MOE_FFN);
    op->fill = far ? moe_fp8_fill_far : moe_fp8_fill_nan;
    if (!far)
        op->verify = moe_fp8_verify_nan;
    return op;
}
