#include "experiments/common/check.h"
#include "experiments/common/spawn.h"
#include "core/plan/epilogue.h"
#include "core/cta/half.h"
#include "core/base/quantize.h"
#include "core/base/scoped.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define PANEL_ROWS 256    /* rows of C that are in float64 at a time */
#define SLAB_FLOP 2e9     /* of a product, whose progress cannot be seen */
#define SOME (1u << 24)   /* elements between two signs of life */
#define FLOAT64_FLOP 2e11 /* above, float32: its own error is inside the bound's factor of two */

/* The work space of one check: B whole and a panel of A and C, as double or float. */
struct panel {
    int wide; /* float64 */
    void *a, *b, *c;
    double *row_norm, *col_norm; /* of A's rows in the panel, of B's columns */
};

/* A number of A or B, which is `in` or `floats`. */
static float check_number(uint32_t element, const uint16_t *in, const float *floats, uint64_t i)
{
    return floats ? floats[i] : mk_half_to_float(element, in[i]);
}

static void check_widen(void *out, uint32_t element, const uint16_t *in, const float *floats,
                        uint64_t first, uint64_t count, int wide)
{
    for (uint64_t i = 0; i < count; i++) {
        float value = check_number(element, in, floats, first + i);
        if (wide)
            ((double *)out)[i] = (double)value;
        else
            ((float *)out)[i] = value;
        if (i % SOME == 0)
            spawn_beat();
    }
}

