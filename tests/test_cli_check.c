/* The check tells a right product from a wrong one: correctly rounded results pass, one element off
 * by more than its bound fails, and inputs are the same wherever they are made. */
#include "experiments/common/check.h"
#include "experiments/common/inputs.h"

#include <math.h>
#include "tests/helpers/test.h"

enum { M = 300, N = 40, K = 328 };
static uint16_t a[M * K], b[K * N], bt[N * K], c[M * N];

/* A right result by a third way: plain loops in float, as an executor may add. */
static void multiply(void)
{
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum += mk_bf16_to_float(a[i * K + k]) * mk_bf16_to_float(b[k * N + j]);
            c[i * N + j] = mk_bf16_from_float(sum);
        }
    }
}

static int setup(void **state)
{
    inputs_fill(a, mk_key(7, 0, 1), 0, M * K);
    inputs_fill(b, mk_key(7, 1, 1), 0, K * N);
    for (int k = 0; k < K; k++)
        for (int j = 0; j < N; j++)
            bt[j * K + k] = b[k * N + j];
    multiply();
    return 0;
}

static struct check_result check(const uint16_t *right, int transposed)
{
    struct check_gemm g = {
        .m = M, .n = N, .k = K, .a = a, .b = right, .c = c, .b_transposed = transposed};
    struct check_result r = {0};
    assert_int_equal(check_gemm(&g, NULL, &r), 0);
    return r;
}

CASE(test_right)
{
    struct check_result r = check(b, 0);
    assert_int_equal(r.elements, M * N);
    assert_int_equal(r.wrong, 0);
    assert_true(r.worst > 0.3 && r.worst <= 1);
    assert_true(check_error(&r) > 5e-4 && check_error(&r) <= CHECK_FROBENIUS);
    assert_true(check_right(&r));
    r = check(bt, 1);
    assert_true(check_right(&r));
}

/* One element: 3 bf16 steps off, a NaN, a product that lacks a term. */
CASE(test_one_wrong)
{
    int at = (M - 1) * N + N - 1;
    while (fabsf(mk_bf16_to_float(c[at])) < 4)
        at--;
    uint16_t kept = c[at];
    c[at] = (uint16_t)(kept + 3);
    struct check_result r = check(b, 0);
    assert_int_equal(r.wrong, 1);
    assert_int_equal(r.worst_row, at / N);
    assert_int_equal(r.worst_col, at % N);
    assert_true(r.worst > 1);
    assert_false(check_right(&r));
    c[at] = 0xffff;
    r = check(b, 0);
    assert_int_equal(r.wrong, 1);
    assert_true(isinf(check_error(&r)));
    assert_false(check_right(&r));
    c[at] = kept;
}

/* The element bound alone would let a small error everywhere pass; the norm does not. */
CASE(test_norm)
{
    for (int i = 0; i < M * N; i++)
        c[i] = mk_bf16_from_float(mk_bf16_to_float(c[i]) * 1.0035f);
    struct check_result r = check(b, 0);
    assert_true(check_error(&r) > CHECK_FROBENIUS);
    assert_false(check_right(&r));
    multiply();
}

/* Rounding alone may take a few elements over what it makes on average; it never takes them over
 * its worst case. */
CASE(test_few_elements)
{
    for (uint64_t seed = 1; seed < 300; seed++) {
        uint16_t x[4 * 8], y[8 * 8], z[4 * 8];
        struct check_result r = {0};
        inputs_fill(x, mk_key(seed, 0, 1), 0, 4 * 8);
        inputs_fill(y, mk_key(seed, 1, 1), 0, 8 * 8);
        for (int i = 0; i < 4 * 8; i++) {
            double sum = 0;
            for (int k = 0; k < 8; k++)
                sum += (double)mk_bf16_to_float(x[i / 8 * 8 + k]) *
                       (double)mk_bf16_to_float(y[k * 8 + i % 8]);
            z[i] = mk_bf16_from_float((float)sum);
        }
        struct check_gemm g = {.m = 4, .n = 8, .k = 8, .a = x, .b = y, .c = z};
        assert_int_equal(check_gemm(&g, NULL, &r), 0);
        assert_true(check_right(&r));
    }
}

CASE(test_poison_is_wrong)
{
    inputs_poison(c, M * N);
    struct check_result r = check(b, 0);
    assert_int_equal(r.wrong, M * N);
    assert_false(check_right(&r));
    multiply();
}

static int count_meetings(void *context)
{
    return ++*(int *)context < 3 ? 0 : -5;
}

/* Every rank meets equally often, and a meeting that fails ends the check. */
CASE(test_pace)
{
    struct check_gemm g = {.m = M, .n = N, .k = K, .a = a, .b = b, .c = c};
    struct check_result r = {0};
    int meetings = 0;
    struct check_pace pace = {1, count_meetings, &meetings};
    assert_int_equal(check_gemm(&g, &pace, &r), 0);
    assert_int_equal(meetings, (M + 255) / 256);
    assert_int_equal(check_gemm(&g, &pace, &r), -5);
    pace.flop = 1e18;
    assert_int_equal(check_gemm(&g, &pace, &r), 0);
    assert_int_equal(meetings, 3);
}

CASE(test_join)
{
    struct check_result none = {0}, sum = {0}, one = check(b, 0);
    assert_false(check_right(&none));
    check_join(&sum, &one);
    check_join(&sum, &one);
    assert_int_equal(sum.elements, 2 * M * N);
    assert_float_equal(check_error(&sum), check_error(&one), 1e-12);
}

/* Any part of a tensor equals the same part of the whole; another seed, tensor or epoch is another
 * tensor. */
CASE(test_inputs)
{
    uint16_t whole[1000], part[1000];
    uint64_t key = mk_key(3, 5, 9);
    inputs_fill(whole, key, 0, 1000);
    for (uint64_t first = 0; first < 9; first++) {
        for (uint64_t count = 0; count < 11; count++) {
            inputs_fill(part, key, first, count);
            assert_memory_equal(part, whole + first, count * 2);
        }
    }
    const uint64_t others[] = {mk_key(4, 5, 9), mk_key(3, 6, 9), mk_key(3, 5, 10), mk_key(5, 3, 9)};
    for (int o = 0; o < 4; o++) {
        int same = 0;
        inputs_fill(part, others[o], 0, 1000);
        for (int i = 0; i < 1000; i++)
            same += part[i] == whole[i];
        assert_true(same < 20);
    }
    double sum = 0, square = 0;
    for (int i = 0; i < M * K; i++) {
        double v = mk_bf16_to_float(a[i]);
        assert_true(v >= -1 && v <= 1 && v != 0);
        sum += v;
        square += v * v;
    }
    assert_true(fabs(sum / (M * K)) < 0.01);
    assert_true(fabs(square / (M * K) - 1.0 / 3) < 0.01);
}

CASE(test_rounding)
{
    assert_int_equal(mk_bf16_from_float(1.0f), 0x3f80);
    assert_int_equal(mk_bf16_from_float(1.0f + 0x1p-8f), 0x3f80);     /* a tie goes to even */
    assert_int_equal(mk_bf16_from_float(1.0f + 3 * 0x1p-8f), 0x3f82); /* the other way */
    assert_int_equal(mk_bf16_from_float(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
    assert_int_equal(mk_bf16_from_float(-2.0f), 0xc000);
}

FIXTURE(setup, NULL)
