#include "experiments/ops/check_moe_ffn.h"
#include "experiments/common/spawn.h"
#include "core/base/bf16.h"
#include "core/base/e4m3.h"
#include "core/base/quantize.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PANEL_ROWS 128
#define BF16 0x1p-8
#define FP32 0x1p-23
#define E4M3 0x1p-4
#define E4M3_LEAST                                                                                 \
    (0x1p-10 / 448) /* half a step of the smallest codes, of the largest of a block */

struct panel {
    uint16_t *narrow;             /* B1 and B2 of an expert as they are */
    float *wide;                  /* the same, where they are fp32 */
    double *b1, *b2, *b2_size;    /* widened; |B2| */
    double *col_norm;             /* of B1's columns */
    double *a, *up, *acted, *off; /* [PANEL_ROWS] of H, 2 I, I, I */
    double *row, *row_off;        /* [PANEL_ROWS, H] */
    double *y, *y_off, *y_size;   /* [T, H]: the sum, its bound, the sum of absolute values */
    uint64_t *places;             /* of the panel's rows: token * k + place */
};

static void check_moe_ffn_load_expert(const struct check_moe_ffn *c, const struct panel *p,
                                      uint32_t expert)
{
    uint64_t h = c->problem.hidden, i = c->problem.inner;
    if (c->fp8)
        c->expert_wide(c->context, expert, p->wide, p->wide + 2 * h * i);
    else
        c->expert(c->context, expert, p->narrow, p->narrow + 2 * h * i);
    for (uint64_t at = 0; at < 3 * h * i && !c->fp8; at++)
        p->wide[at] = mk_bf16_to_float(p->narrow[at]);
    memset(p->col_norm, 0, 2 * i * sizeof(double));
    for (uint64_t at = 0; at < 2 * h * i; at++) {
        p->b1[at] = (double)p->wide[at];
        p->col_norm[c->b_transposed ? at / h : at % (2 * i)] += p->b1[at] * p->b1[at];
    }
    for (uint64_t col = 0; col < 2 * i; col++)
        p->col_norm[col] = sqrt(p->col_norm[col]);
    for (uint64_t at = 0; at < h * i; at++) {
        p->b2[at] = (double)p->wide[2 * h * i + at];
        p->b2_size[at] = fabs(p->b2[at]);
    }
}

double check_moe_ffn_quantised(double v, double off, double amax, double off_amax, double *acted)
{
    const double size = fabs(v), least = amax - off_amax, most = amax + off_amax;
    const float up = quantize_up((float)amax), scale = quantize_scale((float)amax);
    const uint8_t code = mk_e4m3_from_float((float)size * up);
    const double value = (double)mk_e4m3_to_float(code) * (double)scale;
    *acted = v < 0 ? -value : value;
    if (least < (double)MK_QUANTIZE_LEAST) /* it may be zeros, or of any scale up to the largest */
        return off + 2 * most;
    const double low = (size - off) * (1 - 0x1p-21) * 448 / most,
                 high = (size + off) * (1 + 0x1p-21) * 448 / least;
    const double from = (double)mk_e4m3_to_float(mk_e4m3_from_float((float)low)),
                 to = (double)mk_e4m3_to_float(mk_e4m3_from_float((float)high)),
                 below = value - from * (from < 0 ? most : least) / 448,
                 above = to * most / 448 - value;
    return (below > above ? below : above) + 0x1p-21 * value;
}

/* A row's activation to what its codes say, by blocks. */
static void check_moe_ffn_quantise(double *acted, double *off, uint64_t inner)
{
    for (uint64_t first = 0; first < inner; first += MK_SCALE_BLOCK) {
        const uint64_t end = inner - first < MK_SCALE_BLOCK ? inner : first + MK_SCALE_BLOCK;
        double amax = 0, off_amax = 0;
        for (uint64_t i = first; i < end; i++) {
            amax = fmax(amax, fabs(acted[i]));
            off_amax = fmax(off_amax, off[i]);
        }
        for (uint64_t i = first; i < end; i++)
            off[i] = check_moe_ffn_quantised(acted[i], off[i], amax, off_amax, &acted[i]);
    }
}

