/* Products of e4m3 as Hopper's tensor cores make them: one wgmma adds 32 products and C at once,
 * in fixed point. With 2^M the largest of the terms' exponents (of a product: the sum of its
 * factors', not normalised, so that a term is below 4 * 2^M), each term is cut toward zero to 13
 * fractional bits at 2^M, the sum is exact, and what comes out is cut toward zero to 13 fractional
 * bits of its own exponent: the low 10 bits of every result are 0. A NaN makes 0x7fffffff. The rule
 * is that of arXiv 2511.10909; tests/gpu_conform.cu holds it against a GPU. By the same rule
 * mma.sync m16n8k32 adds 16 products and C at once, twice: Hopper's keeps 25 fractional bits and
 * gives all 24 bits of fp32, that of compute capability 8.9 keeps 13 of both (tests/gpu_fp8_mma.cu
 * says which of them a GPU is). */
#include "core/base/e4m3.h"
#include "sim/hopper/machine.h"

#include <math.h>
#include <string.h>

enum { NO_EXPONENT = -4096 };

void e4m3_set(struct e4m3_matrix *m, uint32_t k, uint32_t at, uint8_t code)
{
    int exponent = code >> 3 & 15, significand = (code & 7) | (exponent ? 8 : 0);
    m->significand[k][at] = code & 0x80 ? -significand : significand;
    /* significand * 2^(exponent - 3) */
    m->exponent[k][at] = !significand ? NO_EXPONENT : exponent ? exponent - 7 : -6;
    if (k == 0)
        m->nan[at] = 0;
    m->nan[at] |= (code & 0x7f) == 0x7f;
}

static int32_t cut(int32_t v, int32_t places)
{
    return v < 0 ? -(-v >> places) : v >> places;
}

/* C, which is finite, as significand * 2^(exponent - 23). */
static void split(float c, int32_t *significand, int32_t *exponent)
{
    int e;
    float f = frexpf(c, &e);
    *exponent = c == 0 ? NO_EXPONENT : e - 1 < -126 ? -126 : e - 1;
    *significand = c == 0 ? 0 : (int32_t)ldexpf(f, 24 + (e - 1 - *exponent));
}

static float joined(int32_t sum, int32_t exponent, int32_t fraction)
{
    int32_t drop = 0, bits = fraction < 23 ? fraction + 1 : 24;
    for (uint32_t m = (uint32_t)(sum < 0 ? -sum : sum); m >> drop >= 1u << bits;)
        drop++;
    return ldexpf((float)cut(sum, drop), exponent - fraction + drop);
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx2", "default")))
#endif
static void
add_row(const struct e4m3_matrix *a, const struct e4m3_matrix *b, uint32_t row, uint32_t n,
        uint32_t first, uint32_t end, int32_t fraction, int32_t *largest, int32_t *sum)
{
    for (uint32_t k = first; k < end; k++) {
        int32_t e = a->exponent[k][row];
        for (uint32_t j = 0; j < n; j++) {
            int32_t both = e + b->exponent[k][j];
            largest[j] = both > largest[j] ? both : largest[j];
        }
    }
    for (uint32_t k = first; k < end; k++) {
        int32_t e = a->exponent[k][row], s = a->significand[k][row];
        for (uint32_t j = 0; j < n; j++) {
            int32_t product = s * b->significand[k][j], away = largest[j] - e - b->exponent[k][j];
            int32_t size = (product < 0 ? -product : product) << (fraction - 6);
            size >>= away > 31 ? 31 : away;
            sum[j] += product < 0 ? -size : size;
        }
    }
}

static void add(float (*d)[256], const struct e4m3_matrix *a, const struct e4m3_matrix *b,
                uint32_t n, uint32_t first, uint32_t end, int32_t fraction)
{
    static const uint32_t nan_bits = 0x7fffffff;
    int32_t largest[256], sum[256], exponent[256], significand[256];
    for (uint32_t row = 0; row < 16; row++) {
        float *c = d[row];
        for (uint32_t j = 0; j < n; j++) {
            significand[j] = 0;
            exponent[j] = NO_EXPONENT;
            if (isfinite(c[j]))
                split(c[j], &significand[j], &exponent[j]);
            largest[j] = exponent[j];
            sum[j] = 0;
        }
        add_row(a, b, row, n, first, end, fraction, largest, sum);
        for (uint32_t j = 0; j < n; j++) {
            int32_t away = largest[j] - exponent[j] + 23 - fraction,
                    before = away < 0 ? significand[j] * (1 << -away)
                                      : cut(significand[j], away > 31 ? 31 : away);
            if (isnan(c[j]) || a->nan[row] || b->nan[j])
                memcpy(&c[j], &nan_bits, 4);
            else if (isfinite(c[j]))
                c[j] = joined(sum[j] + before, largest[j], fraction);
        }
    }
}

void e4m3_multiply(float (*d)[256], const struct e4m3_matrix *a, const struct e4m3_matrix *b,
                   uint32_t n)
{
    add(d, a, b, n, 0, E4M3_K, 13);
}

void e4m3_multiply_halves(float (*d)[256], const struct e4m3_matrix *a, const struct e4m3_matrix *b,
                          uint32_t n, int32_t fraction)
{
    add(d, a, b, n, 0, E4M3_K / 2, fraction);
    add(d, a, b, n, E4M3_K / 2, E4M3_K, fraction);
}
