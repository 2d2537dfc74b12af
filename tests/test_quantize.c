/* mk_quantize does what its rule says (core/mkernel.h), bit for bit: scales and codes of every
 * scaling and type beside a search among the codes in double; it writes nothing else, and refuses
 * what it cannot take. */
#include <math.h>

#include "tests/helpers/test.h"
#include "core/base/e4m3.h"
#include "core/mkernel.h"
#include "core/base/quantize.h"
#include "tests/helpers/quantize.h"

enum { ROWS = 150, K = 208, PITCH = 156 };

/* The nearest of the 127 magnitudes, of two the even code; beyond the last that. */
static int nearest(double v)
{
    int best = 0;
    double magnitude = fabs(v);
    for (int code = 1; code < 0x7f; code++) {
        double now = fabs((double)mk_e4m3_to_float((uint8_t)code) - magnitude),
               then = fabs((double)mk_e4m3_to_float((uint8_t)best) - magnitude);
        if (now < then || (now == then && code % 2 == 0))
            best = code;
    }
    return best | (signbit(v) ? 0x80 : 0);
}

static double element(uint32_t type, const void *x, uint64_t i)
{
    return type == MK_INPUT_FP32 ? (double)((const float *)x)[i]
                                 : (double)mk_bf16_to_float(((const uint16_t *)x)[i]);
}

/* Rows [r, end) and columns [c, last) share `scale`. */
static void judge(uint32_t type, const void *x, const uint8_t *q, uint64_t r, uint64_t end,
                  uint64_t c, uint64_t last, float scale)
{
    double amax = 0;
    for (uint64_t i = r; i < end; i++)
        for (uint64_t j = c; j < last; j++) {
            double v = fabs(element(type, x, i * K + j));
            amax = isfinite(v) && v > amax ? v : amax;
        }
    const int zeros = amax < 0x1p-110;
    const float up = zeros ? 0 : (float)(448 / amax), wanted = zeros ? 1 : (float)(amax / 448);
    if (scale != wanted)
        fail_msg("[%d][%d]: scale %g, not %g", (int)r, (int)c, (double)scale, (double)wanted);
    for (uint64_t i = r; i < end; i++)
        for (uint64_t j = c; j < last; j++) {
            const double v = element(type, x, i * K + j);
            const float scaled = (float)(v * (double)up);
            const int code = isfinite(v) ? nearest((double)scaled) : 0x7f;
            if (q[i * K + j] != code)
                fail_msg("[%d][%d]: %g became %02x, not %02x, scale %g", (int)i, (int)j, v,
                         q[i * K + j], code, (double)scale);
        }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

CASE(test_rule)
{
    enum { MOST = 2 * PITCH };
    uint8_t *q = malloc(ROWS * K);
    float scales[MOST];
    for (uint32_t scaling = 0; scaling < MK_SCALE_RECORDS; scaling++)
        for (uint32_t type = 0; type < MK_INPUTS; type++) {
            void *x = quantize_input(type, ROWS, K);
            const int blocks = scaling == MK_SCALE_128X128;
            const uint64_t high = blocks                       ? 128
                                  : scaling == MK_SCALE_TENSOR ? ROWS
                                                               : 1,
                           wide = blocks || scaling == MK_SCALE_1X128 ? 128 : K;
            uint32_t used = 0;
            for (int i = 0; i < MOST; i++)
                scales[i] = -7;
            memset(q, 0x55, ROWS * K);
            assert_int_equal(mk_quantize(MK_EXEC_HOST, scaling, type, x, ROWS, K, q, scales,
                                         blocks ? 3 : PITCH, NULL),
                             0);
            for (uint64_t r = 0; r < ROWS; r += high)
                for (uint64_t c = 0; c < K; c += wide, used++)
                    judge(type, x, q, r, least(r + high, ROWS), c, least(c + wide, K),
                          scales[blocks                      ? r / 128 * 3 + c / 128
                                 : scaling == MK_SCALE_1X128 ? c / 128 * PITCH + r
                                                             : r / high]);
            for (int i = 0; i < MOST; i++)
                used += scales[i] == -7;
            assert_int_equal(used, MOST); /* and none beyond them */
            free(x);
        }
    free(q);
}

/* The pitch of 0 is the operators'. */
CASE(test_pitch)
{
    void *x = quantize_input(MK_INPUT_BF16, ROWS, K);
    uint8_t *q = malloc(ROWS * K);
    float scales[2][2 * PITCH] = {{0}};
    for (uint32_t scaling = MK_SCALE_1X128; scaling <= MK_SCALE_128X128; scaling++) {
        memset(scales, 0, sizeof scales);
        for (int i = 0; i < 2; i++)
            assert_int_equal(mk_quantize(MK_EXEC_HOST, scaling, MK_INPUT_BF16, x, ROWS, K, q,
                                         scales[i],
                                         scaling && i ? 4
                                         : i          ? ROWS
                                                      : 0,
                                         NULL),
                             0);
        assert_memory_equal(scales[0], scales[1], sizeof scales[0]);
    }
    free(x);
    free(q);
}

/* A record is the codes and scales of 1 x 128 of its row, one behind the other; what fills it up
 * keeps what it had. */
CASE(test_records)
{
    static const uint64_t depths[] = {16, 128, 144, 400, 656};
    for (uint32_t type = 0; type < MK_INPUTS; type++)
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
            const uint64_t k = depths[d], blocks = (k + 127) / 128,
                           record = (k + blocks * 4 + 15) / 16 * 16;
            void *x = quantize_input((enum mk_input)type, ROWS, k);
            uint8_t *q = malloc(ROWS * k), *to = malloc(ROWS * record);
            float *scales = malloc(blocks * ROWS * sizeof *scales);
            memset(to, 0x55, ROWS * record);
            assert_int_equal(
                mk_quantize(MK_EXEC_HOST, MK_SCALE_1X128, type, x, ROWS, k, q, scales, 0, NULL), 0);
            assert_int_equal(
                mk_quantize(MK_EXEC_HOST, MK_SCALE_RECORDS, type, x, ROWS, k, to, NULL, 0, NULL),
                0);
            for (uint64_t r = 0; r < ROWS; r++) {
                const uint8_t *of = to + r * record;
                assert_memory_equal(of, q + r * k, k);
                for (uint64_t i = 0; i < blocks; i++)
                    assert_memory_equal(of + k + 4 * i, &scales[i * ROWS + r], 4);
                for (uint64_t i = k + 4 * blocks; i < record; i++)
                    assert_int_equal(of[i], 0x55);
            }
            free(x);
            free(q);
            free(to);
            free(scales);
        }
}