static void check_moe_ffn_activate(const struct check_moe_ffn *c, const struct panel *p,
                                   uint64_t row, double norm)
{
    uint64_t h = c->problem.hidden, inner = c->problem.inner;
    const double *gates = p->up + row * 2 * inner, *ups = gates + inner;
    const double sums = (double)h * FP32 + c->cut, down = (double)inner * FP32 + c->cut;
    double *all = p->acted + row * inner, *offs = p->off + row * inner;
    for (uint64_t col = 0; col < inner; col++) {
        double silu = gates[col] / (1 + exp(-gates[col]));
        double off_gate = sums * norm * p->col_norm[col],
               off_up = sums * norm * p->col_norm[inner + col];
        all[col] = silu * ups[col];
        offs[col] = 1.1 * (fabs(ups[col]) + off_up) * off_gate + fabs(silu) * off_up;
        offs[col] += ((c->fp8 ? 0 : BF16) + 0x1p-20) * (fabs(all[col]) + offs[col]);
    }
    if (c->fp8)
        check_moe_ffn_quantise(all, offs, inner);
    for (uint64_t col = 0; col < inner; col++)
        offs[col] += down * (fabs(all[col]) + offs[col]);
}

/* A token in float64. */
static void check_moe_ffn_load_token(const struct check_moe_ffn *c, uint64_t token, double *to)
{
    const uint64_t h = c->problem.hidden;
    const uint8_t *record = (const uint8_t *)c->x + token * quantize_record(h);
    const float *scales = (const float *)(const void *)(record + h);
    for (uint64_t j = 0; j < h; j++)
        to[j] = (double)(c->fp8 ? mk_e4m3_to_float(record[j]) * scales[j / MK_SCALE_BLOCK]
                                : mk_bf16_to_float(((const uint16_t *)c->x)[token * h + j]));
}

/* The panel's rows through the expert, and by their weights to the sums. */
static void check_moe_ffn_add_panel(const struct check_moe_ffn *c, const struct panel *p,
                                    uint64_t rows, int crosses)
{
    uint64_t h = c->problem.hidden, inner = c->problem.inner;
    int m = (int)rows, n = (int)h, i = (int)inner;
    CBLAS_TRANSPOSE t = c->b_transposed ? CblasTrans : CblasNoTrans;
    for (uint64_t row = 0; row < rows; row++)
        check_moe_ffn_load_token(c, p->places[row] / c->problem.k, p->a + row * h);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, t, m, 2 * i, n, 1.0, p->a, n, p->b1,
                c->b_transposed ? n : 2 * i, 0.0, p->up, 2 * i);
    for (uint64_t row = 0; row < rows; row++)
        check_moe_ffn_activate(c, p, row, cblas_dnrm2(n, p->a + row * h, 1));
    cblas_dgemm(CblasRowMajor, CblasNoTrans, t, m, n, i, 1.0, p->acted, i, p->b2,
                c->b_transposed ? i : n, 0.0, p->row, n);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, t, m, n, i, 1.0, p->off, i, p->b2_size,
                c->b_transposed ? i : n, 0.0, p->row_off, n);
    for (uint64_t row = 0; row < rows; row++) {
        double weight = (double)c->weights[p->places[row]];
        uint64_t to = p->places[row] / c->problem.k * h;
        for (uint64_t j = 0; j < h; j++) {
            double value = p->row[row * h + j], off = p->row_off[row * h + j];
            if (!c->deterministic)
                off += (c->back_fp8 ? 1 : 1 + crosses) * BF16 * (fabs(value) + off);
            for (int link = 0; link < crosses && c->back_fp8; link++)
                off += E4M3 * (fabs(value) + off);
            p->y[to + j] += weight * value;
            p->y_off[to + j] += fabs(weight) * off;
            p->y_size[to + j] += fabs(weight) * (fabs(value) + off);
        }
    }
}

static void check_moe_ffn_add_expert(const struct check_moe_ffn *c, const struct panel *p,
                                     uint32_t expert)
{
    uint64_t rows = 0, places = c->problem.tokens * c->problem.k;
    const struct mk_topo *t = &c->topo;
    uint32_t at = expert / (uint32_t)(c->problem.experts / mk_world(t));
    int loaded = 0, crosses = (mk_local_of(t, at) != mk_local_of(t, t->rank)) +
                              (mk_node_of(t, at) != mk_node_of(t, t->rank));
    for (uint64_t i = 0; i <= places; i++) {
        if (i < places && c->ids[i] == expert)
            p->places[rows++] = i;
        if (rows < PANEL_ROWS && (i < places || !rows))
            continue;
        if (!loaded)
            check_moe_ffn_load_expert(c, p, expert);
        spawn_beat();
        loaded = 1;
        check_moe_ffn_add_panel(c, p, rows, crosses);
        spawn_beat();
        rows = 0;
    }
}

