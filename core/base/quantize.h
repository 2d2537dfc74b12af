/* FP8 with scales, inside: what mk_quantize (core/mkernel.h has the rule) is given, by a GPU's
 * kernel, and the way back, which is the reference of all checks. */
#pragma once

#include "core/base.h"
#include "core/base/e4m3.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MK_SCALE_BLOCK = 128,   /* elements of K that share a scale; of weights, columns too */
    MK_QUANTIZE_DEPTH = 16, /* K is a multiple: codes of a row lie in whole 16 bytes */
};

/* Below this amax a block is zeros: 448 / amax would be no number. */
#define MK_QUANTIZE_LEAST 0x1p-110f

/* A call of mk_quantize, checked; pitch is never 0. */
struct mk_quantize {
    uint32_t scaling, type; /* enum mk_scaling, enum mk_input */
    const void *x;
    uint64_t rows, k;
    uint8_t *q;
    float *scales;
    uint64_t pitch;
};

/* On the current GPU, in the order of `stream`. 0 or -EIO. kernels/ops/quantize.cu has it. */
int gpu_quantize(const struct mk_quantize *of, void *stream);

/* The factor by which the finite numbers of a block, the largest of them amax, are multiplied
 * before they are rounded, and the block's scale. */
MK_PURE float quantize_up(float amax)
{
    return amax < MK_QUANTIZE_LEAST ? 0 : MK_E4M3_LARGEST / amax;
}

MK_PURE float quantize_scale(float amax)
{
    return amax < MK_QUANTIZE_LEAST ? 1 : amax / MK_E4M3_LARGEST;
}

/* On the host: codes of `count` numbers that share a scale, which it returns. */
float quantize_row_block(const float *x, uint64_t count, uint8_t *q);

/* Whether a code with this scale may be that of a number within `off` of v: of a check, which knows
 * the number but for a rounding. */
int quantize_may_be(uint8_t code, float scale, double v, double off);

/* A record: k codes of a row, then its scale for each 128 of them, in whole 16 bytes. */
MK_PURE uint64_t quantize_record(uint64_t k)
{
    return mk_round_up(k + mk_ceil_div(k, MK_SCALE_BLOCK) * 4, 16);
}

/* Back: codes times their scales, in fp32, to its own rounding. Of activations (1 x 128), and of
 * weights (128 x 128), laid out as mk_quantize does; single rows by pointers to theirs. */
void dequantize_rows(const uint8_t *q, uint64_t rows, uint64_t k, const float *scales,
                     uint64_t pitch, float *x);
void dequantize_blocks(const uint8_t *q, uint64_t n, uint64_t k, const float *scales,
                       uint64_t pitch, float *x);

/* And of weights with a scale for each of their n rows, columns of B. */
void dequantize_columns(const uint8_t *q, uint64_t n, uint64_t k, const float *scales, float *x);

#ifdef __cplusplus
}
#endif
