/* C against a reference that shares nothing with the executors: float64 dgemm over the whole
 * product. */
#pragma once

#include "core/base/bf16.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct reference {
    uint64_t m, n, k;
    double *a, *b, *c, *bound; /* bound: sum of |a||b| */
};

static void reference_free(struct reference *r)
{
    free(r->a);
    free(r->b);
    free(r->c);
    free(r->bound);
}

static int reference_make(struct reference *r, uint64_t m, uint64_t n, uint64_t k)
{
    *r = (struct reference){.m = m, .n = n, .k = k};
    r->a = malloc(m * k * sizeof(double));
    r->b = malloc(k * n * sizeof(double));
    r->c = malloc(m * n * sizeof(double));
    r->bound = malloc(m * n * sizeof(double));
    return r->a && r->b && r->c && r->bound ? 0 : -1;
}

/* C = A * B and the bound; B is [n, k] where transposed. */
static void reference_multiply(struct reference *r, const uint16_t *a, const uint16_t *b,
                               int transposed)
{
    uint64_t ldb = transposed ? r->k : r->n;
    for (int absolute = 0; absolute < 2; absolute++) {
        for (uint64_t i = 0; i < r->m * r->k; i++)
            r->a[i] = absolute ? fabs(r->a[i]) : (double)mk_bf16_to_float(a[i]);
        for (uint64_t i = 0; i < r->k * r->n; i++)
            r->b[i] = absolute ? fabs(r->b[i]) : (double)mk_bf16_to_float(b[i]);
        cblas_dgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, (int)r->m,
                    (int)r->n, (int)r->k, 1.0, r->a, (int)r->k, r->b, (int)ldb, 0.0,
                    absolute ? r->bound : r->c, (int)r->n);
    }
}

/* 0 where the relative Frobenius error is at most 2e-3 and every element is within 2^-8 |ref| (the
 * result's rounding to bf16, with a factor 2) + K 2^-23 sum |a||b| (fp32 additions in any order);
 * else 1 with a sentence. */
static int reference_compare(const struct reference *r, const uint16_t *c, char *text, size_t size)
{
    double difference2 = 0, norm2 = 0;
    for (uint64_t i = 0; i < r->m * r->n; i++) {
        double value = (double)mk_bf16_to_float(c[i]), error = fabs(value - r->c[i]);
        if (!(error <= ldexp(fabs(r->c[i]), -8) + (double)r->k * ldexp(r->bound[i], -23))) {
            snprintf(text, size, "C[%llu][%llu] is %g, should be %g",
                     (unsigned long long)(i / r->n), (unsigned long long)(i % r->n), value,
                     r->c[i]);
            return 1;
        }
        difference2 += error * error;
        norm2 += r->c[i] * r->c[i];
    }
    if (sqrt(difference2) > 2e-3 * sqrt(norm2)) {
        snprintf(text, size, "relative Frobenius error %g", sqrt(difference2 / norm2));
        return 1;
    }
    return 0;
}