/* The largest that a sum of the block may be that element `at` is in, of rows of h. */
static double check_moe_ffn_largest(const struct panel *p, uint64_t h, uint64_t at)
{
    const uint64_t first = at - at % h % MK_SCALE_BLOCK, left = h - first % h;
    double largest = 0;
    for (uint64_t i = 0; i < left && i < MK_SCALE_BLOCK; i++)
        largest = fmax(largest, p->y_size[first + i]);
    return largest;
}

static void check_moe_ffn_judge(const struct check_moe_ffn *c, const struct panel *p,
                                struct check_result *r)
{
    uint64_t h = c->problem.hidden;
    for (uint64_t i = 0; i < (c->problem.tokens - c->behind) * h; i++) {
        double value = (double)mk_bf16_to_float(c->y[i]), reference = p->y[i];
        double bound = p->y_off[i] + (double)(c->problem.k + 1) * FP32 * p->y_size[i];
        if (c->back_fp8)
            bound += check_moe_ffn_links(c) * E4M3_LEAST * check_moe_ffn_largest(p, h, i);
        bound += BF16 * (fabs(reference) + bound);
        check_within(r, i / h, i % h, value, reference, bound);
    }
}

static int check_moe_ffn_open_panel(struct panel *p, const struct mk_moe *m)
{
    uint64_t h = m->hidden, i = m->inner, size = sizeof(double);
    memset(p, 0, sizeof *p);
    p->narrow = malloc(3 * h * i * sizeof *p->narrow);
    p->wide = malloc(3 * h * i * sizeof *p->wide);
    p->b1 = malloc(2 * h * i * size);
    p->b2 = malloc(h * i * size);
    p->b2_size = malloc(h * i * size);
    p->col_norm = malloc(2 * i * size);
    p->a = malloc(PANEL_ROWS * h * size);
    p->up = malloc(PANEL_ROWS * 2 * i * size);
    p->acted = malloc(PANEL_ROWS * i * size);
    p->off = malloc(PANEL_ROWS * i * size);
    p->row = malloc(PANEL_ROWS * h * size);
    p->row_off = malloc(PANEL_ROWS * h * size);
    p->y = calloc(m->tokens * h, size);
    p->y_off = calloc(m->tokens * h, size);
    p->y_size = calloc(m->tokens * h, size);
    p->places = malloc(PANEL_ROWS * sizeof *p->places);
    return p->narrow && p->wide && p->b1 && p->b2 && p->b2_size && p->col_norm && p->a && p->up &&
                   p->acted && p->off && p->row && p->row_off && p->y && p->y_off && p->y_size &&
                   p->places
               ? 0
               : -ENOMEM;
}

static void check_moe_ffn_close_panel(struct panel *p)
{
    void *const all[] = {p->narrow, p->wide,  p->b1,     p->b2,    p->b2_size, p->col_norm,
                         p->a,      p->up,    p->acted,  p->off,   p->row,     p->row_off,
                         p->y,      p->y_off, p->y_size, p->places};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

double check_moe_ffn_frobenius(const struct check_moe_ffn *c)
{
    const double roundings = c->deterministic ? CHECK_ACTIVATION : CHECK_FAST,
                 flips = c->cut > 0 ? CHECK_FLIPS : 0,
                 back = c->back_fp8 ? CHECK_BACK * CHECK_BACK * check_moe_ffn_links(c) : 0;
    return flips + back > 0 ? sqrt(roundings * roundings + flips * flips + back) : roundings;
}

int check_moe_ffn(const struct check_moe_ffn *c, const struct check_pace *pace,
                  struct check_result *result)
{
    const struct mk_moe *m = &c->problem;
    struct check_result mine = {.frobenius = check_moe_ffn_frobenius(c)};
    struct panel p;
    double done = 0;
    int status = check_moe_ffn_open_panel(&p, m);
    for (uint32_t expert = 0; expert < m->experts && !status; expert++) {
        check_moe_ffn_add_expert(c, &p, expert);
        /* at most: as often on every rank */
        status =
            check_meet(pace, 8.0 * (double)m->tokens * (double)m->hidden * (double)m->inner, &done);
    }
    if (!status) {
        check_moe_ffn_judge(c, &p, &mine);
        check_join(result, &mine);
    }
    check_moe_ffn_close_panel(&p);
    return status;
}
