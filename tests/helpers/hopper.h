/* What the tests over the emulated Hopper share. */
#pragma once

#include "core/base/bf16.h"
#include "sim/clock.h"
#include "sim/hopper/hopper.h"
#include "tests/engines/tiling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tests/engines/gemm.h, compiled for the emulated machine. */
int emulated_gemm_run(const void *a, const void *b, void *c, int64_t m, int64_t n, int64_t k,
                      int b_rows, struct gemm_tiling tiling, uint32_t sms, void *stream);

struct hopper_gemm {
    int64_t m, n, k;
    int kn; /* B is K x N */
    struct gemm_tiling tiling;
    uint32_t sms;
};

/* Small integers, nonzero, different in each row and column: sums are exact, and no order of them
 * rounds. */
static inline void hopper_fill(uint16_t *p, int64_t count, uint64_t seed)
{
    struct sim_random r = {sim_mix(seed)};
    for (int64_t i = 0; i < count; i++) {
        int v = (int)sim_random_below(&r, 6) - 3;
        p[i] = mk_bf16_from_float((float)(v >= 0 ? v + 1 : v));
    }
}

/* Where C is wrong: 0, or 1 with a sentence in `text`. */
static inline int hopper_gemm_judge(const struct hopper_gemm *g, const uint16_t *a,
                                    const uint16_t *b, const uint16_t *c, char *text, size_t size)
{
    float *row = malloc((size_t)g->n * sizeof *row),
          *wide = malloc((size_t)(g->n * g->k) * sizeof *wide);
    int wrong = !row || !wide;
    for (int64_t p = 0; !wrong && p < g->k; p++)
        for (int64_t j = 0; j < g->n; j++)
            wide[p * g->n + j] = mk_bf16_to_float(g->kn ? b[p * g->n + j] : b[j * g->k + p]);
    for (int64_t i = 0; !wrong && i < g->m; i++) {
        memset(row, 0, (size_t)g->n * sizeof *row);
        for (int64_t p = 0; p < g->k; p++) {
            float v = mk_bf16_to_float(a[i * g->k + p]);
            for (int64_t j = 0; j < g->n; j++)
                row[j] += v * wide[p * g->n + j];
        }
        for (int64_t j = 0; j < g->n && !wrong; j++)
            if (c[i * g->n + j] != mk_bf16_from_float(row[j])) {
                snprintf(text, size, "C[%lld][%lld] is %g and should be %g", (long long)i,
                         (long long)j, (double)mk_bf16_to_float(c[i * g->n + j]), (double)row[j]);
                wrong = 1;
            }
    }
    free(row);
    free(wide);
    return wrong;
}

/* Runs the engine on one order, mutated or not. 0: right; else what is wrong in `text`. */
static inline int hopper_gemm_mutated(const struct hopper_gemm *g, uint64_t seed,
                                      const struct hopper_mutation *mutations, uint32_t count,
                                      void (*sites)(void *, const struct hopper_site *, uint32_t),
                                      void *context, char *text, size_t size, uint64_t *hash)
{
    struct hopper *h;
    const struct hopper_config config = {.ranks = 1,
                                         .sms = g->sms,
                                         .seed = seed,
                                         .races = 1,
                                         .memory = (size_t)1 << 30,
                                         .mutations = mutations,
                                         .mutation_count = count,
                                         .max_steps = 2000000};
    if (hopper_create(&h, &config)) {
        snprintf(text, size, "no machine");
        return 1;
    }
    uint16_t *a = hopper_memory(h, (size_t)(g->m * g->k) * 2),
             *b = hopper_memory(h, (size_t)(g->n * g->k) * 2),
             *c = hopper_memory(h, (size_t)(g->m * g->n) * 2);
    hopper_fill(a, g->m * g->k, seed * 2);
    hopper_fill(b, g->n * g->k, seed * 2 + 1);
    memset(c, 0xff, (size_t)(g->m * g->n) * 2);
    int result = emulated_gemm_run(a, b, c, g->m, g->n, g->k, g->kn, g->tiling, 0, NULL);
    snprintf(text, size, "gemm_run says %d", result);
    if (!result && (result = hopper_run(h)))
        snprintf(text, size, "%s", hopper_error(h));
    if (!result)
        result = hopper_gemm_judge(g, a, b, c, text, size);
    if (hash)
        *hash = hopper_hash(h);
    uint32_t places;
    const struct hopper_site *found = hopper_sites(h, &places);
    if (sites)
        sites(context, found, places);
    hopper_destroy(h);
    return result;
}

static inline int hopper_gemm_run(const struct hopper_gemm *g, uint64_t seed, char *text,
                                  size_t size, uint64_t *hash)
{
    return hopper_gemm_mutated(g, seed, NULL, 0, NULL, NULL, text, size, hash);
}
