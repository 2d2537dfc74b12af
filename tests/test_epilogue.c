/* What follows a product: its words, its numbers, and that a check sees where it is wrong. */
#include "core/plan/epilogue.h"
#include "core/cta/half.h"
#include "core/mkernel.h"
#include "core/ops/op.h"
#include "core/plan/plan.h"
#include "core/base/quantize.h"
#include "experiments/common/check.h"

#include <math.h>

#include "tests/helpers/test.h"

CASE(words_and_bits)
{
    static const struct {
        const char *text;
        uint32_t bits;
    } of[] = {{"bias", 1},
              {"silu", 2},
              {"gelu_tanh", 4},
              {"bias+silu", 3},
              {"bias+gelu_tanh", 5},
              {"residual", 8},
              {"residual+rmsnorm", 24},
              {"residual+rmsnorm+quantize", 88}};
    char text[EPILOGUE_TEXT];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        uint32_t bits = 77;
        assert_int_equal(epilogue_read("", of[i].text, &bits, NULL, 0), 0);
        assert_int_equal(bits, of[i].bits);
        assert_string_equal(epilogue_text(bits, text), of[i].text);
    }
    assert_string_equal(epilogue_text(0, text), "");
}

CASE(bad_words_are_refused)
{
    static const char *const none[] = {"", "Bias", "bia", "biass", "bias+", "+silu", "gelu"},
                             *const twice[] = {"bias+bias", "silu+gelu_tanh", "residual+residual"};
    char error[200];
    uint32_t bits = 77;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(epilogue_read("epilogue=", none[i], &bits, error, sizeof error), -EINVAL);
        assert_non_null(strstr(error,
                               "is none of bias, silu, gelu_tanh, residual, rmsnorm, gated and "
                               "quantize"));
    }
    for (size_t i = 0; i < sizeof twice / sizeof *twice; i++) {
        assert_int_equal(epilogue_read("epilogue=", twice[i], &bits, error, sizeof error), -EINVAL);
        assert_non_null(strstr(error, "each word once at most, and one of silu and gelu_tanh"));
    }
    assert_int_equal(epilogue_read("epilogue=", "rmsnorm", &bits, error, sizeof error), -EINVAL);
    assert_string_equal(error,
                        "epilogue=rmsnorm: rmsnorm follows a residual, as in residual+rmsnorm");
    assert_int_equal(epilogue_read("", "residual+quantize", &bits, error, sizeof error), -EINVAL);
    assert_string_equal(error, "residual+quantize: quantize follows an rmsnorm, as in "
                               "residual+rmsnorm+quantize");
    assert_int_equal(bits, 77);
}

CASE(activations_are_what_they_are)
{
    for (double x = -60; x < 60; x += 0.0371) {
        double silu = x / (1 + exp(-x)),
               gelu = 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        assert_true(fabs((double)epilogue_activate(MK_EPILOGUE_SILU, (float)x) - silu) <=
                    1e-5 * fabs(silu) + 1e-30);
        assert_true(fabs((double)epilogue_activate(MK_EPILOGUE_GELU_TANH, (float)x) - gelu) <=
                    1e-5 * fabs(gelu) + 1e-7);
        assert_true(epilogue_activate(MK_EPILOGUE_BIAS, (float)x) == (float)x);
    }
}

/* C = f(a b + bias) of one element, each epilogue: right, and wrong without what it has. */
CASE(a_check_sees_it)
{
    const uint16_t a = mk_bf16_from_float(1.5f), b = mk_bf16_from_float(0.75f),
                   bias = mk_bf16_from_float(-0.25f);
    for (uint32_t epilogue = 0; epilogue < 6; epilogue++)
        for (uint32_t done = 0; done < 6; done++) {
            if ((epilogue & MK_EPILOGUE_ACTIVATION) == MK_EPILOGUE_ACTIVATION ||
                (done & MK_EPILOGUE_ACTIVATION) == MK_EPILOGUE_ACTIVATION)
                continue;
            const float sum = 1.5f * 0.75f + (done & MK_EPILOGUE_BIAS ? -0.25f : 0);
            const uint16_t c = mk_bf16_from_float(epilogue_activate(done, sum));
            struct check_result result = {0};
            const struct check_gemm g = {.m = 1,
                                         .n = 1,
                                         .k = 1,
                                         .a = &a,
                                         .b = &b,
                                         .c = &c,
                                         .bias = &bias,
                                         .epilogue = epilogue};
            assert_int_equal(check_gemm(&g, NULL, &result), 0);
            assert_int_equal(check_right(&result), done == epilogue);
        }
}

/* C = f(a g + bias) (a u + bias) of one element, by either activation: right, and wrong without what
 * it has, by the gate's bias alone, and with the two changed for each other. */