static double check_at(const void *values, uint64_t i, int wide)
{
    return wide ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static float check_b_at(const struct check_gemm *g, uint64_t k, uint64_t col)
{
    return check_number(g->element, g->b, g->b_wide,
                        g->b_transposed ? col * g->k + k : k * g->n + col);
}

static double check_sum_of_products(const struct check_gemm *g, uint64_t row, uint64_t col)
{
    double sum = 0;
    for (uint64_t k = 0; k < g->k; k++)
        sum += fabs((double)check_number(g->element, g->a, g->a_wide, row * g->k + k) *
                    (double)check_b_at(g, k, col));
    return sum;
}

static double check_bias(const struct check_gemm *g, uint64_t col)
{
    return g->epilogue & MK_EPILOGUE_BIAS ? (double)mk_half_to_float(g->element, g->bias[col]) : 0;
}

/* The activation of an exact product with its bias. */
static double check_activated(const struct check_gemm *g, double x)
{
    const double tanh_of = 2 * sqrt(2 / M_PI);
    if (g->epilogue & MK_EPILOGUE_SILU)
        return x / (1 + exp(-x));
    if (g->epilogue & MK_EPILOGUE_GELU_TANH)
        return x / (1 + exp(-tanh_of * (x + 0.044715 * x * x * x)));
    return x;
}

/* The sum of |a||b| of an element's product, or what it is at most. */
static double check_magnitude(const struct check_gemm *g, const struct panel *p, uint64_t row,
                              uint64_t panel_row, uint64_t col, int whole)
{
    return whole ? check_sum_of_products(g, row, col) : p->row_norm[panel_row] * p->col_norm[col];
}

/* How far off an element may be for its sums alone. activated, through: what it is made of; without
 * a gate `through` is 1. */
static double check_sums(const struct check_gemm *g, const struct panel *p, uint64_t row,
                         uint64_t panel_row, uint64_t col, double activated, double through,
                         int whole)
{
    const double each = (double)g->k * 0x1p-23 + g->cut + g->roundings * check_unit(g->element),
                 slope = g->epilogue & MK_EPILOGUE_ACTIVATION ? CHECK_SLOPE : 1,
                 gate = slope * each * check_magnitude(g, p, row, panel_row, col, whole);
    if (!(g->epilogue & MK_EPILOGUE_GATED))
        return gate;
    const double up = each * check_magnitude(g, p, row, panel_row, col + g->n / 2, whole);
    return gate * (fabs(through) + up) + fabs(activated) * up;
}

/* One element, of the product in column `col` and, where these are gated, of the one that it lets
 * through, `up`. The sum of |a||b| costs K operations, so it is made only where the rounding's term
 * alone does not decide and Cauchy-Schwarz (sum |a||b| <= |a_row||b_col|) does not rule the element
 * out; with rounded partial sums that is the bound itself. */
static void check_element(const struct check_gemm *g, const struct panel *p, uint64_t row,
                          uint64_t panel_row, uint64_t col, double product, double up,
                          struct check_result *r)
{
    const uint64_t across = epilogue_columns(g->epilogue, g->n);
    const double activated = check_activated(g, product + check_bias(g, col)),
                 through = across < g->n ? up + check_bias(g, col + across) : 1,
                 before = activated * through,
                 residual = g->residual ? (double)mk_half_to_float(g->element,
                                                                   g->residual[row * g->n + col])
                                        : 0,
                 reference = before + residual,
                 slope = g->epilogue & MK_EPILOGUE_ACTIVATION ? CHECK_SLOPE : 1;
    double value = (double)mk_half_to_float(g->element, g->c[row * across + col]),
           off = fabs(value - reference);
    const double unit = check_unit(g->element);
    double bound = (fabs(reference) + (g->residual ? fabs(before) : 0)) * unit +
                   (1 + g->roundings) * slope * check_step(g->element);
    if (!(off <= bound)) {
        const double rounding = bound;
        bound += check_sums(g, p, row, panel_row, col, activated, through, 0);
        if (off <= bound && !g->roundings)
            bound = rounding + check_sums(g, p, row, panel_row, col, activated, through, 1);
    }
    check_within(r, row, col, value, reference, bound);
}

static void check_multiply(const struct check_gemm *g, const struct panel *p, uint64_t rows)
{
    int m = (int)rows, n = (int)g->n, k = (int)g->k, ldb = g->b_transposed ? k : n;
    CBLAS_TRANSPOSE tb = g->b_transposed ? CblasTrans : CblasNoTrans;
    /* columns: none takes long */
    uint64_t most = (uint64_t)(SLAB_FLOP / (2.0 * (double)rows * (double)g->k)) + 1;
    for (uint64_t col = 0; col < g->n; col += most, spawn_beat()) {
        int cols = (int)(g->n - col < most ? g->n - col : most);
        uint64_t b = g->b_transposed ? col * g->k : col;
        if (p->wide)
            cblas_dgemm(CblasRowMajor, CblasNoTrans, tb, m, cols, k, 1.0, p->a, k,
                        (const double *)p->b + b, ldb, 0.0, (double *)p->c + col, n);
        else
            cblas_sgemm(CblasRowMajor, CblasNoTrans, tb, m, cols, k, 1.0f, p->a, k,
                        (const float *)p->b + b, ldb, 0.0f, (float *)p->c + col, n);
    }
}

static void check_norms(const struct check_gemm *g, const struct panel *p, uint64_t first,
                        uint64_t rows)
{
    for (uint64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < g->k; k++)
            sum += check_at(p->a, i * g->k + k, p->wide) * check_at(p->a, i * g->k + k, p->wide);
        p->row_norm[i] = sqrt(sum);
        spawn_beat();
    }
    if (first)
        return;
    for (uint64_t j = 0; j < g->n; j++)
        p->col_norm[j] = 0;
    for (uint64_t i = 0; i < g->n * g->k; i++) {
        double b = check_at(p->b, i, p->wide);
        p->col_norm[g->b_transposed ? i / g->k : i % g->n] += b * b;
        if (i % SOME == 0)
            spawn_beat();
    }
    for (uint64_t j = 0; j < g->n; j++)
        p->col_norm[j] = sqrt(p->col_norm[j]);
}

