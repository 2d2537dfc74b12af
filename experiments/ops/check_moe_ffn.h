/* Checks Y, a MoE feed-forward layer of this rank's tokens, against float64 by OpenBLAS: each
 * expert over all of its tokens, without rounding of intermediate results.
 *
 * Element bounds, u = 2^-8 the unit roundoff of bf16 and e = 2^-23 twice that of fp32 (see check.h
 * for sums):
 *   gate, up      |off| <= H e |x| |column of B1|, by Cauchy-Schwarz
 *   activation    1.1 |up| off(gate) + |silu(gate)| off(up), as |silu'| < 1.1, and its rounding, u
 *                 + 2^-20 of it
 *   row           (off(activation) + I e |activation|) |B2|; in fast mode its rounding, u
 *   sum           times |weight|; (k + 1) e of the sum of the absolute terms; in fast mode u of
 *                 that for a rank's sum that crosses NVLink, and a node's that crosses the network
 *   Y             its rounding, u
 * If sums come back as e4m3 (back=fp8), a sum that crosses a link has, in place of u, 2^-4 (the
 * unit roundoff of 4 significant bits) and half a step of the smallest codes: 2^-10 of the scale,
 * which is the largest of 128 numbers over 448. For FP8 (X, B1 and B2 are the values of their codes
 * and scales; the activation is quantised in blocks of 128 of a row, as in core/base/quantize.h):
 *   gate, up      also `cut` sum |x||B1| (check.h), which is at most |x| |column of B1|
 *   activation    in place of its rounding: the furthest code that a value within off(activation),
 *                 with a scale from a largest value within its own bound, can have
 *   row           `cut` besides I e
 * The Frobenius bound for FP8: gate and up, truncated toward zero, are off by 2e-4 of it each on a
 * GPU (DESIGN.md), and their product by d, sqrt(2) of that. A code flips with a probability of d
 * over its distance to the next, and is then off by that distance, 2^-3 of it at most: sqrt(2^-3 d)
 * = 6e-3 in all.
 *
 * In the Frobenius norm roundings are independent: those of activation and Y make sqrt(2) of one;
 * in fast mode, with those of rows, ranks' sums and nodes' sums, sqrt(5). With back=fp8 the error
 * of a sum that crosses a link is uniform in a step, which is 2^-3 of the number or less: 2^-3 /
 * sqrt(12) in the norm at most, and as much again for the second link. */
#pragma once

#include "experiments/common/check.h"
#include "core/plan/plan.h"

#define CHECK_ACTIVATION (1.4143 * CHECK_FROBENIUS)
#define CHECK_BACK 3.61e-2 /* of a sum that comes back as e4m3 */
#define CHECK_FLIPS 6e-3   /* codes of the activation, if a tensor core has added e4m3 */

#ifdef __cplusplus
extern "C" {
#endif

struct check_moe_ffn {
    struct mk_moe problem;
    uint32_t behind; /* the last so many tokens have no Y */
    int b_transposed, deterministic, fp8, back_fp8;
    double cut;           /* of e4m3, see check.h */
    struct mk_topo topo;  /* and this rank in it */
    const void *x;        /* [T, H] bf16; of FP8 records */
    const uint32_t *ids;  /* [T, k] */
    const float *weights; /* [T, k] */
    const uint16_t *y;    /* [T, H] */
    /* Writes B1 and B2 of any expert. */
    void (*expert)(void *context, uint32_t expert, uint16_t *b1, uint16_t *b2);
    /* The same of FP8. */
    void (*expert_wide)(void *context, uint32_t expert, float *b1, float *b2);
    void *context;
};

/* What the relative Frobenius error may be. */
double check_moe_ffn_frobenius(const struct check_moe_ffn *c);

/* The error bound of a quantised activation v in a block whose largest value is amax; v and amax
 * have errors of `off` and `off_amax`. *acted: the value of v's code and scale. */
double check_moe_ffn_quantised(double v, double off, double amax, double off_amax, double *acted);

/* Links that a token's sums may cross, one after the other. */
MK_PURE uint32_t check_moe_ffn_links(const struct check_moe_ffn *c)
{
    return (c->topo.gpus > 1) + (c->topo.nodes > 1);
}

/* Adds to *result; `pace` as in check.h. 0, -ENOMEM, or what meet returned. */
int check_moe_ffn(const struct check_moe_ffn *c, const struct check_pace *pace,
                  struct check_result *result);

#ifdef __cplusplus
}
#endif