CASE(a_check_sees_a_gate)
{
    const uint16_t a = mk_bf16_from_float(1.5f),
                   b[2] = {mk_bf16_from_float(0.75f), mk_bf16_from_float(-1.25f)},
                   bias[2] = {mk_bf16_from_float(-0.25f), mk_bf16_from_float(0.5f)};
    for (uint32_t activation = MK_EPILOGUE_SILU; activation <= MK_EPILOGUE_GELU_TANH;
         activation *= 2)
        for (int wrong = 0; wrong < 5; wrong++) {
            const float gate = 1.5f * 0.75f - 0.25f, up = 1.5f * -1.25f + (wrong == 1 ? 0 : 0.5f),
                        right = wrong == 2   ? epilogue_activate(activation, gate)
                                : wrong == 3 ? epilogue_activate(activation, up) * gate
                                : wrong == 4 ? gate * up
                                             : epilogue_activate(activation, gate) * up;
            const uint16_t c = mk_bf16_from_float(right);
            struct check_result result = {0};
            const struct check_gemm g = {.m = 1,
                                         .n = 2,
                                         .k = 1,
                                         .a = &a,
                                         .b = b,
                                         .b_transposed = 1,
                                         .c = &c,
                                         .bias = bias,
                                         .epilogue =
                                             MK_EPILOGUE_BIAS | activation | MK_EPILOGUE_GATED};
            assert_int_equal(check_gemm(&g, NULL, &result), 0);
            assert_int_equal(result.elements, 1);
            assert_int_equal(check_right(&result), !wrong);
        }
}

/* Of FP8 a run of a tile's columns is of one block of scales: the widest tiles that halves of columns
 * let be, and none; on the host any. */
static void gated_blocks_of_scales(const struct mk_problem *plain)
{
    static const struct {
        enum mk_engine engine;
        uint64_t half;
        uint32_t tile_n;
    } of[] = {{MK_ENGINE_WGMMA, 2048, 256},
              {MK_ENGINE_WGMMA, 2112, 0},
              {MK_ENGINE_MMA, 2080, 64},
              {MK_ENGINE_MMA, 2064, 0}};
    char error[300];
    struct mk_plan p;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct mk_problem q = *plain;
        q.m = 1 << 14;
        q.n = 2 * of[i].half;
        q.engine = of[i].engine;
        q.fp8 = q.b_transposed = 1;
        q.tuning = (struct mk_tuning){0};
        const int result = plan_build(&p, &q, 132, 0, error, sizeof error);
        assert_int_equal(result, of[i].tile_n ? 0 : -EINVAL);
        if (of[i].tile_n)
            assert_int_equal(p.problem.tuning.tile_n, of[i].tile_n);
        else
            assert_non_null(
                strstr(error, of[i].engine == MK_ENGINE_MMA
                                  ? "half of N is 2064, and should be a multiple of 32"
                                  : "half of N is 2112, and should be a multiple of 128"));
        q.exec = MK_EXEC_HOST;
        q.engine = MK_ENGINE_DEVICE;
        assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    }
}

CASE(gated_columns)
{
    struct mk_problem q = {.op = MK_OP_AG_GEMM,
                           .topo = {1, 2, 1},
                           .m = 64,
                           .n = 96,
                           .k = 64,
                           .epilogue = MK_EPILOGUE_SILU | MK_EPILOGUE_GATED};
    struct mk_plan p;
    char error[300];
    uint64_t bytes[MK_SPACES - 1], network, nvlink;
    double flop;
    assert_int_equal(op_extents(&q, bytes), 1 << 2);
    assert_int_equal(bytes[1], 64 * 96 * 2);
    assert_int_equal(bytes[2], 64 * 48 * 2);
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    plan_work(&p, &flop, &nvlink, &network);
    assert_true(flop == 2.0 * 64 * 96 * 64);
    q.n = 88;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "N is 88, and should be a multiple of 16"));
    q.exec = MK_EXEC_CUDA;
    q.sms = 132;
    for (q.m = 2; q.m <= 8192; q.m *= 2) { /* no tile that a GPU cannot halve */
        q.tuning = (struct mk_tuning){0};
        q.n = 4096;
        assert_int_equal(plan_build(&p, &q, 132, 0, error, sizeof error), 0);
        assert_int_equal(p.problem.tuning.tile_n % 128, 0);
    }
    q.tuning = (struct mk_tuning){.tile_m = 128, .tile_n = 64, .cluster = 1};
    assert_int_equal(plan_build(&p, &q, 132, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error,
                           "tiles of 128x64 on 1 CTAs with gated columns; tiles that there are: "
                           "256x256 on 2, 256x128 on 2, 128x128 on 1"));
    q.tuning = (struct mk_tuning){0};
    q.engine = MK_ENGINE_MMA;
    for (q.m = 2; q.m <= 8192; q.m *= 2) { /* whose warps have 64 columns: 32 of either run */
        q.tuning = (struct mk_tuning){0};
        assert_int_equal(plan_build(&p, &q, 132, 0, error, sizeof error), 0);
        assert_int_equal(p.problem.tuning.tile_n, 128);
    }
    q.m = 64;
    gated_blocks_of_scales(&q);
    q.tuning = (struct mk_tuning){0};
    q.epilogue = MK_EPILOGUE_GATED | MK_EPILOGUE_BIAS;
    assert_int_equal(plan_build(&p, &q, 132, 0, error, sizeof error), -EINVAL);
    assert_string_equal(error, "epilogue=bias+gated: gated says what an activation is multiplied "
                               "by, as in silu+gated");
    q.op = MK_OP_GEMM_RS;
    q.epilogue = MK_EPILOGUE_GATED;
    assert_int_equal(plan_build(&p, &q, 132, 0, error, sizeof error), -EINVAL);
    assert_string_equal(error, "epilogue=gated: of gemm_rs it is residual, residual+rmsnorm or "
                               "residual+rmsnorm+quantize");
}

