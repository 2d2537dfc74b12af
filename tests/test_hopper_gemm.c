/* The GEMM engine's own device code computes C = A B on the emulated Hopper, in every order that is
 * tried: each tile shape that is built, both layouts of B, shapes that no tile divides; a mistake
 * would be a wrong element or a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/helpers/hopper.h"

static const struct gemm_tiling tilings[] = {{128, 256, 2}, {256, 128, 2}, {128, 128, 2},
                                             {128, 128, 1}, {128, 64, 1},  {64, 64, 1}};
enum { TILINGS = sizeof tilings / sizeof *tilings };

static void right(const struct hopper_gemm *g, uint64_t seed)
{
    char text[1024];
    if (!hopper_gemm_run(g, seed, text, sizeof text, NULL))
        return;
    print_error("%lld,%lld,%lld %s tiles %ux%ux%u seed %d: %s\n", (long long)g->m, (long long)g->n,
                (long long)g->k, g->kn ? "kn" : "nk", g->tiling.tile_m, g->tiling.tile_n,
                g->tiling.cluster, (int)seed, text);
    fail();
}

static void every_tile(int kn)
{
    static const int64_t shapes[][3] = {{390, 200, 328}, {1, 8, 8}, {129, 264, 72}, {257, 72, 520}};
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t t = 0; t < TILINGS; t++) {
            const struct hopper_gemm g = {shapes[i][0], shapes[i][1], shapes[i][2],
                                          kn,           tilings[t],   2 + 2 * (i % 2)};
            right(&g, i * TILINGS + t);
        }
}

static void test_b_nk(void **state)
{
    every_tile(0);
}

static void test_b_kn(void **state)
{
    every_tile(1);
}

/* More stages of K than the ring has, and more tiles than CTAs: laps, and stores under the next
 * tile. */
static void test_orders(void **state)
{
    for (uint64_t seed = 0; seed < 24; seed++) {
        const struct hopper_gemm g = {260, 136, 392, (int)(seed & 1), tilings[seed % TILINGS], 2};
        right(&g, seed + 100);
    }
}

static void test_an_order_is_had_again(void **state)
{
    const struct hopper_gemm g = {130, 72, 136, 0, tilings[3], 2};
    char text[1024];
    uint64_t first, again, other;
    assert_int_equal(hopper_gemm_run(&g, 7, text, sizeof text, &first), 0);
    assert_int_equal(hopper_gemm_run(&g, 7, text, sizeof text, &again), 0);
    assert_int_equal(hopper_gemm_run(&g, 8, text, sizeof text, &other), 0);
    assert_true(first == again && first != other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_b_nk), cmocka_unit_test(test_b_kn),
                                       cmocka_unit_test(test_orders),
                                       cmocka_unit_test(test_an_order_is_had_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
