/* The GEMM engine's device code for e4m3 computes what its scales and codes say, on the emulated
 * Hopper, in every order that is tried: each tile shape that is built, shapes that no tile or block divides, scales from 2^-40 to 2^40; a NaN reaches its row
 * or its column and nothing else; and without any of its waits or fences something is wrong.
 * Numbers are such that sums are exact; what the tensor core's own sum does is
 * tests/gpu_conform.cu's. */
#include <math.h>

#include "tests/helpers/test.h"
#include "core/base/bf16.h"
#include "core/base/e4m3.h"
#include "core/base/random.h"
#include "tests/engines/tiling.h"
#include "sim/hopper/hopper.h"

/* tests/engines/gemm_fp8.h, compiled for the emulated machine. */
struct fp8 {
    const void *a, *b;
    void *c;
    int64_t m, n, k;
    const float *a_scales, *b_scales;
    int64_t a_stride, b_stride;
};
int emulated_gemm_fp8_run(const struct fp8 *g, struct gemm_tiling tiling, uint32_t sms,
                          void *stream);

static const struct gemm_tiling tilings[] = {{128, 256, 2}, {128, 256, 1}, {128, 128, 2},
                                             {128, 128, 1}, {128, 64, 1},  {64, 64, 1}};
enum { TILINGS = sizeof tilings / sizeof *tilings, NONE = -1 };

struct fp8_case {
    int64_t m, n, k;
    struct gemm_tiling tiling;
    int64_t nan_a, nan_b; /* element of A, of B, or NONE */
    int64_t nan_scale;    /* of A's */
};

/* Integers from -3 to 3 but 0. */
static uint8_t *codes(struct hopper *h, int64_t count, uint64_t seed, int64_t nan)
{
    static const uint8_t values[] = {0x38, 0x40, 0x44, 0xb8, 0xc0, 0xc4};
    uint8_t *p = hopper_memory(h, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        p[i] = values[mk_random(&seed) % 6];
    if (nan != NONE)
        p[nan] = 0x7f;
    return p;
}

/* Powers of two: from 2^-40 to 2^40 by group, times 1 or 2. */
static float *scales(struct hopper *h, int64_t groups, int64_t each, int64_t stride, int by_group,
                     uint64_t seed)
{
    int64_t count = by_group ? groups * stride : each * stride;
    float *p = hopper_memory(h, (size_t)(count + 3) / 4 * 16);
    for (int64_t i = 0; i < (count + 3) / 4 * 4; i++)
        p[i] = NAN;
    for (int64_t g = 0; g < groups; g++) {
        int exponent = (int)(mk_random(&seed) % 81) - 40;
        for (int64_t i = 0; i < each; i++)
            p[by_group ? g * stride + i : i * stride + g] =
                ldexpf(1, exponent / 2 * 2 + (int)(mk_random(&seed) % 2));
    }
    return p;
}

static double scale_a(const struct fp8 *g, int64_t row, int64_t k)
{
    return (double)g->a_scales[k / 128 * g->a_stride + row];
}

static double scale_b(const struct fp8 *g, int64_t column, int64_t k)
{
    return (double)g->b_scales[column / 128 * g->b_stride + k / 128];
}

static int judge(const struct fp8 *g, char *text, size_t size)
{
    const uint8_t *a = g->a, *b = g->b;
    const uint16_t *c = g->c;
    int value[256];
    for (int code = 0; code < 256; code++)
        value[code] = (code & 0x7f) == 0x7f ? 0 : (int)mk_e4m3_to_float((uint8_t)code);
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < g->k; p += 128) {
                int part = 0, none = 0;
                for (int64_t q = p; q < g->k && q < p + 128; q++) {
                    uint8_t x = a[i * g->k + q], y = b[j * g->k + q];
                    none |= x == 0x7f || y == 0x7f;
                    part += value[x] * value[y];
                }
                sum += (none ? (double)NAN : part) * (scale_a(g, i, p) * scale_b(g, j, p));
            }
            uint16_t is = c[i * g->n + j];
            int right =
                isnan(sum) ? isnan(mk_bf16_to_float(is)) : is == mk_bf16_from_float((float)sum);
            if (!right) {
                snprintf(text, size, "C[%d][%d] is %g and should be %g", (int)i, (int)j,
                         (double)mk_bf16_to_float(is), sum);
                return 1;
            }
        }
    return 0;
}

