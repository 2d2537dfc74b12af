/* Is C = A * B right? Against OpenBLAS's whole product in float64 (float32 where that would take
 * too long), never by the executor's own tiles.
 *
 * Two bounds. Every element is within
 *   |c - ref| <= u |ref| + (K 2^-23 + roundings u) sum |a||b|, u = 2^-8
 * First the rounding of the result to bf16: with 8 significant bits, half a unit in the last place
 * is 2^-9 of a value just below a power of two, and of one just above it 2^-8, the unit roundoff.
 * Then twice the error of K fp32 additions in any order, whose unit roundoff is 2^-24 (Higham 2002,
 * section 3.1); and as many unit roundoffs of bf16 as partial sums are rounded on the way.
 *
 * Of e4m3 on a GPU CHECK_FP8_CUT comes to K 2^-23: a tensor core adds 32 products to what it has,
 * each of these 33 cut toward zero at 2^-13 of the largest, and cuts the sum there too; four times
 * for 128 of K, before fp32 takes over.
 *
 * Where a residual follows, C is rounded before it is added: another 2^-8 |C|.
 *
 * An activation of the sum x + bias makes of an error at most CHECK_SLOPE times as much.
 *
 * The relative Frobenius error of the whole is at most CHECK_FROBENIUS: rounding alone makes
 * 1.66e-3 on average. Few elements stray from the average, so below CHECK_MANY of them it is the
 * worst case, 2^-8. An element that is NaN or infinite is wrong.
 *
 * Of fp16, with 11 significant bits, u and the bounds on whole errors are an eighth (check_share), and
 * a result below 2^-14 has steps of 2^-24. */
#pragma once

#include "core/half.h"

#define CHECK_FROBENIUS 2e-3
#define CHECK_FAST 5e-3  /* where partial sums are rounded to bf16 as well */
#define CHECK_TWICE 3e-3 /* where a residual is added to what was rounded */
#define CHECK_FP8 2.5e-3 /* where a tensor core has added e4m3 */
#define CHECK_SLOPE 1.13 /* the steepest that an activation is */
#define CHECK_MANY 4096
#define CHECK_FP8_CUT (4 * 34 * 0x1p-13)

/* Of results in MK_BF16 or MK_FP16: what part of bf16's bounds are theirs; the unit roundoff; half a
 * step of the smallest. */
MK_PURE double check_share(uint32_t element)
{
    return element == MK_FP16 ? 0x1p-3 : 1;
}

MK_PURE double check_unit(uint32_t element)
{
    return 0x1p-8 * check_share(element);
}

MK_PURE double check_step(uint32_t element)
{
    return element == MK_FP16 ? 0x1p-25 : 0;
}

#ifdef __cplusplus
extern "C" {
#endif

/* A product to check, row-major. */
struct check_gemm {
    uint32_t element;             /* MK_BF16 or MK_FP16, of all that has 16 bits */
    uint64_t m, n, k;             /* elements */
    const uint16_t *a;            /* [m, k] */
    const uint16_t *b;            /* [k, n], or [n, k] where b_transposed */
    const float *a_wide, *b_wide; /* where A and B are fp32, in their place */
    const uint16_t *c;            /* [m, n] */
    const uint16_t *bias;         /* [n], where the epilogue has one */
    const uint16_t *residual;     /* [m, n], where it has one */
    uint32_t epilogue;            /* bits of enum mk_epilogue */
    int b_transposed;
    uint32_t roundings; /* of partial sums to the element on the way to one of C, at most */
    double cut;         /* beside K 2^-23: of what is added in fewer bits */
    double frobenius;   /* what the relative Frobenius error may be of bf16; 0: CHECK_FROBENIUS */
};

/* What was found; one add-up-able record, so that launches can be joined (check_join). */
struct check_result {
    uint64_t elements, wrong;       /* wrong: outside the element bound */
    double difference2, reference2; /* sums of squares */
    double frobenius;               /* the largest bound among what was joined */
    int nothing;                    /* 1: there was a launch without any element of this rank's */
    double worst; /* the largest |c - ref| over its bound; above 1 is wrong; infinite for NaN */
    uint64_t worst_row, worst_col;
    double worst_value, worst_reference;
};

/* Ranks that check at the same time meet now and then, so that none waits for a slow one longer
 * than a job's timeout. */
struct check_pace {
    /* meet after as much work, the same number of times on every rank */
    double flop;
    int (*meet)(void *context); /* 0 or -errno, which ends the check */
    void *context;
};

/* Adds one element to *result: value against reference, off by `share` of its bound (above 1 is
 * wrong, whatever is not finite is). */
void check_add(struct check_result *result, uint64_t row, uint64_t col, double value,
               double reference, double share);

/* Checks and adds to *result (zeroed by the caller at first). `pace` may be NULL. 0, -ENOMEM, or
 * what meet returned. */
int check_gemm(const struct check_gemm *g, const struct check_pace *pace,
               struct check_result *result);

/* Rows to norm, row-major. */
struct check_norm {
    uint32_t element; /* MK_BF16 or MK_FP16 */
    uint64_t m, n;
    const uint16_t *rows, *weight; /* [m, n], [n] */
    const uint16_t *normed;        /* [m, n]: rows * weight / sqrt(mean(rows^2) + eps) */
    double eps;
};

/* Checks `normed` in float64 and adds to *result. An element's bound is that of its rounding, and
 * as much of n 2^-24 as half the square root's error is. */
void check_norm(const struct check_norm *n, struct check_result *result);

/* Adds `other` to `result`. */
void check_join(struct check_result *result, const struct check_result *other);

/* The relative Frobenius error: infinite where an element is NaN. */
double check_error(const struct check_result *result);

/* What the relative Frobenius error may be. */
double check_bound(const struct check_result *result);

/* 1: both bounds hold (and something was checked, or there was nothing). */
int check_right(const struct check_result *result);

#ifdef __cplusplus
}
#endif
