/* The CTA interface, what follows a sum row by row: a residual is added to a row of C, and the row
 * is normed. On the host: sim/cta.c, on GPUs: kernels/cta/cta_norm.cuh. */
#pragma once

#include "core/cta/cta.h"

/* What is done with rows of `columns` numbers of the plan's element, bf16 or fp16, of arguments of
 * this rank, all row-major. With s = C + residual in fp32, rounded to the element:
 *   not normed   C = s
 *   normed       sum = s, C = s * weight / sqrt(mean over the row of s^2 + eps), in fp32, rounded
 *                to the element
 *   quantized    C = s, and what C would have been is codes of e4m3 [rows, columns], with a scale
 *                for each 128 of a row [columns : 128, rows] (core/base/quantize.h)
 * The residual may be `sum` itself. */
struct mk_norm {
    uint32_t columns; /* a multiple of 8; 0: nothing is done */
    uint32_t element; /* enum mk_dtype */
    uint32_t normed;
    float eps;
    uint32_t c, residual, weight, sum; /* enum mk_space; the last two where it is normed */
    uint32_t rows;                     /* of scales; 0: rows are not quantized, nor are these: */
    uint32_t codes, scales;            /* enum mk_space */
};

#ifndef __CUDACC__
/* Does it with row `row`, and returns when the row is stored. All of C's row has to be there, and
 * known of by a wait; nobody else may read or write it any more. */
void mk_cta_norm(struct mk_cta *cta, const struct mk_norm *norm, uint32_t row);
#endif