/* 0: right; else `text` says what is not. sites: the places that the run came to. */
static int run(const struct fp8_case *t, uint64_t seed, const struct hopper_mutation *mutation,
               struct hopper_site *sites, uint32_t *count, char *text, size_t size)
{
    struct hopper *h;
    const struct hopper_config config = {.ranks = 1,
                                         .sms = 2,
                                         .seed = seed,
                                         .races = 1,
                                         .memory = (size_t)1 << 30,
                                         .mutations = mutation,
                                         .mutation_count = mutation != NULL,
                                         .max_steps = 2000000};
    assert_int_equal(hopper_create(&h, &config), 0);
    int64_t blocks = (t->k + 127) / 128, wide = (t->n + 127) / 128;
    struct fp8 g = {codes(h, t->m * t->k, seed * 4, t->nan_a),
                    codes(h, t->n * t->k, seed * 4 + 1, t->nan_b),
                    hopper_memory(h, (size_t)(t->m * t->n) * 2),
                    t->m,
                    t->n,
                    t->k,
                    NULL,
                    NULL,
                    (t->m + 3) / 4 * 4,
                    (blocks + 3) / 4 * 4};
    g.a_scales = scales(h, t->m, blocks, g.a_stride, 0, seed * 4 + 2);
    g.b_scales = scales(h, wide, blocks, g.b_stride, 1, seed * 4 + 3);
    if (t->nan_scale != NONE)
        ((float *)(uintptr_t)g.a_scales)[t->nan_scale] = NAN;
    memset(g.c, 0xff, (size_t)(t->m * t->n) * 2);
    int result = emulated_gemm_fp8_run(&g, t->tiling, 0, NULL);
    snprintf(text, size, "gemm_fp8_run says %d", result);
    if (!result && (result = hopper_run(h)))
        snprintf(text, size, "%s", hopper_error(h));
    if (!result)
        result = judge(&g, text, size);
    if (sites) {
        uint32_t found;
        const struct hopper_site *all = hopper_sites(h, &found);
        *count = found < *count ? found : *count;
        memcpy(sites, all, *count * sizeof *sites);
    }
    hopper_destroy(h);
    return result;
}

static void right(const struct fp8_case *t, uint64_t seed)
{
    char text[1024];
    if (run(t, seed, NULL, NULL, NULL, text, sizeof text))
        fail_msg("%d,%d,%d tiles %ux%ux%u seed %d: %s", (int)t->m, (int)t->n, (int)t->k,
                 t->tiling.tile_m, t->tiling.tile_n, t->tiling.cluster, (int)seed, text);
}

CASE(test_every_tile)
{
    static const int64_t shapes[][3] = {{131, 264, 272}, {1, 8, 16}};
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t t = 0; t < TILINGS; t++) {
            const struct fp8_case c = {shapes[i][0], shapes[i][1], shapes[i][2], tilings[t],
                                       NONE,         NONE,         NONE};
            right(&c, i * TILINGS + t);
        }
}

/* More stages of K than the ring has, and more tiles than blocks. */
CASE(test_orders)
{
    for (uint64_t seed = 0; seed < 6; seed++) {
        const struct fp8_case c = {133, 264, 1296, tilings[seed % TILINGS], NONE, NONE, NONE};
        right(&c, seed + 100);
    }
}

/* An element of A, of B; a scale of one row and block. The judge wants all other elements whole. */
CASE(test_nan)
{
    for (uint32_t i = 0; i < 6; i++) {
        const struct fp8_case c = {70,
                                   72,
                                   400,
                                   i % 2 ? tilings[3] : tilings[5],
                                   i % 3 == 0 ? 37 * 400 + 390 : NONE,
                                   i % 3 == 1 ? 51 * 400 + 130 : NONE,
                                   i % 3 == 2 ? 2 * 70 + 66 : NONE};
        right(&c, 200 + i);
    }
}

CASE(test_refused)
{
    uint64_t data[64] = {0};
    float scale[4] = {1, 1, 1, 1};
    struct hopper *h;
    const struct hopper_config config = {.ranks = 1, .sms = 2, .memory = (size_t)1 << 24};
    assert_int_equal(hopper_create(&h, &config), 0);
    const struct fp8 good = {data, data, data, 1, 8, 16, scale, scale, 4, 1};
    for (int i = 0; i < 7; i++) {
        struct fp8 g = good;
        g.k = i == 0 ? 24 : 16;
        g.n = i == 1 ? 12 : 8;
        g.m = i == 2 ? 5 : 1; /* more rows than a block has scales */
        g.b_stride = i == 3 ? 0 : 1;
        g.a_scales = i == 4 ? NULL : i == 5 ? scale + 1 : scale;
        g.a = (uint8_t *)data + (i == 6 ? 8 : 0);
        assert_int_equal(emulated_gemm_fp8_run(&g, tilings[3], 0, NULL), -22);
    }
    const struct gemm_tiling unbuilt = {64, 32, 1};
    assert_int_equal(emulated_gemm_fp8_run(&good, unbuilt, 0, NULL), -22);
    hopper_destroy(h);
}

/* Each place of gemm_promote.cuh and of the copies of scales, left out or wrong. What is not seen
 * stands here with why. */
static int unseen(const struct hopper_site *s, uint32_t variant)
{
    /* The lanes have met at the wait before it, by which the warp's loads are over. */
    return s->what == HOPPER_P_SYNCWARP;
}

CASE(test_mutants)
{
    static struct hopper_site sites[512];
    uint32_t count = 512, tried = 0;
    char text[1024];
    const struct fp8_case c = {258, 72, 912, {128, 128, 2}, NONE, NONE, NONE};
    assert_int_equal(run(&c, 7, NULL, sites, &count, text, sizeof text), 0);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t v = 1; hopper_variant(sites[i].what, v); v++) {
            const struct hopper_mutation m = {sites[i], v};
            if (!strstr(sites[i].file, "gemm_promote") || unseen(&sites[i], v))
                continue;
            tried++;
            int caught = 0;
            for (uint64_t seed = 7; seed < 9 && !caught; seed++)
                caught = run(&c, seed, &m, NULL, NULL, text, sizeof text);
            if (!caught)
                fail_msg("nobody sees %s:%d, %s", sites[i].file, sites[i].line,
                         hopper_variant(sites[i].what, v));
        }
    print_message("%u mutants\n", tried);
    assert_true(tried >= 6);
}
