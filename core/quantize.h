/* FP8 with block scales, the reference: bf16 to e4m3 and fp32 scales, x = q * scale. One rule for
 * all executors. Of a block, amax is the largest finite |x|:
 *
 *   scale = amax / 448, q = e4m3(x * (448 / amax)), each operation in fp32, rounded to nearest.
 *
 * A block without finite numbers above 2^-110 (448 / amax would be no number) has scale 1 and
 * zeros. What is not finite becomes NaN in its own element and changes no scale: as 448 an infinity
 * would hide. */
#ifndef MK_QUANTIZE_H
#define MK_QUANTIZE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MK_SCALE_BLOCK = 128 }; /* elements of K that share a scale; of weights, columns too */

/*
 * Activations: a scale for every 128 elements of a row (the last block of a row may be shorter).
 *
 * x: rows x k, bf16, q: rows x k, both dense. scales: of block b of row r at [b * pitch + r]; pitch
 * at least `rows`. The layout of PyTorch's BlockWise1x128, and of struct gemm_scales.
 * Any thread; the caller owns all; nothing can fail.
 */
void quantize_rows(const uint16_t *x, uint64_t rows, uint64_t k, uint8_t *q, float *scales,
                   uint64_t pitch);

/* Weights: a scale for every 128 x 128 elements. x: n x k. scales: of block b of rows [128 c,
 * 128 c + 128) at [c * pitch + b]; pitch at least ceil(k / 128) (PyTorch's BlockWise128x128: that
 * rounded up to a multiple of 4). */
void quantize_blocks(const uint16_t *x, uint64_t n, uint64_t k, uint8_t *q, float *scales,
                     uint64_t pitch);

/* Back: codes times their scales, in fp32, to its own rounding. Of activations, and of weights, as
 * above; single rows by pointers to theirs. */
void dequantize_rows(const uint8_t *q, uint64_t rows, uint64_t k, const float *scales,
                     uint64_t pitch, float *x);
void dequantize_blocks(const uint8_t *q, uint64_t n, uint64_t k, const float *scales,
                       uint64_t pitch, float *x);

#ifdef __cplusplus
}
#endif
#endif