/* The largest scale, the least, and what is no number beside them. */
CASE(test_extremes)
{
    float x[256], scales[2];
    uint8_t q[256];
    for (int i = 0; i < 256; i++)
        x[i] = i < 128 ? 3.3e38f : 0x1.fp-111f;
    x[3] = NAN;
    x[4] = INFINITY;
    x[5] = -INFINITY;
    assert_int_equal(
        mk_quantize(MK_EXEC_HOST, MK_SCALE_1X128, MK_INPUT_FP32, x, 1, 256, q, scales, 0, NULL), 0);
    for (int i = 0; i < 128; i++)
        assert_int_equal(q[i], i >= 3 && i <= 5 ? 0x7f : 0x7e);
    assert_true(scales[0] > 7e35f && scales[1] == 1 && q[128] == 0);
    x[200] = 0x1p-110f;
    assert_int_equal(
        mk_quantize(MK_EXEC_HOST, MK_SCALE_1X128, MK_INPUT_FP32, x, 1, 256, q, scales, 0, NULL), 0);
    assert_true(q[200] == 0x7e && q[128] == 0x7e && scales[1] == 0x1p-110f / 448);
}

CASE(test_refusals)
{
    float x[32] = {0}, scales[2];
    uint8_t q[32];
    const struct {
        uint32_t exec, scaling, type;
        const void *x;
        uint64_t rows, k;
        uint64_t pitch;
        void *stream;
        int result;
    } calls[] = {
        {MK_EXEC_HOST, MK_SCALE_ROW, MK_INPUT_FP32, x, 2, 16, 0, NULL, 0},
        {MK_EXEC_EMULATED, MK_SCALE_ROW, MK_INPUT_FP32, x, 2, 16, 0, NULL, 0},
        {MK_EXEC_HOST, MK_SCALE_ROW, MK_INPUT_FP32, NULL, 0, 16, 0, NULL, 0},
        {MK_EXECS, MK_SCALE_ROW, MK_INPUT_FP32, x, 2, 16, 0, NULL, -EINVAL},
        {MK_EXEC_HOST, MK_SCALINGS, MK_INPUT_FP32, x, 2, 16, 0, NULL, -EINVAL},
        {MK_EXEC_HOST, MK_SCALE_ROW, MK_INPUTS, x, 2, 16, 0, NULL, -EINVAL},
        {MK_EXEC_HOST, MK_SCALE_ROW, MK_INPUT_FP32, NULL, 2, 16, 0, NULL, -EINVAL},
        {MK_EXEC_HOST, MK_SCALE_ROW, MK_INPUT_FP32, x, 2, 15, 0, NULL, -EINVAL},
        {MK_EXEC_HOST, MK_SCALE_1X128, MK_INPUT_FP32, x, 2, 16, 1, NULL, -EINVAL},
        {MK_EXEC_HOST, MK_SCALE_ROW, MK_INPUT_FP32, x, 2, 16, 0, q, -EINVAL},
#ifndef MK_HAVE_CUDA
        {MK_EXEC_CUDA, MK_SCALE_ROW, MK_INPUT_FP32, x, 2, 16, 0, NULL, -ENODEV},
#endif
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        memset(q, 0x55, sizeof q);
        if (mk_quantize(calls[i].exec, calls[i].scaling, calls[i].type, calls[i].x, calls[i].rows,
                        calls[i].k, q, scales, calls[i].pitch, calls[i].stream) != calls[i].result)
            fail_msg("call %d does not give %d", (int)i, calls[i].result);
        assert_int_equal(q[0], calls[i].result || !calls[i].rows ? 0x55 : 0);
    }
}
