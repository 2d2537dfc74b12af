/* Checks O = softmax(Q K^T / sqrt(D)) V against two products of whole matrices and a softmax in
 * float64, never against the executor's own tiles.
 *
 * Bounds. An element of O is within 2^-8 (|ref| + sum of weight |v|): its own rounding to bf16 and
 * that of the weights before the second product (2^-9 each, and a factor of 2). lse is within 1e-5
 * of the larger of itself and 1: fp32 sums of D products, and of weights. The relative Frobenius
 * error of O is at most CHECK_FAST. */
#pragma once

#include "core/plan/plan.h"
#include "experiments/common/check.h"

struct check_attention {
    struct mk_attention problem;
    uint32_t world, rank;
    const uint16_t *q, *o; /* [B, S/W, heads, D], this rank's rows */
    const uint16_t *k, *v; /* [B, S, kv_heads, D], in the order of the sequence */
    const float *lse;      /* [B, heads, S/W] */
};

/* Checks and adds to *result; worst_row and worst_col: row of this rank's O as [B S/W, heads D]. 0,
 * -ENOMEM, or what pace->meet returned. */
int check_attention(const struct check_attention *c, const struct check_pace *pace,
                    struct check_result *result);
