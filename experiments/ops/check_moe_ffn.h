/* Is Y = the MoE feed-forward layer of this rank's tokens right? Against float64 by OpenBLAS,
 * expert by expert over all of its tokens, with nothing rounded on the way.
 *
 * Element bounds, u = 2^-8 the unit roundoff of bf16 and e = 2^-23 twice that of fp32 (see check.h
 * for sums):
 *   gate, up      |off| <= H e |x| |column of B1|, by Cauchy-Schwarz
 *   activation    1.1 |up| off(gate) + |silu(gate)| off(up), as |silu'| < 1.1, and its rounding, u
 *                 + 2^-20 of it
 *   row           (off(activation) + I e |activation|) |B2|; in fast mode its rounding, u
 *   sum           by |weight|; (k + 1) e of the sum of what is added; in fast mode u of that for a
 *                 rank's sum that crosses NVLink, and for a node's that crosses the network
 *   Y             its rounding, u
 * Where sums come back as e4m3 (back=fp8), in place of u of a sum that crosses a link 2^-4 of it, the
 * unit roundoff of 4 significant bits, and half a step of the smallest codes: 2^-10 of the scale,
 * which is the largest of 128 over 448.
 * Of FP8 (X, B1 and B2 as codes and scales say them, the activation quantised, in blocks of 128 of
 * a row, as core/quantize.h does):
 *   gate, up      `cut` sum |x||B1| besides (check.h), which is at most |x| |column of B1|
 *   activation    in place of its rounding: within off(activation) of its own value and, in the
 *                 scale, of the block's largest, there are so many codes; the furthest of them
 *   row           `cut` beside I e
 * In the norm: gate and up, cut toward zero, are off by 2e-4 of it each on a GPU (DESIGN.md), and
 * their product by sqrt(2) of that, d. A code flips with a probability of d over its distance to
 * the next, and is then that distance off, 2^-3 of it at most: sqrt(2^-3 d) = 6e-3 in all.
 *
 * In the norm the roundings are independent: of activation and Y sqrt(2) of one, in fast mode of
 * rows, ranks' sums and nodes' sums too, sqrt(5). With back=fp8 a sum that crosses is off by an even
 * share of a step, 2^-3 of a number or less: 2^-3 / sqrt(12) in the norm at most, and as much again
 * for the second link. */
#pragma once

#include "experiments/common/check.h"
#include "core/plan.h"

#define CHECK_ACTIVATION (1.4143 * CHECK_FROBENIUS)
#define CHECK_BACK 3.61e-2 /* of a sum that comes back as e4m3 */
#define CHECK_FLIPS 6e-3   /* codes of the activation, where a tensor core has added e4m3 */

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

/* The most that a quantised activation may be off: its value v of a block whose largest is amax,
 * each within `off`, `off_amax`. *acted: as codes and scale say it. */
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
