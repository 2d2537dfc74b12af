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
 * In the norm the roundings are independent: of activation and Y sqrt(2) of one, in fast mode of
 * rows, ranks' sums and nodes' sums too, sqrt(5). */
#ifndef MK_CHECK_MOE_FFN_H
#define MK_CHECK_MOE_FFN_H

#include "experiments/common/check.h"
#include "core/plan.h"

#define CHECK_ACTIVATION (1.4143 * CHECK_FROBENIUS)

struct check_moe_ffn {
    struct mk_moe problem;
    int b_transposed, deterministic;
    struct mk_topo topo;  /* and this rank in it */
    const uint16_t *x;    /* [T, H] */
    const uint32_t *ids;  /* [T, k] */
    const float *weights; /* [T, k] */
    const uint16_t *y;    /* [T, H] */
    /* Writes B1 and B2 of any expert. */
    void (*expert)(void *context, uint32_t expert, uint16_t *b1, uint16_t *b2);
    void *context;
};

/* Adds to *result; `pace` as in check.h. 0, -ENOMEM, or what meet returned. */
int check_moe_ffn(const struct check_moe_ffn *c, const struct check_pace *pace,
                  struct check_result *result);

#endif
