/* Checks C = A * B against OpenBLAS's product of the whole matrices in float64 (in float32 where
 * that would take too long), never against the executor's own tiles.
 *
 * Two bounds. Every element is within
 *   |c - ref| <= u |ref| + (K 2^-23 + roundings u) sum |a||b|, u = 2^-8
 * First the rounding of the result to bf16: with 8 significant bits, half a unit in the last place
 * is 2^-9 of a value just below a power of two, and of one just above it 2^-8, the unit roundoff.
 * Then twice the error of K fp32 additions in any order, whose unit roundoff is 2^-24 (Higham 2002,
 * section 3.1); and as many unit roundoffs of bf16 as partial sums are rounded on the way.
 *
 * For e4m3 on a GPU CHECK_FP8_CUT is added to K 2^-23. A tensor core adds 32 products to its
 * accumulator, truncates each of these 33 numbers toward zero at 2^-13 of the largest, and
 * truncates the sum there, too; it does this four times for 128 of K, before the sum goes to fp32.
 *
 * If a residual is added, C is rounded before: another 2^-8 |C|.
 *
 * An activation of x + bias multiplies an error by CHECK_SLOPE at most. Where it is a gate, f(x) y,
 * the errors of x and y add to CHECK_SLOPE dx (|y| + dy) + |f(x)| dy.
 *
 * The relative Frobenius error of all of C is at most CHECK_FROBENIUS: rounding alone gives 1.66e-3
 * on average. Below CHECK_MANY elements the average is not reliable and the bound is the worst
 * case, 2^-8. An element that is NaN or infinite is wrong.
 *
 * For fp16, with 11 significant bits, u and the Frobenius bounds are an eighth of these
 * (check_share), and results below 2^-14 have steps of 2^-24. */
#pragma once

#include "core/cta/half.h"

#include <math.h>

#define CHECK_FROBENIUS 2e-3
#define CHECK_FAST 5e-3  /* if partial sums are rounded to bf16, too */
#define CHECK_TWICE 3e-3 /* if a residual is added to the rounded C */
#define CHECK_FP8 2.5e-3 /* if a tensor core has added products of e4m3 */
#define CHECK_SLOPE 1.13 /* the steepest slope of an activation */
#define CHECK_MANY 4096
#define CHECK_FP8_CUT (4 * 34 * 0x1p-13)

/* For results in MK_BF16 or MK_FP16: their share of bf16's bounds; the unit roundoff; half a step
 * of the smallest numbers. */
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
    const uint16_t *c;            /* [m, n]; of an epilogue that is gated [m, n / 2] */
    const uint16_t *bias;         /* [n], where the epilogue has one */
    const uint16_t *residual;     /* [m, n], where it has one */
    uint32_t epilogue;            /* bits of enum mk_epilogue */
    int b_transposed;
    uint32_t roundings; /* of partial sums to the element on the way to one of C, at most */
    double cut;         /* added to K 2^-23, for sums with fewer bits */
    double frobenius;   /* bound of the relative Frobenius error, for bf16; 0: CHECK_FROBENIUS */
};

/* The result of a check. Results of several launches can be added up (check_join). */
struct check_result {
    uint64_t elements, wrong;       /* wrong: outside the element bound */
    double difference2, reference2; /* sums of squares */
    double frobenius;               /* the largest bound among what was joined */
    int nothing;                    /* 1: there was a launch without any element of this rank's */
    double worst; /* the largest |c - ref| over its bound; above 1 is wrong; infinite for NaN */
    uint64_t worst_row, worst_col;
    double worst_value, worst_reference;
};

/* Adds one element to *r. share: its error over its bound; it is wrong above 1, and if its value is
 * not finite. */
MK_PURE void check_add(struct check_result *r, uint64_t row, uint64_t col, double value,
                       double reference, double share)
{
    double off = value - reference;
    if (!isfinite(value))
        share = INFINITY;
    r->elements++;
    r->difference2 += off * off;
    r->reference2 += reference * reference;
    r->wrong += !(share <= 1);
    if (share > r->worst || r->elements == 1) {
        r->worst = share;
        r->worst_row = row;
        r->worst_col = col;
        r->worst_value = value;
        r->worst_reference = reference;
    }
}

/* Adds one element that may be `bound` off its reference. */
MK_PURE void check_within(struct check_result *r, uint64_t row, uint64_t col, double value,
                          double reference, double bound)
{
    const double off = fabs(value - reference);
    check_add(r, row, col, value, reference, off == 0 ? 0 : bound > 0 ? off / bound : INFINITY);
}

/* Adds `other` to `result`. */
MK_PURE void check_join(struct check_result *result, const struct check_result *other)
{
    struct check_result sum = other->worst > result->worst || !result->elements ? *other : *result;
    sum.nothing = result->nothing || other->nothing;
    sum.elements = result->elements + other->elements;
    sum.wrong = result->wrong + other->wrong;
    sum.difference2 = result->difference2 + other->difference2;
    sum.reference2 = result->reference2 + other->reference2;
    sum.frobenius = result->frobenius > other->frobenius ? result->frobenius : other->frobenius;
    *result = sum;
}

/* Ranks that check at the same time meet now and then, so that no rank waits longer for a slow one
 * than the job's timeout. */
struct check_pace {
    /* meet after as much work, the same number of times on every rank */
    double flop;
    int (*meet)(void *context); /* 0 or -errno, which ends the check */
    void *context;
};

/* Adds `work` to what was done since the last meeting, and meets where it is time to. 0 or what
 * meet returned. */
static inline int check_meet(const struct check_pace *pace, double work, double *done)
{
    *done += work;
    if (!pace || *done < pace->flop)
        return 0;
    *done = 0;
    return pace->meet(pace->context);
}

/* Checks and adds to *result (zeroed by the caller at first). `pace` may be NULL. 0, -ENOMEM, or
 * what meet returned. */
int check_gemm(const struct check_gemm *g, const struct check_pace *pace,
               struct check_result *result);

/* Rows to norm, row-major. */
struct check_norm {
    uint32_t element; /* MK_BF16 or MK_FP16 */
    uint64_t m, n;
    const uint16_t *rows, *weight; /* [m, n], [n] */
    const uint16_t *normed;        /* [m, n]: rows * weight / sqrt(mean(rows^2) + eps); or NULL: */
    const uint8_t *codes;          /* [m, n]: of these as they are rounded, by mk_quantize's rule */
    const float *scales;           /* [n / 128 rounded up, m] */
    double eps;
};

/* Checks `normed` in float64 and adds to *result. An element's bound is that of its rounding plus
 * the error of the root of a sum of n squares in fp32; a code is that of a number within it. */
void check_norm(const struct check_norm *n, struct check_result *result);

/* The relative Frobenius error: infinite where an element is NaN. */
double check_error(const struct check_result *result);

/* What the relative Frobenius error may be. */
double check_bound(const struct check_result *result);

/* 1: both bounds hold (and something was checked, or there was nothing). */
int check_right(const struct check_result *result);

#ifdef __cplusplus
}
#endif
