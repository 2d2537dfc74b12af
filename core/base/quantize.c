#include "core/mkernel.h"
#include "core/base/quantize.h"

#include "core/base/bf16.h"
#include "core/base/e4m3.h"

#include <errno.h>
#include <math.h>

#ifdef MK_HAVE_CUDA
#pragma weak gpu_quantize /* a test of core alone links, too */
#endif

static float quantize_load(const struct mk_quantize *of, uint64_t i)
{
    return of->type == MK_INPUT_FP32 ? ((const float *)of->x)[i]
                                     : mk_bf16_to_float(((const uint16_t *)of->x)[i]);
}

/* What shares a scale: rows x columns from element `first` on. Returns the scale. */
static float quantize_block(const struct mk_quantize *of, uint64_t first, uint64_t rows,
                            uint64_t columns)
{
    float amax = 0;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            float v = fabsf(quantize_load(of, first + r * of->k + c));
            if (isfinite(v) && v > amax)
                amax = v;
        }
    const float up = quantize_up(amax);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            float v = quantize_load(of, first + r * of->k + c);
            of->q[first + r * of->k + c] = isfinite(v) ? mk_e4m3_from_float(v * up) : 0x7f;
        }
    return quantize_scale(amax);
}

float quantize_row_block(const float *x, uint64_t count, uint8_t *q)
{
    const struct mk_quantize of = {.type = MK_INPUT_FP32, .x = x, .k = count, .q = q};
    return quantize_block(&of, 0, 1, count);
}

int quantize_may_be(uint8_t code, float scale, double v, double off)
{
    const double wide = off + fabs(v) * 0x1p-21; /* 1 / scale is not 448 / amax to the last bit */
    const float value = mk_e4m3_to_float(code),
                least = mk_e4m3_to_float(mk_e4m3_from_float((float)((v - wide) / (double)scale))),
                most = mk_e4m3_to_float(mk_e4m3_from_float((float)((v + wide) / (double)scale)));
    return value >= least && value <= most;
}

static void quantize_on_host(const struct mk_quantize *of)
{
    const int square = of->scaling == MK_SCALE_128X128, of_row = of->scaling == MK_SCALE_1X128,
              blocks = square || of_row;
    const uint64_t high = square                           ? MK_SCALE_BLOCK
                          : of->scaling == MK_SCALE_TENSOR ? of->rows
                                                           : 1,
                   wide = blocks ? MK_SCALE_BLOCK : of->k;
    for (uint64_t r = 0; r < of->rows; r += high)
        for (uint64_t c = 0; c < of->k; c += wide)
            of->scales[square   ? r / high * of->pitch + c / wide
                       : of_row ? c / wide * of->pitch + r
                                : r / high] =
                quantize_block(of, r * of->k + c, of->rows - r < high ? of->rows - r : high,
                               of->k - c < wide ? of->k - c : wide);
}

/* Row by row, each with its scales behind it. */
static void quantize_records(const struct mk_quantize *of)
{
    const uint64_t record = quantize_record(of->k), each = of->type == MK_INPUT_FP32 ? 4 : 2;
    for (uint64_t r = 0; r < of->rows; r++) {
        uint8_t *to = of->q + r * record;
        const struct mk_quantize row = {.scaling = MK_SCALE_1X128,
                                        .type = of->type,
                                        .x = (const uint8_t *)of->x + r * of->k * each,
                                        .rows = 1,
                                        .k = of->k,
                                        .q = to,
                                        .scales = (float *)(void *)(to + of->k),
                                        .pitch = 1};
        quantize_on_host(&row);
    }
}

static int quantize_on_gpu(const struct mk_quantize *of, void *stream)
{
#ifdef MK_HAVE_CUDA
    if (((uintptr_t)of->x | (uintptr_t)of->q) & 15)
        return -EINVAL;
    if (&gpu_quantize)
        return gpu_quantize(of, stream);
#endif
    return -ENODEV;
}

int mk_quantize(uint32_t exec, uint32_t scaling, uint32_t type, const void *x, uint64_t rows,
                uint64_t k, void *q, float *scales, uint64_t pitch, void *stream)
{
    const uint64_t across = mk_ceil_div(k, MK_SCALE_BLOCK), least = scaling == MK_SCALE_1X128 ? rows
                                                                    : scaling == MK_SCALE_128X128
                                                                        ? across
                                                                        : 0;
    if (!pitch)
        pitch = scaling == MK_SCALE_1X128 ? rows : mk_round_up(across, 4);
    const struct mk_quantize of = {scaling, type, x, rows, k, q, scales, pitch};
    if (exec >= MK_EXECS || scaling >= MK_SCALINGS || type >= MK_INPUTS || k % MK_QUANTIZE_DEPTH ||
        pitch < least || (exec != MK_EXEC_CUDA && stream))
        return -EINVAL;
    if (!rows || !k)
        return 0;
    if (!x || !q || (!scales && scaling != MK_SCALE_RECORDS))
        return -EINVAL;
    if (exec == MK_EXEC_CUDA)
        return quantize_on_gpu(&of, stream);
    (scaling == MK_SCALE_RECORDS ? quantize_records : quantize_on_host)(&of);
    return 0;
}

void dequantize_rows(const uint8_t *q, uint64_t rows, uint64_t k, const float *scales,
                     uint64_t pitch, float *x)
{
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t i = 0; i < k; i++)
            x[row * k + i] =
                mk_e4m3_to_float(q[row * k + i]) * scales[i / MK_SCALE_BLOCK * pitch + row];
}

void dequantize_blocks(const uint8_t *q, uint64_t n, uint64_t k, const float *scales,
                       uint64_t pitch, float *x)
{
    for (uint64_t row = 0; row < n; row++)
        dequantize_rows(q + row * k, 1, k, scales + row / MK_SCALE_BLOCK * pitch, 1, x + row * k);
}

void dequantize_columns(const uint8_t *q, uint64_t n, uint64_t k, const float *scales, float *x)
{
    for (uint64_t row = 0; row < n; row++)
        dequantize_rows(q + row * k, 1, k, scales + row, 0, x + row * k);
}
