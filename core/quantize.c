#include "core/quantize.h"

#include "core/bf16.h"
#include "core/e4m3.h"

#include <math.h>

/* rows x columns of a matrix whose rows are k elements long. Returns the scale. */
static float quantize_block(const uint16_t *x, uint64_t rows, uint64_t columns, uint64_t k,
                            uint8_t *q)
{
    float amax = 0;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            float v = fabsf(mk_bf16_to_float(x[r * k + c]));
            if (isfinite(v) && v > amax)
                amax = v;
        }
    int zeros = amax < 0x1p-110f;
    float up = zeros ? 0 : MK_E4M3_LARGEST / amax;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < columns; c++) {
            float v = mk_bf16_to_float(x[r * k + c]);
            q[r * k + c] = isfinite(v) ? mk_e4m3_from_float(v * up) : 0x7f;
        }
    return zeros ? 1 : amax / MK_E4M3_LARGEST;
}

static void quantize_matrix(const uint16_t *x, uint64_t rows, uint64_t k, uint64_t block_rows,
                            uint8_t *q, float *scales, uint64_t row_step, uint64_t block_step)
{
    for (uint64_t r = 0; r < rows; r += block_rows)
        for (uint64_t c = 0; c < k; c += MK_SCALE_BLOCK)
            scales[r / block_rows * row_step + c / MK_SCALE_BLOCK * block_step] =
                quantize_block(x + r * k + c, rows - r < block_rows ? rows - r : block_rows,
                               k - c < MK_SCALE_BLOCK ? k - c : MK_SCALE_BLOCK, k, q + r * k + c);
}

void quantize_rows(const uint16_t *x, uint64_t rows, uint64_t k, uint8_t *q, float *scales,
                   uint64_t pitch)
{
    quantize_matrix(x, rows, k, 1, q, scales, 1, pitch);
}

void quantize_blocks(const uint16_t *x, uint64_t n, uint64_t k, uint8_t *q, float *scales,
                     uint64_t pitch)
{
    quantize_matrix(x, n, k, MK_SCALE_BLOCK, q, scales, pitch, 1);
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
