/* A GPU quantises to the same bits as the host: the code of kernels/ops/quantize.cu on the emulated
 * Hopper, every scaling and type, rows and K that end within a block, rows that a warp, a thread
 * block and neither keeps, what is not finite; it writes nothing else and races with nothing. */
#include "core/mkernel.h"
#include "tests/helpers/test.h"
#include "core/base/quantize.h"
#include "sim/hopper/hopper.h"
#include "tests/helpers/quantize.h"

int emulated_gpu_quantize(const struct mk_quantize *of, void *stream);

static void agree(uint32_t scaling, uint32_t type, uint64_t rows, uint64_t k)
{
    const uint64_t codes = quantize_codes(scaling, rows, k) + 16,
                   count = quantize_scales(scaling, rows, k), across = mk_ceil_div(k, 128);
    void *x = quantize_input(type, rows, k);
    uint8_t *q[2] = {malloc(codes), malloc(codes)};
    float *scales[2] = {malloc(count * 4 + 4), malloc(count * 4 + 4)};
    for (int i = 0; i < 2; i++) {
        memset(q[i], 0x55, codes);
        memset(scales[i], 0x55, count * 4 + 4);
    }
    const struct mk_quantize of = {
        scaling, type, x,         rows,
        k,       q[1], scales[1], scaling == MK_SCALE_1X128 ? rows : mk_round_up(across, 4)};
    const struct hopper_config config = {
        .ranks = 1, .sms = 3, .seed = rows, .races = 1, .memory = (size_t)1 << 24};
    struct hopper *h;
    assert_int_equal(mk_quantize(MK_EXEC_HOST, scaling, type, x, rows, k, q[0], scales[0], 0, NULL),
                     0);
    assert_int_equal(hopper_create(&h, &config), 0);
    assert_int_equal(emulated_gpu_quantize(&of, NULL), 0);
    assert_int_equal(hopper_run(h), 0);
    if (hopper_error(h))
        fail_msg("%s", hopper_error(h));
    hopper_destroy(h);
    for (uint64_t i = 0; i < codes; i++)
        if (q[1][i] != q[0][i])
            fail_msg("scaling %u, type %u, [%u][%u]: %02x, not %02x", scaling, type,
                     (unsigned)(i / k), (unsigned)(i % k), q[1][i], q[0][i]);
    assert_memory_equal(scales[1], scales[0], count * 4 + 4);
    for (int i = 0; i < 2; i++) {
        free(q[i]);
        free(scales[i]);
    }
    free(x);
}

CASE(test_same_bits)
{
    for (uint32_t scaling = 0; scaling < MK_SCALINGS; scaling++)
        for (uint32_t type = 0; type < MK_INPUTS; type++) {
            agree(scaling, type, 150, 208);
            agree(scaling, type, 1, 16);
        }
}

/* The rows of 2080 are a thread block's; of 16448 the last 64 are read again. */
CASE(test_long_rows)
{
    for (uint32_t type = 0; type < MK_INPUTS; type++) {
        agree(MK_SCALE_ROW, type, 8, 2080);
        agree(MK_SCALE_ROW, type, 2, 16448);
    }
}
