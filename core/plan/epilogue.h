/* What follows a product: of ag_gemm element by element, in fp32 before C is rounded,
 * C = f(A B + bias); of gemm_ar row by row, when C is added up over ranks and rounded.
 *
 *   bias        one number for each column is added
 *   silu        x / (1 + e^-x)
 *   gelu_tanh   x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, which is
 *               x / (1 + e^-(2 sqrt(2 / pi) (x + 0.044715 x^3)))
 *   gated       with an activation: B has two runs of N / 2 columns, a gate and what it lets
 *               through (up), and C has N / 2: f(A gate + bias) (A up + bias), as SwiGLU and GeGLU
 *               are
 *   residual    C + residual, in fp32, rounded to bf16: the new residual
 *   rmsnorm     behind a residual: r weight / sqrt(mean(r^2) + eps) of each row r of the new
 *               residual as it was rounded, in fp32, rounded to bf16
 *   quantize    behind an rmsnorm: codes of e4m3 and scales of 1 x 128 of the normed rows as they
 *               were rounded, in the places and with the bits that mk_quantize gives; C is the new
 *               residual then
 *
 * kernels/engine/epilogue.cuh is the same for GPUs, with their approximate e^x. */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* mk_problem.epilogue: bits, in the order of epilogue_names; at most one is an activation. */
enum mk_epilogue {
    MK_EPILOGUE_BIAS = 1,
    MK_EPILOGUE_SILU = 2,
    MK_EPILOGUE_GELU_TANH = 4,
    MK_EPILOGUE_RESIDUAL = 8,
    MK_EPILOGUE_RMSNORM = 16,  /* with a residual alone */
    MK_EPILOGUE_GATED = 32,    /* with an activation alone */
    MK_EPILOGUE_QUANTIZE = 64, /* with an rmsnorm alone */
    MK_EPILOGUE_ACTIVATION = MK_EPILOGUE_SILU | MK_EPILOGUE_GELU_TANH,
    MK_EPILOGUE_ELEMENTS =
        MK_EPILOGUE_BIAS | MK_EPILOGUE_ACTIVATION | MK_EPILOGUE_GATED, /* of elements */
    MK_EPILOGUE_ROWS = MK_EPILOGUE_RESIDUAL | MK_EPILOGUE_RMSNORM      /* of whole rows */
};
#define EPILOGUE_TEXT 48

#define EPILOGUE_EPS 1e-6f /* where none is given */

/* Of x (1 / (1 + 2^(x (linear + cubic x^2)))). */
#define EPILOGUE_SILU_LINEAR -1.44269504f
#define EPILOGUE_GELU_LINEAR -2.30220820f
#define EPILOGUE_GELU_CUBIC -0.10294324f

static inline float epilogue_activate(uint32_t epilogue, float x)
{
    float power = epilogue & MK_EPILOGUE_SILU
                      ? x * EPILOGUE_SILU_LINEAR
                      : x * (EPILOGUE_GELU_LINEAR + EPILOGUE_GELU_CUBIC * (x * x));
    return epilogue & MK_EPILOGUE_ACTIVATION ? x * (1 / (1 + exp2f(power))) : x;
}

/* Columns of C: of B's `n`, half where they are gated. */
static inline uint64_t epilogue_columns(uint32_t epilogue, uint64_t n)
{
    return epilogue & MK_EPILOGUE_GATED ? n / 2 : n;
}

/* "bias+silu", any of the words once, to bits. 0; -EINVAL with a sentence that begins with `name`,
 * which is what the user wrote before it. */
int epilogue_read(const char *name, const char *text, uint32_t *epilogue, char *error, size_t size);

/* The words of an epilogue, joined; "" of none. Returns text. */
const char *epilogue_text(uint32_t epilogue, char text[EPILOGUE_TEXT]);