/* A residual is added to what is rounded, and a row is normed: right, and wrong without it. */
static void rows_are_checked_in(uint32_t element)
{
    enum { N = 24 };
    uint16_t a = mk_half_from_float(element, 1.5f), b[N], c[N], residual[N], weight[N], normed[N];
    for (int i = 0; i < N; i++) {
        b[i] = mk_half_from_float(element, (float)i / 8 - 1);
        residual[i] = mk_half_from_float(element, 2.5f - (float)i / 4);
        weight[i] = mk_half_from_float(element, 1 + (float)i / 16);
    }
    for (int wrong = 0; wrong < 4; wrong++) {
        double squares = 0;
        struct check_result result = {0};
        for (int i = 0; i < N; i++) {
            c[i] = mk_half_from_float(
                element, 1.5f * mk_half_to_float(element, b[i]) +
                             (wrong == 1 ? 0 : mk_half_to_float(element, residual[i])));
            squares +=
                (double)mk_half_to_float(element, c[i]) * (double)mk_half_to_float(element, c[i]);
        }
        const double scale = 1 / sqrt(squares / (wrong == 2 ? N - 1 : N) + 1e-6);
        for (int i = 0; i < N; i++)
            normed[i] = mk_half_from_float(
                element, (float)((double)mk_half_to_float(element, c[i]) * scale) *
                             (wrong == 3 ? 1 : mk_half_to_float(element, weight[i])));
        const struct check_gemm g = {.element = element,
                                     .m = 1,
                                     .n = N,
                                     .k = 1,
                                     .a = &a,
                                     .b = b,
                                     .c = c,
                                     .residual = residual};
        const struct check_norm n = {element, 1, N, c, weight, normed, .eps = 1e-6};
        assert_int_equal(check_gemm(&g, NULL, &result), 0);
        assert_int_equal(check_right(&result), wrong != 1);
        memset(&result, 0, sizeof result);
        check_norm(&n, &result);
        assert_int_equal(check_right(&result), wrong < 2);
    }
}

/* Codes and scales of normed rows: right, and wrong by one code, by a scale, of another row's numbers or never written. */
static void codes_are_checked_in(uint32_t element)
{
    enum { M = 3, N = 144, BLOCKS = 2 };
    uint16_t rows[M * N], weight[N];
    float normed[M * N], scales[BLOCKS * M];
    uint8_t codes[M * N];
    for (int i = 0; i < M * N; i++)
        rows[i] = mk_half_from_float(element, (float)(i * 37 % 101) - 50);
    memset(rows + N, 0, N * sizeof *rows); /* a row of zeros */
    for (int i = 0; i < N; i++)
        weight[i] = mk_half_from_float(element, 1 + (float)(i % 16) / 16);
    for (int row = 0; row < M; row++) {
        double squares = 0;
        for (int i = 0; i < N; i++)
            squares += pow((double)mk_half_to_float(element, rows[row * N + i]), 2);
        for (int i = 0; i < N; i++)
            normed[row * N + i] = mk_half_to_float(
                element, mk_half_from_float(
                             element, (float)((double)mk_half_to_float(element, rows[row * N + i]) /
                                              sqrt(squares / N + 1e-6) *
                                              (double)mk_half_to_float(element, weight[i]))));
    }
    for (int wrong = 0; wrong < 6; wrong++) {
        struct check_result result = {0};
        for (int row = 0; row < M; row++)
            for (int block = 0; block < BLOCKS; block++)
                scales[block * M + row] =
                    quantize_row_block(normed + row * N + block * 128, block ? N - 128 : 128,
                                       codes + row * N + block * 128);
        if (wrong == 1)
            codes[2 * N + 130] ^= 1;
        if (wrong == 2)
            scales[M + 2] *= 1.02f;
        if (wrong == 3)
            scales[1] = 0; /* of zeros it is 1 */
        if (wrong == 4)
            memcpy(codes, codes + 2 * N, N);
        if (wrong == 5)
            memset(codes + 2 * N, 0xff, N);
        const struct check_norm n = {.element = element,
                                     .m = M,
                                     .n = N,
                                     .rows = rows,
                                     .weight = weight,
                                     .codes = codes,
                                     .scales = scales,
                                     .eps = 1e-6};
        check_norm(&n, &result);
        assert_int_equal(check_right(&result), wrong == 0);
    }
}