int check_gemm(const struct check_gemm *g, const struct check_pace *pace,
               struct check_result *result)
{
    const int wide = 2.0 * (double)g->m * (double)g->n * (double)g->k <= FLOAT64_FLOP;
    struct check_result mine = {.frobenius = (g->frobenius > 0 ? g->frobenius
                                              : g->residual    ? CHECK_TWICE
                                                               : CHECK_FROBENIUS) *
                                             check_share(g->element)};
    uint64_t panel_rows = g->m < PANEL_ROWS ? g->m : PANEL_ROWS,
             size = wide ? sizeof(double) : sizeof(float),
             across = epilogue_columns(g->epilogue, g->n);
    MK_FREED void *a = malloc(panel_rows * g->k * size), *b = malloc(g->k * g->n * size),
                  *c = malloc(panel_rows * g->n * size);
    MK_FREED double *row_norm = malloc(panel_rows * sizeof *row_norm),
                    *col_norm = malloc(g->n * sizeof *col_norm);
    const struct panel p = {wide, a, b, c, row_norm, col_norm};
    double done = 0;
    int status = a && b && c && row_norm && col_norm ? 0 : -ENOMEM;
    if (!status)
        check_widen(b, g->element, g->b, g->b_wide, 0, g->k * g->n, wide);
    for (uint64_t first = 0; first < g->m && !status; first += panel_rows) {
        uint64_t rows = g->m - first < panel_rows ? g->m - first : panel_rows;
        check_widen(a, g->element, g->a, g->a_wide, first * g->k, rows * g->k, wide);
        check_norms(g, &p, first, rows);
        check_multiply(g, &p, rows);
        for (uint64_t i = 0; i < rows; i++, spawn_beat())
            for (uint64_t j = 0; j < across; j++)
                check_element(g, &p, first + i, i, j, check_at(c, i * g->n + j, wide),
                              check_at(c, (i + 1) * g->n - across + j, wide), &mine);
        status = check_meet(pace, 2.0 * (double)rows * (double)g->n * (double)g->k, &done);
    }
    if (!status)
        check_join(result, &mine);
    return status;
}

/* How far a normed number may be from `reference`. */
static double check_norm_off(const struct check_norm *n, double reference)
{
    return fabs(reference) * (check_unit(n->element) + ((double)n->n + 8) * 0x1p-24) +
           check_step(n->element);
}

/* A row's codes and scales; reference: its numbers. */
static void check_codes(const struct check_norm *n, uint64_t row, const double *reference,
                        struct check_result *result)
{
    for (uint64_t first = 0; first < n->n; first += MK_SCALE_BLOCK) {
        const uint64_t end = first + MK_SCALE_BLOCK < n->n ? first + MK_SCALE_BLOCK : n->n;
        const float scale = n->scales[first / MK_SCALE_BLOCK * n->m + row];
        double amax = 0;
        for (uint64_t col = first; col < end; col++)
            amax = fmax(amax, fabs(reference[col]));
        check_within(result, row, first, (double)scale, amax > 0 ? amax / MK_E4M3_LARGEST : 1,
                     check_norm_off(n, amax) / MK_E4M3_LARGEST + amax * 0x1p-23);
        for (uint64_t col = first; col < end; col++) {
            const uint8_t code = n->codes[row * n->n + col];
            const double value = (double)mk_e4m3_to_float(code) * (double)scale,
                         right = reference[col];
            check_within(
                result, row, col, value,
                quantize_may_be(code, scale, right, check_norm_off(n, right)) ? value : right, 0);
        }
    }
}

void check_norm(const struct check_norm *n, struct check_result *result)
{
    MK_FREED double *right = malloc(n->n * sizeof *right);
    if (!right) {
        result->wrong++;
        return;
    }
    for (uint64_t row = 0; row < n->m; row++, spawn_beat()) {
        const uint64_t at = row * n->n;
        double squares = 0;
        for (uint64_t col = 0; col < n->n; col++) {
            const double r = (double)mk_half_to_float(n->element, n->rows[at + col]);
            squares += r * r;
        }
        const double scale = 1 / sqrt(squares / (double)n->n + n->eps);
        for (uint64_t col = 0; col < n->n; col++)
            right[col] = (double)mk_half_to_float(n->element, n->rows[at + col]) * scale *
                         (double)mk_half_to_float(n->element, n->weight[col]);
        if (!n->normed)
            check_codes(n, row, right, result);
        for (uint64_t col = 0; n->normed && col < n->n; col++)
            check_within(result, row, col,
                         (double)mk_half_to_float(n->element, n->normed[at + col]), right[col],
                         check_norm_off(n, right[col]));
    }
}

double check_error(const struct check_result *r)
{
    if (!r->elements || !isfinite(r->difference2))
        return r->elements ? INFINITY : 0;
    return r->reference2 > 0    ? sqrt(r->difference2 / r->reference2)
           : r->difference2 > 0 ? INFINITY
                                : 0;
}

double check_bound(const struct check_result *r)
{
    double bound = r->frobenius > 0 ? r->frobenius : CHECK_FROBENIUS;
    return r->elements < CHECK_MANY ? 0x1p-8 * bound / CHECK_FROBENIUS : bound;
}

int check_right(const struct check_result *r)
{
    return (r->elements || r->nothing) && !r->wrong && check_error(r) <= check_bound(r);
}
