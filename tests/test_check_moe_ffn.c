/* The check of the MoE feed-forward layer takes a right result, computed one number after the
 * other, for right, with either layout of B and either precision on the way; and none that is wrong
 * in one place or by one mistake. */
#include "experiments/ops/check_moe_ffn.h"
#include "core/base/bf16.h"
#include "experiments/common/inputs.h"

#include <math.h>
#include "tests/helpers/test.h"

enum { T = 40, H = 64, I = 24, E = 6, K = 3, NODE_EXPERTS = 3 };

static enum mistake {
    NONE,
    WEIGHTS_EXCHANGED,
    GATE_IS_UP,
    NO_SILU,
    ROW_LEFT_OUT,
    ROW_TWICE,
    NEXT_EXPERT,
    TOKEN_BEFORE,
    ACTIVATION_SHORT,
    MISTAKES
} mistake;

static uint16_t x[T * H], y[T * H], b1[E][2 * H * I], b2[E][H * I];
static uint32_t ids[T * K];
static float weights[T * K];
static int transposed;

static double up_of(uint32_t expert, uint32_t token, uint32_t col)
{
    double sum = 0;
    for (uint32_t i = 0; i < H; i++)
        sum += (double)mk_bf16_to_float(x[token * H + i]) *
               (double)mk_bf16_to_float(b1[expert][transposed ? col * H + i : i * 2 * I + col]);
    return sum;
}

static double rounded(double value)
{
    return (double)mk_bf16_to_float(mk_bf16_from_float((float)value));
}

/* Adds weight * row of results to `sum`. */
static void add_row(uint32_t expert, uint32_t token, double weight, double *sum)
{
    double acted[I];
    for (uint32_t i = 0; i < I; i++) {
        double gate = up_of(expert, token, i), up = up_of(expert, token, I + i);
        if (mistake == GATE_IS_UP) {
            double other = gate;
            gate = up;
            up = other;
        }
        acted[i] = rounded((mistake == NO_SILU ? gate : gate / (1 + exp(-gate))) * up);
    }
    for (uint32_t j = 0; j < H; j++) {
        double row = 0;
        for (uint32_t i = 0; i < I - (mistake == ACTIVATION_SHORT); i++)
            row +=
                acted[i] * (double)mk_bf16_to_float(b2[expert][transposed ? j * I + i : i * H + j]);
        sum[j] += weight * row;
    }
}

static void compute(int deterministic)
{
    for (uint32_t token = 0; token < T; token++) {
        double sum[H] = {0}, away[H] = {0};
        for (uint32_t place = 0; place < K; place++) {
            uint32_t at = token * K + place, expert = ids[at], from = token;
            double weight = (double)weights[at];
            if (expert >= E || (mistake == ROW_LEFT_OUT && at == 31))
                continue;
            if (mistake == WEIGHTS_EXCHANGED && token == 7)
                weight = (double)weights[token * K + (place + 1) % K];
            if (mistake == NEXT_EXPERT && at == 31)
                expert = (expert + 1) % E;
            if (mistake == TOKEN_BEFORE && at == 31)
                from--;
            add_row(expert, from, weight, expert / NODE_EXPERTS ? away : sum);
            if (mistake == ROW_TWICE && at == 31)
                add_row(expert, from, weight, sum);
        }
        for (uint32_t j = 0; j < H; j++)
            y[token * H + j] =
                mk_bf16_from_float((float)(sum[j] + (deterministic ? away[j] : rounded(away[j]))));
    }
}

static void load_expert(void *context, uint32_t expert, uint16_t *to1, uint16_t *to2)
{
    memcpy(to1, b1[expert], sizeof b1[expert]);
    memcpy(to2, b2[expert], sizeof b2[expert]);
}

static struct check_result check(int deterministic)
{
    struct check_result r = {0};
    const struct check_moe_ffn c = {
        .problem = {.tokens = T, .hidden = H, .inner = I, .experts = E, .k = K},
        .b_transposed = transposed,
        .deterministic = deterministic,
        .topo = {2, 1, 0},
        .x = x,
        .ids = ids,
        .weights = weights,
        .y = y,
        .expert = load_expert};
    assert_int_equal(check_moe_ffn(&c, NULL, &r), 0);
    assert_int_equal(r.elements, T * H);
    return r;
}

/* Token 5 names no expert, token 6 one of them twice. */
static int fill(void **state)
{
    inputs_fill(x, 1, 0, T * H);
    for (uint32_t expert = 0; expert < E; expert++) {
        inputs_fill(b1[expert], 100 + expert, 0, 2 * H * I);
        inputs_fill(b2[expert], 200 + expert, 0, H * I);
    }
    for (uint32_t i = 0; i < T * K; i++) {
        ids[i] = i / K == 5 ? E + i : (i / K + i % K * 2) % E;
        weights[i] = 0.1f + 0.3f * (float)(i % 7);
    }
    ids[6 * K + 1] = ids[6 * K];
    return 0;
}

CASE(test_right)
{
    mistake = NONE;
    for (transposed = 0; transposed < 2; transposed++)
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            compute(deterministic);
            struct check_result r = check(deterministic);
            assert_int_equal(r.wrong, 0);
            assert_true(check_right(&r));
            assert_true(r.worst > 0.05); /* the bounds are not wide */
        }
    transposed = 0;
}

CASE(test_mistakes)
{
    for (mistake = NONE + 1; mistake < MISTAKES; mistake++)
        for (int deterministic = 0; deterministic < 2; deterministic++) {
            compute(deterministic);
            struct check_result r = check(deterministic);
            if (!r.wrong || check_right(&r))
                fail_msg("mistake %d passes: worst element at %.2f of its bound", mistake, r.worst);
        }
}

CASE(test_one_element)
{
    static const struct {
        uint32_t at;
        float by;
    } changes[] = {
        {0, 0.5f}, {T * H - 1, 0.5f}, {5 * H + 3, 1e-30f}, {11 * H + 8, INFINITY}, {9 * H, NAN}};
    mistake = NONE;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        compute(0);
        y[changes[i].at] = mk_bf16_from_float(mk_bf16_to_float(y[changes[i].at]) + changes[i].by);
        struct check_result r = check(0);
        assert_int_equal(r.wrong, 1);
        assert_int_equal(r.worst_row * H + r.worst_col, changes[i].at);
        assert_false(check_right(&r));
    }
}

FIXTURE(fill, NULL)