CASE(a_check_sees_codes)
{
    codes_are_checked_in(MK_BF16);
    codes_are_checked_in(MK_FP16);
}

CASE(a_check_sees_rows)
{
    rows_are_checked_in(MK_BF16);
    rows_are_checked_in(MK_FP16);
}

CASE(rows_of_gemm_ar)
{
    struct mk_problem q = {.op = MK_OP_GEMM_AR,
                           .topo = {1, 2, 1},
                           .m = 64,
                           .n = 64,
                           .k = 64,
                           .epilogue = MK_EPILOGUE_ROWS};
    struct mk_plan p;
    char error[300];
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_true(p.problem.eps == EPILOGUE_EPS);
    assert_int_equal(op_arguments(&p.problem), 6);
    uint64_t bytes[MK_SPACES - 1]; /* of gemm_rs a rank's rows alone */
    q.op = MK_OP_GEMM_RS;
    assert_int_equal(op_extents(&q, bytes), 1 << 2 | 1 << 5);
    assert_int_equal(bytes[3], 32 * 64 * 2);
    assert_int_equal(bytes[4], 64 * 2);
    assert_int_equal(bytes[5], 32 * 64 * 2);
    q.epilogue |=
        MK_EPILOGUE_QUANTIZE; /* codes and scales in place of a new residual, which C is */
    assert_int_equal(op_extents(&q, bytes), 1 << 2 | 1 << 5 | 1 << 6);
    assert_int_equal(bytes[5], 32 * 64);
    assert_int_equal(bytes[6], 32 * 4);
    assert_int_equal(op_new_residual_argument(&q), 2);
    q.op = MK_OP_GEMM_AR;
    q.n = 72;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "N is 72, and should be a multiple of 16"));
    q.n = 64;
    q.epilogue = MK_EPILOGUE_ROWS;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(op_residual_argument(&p.problem), 3);
    assert_int_equal(op_new_residual_argument(&p.problem), 5);
    q.epilogue = MK_EPILOGUE_RESIDUAL;
    assert_int_equal(op_arguments(&q), 4);
    q.eps = 1e-5f;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_string_equal(error, "eps=1e-05: it is of an rmsnorm");
    q.eps = 0;
    q.fp8 = q.b_transposed = 1;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    assert_int_equal(op_arguments(&q), 6);
    q.exec = MK_EXEC_CUDA;
    q.sms = 132;
    q.tuning = (struct mk_tuning){.tile_m = 256, .tile_n = 256, .shots = 2};
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "no GPU kernel is built for tiles of 256x256"));
    q.epilogue = 0;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    q.tuning = (struct mk_tuning){0};
    q.exec = MK_EXEC_HOST;
    q.sms = 0;
    q.fp8 = 0;
    q.epilogue = MK_EPILOGUE_BIAS;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_string_equal(error, "epilogue=bias: of gemm_ar it is residual, residual+rmsnorm or "
                               "residual+rmsnorm+quantize");
    q.epilogue = MK_EPILOGUE_RMSNORM;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "it follows a residual"));
    q.op = MK_OP_AG_GEMM;
    q.epilogue = MK_EPILOGUE_RESIDUAL;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_non_null(strstr(error, "epilogue=residual: of ag_gemm it is bias, silu"));
}

CASE(who_has_none_refuses)
{
    struct mk_problem q = {.op = MK_OP_REDUCE_SCATTER,
                           .topo = {1, 2, 1},
                           .m = 64,
                           .n = 64,
                           .k = 64,
                           .epilogue = MK_EPILOGUE_BIAS | MK_EPILOGUE_SILU};
    struct mk_plan p;
    char error[300];
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_string_equal(
        error,
        "epilogue=bias+silu: reduce_scatter has none; it is of ag_gemm, gemm_ar and gemm_rs");
    q.op = MK_OP_AG_GEMM;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), 0);
    q.epilogue = MK_EPILOGUE_ACTIVATION;
    assert_int_equal(plan_build(&p, &q, 0, 0, error, sizeof error), -EINVAL);
    assert_string_equal(error, "epilogue=silu+gelu_tanh: one activation at most");
}
