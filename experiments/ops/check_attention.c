#include "experiments/ops/check_attention.h"
#include "experiments/common/spawn.h"
#include "core/plan/attention_shards.h"
#include "core/base/bf16.h"
#include "core/base/scoped.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define PANEL_ROWS 128
#define LSE_BOUND 1e-5

struct panel {
    double *q, *k, *v; /* one head's: [PANEL_ROWS, D], [S, D], [S, D] */
    double *v_size;    /* V without its signs */
    double *scores;    /* [PANEL_ROWS, S] */
    double *o, *size;  /* [PANEL_ROWS, D]; of V without its signs */
};

static void check_attention_widen(double *to, const uint16_t *from, uint64_t rows, uint64_t dim,
                                  uint64_t pitch)
{
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < dim; j++)
            to[i * dim + j] = (double)mk_bf16_to_float(from[i * pitch + j]);
}

/* Scores become weights; returns the logarithm of the sum. */
static double check_attention_soften(double *scores, uint64_t seen, uint64_t all)
{
    double most = -INFINITY, sum = 0;
    for (uint64_t i = 0; i < seen; i++)
        most = fmax(most, scores[i]);
    for (uint64_t i = 0; i < seen; i++)
        sum += scores[i] = exp(scores[i] - most);
    for (uint64_t i = 0; i < all; i++)
        scores[i] = i < seen ? scores[i] / sum : 0;
    return most + log(sum);
}

/* Rows [first, first + rows) of one head of one batch. */
static void check_panel(const struct check_attention *c, const struct panel *p, uint64_t batch,
                        uint64_t head, uint64_t first, uint64_t rows, struct check_result *r)
{
    const struct mk_attention *t = &c->problem;
    uint64_t all = t->sequence, local = mk_attention_rows(t, c->world, c->rank), dim = t->head_dim,
             pitch = t->heads * dim;
    int m = (int)rows, n = (int)all, d = (int)dim;
    const uint64_t at = (batch * local + first) * pitch + head * dim;
    check_attention_widen(p->q, c->q + at, rows, dim, pitch);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, d, 1.0 / sqrt((double)dim), p->q, d,
                p->k, d, 0.0, p->scores, n);
    for (uint64_t i = 0; i < rows; i++) {
        double lse = check_attention_soften(
            p->scores + i * all,
            t->causal ? mk_attention_place(t, c->world, c->rank, first + i) + 1 : all, all);
        double said = (double)c->lse[(batch * t->heads + head) * local + first + i];
        r->wrong += !(fabs(said - lse) <= LSE_BOUND * fmax(1, fabs(lse)));
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, d, n, 1.0, p->scores, n, p->v, d, 0.0,
                p->o, d);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, d, n, 1.0, p->scores, n, p->v_size, d,
                0.0, p->size, d);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < dim; j++) {
            const double value = (double)mk_bf16_to_float(c->o[at + i * pitch + j]),
                         reference = p->o[i * dim + j];
            check_within(r, batch * local + first + i, head * dim + j, value, reference,
                         0x1p-8 * (fabs(reference) + p->size[i * dim + j]));
        }
}

int check_attention(const struct check_attention *c, const struct check_pace *pace,
                    struct check_result *result)
{
    const struct mk_attention *t = &c->problem;
    struct check_result mine = {.frobenius = CHECK_FAST};
    uint64_t all = t->sequence, local = mk_attention_rows(t, c->world, c->rank), dim = t->head_dim,
             pitch = t->kv_heads * dim;
    MK_FREED double *q = malloc(PANEL_ROWS * dim * sizeof *q), *k = malloc(all * dim * sizeof *k),
                    *v = malloc(all * dim * sizeof *v),
                    *v_size = malloc(all * dim * sizeof *v_size),
                    *scores = malloc(PANEL_ROWS * all * sizeof *scores),
                    *o = malloc(PANEL_ROWS * dim * sizeof *o),
                    *size = malloc(PANEL_ROWS * dim * sizeof *size);
    const struct panel p = {q, k, v, v_size, scores, o, size};
    double done = 0;
    int status = q && k && v && v_size && scores && o && size ? 0 : -ENOMEM;
    for (uint64_t i = 0; i < t->batch * t->heads && !status; i++) {
        uint64_t batch = i / t->heads, head = i % t->heads;
        uint64_t at = batch * all * pitch + head / (t->heads / t->kv_heads) * dim;
        check_attention_widen(k, c->k + at, all, dim, pitch);
        check_attention_widen(v, c->v + at, all, dim, pitch);
        for (uint64_t j = 0; j < all * dim; j++)
            v_size[j] = fabs(v[j]);
        for (uint64_t first = 0; first < local && !status; first += PANEL_ROWS) {
            check_panel(c, &p, batch, head, first,
                        local - first < PANEL_ROWS ? local - first : PANEL_ROWS, &mine);
            spawn_beat();
            status = check_meet(pace, 4.0 * PANEL_ROWS * (double)all * (double)dim, &done);
        }
    }
    if (!status)
        check_join(result, &mine);
    return status;
}
